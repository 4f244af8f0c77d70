"""Processes that work for this one and end with it, whatever ends it.

A worker is a module run as ``python -m MODULE``: it reads jobs from standard input and writes
answers to standard output, one line of JSON each. It ends when its input does, so none outlives
its parent, even one that was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import IO, Any, Final

from solver import PartitionError

_STEP_S: Final = 0.2
_GRACE_S: Final = 5.0
_LAST_WORDS: Final = 2000


class WorkerGroup:
    """Processes of one module; a context manager that leaves none behind.

    Parameters
    ----------
    module : str
        Such as ``"experiments.profile_worker"``.
    count : int
    time_limit_s : float
        Of the clock, for everything that the group does.
    threads : int
        Of each process.

    Raises
    ------
    PartitionError
        By `receive` if a worker fails, ends early, or is late; it names the worker, and says in
        the worker's own words why.
    """

    def __init__(self, module: str, count: int, *, time_limit_s: float, threads: int = 1) -> None:
        self._module = module
        self._count = count
        self._threads = threads
        self._limit_s = time_limit_s
        self._deadline_s = time.monotonic() + time_limit_s
        self._processes: list[subprocess.Popen[str]] = []
        self._errors: list[IO[str]] = []
        self._answers: list[queue.SimpleQueue[str | None]] = []

    def __enter__(self) -> WorkerGroup:
        try:
            for _ in range(self._count):
                self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _start(self) -> None:
        threads = str(self._threads)
        environment = {
            "TRANSFORMERS_VERBOSITY": "error",
            # The processes are on this machine: another address of it may not be reachable.
            **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
            **os.environ,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "PYTHONPATH": os.pathsep.join(filter(None, map(os.path.abspath, sys.path))),
        }
        errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed by _stop
        self._errors.append(errors)
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            # Ctrl-C reaches this process alone, which ends the group.
            start_new_session=True,
        )
        self._processes.append(process)
        answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._answers.append(answers)
        threading.Thread(
            target=_read_lines, args=(process.stdout, answers), daemon=True, name="answers"
        ).start()

    def send(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Give every worker its job."""
        for process, job in zip(self._processes, jobs, strict=True):
            assert process.stdin is not None
            # A worker that is gone is told of by `receive`.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(job) + "\n")
                process.stdin.flush()

    def receive(self) -> list[dict[str, Any]]:
        """Return the next answer of every worker, in their order."""
        found: dict[int, dict[str, Any]] = {}
        while len(found) < self._count:
            for index, answers in enumerate(self._answers):
                if index in found:
                    continue
                with contextlib.suppress(queue.Empty):
                    # Not without an end: this thread must hear of Ctrl-C, and of other workers.
                    line = answers.get(timeout=_STEP_S if not found else _STEP_S / 4)
                    found[index] = self._answer(index, line)
            if time.monotonic() > self._deadline_s:
                late = min(set(range(self._count)) - set(found))
                raise PartitionError(
                    f"{self._who(late)} has no answer after {self._limit_s:g} s; give more time"
                )
        return [found[index] for index in range(self._count)]

    def ask(self, jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Give every worker its job, and return their answers."""
        self.send(jobs)
        return self.receive()

    def _answer(self, index: int, line: str | None) -> dict[str, Any]:
        if line is not None:
            answer: dict[str, Any] = json.loads(line)
            if "error" not in answer:
                return answer
            if answer["is_input"]:
                raise PartitionError(answer["error"])
            raise PartitionError(f"{self._who(index)} failed: {answer['error']}")
        code = self._processes[index].wait()
        name = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        raise PartitionError(f"{self._who(index)} ended with {name}{self._last_words(index)}")

    def _who(self, index: int) -> str:
        return f"process {index} of {self._count} ({self._module})"

    def _last_words(self, index: int) -> str:
        errors = self._errors[index]
        errors.seek(0)
        lines = [line.strip() for line in errors.read()[-_LAST_WORDS:].splitlines()]
        return next((f": {line}" for line in reversed(lines) if line), "")

    def _stop(self) -> None:
        for process in self._processes:
            # The whole session: whatever the worker has started ends too.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError, ValueError):
                    if stream is not None:
                        stream.close()
        for errors in self._errors:
            errors.close()


def _read_lines(stream: IO[str] | None, answers: queue.SimpleQueue[str | None]) -> None:
    assert stream is not None
    with contextlib.suppress(ValueError):  # closed while it was read
        for line in stream:
            answers.put(line)
    answers.put(None)


def serve(handle: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Answer the jobs of the parent until it ends: the main loop of a worker.

    Parameters
    ----------
    handle : callable
        Takes a job, returns its answer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with _private_output() as answers:
        for job in _jobs():
            try:
                answer = dict(handle(job))
            except Exception as error:
                traceback.print_exc()
                text = " ".join(str(error).split()) or type(error).__name__
                known = isinstance(error, PartitionError)
                text = text if known else f"{type(error).__name__}: {text}"
                answer = {"error": text, "is_input": known}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


@contextlib.contextmanager
def _private_output() -> Iterator[IO[str]]:
    """Keep standard output for answers; what models and native code print goes to stderr."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        yield answers


def _jobs() -> Iterator[dict[str, Any]]:
    """Read jobs on a thread of their own, which ends this process when there are no more."""
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            jobs.put(line)
        # The parent is gone. In the midst of native code, nothing else would notice.
        os._exit(0)

    threading.Thread(target=read, daemon=True, name="jobs").start()
    while True:
        yield json.loads(jobs.get())
