"""TOML files that a person writes: what they hold is data, and mistakes in it are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from solver import PartitionError
from solver.io.files import read_text
from solver.io.json_fields import check_nesting
from solver.model.text import shortened

_MOST_BYTES: Final = 1 << 22
"""The parser takes about a second for one MiB."""


def read_toml(path: Path, wanted: str) -> dict[str, Any]:
    """Return the table that a TOML file is.

    Parameters
    ----------
    wanted : str
        What it should describe, such as ``"a list of devices"``.

    Raises
    ------
    PartitionError
        In one line that names the file.
    """
    import tomllib

    text = read_text(path, "a TOML file", _MOST_BYTES)
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise PartitionError(
            f"{shortened(path)} is nested too deeply to be {wanted}; correct it"
        ) from None
    except ValueError as error:  # not TOML, or a number of thousands of digits
        raise PartitionError(f"{shortened(path)}: not valid TOML ({error}); correct it") from None
    # Dotted names nest without a level of the parser.
    check_nesting(table, str(path))
    return table
