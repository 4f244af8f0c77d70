"""Runs what a person wrote on a command line, and says in one line what is wrong with it.

Exit codes are those of :mod:`experiments.console.exit_codes`, in every command.
"""

from __future__ import annotations

import contextlib
import errno
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
from typing import TYPE_CHECKING, Final

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
    """Return the command line that runs, as a shell takes it; empty outside of one."""
    return _COMMAND.get()


def run_command(load: Callable[[], typer.Typer], argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Parameters
    ----------
    load : callable
        Returns the commands, called as a person calls the program. A person who presses Ctrl-C
        while they load gets one line, too.

    Returns
    -------
    int
        The exit code.
    """
    terminated = False

    def terminate(*_: object) -> None:
        # As with Ctrl-C: temporary files are removed on the way out.
        nonlocal terminated
        terminated = True
        raise KeyboardInterrupt

    if argv is None:
        _keep_errors_apart()
        signal.signal(signal.SIGTERM, terminate)
        # What is imported and captured stays: to look for garbage as often as Python does takes a
        # tenth of the time of a plan.
        gc.set_threshold(10_000)
    if sys.stdout is None:
        return _fail("standard output is closed; give the answer somewhere to go")
    try:
        # Else native libraries end the process, since they do not find their own parts.
        Path.cwd()
    except OSError as error:
        return _fail(f"the current folder cannot be used: {error.strerror}; change to another")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    if not os.environ.get("COLUMNS", "1").strip("0"):
        # Some shells say so where they know no width; nothing would be printed.
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
            # A search may still run in native threads, which must not see Python shut down.
            # Nothing is lost: files are written whole or not at all.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return code


def run_script(name: str, command: Callable[..., None], argv: Sequence[str] | None = None) -> int:
    """Run a program that is one command, as :func:`run_command` does.

    Parameters
    ----------
    name : str
        As a person calls it, such as ``python -m experiments.paper``.
    command : callable
        Its parameters are annotated as typer reads them.
    """
    import typer

    app = typer.Typer(name=name, add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    return run_command(lambda: app, argv)


def _system_words(error: OSError) -> str:
    """Return what the system refused; what is wrong with files that were given is said before."""
    why = error.strerror or str(error)
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN):
        return f"the system refuses to go on: {why}; free some, or raise its limit (ulimit -a)"
    if error.filename is not None:
        return f"cannot use {error.filename}: {why}; give another"
    return f"cannot write the answer: {why}; free its destination"


def _run(load: Callable[[], typer.Typer], argv: Sequence[str] | None) -> int:
    """Run the command that `argv` names; whatever it refuses is one line."""
    import typer
    import typer.main

    from experiments.console.usage import explain_usage, in_options
    from solver import PartitionError

    app = load()
    name = str(app.info.name)
    words = sys.argv[1:] if argv is None else argv
    _COMMAND.set(shlex.join([name, *words]))
    try:
        with warnings.catch_warnings():
            # Warnings of torch about its own insides are noise to a person at the command line.
            warnings.simplefilter("ignore")
            given = None if argv is None else list(argv)
            command = typer.main.get_command(app)
            code = command(args=given, prog_name=name, standalone_mode=False)
    except PartitionError as error:
        return _fail(in_options(str(error)))
    except typer.Abort:
        return EXIT_INTERRUPTED
    except SystemExit as error:
        # So ends rich when whoever reads its tables and help stops reading.
        if isinstance(error.__context__, BrokenPipeError):
            return EXIT_BROKEN_PIPE
        raise
    except OSError:
        raise
    except Exception as error:
        # What typer finds wrong with the options has a message of its own, whichever release
        # of typer or click defines the class.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message())
            return EXIT_BAD_INPUT
        return _fail(explain_usage(error, message(), name, words))
    return int(code or EXIT_DONE)


class _Lossy(io.TextIOWrapper):
    """Text that is lost where it cannot be written, such as in a log on a full disk.

    Not a file in Python under a buffer: an interrupt between its write and its answer would make
    the buffer write the same again.
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
    """Let what is said on stderr fail no command, and go nowhere where stderr is closed.

    Else the answer would be followed by an error, or notes would be printed on standard output.
    """
    if sys.stderr is not sys.__stderr__:
        return  # the caller replaced it, and wants what is said there
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
    """Let the last flush at the end of the process go nowhere."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.__stdout__.fileno() if sys.__stdout__ else 1)


def _fail(message: str) -> int:
    from solver.model.text import one_line

    print(f"error: {one_line(message)}", file=sys.stderr)
    return EXIT_BAD_INPUT
