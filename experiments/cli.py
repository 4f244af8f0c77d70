"""The command ``fxpartition``: reads what a person wrote, runs it, prints and writes files.

Exit codes: 0 done; 1 no plan exists, or the one that was scored breaks limits; 2 bad input (one
line on stderr); 3 time ran out without a plan; 4 a split model computes something else than the
model; 130 interrupted; 143 terminated.

torch and OR-Tools load only in the commands that need them.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import typer

from experiments.compare_command import compare
from experiments.exit_codes import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_TERMINATED
from experiments.hand_over_command import hand_over
from experiments.list_commands import list_devices, list_models
from experiments.plan_command import plan
from experiments.problem_commands import export, generate
from experiments.profile_command import profile
from experiments.run_command import run
from experiments.score_command import score
from experiments.solve_command import solve
from experiments.split_command import split
from solver import PartitionError
from solver.quantities import printable

_LONGEST: Final = 2000

app = typer.Typer(
    name="fxpartition",
    help="Split a PyTorch model across devices optimally, and prove it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(compare)
app.command()(plan)
app.command()(solve)
app.command()(score)
app.command(name="hand-over")(hand_over)
app.command()(export)
app.command()(generate)
app.command()(split)
app.command()(profile)
app.command()(run)
app.command(name="models")(list_models)
app.command(name="devices")(list_devices)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; those of the process if left out.

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
        signal.signal(signal.SIGTERM, terminate)
    if sys.stdout is None:
        return _fail("standard output is closed; give the answer somewhere to go")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        with warnings.catch_warnings():
            # Warnings of torch about its own insides are noise to a person at the command line.
            warnings.simplefilter("ignore")
            code = app(args=None if argv is None else list(argv), standalone_mode=False)
    except PartitionError as error:
        return _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    except OSError as error:
        # Files say in their own words what is wrong; this is standard output.
        if argv is None:
            # Nor must the last flush at the end fail on it.
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), sys.__stdout__.fileno() if sys.__stdout__ else 1)
        return _fail(f"cannot write the answer: {error.strerror or error}; free its destination")
    except Exception as error:
        # What typer finds wrong with the options has a message of its own, whichever release
        # of typer or click defines the class.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message())
            return EXIT_BAD_INPUT
        return _fail(message())
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
    return int(code or 0)


def _fail(message: str) -> int:
    line = printable(" ".join(message.split()))
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
    print(f"error: {line}", file=sys.stderr)
    return EXIT_BAD_INPUT
