"""Where jobs run: on threads with a process each, or on a Dask cluster.

A job is a function from text to text, so that any :class:`concurrent.futures.Executor` will do.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import socket
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from experiments.sweep.limited import WORKER, WorkerPool
from solver import PartitionError

_CONNECT_LIMIT_S: Final = 10
_AHEAD: Final = 2
"""Jobs handed out for each that runs: problems are large, so not all of them at once."""


@dataclass(frozen=True, slots=True)
class JobRunner:
    """An executor with what it runs.

    Attributes
    ----------
    executor : Executor
        Of ``concurrent.futures``, or of a cluster.
    run : callable
        Takes a job, returns its answer.
    width : callable
        How many jobs may be handed out at a time.
    check : callable
        Raises PartitionError if the executor is gone.
    lost : tuple of type
        What the future of a job raises that was lost with what ran it, again and again.
    """

    executor: Executor
    run: Callable[[str], str]
    width: Callable[[], int]
    check: Callable[[], None]
    lost: tuple[type[BaseException], ...] = ()

    def submit(self, job_text: str) -> Future[str]:
        """Hand out a job."""
        return self.executor.submit(self.run, job_text)


@contextlib.contextmanager
def local_runner(jobs: int, module: str = WORKER) -> Iterator[JobRunner]:
    """Run jobs on this machine, `jobs` at a time; no process outlives the context."""
    pool = WorkerPool(module)
    threads = ThreadPoolExecutor(jobs, thread_name_prefix="cell")
    try:
        yield JobRunner(threads, pool.run, lambda: _AHEAD * jobs, lambda: None)
    finally:
        pool.interrupt()
        threads.shutdown(wait=True, cancel_futures=True)
        pool.stop()


@contextlib.contextmanager
def cluster_runner(address: str, module: str = WORKER) -> Iterator[JobRunner]:
    """Run jobs on the workers of a Dask scheduler, which run them in processes as here.

    Raises
    ------
    PartitionError
        If `distributed` is not installed, no scheduler answers at `address`, or it has no workers.
    """
    try:
        # Its functions have types in part only.
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise PartitionError(
            '--cluster needs distributed; install it: pip install "fxpartition[cluster]"'
        ) from None
    # First by hand: what a client that could not connect leaves behind may block the next one
    # (it closes itself while garbage is collected, and waits there for a lock that is held).
    _check_listening(address)
    try:
        client = distributed.Client(address, timeout=_CONNECT_LIMIT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise PartitionError(f"no Dask scheduler answers at {address!r}: {error}") from None

    def threads() -> int:
        # Of a scheduler that is gone, `check` tells.
        with contextlib.suppress(OSError):
            return sum(client.nthreads().values())
        return 0

    if not threads():
        client.close()
        raise PartitionError(
            f"the Dask scheduler at {address!r} has no workers; start some: dask worker {address}"
        )

    def check() -> None:
        if client.status != "running":
            raise PartitionError(
                f"the Dask scheduler at {address!r} is gone; start it, and sweep again: what was "
                "done is kept"
            )

    # A cell is not a pure function of its text: its seconds differ.
    executor = client.get_executor(pure=False)
    try:
        yield JobRunner(
            executor,
            functools.partial(run_on_cluster, module=module),
            lambda: _AHEAD * max(1, threads()),
            check,
            (distributed.KilledWorker,),
        )
    finally:
        with contextlib.suppress(Exception):
            executor.shutdown(wait=False)
        client.close(timeout=2)


def _check_listening(address: str) -> None:
    """Raise PartitionError unless a process listens at an address."""
    example = "write for example --cluster tcp://host:8786"
    try:
        parts = urllib.parse.urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port or parts.scheme not in ("tcp", "tls"):
        raise PartitionError(f"{address!r} is not the address of a Dask scheduler; {example}")
    try:
        socket.create_connection((host, port), _CONNECT_LIMIT_S).close()
    except (OSError, ValueError) as error:
        raise PartitionError(
            f"no Dask scheduler answers at {address!r}: {error}; start it, or {example}"
        ) from None


_POOLS: Final[dict[str, WorkerPool]] = {}


def run_on_cluster(job_text: str, module: str = WORKER) -> str:
    """Answer a job in a process of this Dask worker, whose threads keep theirs."""
    return _POOLS.setdefault(module, WorkerPool(module)).run(job_text)
