"""The options of a run and its launch by torchrun, read without torch."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import typer

from experiments.commands.options import PLAN_FILE, BuiltModelArgument, JsonOption
from fx_bridge.choices import TiedReaders
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
    """The options of the command line."""

    plan_file: Annotated[str, typer.Argument(**PLAN_FILE)]
    model: BuiltModelArgument
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder that fxpartition split --out wrote: the manifest, the inputs, and the "
            "files of this host's stages. Without it every process makes the whole model.",
        ),
    ] = None
    schedule: Annotated[Schedule, typer.Option(help="Order of forward and backward passes.")] = (
        "1f1b"
    )
    microbatches: Annotated[
        int | None,
        typer.Option(min=1, help="In a step, each like the example inputs; one a device."),
    ] = None
    steps: Annotated[int, typer.Option(min=1, help="How many.")] = 5
    train: Annotated[
        bool,
        typer.Option(
            "--train",
            help="Also run backward and an optimizer. The loss is the model's own if it returns "
            "one, else the mean square of its outputs.",
        ),
    ] = False
    optimizer: Annotated[Literal["adamw", "sgd"], typer.Option(help="Of --train.")] = "adamw"
    learning_rate: Annotated[float, typer.Option("--lr", min=0.0, help="Learning rate.")] = 1e-3
    tied_weights: Annotated[
        TiedReaders,
        typer.Option(
            help="Refuse trained weights that several processes hold, or sum their gradients."
        ),
    ] = "colocate"
    device: Annotated[
        str | None,
        typer.Option(
            help="cpu or cuda, instead of the devices of the plan: cuda takes the one of the "
            "number of the process on its host."
        ),
    ] = None
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=1.0, help="Seconds to wait for another process.")
    ] = 600.0
    check: Annotated[
        bool,
        typer.Option("--check", help="Compare with a single process, on the last one of these."),
    ] = False
    as_json: JsonOption = False


@dataclass(frozen=True, slots=True)
class Launch:
    """The ranks that torchrun gives a process, among all and among those on this host."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Launch:
        """Read the environment variables of torchrun.

        Raises PartitionError if it did not start this process.
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

    @property
    def is_on_one_host(self) -> bool:
        """True if all processes are on this host."""
        return self.local_world_size == self.world_size

    @property
    def has_agent_store(self) -> bool:
        """True if torchrun hosts the store of the run."""
        return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"

    def check_launcher(self) -> None:
        """Raise PartitionError if torchrun, which hosts the store of the run, has ended.

        torch would try to reach it until its timeout.
        """
        if not self.has_agent_store:
            return  # a process of the run hosts it, and may still have to start
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
