"""Checks shared by several types of input; each error names the fault and the remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import MISSING, fields
from difflib import get_close_matches
from operator import index
from types import MappingProxyType
from typing import Any, Final

from solver.model.errors import PartitionError
from solver.model.quantities import counted
from solver.model.text import shown

_MOST_REPR: Final = 200
_MOST_VALUE: Final = 80
"""Most characters of one field; texts have their own limit."""
_MOST_ITEMS: Final = 8


def remake(item: Any) -> tuple[Any, ...]:
    """Return the class and arguments that rebuild a dataclass; for `__reduce__`.

    Read-only views of mappings, which cannot be pickled or copied, become dicts.
    """
    values = [getattr(item, entry.name) for entry in fields(item)]
    plain = [dict(value) if isinstance(value, MappingProxyType) else value for value in values]
    return type(item), tuple(plain)


def only_given(item: Any) -> str:
    """Return the repr of a dataclass without default fields; for `__repr__`.

    It is one line of at most 200 characters: long fields are summarised, and the last ones left
    out.
    """
    given = []
    for entry in fields(item):
        made = entry.default_factory
        default = entry.default if made is MISSING else made()
        value = getattr(item, entry.name)
        if entry.repr and (default is MISSING or value != default):
            given.append(f"{entry.name}={_brief(value)}")
    text = f"{type(item).__name__}({', '.join(given)})"
    while len(text) > _MOST_REPR:
        given.pop()
        text = f"{type(item).__name__}({', '.join([*given, '...'])})"
    return text


def _brief(value: object) -> str:
    """Return the repr of a value, or its type or number of items if the repr is long."""
    plain = dict(value) if isinstance(value, MappingProxyType) else value
    if isinstance(plain, (Mapping, Set, tuple, list)):
        # Skip the repr of items not shown, which may be slow.
        text = shown(plain) if len(plain) <= _MOST_ITEMS else ""
        return text if 0 < len(text) <= _MOST_VALUE else f"<{counted(len(plain), 'item')}>"
    text = shown(plain)
    is_short = len(text) <= _MOST_VALUE and "\\n" not in text
    return text if is_short or isinstance(plain, str) else f"<{type(plain).__name__}>"


def check_natural(value: object, what: str) -> None:
    """Raise unless `value` is an integer >= 0 (bool is not one)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise PartitionError(
            f"{what} is {shown(value)}; write a whole number (bytes and nanoseconds are integers)"
        )
    if value < 0:
        raise PartitionError(f"{what} is {shown(value)}; write a number that is not negative")


def check_positive(value: object, what: str, most: int | None = None) -> None:
    """Raise unless `value` is an integer from 1 to `most`, if that is given."""
    check_natural(value, what)
    if value == 0:
        raise PartitionError(f"{what} is 0; write at least 1")
    if most is not None and isinstance(value, int) and value > most:
        raise PartitionError(f"{what} is {shown(value)}; write at most {most}")


def check_positive_or_none(value: object, what: str, none_means: str) -> None:
    """Raise unless `value` is a positive integer or None."""
    if value is None:
        return
    check_natural(value, what)
    if value == 0:
        raise PartitionError(f"{what} is 0; write a positive number, or None for {none_means}")


def check_name(value: object, what: str) -> None:
    """Raise unless `value` is a non-empty string."""
    if not isinstance(value, str) or not value:
        raise PartitionError(f"{what} is {shown(value)}; write a non-empty string")


def as_name(name: object, what: str) -> str:
    """Return a name as a string; raise unless it is a string or a whole number."""
    if isinstance(name, str):
        return name
    number = whole(name)
    if isinstance(number, bool) or not isinstance(number, int):
        raise PartitionError(
            f"{what} is {shown(name)}; write a text or a whole number, such as "
            "networkx.relabel_nodes(graph, str) makes"
        )
    return str(number)


def whole(value: Any) -> Any:
    """Convert whole numbers of other classes, such as numpy's, to int, also within mappings."""
    # The most common types come first: graphs are large.
    if value is None or isinstance(value, (int, str, list, tuple)):
        return value
    if isinstance(value, Mapping):
        return {key: whole(each) for key, each in value.items()}
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return index(value) if hasattr(value, "__index__") else value


def several(value: object, what: str) -> tuple[Any, ...]:
    """Return names as a tuple; raise for a bare string or anything that is no list."""
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
        raise PartitionError(f"{what} is {shown(value)}; write a list of names")
    # A string would pass as a sequence of names of one letter each.
    if isinstance(value, str):
        raise PartitionError(
            f"{what} is {shown(value)}; write a list of names, such as [{value!r}]"
        )
    return tuple(value)


def instances(value: object, kind: type[Any], what: str) -> tuple[Any, ...]:
    """Return objects of class `kind` as a tuple; raise for any other object."""
    is_list = isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping))
    items = tuple(value) if is_list else (value,)  # type: ignore[arg-type]
    for item in items:
        if not isinstance(item, kind):
            raise PartitionError(
                f"{what}: {shown(item)} is not a {kind.__name__}; write a list of "
                f"{kind.__name__}(...)"
            )
    return items


def as_mapping(value: object, what: str, kind: type[Any] = object) -> dict[Any, Any]:
    """Return a copy of a mapping with values of class `kind`; raise for anything else."""
    if not isinstance(value, Mapping):
        raise PartitionError(f"{what} is {shown(value)}; write a mapping")
    for key, item in value.items():
        if not isinstance(item, kind):
            raise PartitionError(
                f"{what}[{shown(key)}] is {shown(item)}; write a {kind.__name__}(...)"
            )
    return dict(value)


def check_choice(value: object, allowed: tuple[str, ...], what: str) -> None:
    """Raise unless `value` is one of `allowed`."""
    if value not in allowed:
        raise PartitionError(f"{what} is {shown(value)}; write one of {', '.join(allowed)}")


def did_you_mean(name: object, known: Iterable[str], otherwise: str, *, most: int = 3) -> str:
    """Suggest up to `most` known names similar to a wrong one, or return `otherwise`."""
    close = get_close_matches(str(name).lower(), list(known), n=most, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else otherwise


def check_unique(names: Iterable[str], what: str) -> None:
    """Raise if a name occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise PartitionError(f"two entries are called {name!r}; {what} names must be unique")
        seen.add(name)
