"""What a test expects of errors, and documents with a mistake in them."""

import contextlib
import copy

import pytest

from solver import PartitionError
from solver.model.text import printable

REMOVE = object()
"""In the place of a value: the entry is left out."""


@contextlib.contextmanager
def refused(*parts, starts="", path=""):
    """Expect a PartitionError of one line with these parts in this order, and a path anywhere."""
    with pytest.raises(PartitionError) as caught:
        yield caught
    message = str(caught.value)
    assert message.isprintable() and message.startswith(starts), message
    assert printable(str(path)) in message, message
    place = 0
    for part in parts:
        place = message.find(part, place)
        assert place >= 0, (part, message)
        place += len(part)


def changed(data, path, value):
    """Return a copy of plain data in which the entry at `path` is another, more, or left out."""
    data = copy.deepcopy(data)
    entry = data
    for key in path[:-1]:
        entry = entry[key]
    if value is REMOVE:
        del entry[path[-1]]
    elif isinstance(entry, list) and path[-1] == len(entry):
        entry.append(value)
    else:
        entry[path[-1]] = value
    return data
