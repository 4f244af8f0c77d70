"""Let all processes of a run know what is wrong in any of them, before they start to work.

A process that finds something wrong and ends leaves the others waiting, and its launcher stops
them before they can say anything. So each tells the others through the store of the launcher,
and all end at once, one of them with the message.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
from typing import Any

from torch.distributed.rendezvous import rendezvous

from experiments.pipelines.loopback import HOST, loopback_store
from experiments.run_pipeline.launch import Launch
from solver import PartitionError


class RefusedError(Exception):
    """Some process found something wrong, and it was said.

    Attributes
    ----------
    said : tuple of str
        What this process is to print: empty where another one prints it.
    """

    def __init__(self, said: tuple[str, ...]) -> None:
        super().__init__(*said)
        self.said = said


class Agreement:
    """Processes that tell each other plain data through a key-value store.

    Parameters
    ----------
    launch : Launch
        Rank, number of processes, and where their store is.
    timeout : datetime.timedelta
        Longest wait for the others.
    """

    def __init__(self, launch: Launch, timeout: datetime.timedelta) -> None:
        self.launch = launch
        try:
            self.store = _store(launch, timeout)
        except (OSError, RuntimeError, ValueError) as error:
            raise PartitionError(
                f"cannot reach torchrun at {os.environ['MASTER_ADDR']}:"
                f"{os.environ['MASTER_PORT']}: {first_line(error)}; start all hosts with the same "
                "--rdzv_endpoint"
            ) from None

    def exchange(self, what: str, mine: Any) -> list[Any]:
        """Return what every process gives under the name `what`, by rank.

        Parameters
        ----------
        what : str
            A name that is used once.

        Raises
        ------
        PartitionError
            If one of the others does not answer in time.
        """
        self.store.set(f"{what}/{self.launch.rank}", json.dumps(mine))
        return [self._read(what, rank) for rank in range(self.launch.world_size)]

    def gather(self, what: str, mine: Any) -> list[Any]:
        """Return what :meth:`exchange` does in the first process; in others nothing, at once."""
        if self.launch.rank == 0:
            return self.exchange(what, mine)
        self.store.set(f"{what}/{self.launch.rank}", json.dumps(mine))
        return []

    def agree(self, problem: str | None) -> None:
        """Return if no process has a problem.

        Parameters
        ----------
        problem : str or None
            What is wrong here, in one line.

        Raises
        ------
        RefusedError
            Otherwise, in all processes. What several of them say is printed by the first.
        """
        problems = self.exchange("problem", problem)
        if not any(problems):
            return
        mine = problem is not None and problems.index(problem) == self.launch.rank
        said: tuple[str, ...] = ()
        if mine:
            everywhere = all(other == problem for other in problems)
            where = "" if everywhere else f"rank {self.launch.rank}: "
            said = (f"{where}{problem}",)
        raise RefusedError(said)

    def is_first_to_say(self) -> bool:
        """Return whether no other process has asked this before.

        On a connection of its own: another thread may wait on that of the store.
        """
        with contextlib.suppress(RuntimeError):
            return bool(self.store.clone().add("said", 1) == 1)
        # The launcher has ended, and with it the store.
        return True

    def _read(self, what: str, rank: int) -> Any:
        try:
            return json.loads(self.store.get(f"{what}/{rank}"))
        except RuntimeError as error:
            raise PartitionError(
                f"rank {rank} does not answer ({first_line(error)}); see what it said"
            ) from None


def _store(launch: Launch, timeout: datetime.timedelta) -> Any:
    """Return the store of torchrun, or of the first process where another launcher is."""
    is_here = launch.is_on_one_host and os.environ["MASTER_ADDR"] in ("localhost", HOST)
    if is_here and launch.rank == 0 and not launch.has_agent_store:
        return loopback_store(int(os.environ["MASTER_PORT"]), timeout)
    found = rendezvous("env://", launch.rank, launch.world_size, timeout=timeout)
    store, _, _ = next(found)
    return store


def first_line(error: BaseException) -> str:
    """Return the first sentence of an error of torch, without the line of its source."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    line = line.rpartition("] ")[2] if line.startswith("[") else line
    return line.partition(". ")[0].rstrip(".")
