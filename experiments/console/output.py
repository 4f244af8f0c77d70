"""Where answers go: standard output, as text or as JSON, and files."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fx_bridge.presentation.tables import wrapped
from solver import PartitionError
from solver.io.files import check_folder_writable, real_path
from solver.model.text import printable, shortened

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph


def print_lines(lines: Iterable[str]) -> None:
    """Print an answer, whoever wrote its lines; a narrow terminal breaks them between words."""
    for line in wrapped(map(printable, lines), "  "):
        print(line)


def print_json(answer: Any) -> None:
    """Print the one JSON value that is a command's answer; what is no finite number is null."""
    print(json.dumps(_finite(answer), indent=1, allow_nan=False))


def say(text: str) -> None:
    """Tell a person something that is no part of the answer, on stderr."""
    print(printable(text), file=sys.stderr)


def say_note(captured: CapturedGraph | None) -> None:
    """Tell a person what the capture of a model has to say, if there is a model and a note."""
    if captured is not None and captured.note:
        say(f"note: {captured.note}")


def say_written(path: str | os.PathLike[str]) -> None:
    """Tell a person that a file or a folder was written."""
    say(f"wrote {os.fspath(path)}")


def check_writable(path: str | None, *inputs: str | None, option: str = "--out") -> None:
    """Refuse a file that cannot be written before the work, not after it.

    Parameters
    ----------
    path : str or None
        To be written.
    *inputs : str or None
        Names that the command reads, files or not: `path` must be none of these files.
    option : str
        That names the file.
    """
    if path is None:
        return
    if not path:
        raise PartitionError(f"{option} is empty; write the name of a file, such as plan.json")
    if path == "-":
        raise PartitionError(f"{option} writes a file; leave it out, or write --json to print JSON")
    if "\0" in path:
        raise PartitionError(
            f"cannot write {shortened(path)}: a null character; write another path"
        )
    target = Path(path)
    try:
        if target.is_dir():
            raise PartitionError(f"{shortened(path)} is a folder; write the name of a file")
        if not target.parent.is_dir():
            raise PartitionError(
                f"there is no folder {target.parent}; create it or write another path"
            )
        if target.is_socket() or target.is_block_device():
            raise PartitionError(
                f"{shortened(path)} is a socket or a disk; write the name of a file"
            )
        if target.exists() and not target.is_file():
            return  # such as /dev/null, which is written to as it is
        folder = real_path(target).parent
        for read in inputs:
            if read and target.exists() and os.path.realpath(read) == os.path.realpath(target):
                raise PartitionError(
                    f"{option} {shortened(path)} is the file that is read, which would be lost; "
                    "write another name"
                )
    except OSError as error:
        raise PartitionError(
            f"cannot write {shortened(path)}: {error.strerror}; write another path"
        ) from None
    check_folder_writable(folder)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
