"""Worker processes that never outlive this process.

A worker is a module run as ``python -m MODULE``: it reads jobs from standard input and writes
answers to standard output, one line of JSON each. It ends when its input does, even if its parent
was killed.
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
from typing import IO, Any, Final, Self

from solver import PartitionError

_STEP_S: Final = 0.2
_GRACE_S: Final = 5.0
_LAST_WORDS: Final = 2000


class WorkerProcess:
    """One process of a module, with the threads that torch and linear algebra may use."""

    def __init__(self, module: str, *, threads: int = 1) -> None:
        environment = {
            "TRANSFORMERS_VERBOSITY": "error",
            # All processes are on this machine, whose other addresses may be unreachable.
            **({"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}),
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join(filter(None, map(os.path.abspath, sys.path))),
        }
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - see close
        self._heard_bytes = 0
        self._process = subprocess.Popen(
            # -P: an `experiments` folder in the current folder must not shadow this one.
            [sys.executable, "-P", "-W", "ignore", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=environment,
            # Ctrl-C reaches the parent alone, which stops the worker.
            start_new_session=True,
        )
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(
            target=_read_lines, args=(self._process.stdout, self._answers), daemon=True
        ).start()

    @property
    def pid(self) -> int:
        """Id of the process, which leads its own session."""
        return self._process.pid

    def send(self, job: Mapping[str, Any]) -> None:
        """Send a job; if the worker has ended, `answer` returns None."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next answer, None if the worker has ended; raise queue.Empty if it is late."""
        line = self._answers.get(timeout=timeout_s)
        if line is None:
            return None
        # `last_words` must not return output of an earlier job.
        self._heard_bytes = os.fstat(self._errors.fileno()).st_size
        answer: dict[str, Any] = json.loads(line)
        return answer

    def exit_code(self) -> int:
        """Wait for the end of the process; return its code, negative for a signal."""
        return self._process.wait()

    def last_words(self) -> str:
        """Return the last line that an ended worker wrote to stderr in its last job."""
        self._errors.seek(self._heard_bytes)
        lines = [line.strip() for line in self._errors.read()[-_LAST_WORDS:].splitlines()]
        return next((line for line in reversed(lines) if line), "")

    def kill(self) -> None:
        """Kill the process and its children."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()

    def close(self) -> None:
        """Wait for a killed process, and close its streams."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    stream.close()
        self._errors.close()


def exit_words(code: int) -> str:
    """Return the exit of a process in words."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class WorkerGroup:
    """Processes of one module, as a context manager that ends them.

    `time_limit_s` is in wall seconds, for the whole life of the group.
    """

    def __init__(self, module: str, count: int, *, time_limit_s: float, threads: int = 1) -> None:
        self._module = module
        self.count = count
        self.threads = threads
        self._limit_s = time_limit_s
        self._deadline_s = time.monotonic() + time_limit_s
        self._processes: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        try:
            for _ in range(self.count):
                self._processes.append(WorkerProcess(self._module, threads=self.threads))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ask(self, jobs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Send every worker its job, and return their answers.

        An error names a worker that fails, ends early, or is late, with its own message.
        """
        for process, job in zip(self._processes, jobs, strict=True):
            process.send(job)
        found: dict[int, dict[str, Any]] = {}
        while len(found) < self.count:
            for index, process in enumerate(self._processes):
                if index in found:
                    continue
                with contextlib.suppress(queue.Empty):
                    # With a timeout, to handle Ctrl-C and other workers.
                    answer = process.answer(_STEP_S if not found else _STEP_S / 4)
                    found[index] = self._checked(index, answer)
            if time.monotonic() > self._deadline_s:
                late = min(set(range(self.count)) - set(found))
                raise PartitionError(
                    f"{self._who(late)} has no answer after {self._limit_s:g} s; give more time"
                )
        return [found[index] for index in range(self.count)]

    def _checked(self, index: int, answer: dict[str, Any] | None) -> dict[str, Any]:
        if answer is not None:
            if "error" not in answer:
                return answer
            if answer["is_input"]:
                raise PartitionError(answer["error"])
            raise PartitionError(f"{self._who(index)} failed: {answer['error']}")
        process = self._processes[index]
        ending = exit_words(process.exit_code())
        words = process.last_words()
        raise PartitionError(
            f"{self._who(index)} ended with {ending}{f': {words}' if words else ''}"
        )

    def _who(self, index: int) -> str:
        return f"process {index} of {self.count} ({self._module})"

    def stop(self) -> None:
        """End all processes."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.close()


def _read_lines(stream: IO[str] | None, answers: queue.SimpleQueue[str | None]) -> None:
    assert stream is not None
    with contextlib.suppress(ValueError):  # closed while it was read
        for line in stream:
            answers.put(line)
    answers.put(None)


def serve(handle: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Answer the jobs of the parent until it ends, as the main loop of a worker."""
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
    """Reserve standard output for answers; prints of models and native code go to stderr."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        yield answers


def _jobs() -> Iterator[dict[str, Any]]:
    """Read jobs on a thread, which ends this process at the end of input."""
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            jobs.put(line)
        # The parent is gone, even if this process is inside native code.
        if os.getpgrp() == os.getpid():
            # Also kill the children of this worker.
            os.killpg(0, signal.SIGKILL)
        os._exit(0)

    threading.Thread(target=read, daemon=True, name="jobs").start()
    while True:
        yield json.loads(jobs.get())
