"""Reading of TOML files, with readable errors."""

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
    """Return the table of a TOML file; errors name the file and its `wanted` content."""
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
    # Dotted names nest without recursion of the parser.
    check_nesting(table, str(path))
    return table
