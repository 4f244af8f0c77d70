"""What a process of a run is told, by the command line and by torchrun; loads no torch."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from solver import PartitionError
from solver.model.training import Schedule

_WANTED: Final = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_LAUNCHER_S: Final = 5.0
_AGAIN_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What the command line says.

    Attributes
    ----------
    plan_file, model : str
        Path of a saved plan, and the model as a person names it.
    weights : str or None
        Folder of stage files; None makes the model with its random weights in every process.
    schedule : str
        ``"gpipe"`` or ``"1f1b"``.
    microbatches : int or None
        None for as many as there are devices.
    steps : int
        How many to run.
    train : bool
        Run backward passes and the optimiser too.
    optimizer : str
        Of training; a name that torch has too, such as ``"adamw"``.
    learning_rate : float
        Of `optimizer`.
    tied_weights : str
        What becomes of weights with copies on several ranks; see
        :func:`~fx_bridge.pipeline.build.build_pipeline_stage`.
    device : str or None
        Instead of those of the plan: ``"cpu"``, or ``"cuda"`` for the device of the number of
        the process on its host.
    timeout_s : float
        Longest wait for another process.
    check : bool
        Compare with a single process.
    as_json : bool
        Print the reports as JSON instead of a table.
    """

    plan_file: str
    model: str
    weights: str | None = None
    schedule: Schedule = "1f1b"
    microbatches: int | None = None
    steps: int = 5
    train: bool = False
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    tied_weights: Literal["colocate", "sum"] = "colocate"
    device: str | None = None
    timeout_s: float = 600.0
    check: bool = False
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """What torchrun tells a process.

    Attributes
    ----------
    rank, world_size : int
        Of all processes.
    local_rank, local_world_size : int
        Of those on this host.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Launch:
        """Read what torchrun wrote.

        Raises
        ------
        PartitionError
            If it did not start this process.
        """
        missing = [name for name in _WANTED if not environment.get(name)]
        if missing:
            raise PartitionError(
                f"this process was not started by torchrun ({missing[0]} is not set); write "
                "torchrun --nproc_per_node=2 -m experiments.run_pipeline plan.json MODEL …, with "
                "as many processes as the plan has devices"
            )
        try:
            return cls(*(int(environment[name]) for name in _WANTED[:4]))
        except ValueError as error:
            raise PartitionError(
                f"torchrun's environment is damaged: {error}; start by torchrun"
            ) from None

    def check_launcher(self) -> None:
        """Raise PartitionError if torchrun, which keeps the store of the run, is gone.

        Torch would try to reach it for as long as it waits for other processes.
        """
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            return  # a process of the run keeps it, and may still have to start
        host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
        deadline_s = time.monotonic() + _LAUNCHER_S
        while True:
            try:
                socket.create_connection((host, int(port)), _LAUNCHER_S).close()
                return
            except (OSError, ValueError, OverflowError) as error:
                if time.monotonic() > deadline_s:
                    raise PartitionError(
                        f"torchrun does not answer at {host}:{port} ({error}): it is gone, or a "
                        "firewall is between; start the run again"
                    ) from None
            time.sleep(_AGAIN_S)
