"""Output of answers to standard output, as text or JSON, and to files."""

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
    """Print lines with control characters escaped, wrapped to the terminal."""
    for line in wrapped(map(printable, lines), "  "):
        print(line)


def print_json(answer: Any) -> None:
    """Print a command's answer as JSON, with null for numbers that are not finite."""
    print(json.dumps(_finite(answer), indent=1, allow_nan=False))


def say(text: str) -> None:
    """Print a remark on stderr."""
    print(printable(text), file=sys.stderr)


def say_note(captured: CapturedGraph | None) -> None:
    """Print the note of a capture on stderr, if any."""
    if captured is not None and captured.note:
        say(f"note: {captured.note}")


def say_written(path: str | os.PathLike[str]) -> None:
    """Report a written file or folder on stderr."""
    say(f"wrote {os.fspath(path)}")


def check_writable(path: str | None, *inputs: str | None, option: str = "--out") -> None:
    """Refuse, before the work, the output file of `option` if it cannot be written.

    It must be none of `inputs`, those of the command, files or not.
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
            return  # such as /dev/null
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
