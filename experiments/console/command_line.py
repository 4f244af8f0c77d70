"""Execution of command lines, with errors in one line.

Exit codes are those of :mod:`experiments.console.exit_codes`, in every command.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import io
import os
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from experiments.console.exit_codes import (
    EXIT_BAD_INPUT,
    EXIT_BROKEN_PIPE,
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
)

if TYPE_CHECKING:
    import typer

_STDERR: Final = 2
_COMMAND: Final[ContextVar[str]] = ContextVar("_COMMAND", default="")


def command_text() -> str:
    """Return the running command line, quoted for a shell; empty outside of one."""
    return _COMMAND.get()


def run_command(load: Callable[[], typer.Typer], argv: Sequence[str] | None = None) -> int:
    """Run a command line and return the exit code.

    `load` returns the commands; Ctrl-C while they load is handled like later.
    """
    terminated = False

    def terminate(*_: object) -> None:
        # Like Ctrl-C, so that temporary files are removed.
        nonlocal terminated
        terminated = True
        raise KeyboardInterrupt

    if argv is None:
        _keep_errors_apart()
        signal.signal(signal.SIGTERM, terminate)
        # Imports and captures stay alive: garbage collection at Python's default rate takes a tenth
        # of the time of a plan.
        gc.set_threshold(10_000)
    if sys.stdout is None:
        return _fail("standard output is closed; give the answer somewhere to go")
    try:
        # Without a current folder native libraries abort the process.
        Path.cwd()
    except OSError as error:
        return _fail(f"the current folder cannot be used: {error.strerror}; change to another")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not os.environ.get("COLUMNS", "1").strip("0"):
        # Some shells set 0 for an unknown width, with which nothing would be printed.
        del os.environ["COLUMNS"]
    try:
        code = _run(load, argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    except BrokenPipeError:
        code = EXIT_BROKEN_PIPE
    except OSError as error:
        if argv is None:
            _forget_output()
        return _fail(_system_words(error))
    if code == EXIT_BROKEN_PIPE and argv is None:
        _forget_output()
    if code == EXIT_INTERRUPTED:
        if terminated:
            code = EXIT_TERMINATED
        print("terminated" if terminated else "interrupted", file=sys.stderr)
        if argv is None:
            # Native search threads must not outlive the interpreter's shutdown. Files are written
            # atomically, so nothing is lost.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return code


def _system_words(error: OSError) -> str:
    """Describe an error of the system; errors of given files are handled earlier."""
    why = error.strerror or str(error)
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN):
        return f"the system refuses to go on: {why}; free some, or raise its limit (ulimit -a)"
    if error.filename is not None:
        return f"cannot use {error.filename}: {why}; give another"
    return f"cannot write the answer: {why}; free its destination"


def _run(load: Callable[[], typer.Typer], argv: Sequence[str] | None) -> int:
    """Run the command named by `argv`, with refusals as one line."""
    import typer

    from experiments.console.usage import explain_usage, in_options
    from solver import PartitionError

    app = load()
    name = str(app.info.name)
    words = sys.argv[1:] if argv is None else argv
    _COMMAND.set(shlex.join([name, *words]))
    try:
        with warnings.catch_warnings():
            # torch's warnings about its internals are noise on the command line.
            warnings.simplefilter("ignore")
            given = None if argv is None else list(argv)
            code = _group(app)(args=given, prog_name=name, standalone_mode=False)
    except PartitionError as error:
        return _fail(in_options(str(error)))
    except typer.Abort:
        return EXIT_INTERRUPTED
    except SystemExit as error:
        # rich exits so when its output pipe is closed.
        if isinstance(error.__context__, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        raise
    except OSError:
        raise
    except Exception as error:
        # Usage errors have this method, in all releases of typer and click.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message())
            return EXIT_BAD_INPUT
        return _fail(explain_usage(error, message(), name, words))
    return int(code or EXIT_DONE)


@functools.cache
def _group(app: typer.Typer) -> Callable[..., Any]:
    import typer.main

    return typer.main.get_command(app)


class _Lossy(io.TextIOWrapper):
    """Text stream that drops text it cannot write, such as on a full disk.

    The raw file below the buffer is not written in Python: an interrupt between its write and its
    return would make the buffer write twice.
    """

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            super().flush()


def _keep_errors_apart() -> None:
    """Ignore errors of writing to stderr, and discard its output if it is closed.

    Otherwise a failed note would fail the command, or notes would go to standard output.
    """
    if sys.stderr is not sys.__stderr__:
        return  # replaced by the caller
    if sys.stderr is None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if nowhere != _STDERR:
            os.dup2(nowhere, _STDERR)
    encoding = getattr(sys.stderr, "encoding", None)
    sys.stderr = _Lossy(
        io.BufferedWriter(io.FileIO(_STDERR, "w", closefd=False)),
        encoding=encoding,
        errors="backslashreplace",
        line_buffering=True,
    )


def _forget_output() -> None:
    """Discard the last flush at the end of the process."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.__stdout__.fileno() if sys.__stdout__ else 1)


def _fail(message: str) -> int:
    from solver.model.text import one_line

    print(f"error: {one_line(message)}", file=sys.stderr)
    return EXIT_BAD_INPUT
