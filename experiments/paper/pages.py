"""Tables in a Markdown page: what stands between two markers, found and replaced.

A table called ``zoo`` stands between the lines ``<!-- table: zoo -->`` and
``<!-- end of table -->``. All else in the page is kept to the byte.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from solver import PartitionError

END: Final = "<!-- end of table -->"
_MARKED: Final = re.compile(r"(?ms)^<!-- table: ([^\n]*?) -->\n(.*?)^<!-- end of table -->$")
_MARKER: Final = re.compile(r"(?m)^<!-- (?:table: .*|end of table) -->$")


def marked_tables(text: str, known: Collection[str]) -> dict[str, str]:
    """Return what stands between the markers of a page, by name.

    Raises
    ------
    PartitionError
        If a marker has no partner, a name is unknown, or stands twice.
    """
    found: dict[str, str] = {}
    for match in _MARKED.finditer(text):
        name, inside = match[1], match[2]
        if stray := _MARKER.search(inside):
            raise PartitionError(
                f"the markers of table {name!r} hold {stray[0]!r}; end each table by {END!r}"
            )
        if name not in known:
            raise PartitionError(f"table {name!r} is unknown; there are {', '.join(known)}")
        if name in found:
            raise PartitionError(f"table {name!r} is marked twice; leave one out")
        found[name] = inside
    if stray := _MARKER.search(_MARKED.sub("", text)):
        raise PartitionError(f"the marker {stray[0]!r} has no partner; add it, or leave it out")
    return found


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """Return a page in which the tables that are given stand between their markers."""

    def replaced(match: re.Match[str]) -> str:
        name = match[1]
        if name not in tables:
            return match[0]
        return f"<!-- table: {name} -->\n{tables[name]}{END}"

    return _MARKED.sub(replaced, text)
