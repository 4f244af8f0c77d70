"""Worker processes with limits of time and memory for each job."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Self

import psutil  # type: ignore[import-untyped]

from experiments.processes.workers import WorkerProcess, exit_words
from solver import GiB, PartitionError

WORKER: Final = "experiments.sweep.worker"
_WATCH_S: Final = 0.05
_WAKE_LIMIT_S: Final = 120.0
_KEPT_SHARE: Final = 8
"""A worker that keeps more than this part of its limit is replaced: the memory of a cell must not
depend on earlier cells."""
_AHEAD: Final = 2
"""Jobs submitted per thread: problems are large, so not all jobs are queued at once."""


class _EndedError(Exception):
    """Raised for a job without an answer: its process ended, or was ended."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class LimitedWorker:
    """A process that answers one job after another, and is replaced when it ends.

    `module` is one of :mod:`experiments.processes.workers`. Once `closing` is set, jobs end without
    an answer.
    """

    def __init__(self, module: str, closing: threading.Event) -> None:
        self._module = module
        self._closing = closing
        self._process: WorkerProcess | None = None
        self._has_model = False
        self._idle_bytes = 0
        self._most_bytes = 0

    def run(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a job.

        Its ``limits`` are ``seconds`` of wall time, and resident ``memory_bytes`` of the process or
        null. Memory is sampled 20 times a second: allocations in between may exceed the limit. A
        job with a ``source`` builds a model; a process that has built one takes no job without.

        If the process ended, or was ended, the answer is ``ended`` with ``status`` (``timed out``,
        ``out of memory``, ``killed`` by a signal, ``failed``), ``reason``, ``wall_time_s`` and
        ``peak_rss_bytes``.
        """
        limits = job["limits"]
        if self._has_model and job["source"] is None:
            self.stop()
        try:
            self._wake()
        except _EndedError as ended:
            self.stop()
            raise PartitionError(f"no worker can be started: {ended}") from None
        self._has_model = job["source"] is not None
        started_s = time.monotonic()
        try:
            answer = self._ask(job, limits["seconds"], limits["memory_bytes"])
        except _EndedError as ended:
            self.stop()
            words = {
                "status": ended.status,
                "reason": str(ended),
                "wall_time_s": time.monotonic() - started_s,
                "peak_rss_bytes": self._most_bytes or None,
            }
            return {"ended": words}
        kept_bytes = self._rss_bytes() - self._idle_bytes
        if kept_bytes > (limits["memory_bytes"] or 8 * GiB) // _KEPT_SHARE:
            self.stop()
        return answer

    def stop(self) -> None:
        """End the process, if any; the next job starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.close()
            self._process = None

    def _wake(self) -> None:
        """Start a process and wait for its imports, which count for no job's time."""
        if self._process is None:
            self._process = WorkerProcess(self._module)
            answer = self._ask({"do": "wake"}, _WAKE_LIMIT_S, None)
            if "error" in answer:
                raise _EndedError("failed", answer["error"])
            self._idle_bytes = self._rss_bytes()

    def _ask(
        self, job: Mapping[str, Any], seconds: float, memory_bytes: int | None
    ) -> dict[str, Any]:
        """Return the answer to a job, or raise _EndedError."""
        assert self._process is not None
        deadline_s = time.monotonic() + seconds
        self._most_bytes = 0
        self._process.send(job)
        while True:
            with contextlib.suppress(queue.Empty):
                answer = self._process.answer(_WATCH_S)
                if answer is None:
                    raise self._ending()
                return answer
            self._most_bytes = max(self._most_bytes, self._rss_bytes())
            if self._closing.is_set():
                raise _EndedError("killed", "the sweep was interrupted")
            if memory_bytes is not None and self._most_bytes > memory_bytes:
                limit = f"{memory_bytes / GiB:.4g} GiB"
                raise _EndedError("out of memory", f"its process needs more than {limit}")
            if time.monotonic() > deadline_s:
                raise _EndedError("timed out", f"no answer after {seconds:g} s")

    def _ending(self) -> _EndedError:
        """Describe the end of a process that ended by itself."""
        assert self._process is not None
        code = self._process.exit_code()
        words = self._process.last_words()
        status = "killed" if code < 0 else "failed"
        ending = f"its process ended with {exit_words(code)}"
        return _EndedError(status, f"{ending}: {words}" if words else ending)

    def _rss_bytes(self) -> int:
        """Return the resident memory of the process, 0 if it has ended."""
        assert self._process is not None
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(self._process.pid).memory_info().rss)
        return 0


class WorkerPool:
    """As many threads as `jobs` with a worker process each; no process outlives the context.

    At most `width` jobs should be submitted at a time.
    """

    def __init__(self, jobs: int, module: str = WORKER) -> None:
        self.width = _AHEAD * jobs
        self._module = module
        self._closing = threading.Event()
        self._own = threading.local()
        self._workers: list[LimitedWorker] = []
        self._threads = ThreadPoolExecutor(jobs, thread_name_prefix="cell")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._closing.set()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers:
            worker.stop()

    def submit(self, job: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """Queue a job for the next free worker; see :meth:`LimitedWorker.run`."""
        return self._threads.submit(self._run, job)

    def _run(self, job: Mapping[str, Any]) -> dict[str, Any]:
        worker: LimitedWorker | None = getattr(self._own, "worker", None)
        if worker is None:
            worker = self._own.worker = LimitedWorker(self._module, self._closing)
            self._workers.append(worker)
        return worker.run(job)
