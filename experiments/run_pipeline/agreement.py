"""Exchange of problems between the processes of a run, before they start to work.

A process that ends by itself leaves the others waiting, and its launcher stops them before they can
report. So each process sends its problem to the others through the store of the launcher, and all
end together, one of them with the message.
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
    """Raised in all processes for a problem of one; `message` is None if another prints it."""

    def __init__(self, message: str | None) -> None:
        super().__init__(message)
        self.message = message


class Agreement:
    """An exchange of plain data between processes through a key-value store.

    `timeout` is the longest wait for another process.
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

    def exchange(self, key: str, value: Any) -> list[Any]:
        """Return the values of all processes, by rank, under a key that is used only once.

        Raises PartitionError if another process does not answer in time.
        """
        self.store.set(f"{key}/{self.launch.rank}", json.dumps(value))
        return [self._read(key, rank) for rank in range(self.launch.world_size)]

    def gather(self, key: str, value: Any) -> list[Any]:
        """Return :meth:`exchange` in the first process; in others nothing, without a wait."""
        if self.launch.rank == 0:
            return self.exchange(key, value)
        self.store.set(f"{key}/{self.launch.rank}", json.dumps(value))
        return []

    def agree(self, problem: str | None) -> None:
        """Raise RefusedError in all processes if one has a problem, given in one line.

        The first of several with the same problem prints it.
        """
        problems = self.exchange("problem", problem)
        if not any(problems):
            return
        message = None
        if problem is not None and problems.index(problem) == self.launch.rank:
            everywhere = all(other == problem for other in problems)
            message = problem if everywhere else f"rank {self.launch.rank}: {problem}"
        raise RefusedError(message)

    def is_first_to_report(self) -> bool:
        """Return True for the first call of all processes.

        It uses its own connection, since another thread may wait on that of the store.
        """
        with contextlib.suppress(RuntimeError):
            return bool(self.store.clone().add("said", 1) == 1)
        # The store has ended with the launcher.
        return True

    def _read(self, key: str, rank: int) -> Any:
        try:
            return json.loads(self.store.get(f"{key}/{rank}"))
        except RuntimeError as error:
            raise PartitionError(
                f"rank {rank} does not answer ({first_line(error)}); see what it said"
            ) from None


def _store(launch: Launch, timeout: datetime.timedelta) -> Any:
    """Return the store of torchrun or, under another launcher, of the first process."""
    is_here = launch.is_on_one_host and os.environ["MASTER_ADDR"] in ("localhost", HOST)
    if is_here and launch.rank == 0 and not launch.has_agent_store:
        return loopback_store(int(os.environ["MASTER_PORT"]), timeout)
    found = rendezvous("env://", launch.rank, launch.world_size, timeout=timeout)
    store, _, _ = next(found)
    return store


def first_line(error: BaseException) -> str:
    """Return the first sentence of an error of torch, without its source location."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    line = line.rpartition("] ")[2] if line.startswith("[") else line
    return line.partition(". ")[0].rstrip(".")
