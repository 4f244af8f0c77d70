"""Read JSON, and dataclasses from plain data by their annotations; say what is wrong with it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias, TypeVar

from solver.model.errors import PartitionError

T = TypeVar("T")

Parser: TypeAlias = Callable[[object, str], Any]
"""Takes what JSON holds and where it stands; returns a value or raises PartitionError."""

_MOST_LEVELS: Final = 100
"""What reads, shows and writes plain data calls itself at every level."""


def parse_json(text: str | bytes, source: str) -> Any:
    """Return what a text of JSON holds.

    Parameters
    ----------
    text : str or bytes
        Bytes are UTF-8.
    source : str
        What messages begin with, such as the name of the file.

    Raises
    ------
    PartitionError
        In one line: no JSON, a key that an object has twice, a number of thousands of digits, or
        lists and objects in more than 100 others.
    """
    repeated: list[tuple[dict[str, Any], str]] = []

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            keys = [key for key, _ in pairs]
            repeated.append((fields, next(key for key in keys if keys.count(key) > 1)))
        return fields

    try:
        data = json.loads(text, object_pairs_hook=made)
    except json.JSONDecodeError as error:
        raise PartitionError(
            f"{source}, line {error.lineno}: not valid JSON ({error.msg}); give a JSON file"
        ) from None
    except RecursionError:
        raise _too_deep(source) from None
    except ValueError:
        # Python refuses to read numbers of thousands of digits.
        raise PartitionError(f"{source} holds a number with too many digits; correct it") from None
    check_nesting(data, source)
    if repeated:
        fields, key = repeated[-1]
        where = next(path for value, path in _containers(data) if value is fields)
        place = f" in {where}" if where else ""
        raise PartitionError(f"{source}: the key {key!r} is given twice{place}; write it once")
    return data


def check_nesting(data: object, source: str) -> None:
    """Raise PartitionError if plain data is nested so deeply that reading it would fail."""
    level = [data]
    for _ in range(_MOST_LEVELS):
        level = [
            item
            for value in level
            if isinstance(value, (dict, list))
            for item in (value.values() if isinstance(value, dict) else value)
        ]
    if level:
        raise _too_deep(source)


def _too_deep(source: str) -> PartitionError:
    return PartitionError(
        f"{source} is nested too deeply, in more than {_MOST_LEVELS} levels; correct it"
    )


def _containers(value: object, path: str = "") -> Iterator[tuple[object, str]]:
    """Yield every object and list of plain data with the path to it, the outermost first."""
    if isinstance(value, dict):
        yield value, path
        for key, item in value.items():
            yield from _containers(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        yield value, path
        for index, item in enumerate(value):
            yield from _containers(item, f"{path}[{index}]")


def build(kind: type[T], value: object, where: str, parsers: Mapping[str, Parser]) -> T:
    """Build a dataclass from an object with exactly its fields.

    Parameters
    ----------
    kind : type
        A dataclass in a module with ``from __future__ import annotations``.
    value : object
        As ``json.loads`` returns it.
    where : str
        What messages begin with, such as ``"stages[2]"``; empty for the outermost.
    parsers : mapping of str to callable
        How to read a field, by its annotation.

    Raises
    ------
    PartitionError
        Naming the field that is missing, unknown or of the wrong kind.
    """
    fields = as_object(value, where or "the content")
    prefix = f"{where}: " if where else ""
    known = {entry.name: str(entry.type) for entry in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in fields:
        if name not in known:
            raise PartitionError(f"{prefix}{name!r} is unknown; the fields are {', '.join(known)}")
    for name in known:
        if name not in fields:
            raise PartitionError(f"{prefix}{name} is missing")
    return kind(
        **{name: parsers[known[name]](item, f"{prefix}{name}") for name, item in fields.items()}
    )


def check_schema(value: object, what: str, schema: str, version: int) -> dict[str, Any]:
    """Return the fields of a document but for its schema and version, which are checked."""
    fields = as_object(value, what)
    if fields.get("schema") != schema:
        raise PartitionError(f"schema is {fields.get('schema')!r}; expected {schema!r}")
    found = fields.get("version")
    # 1.0 and True are equal to 1, but no release writes them.
    if type(found) is not int or found != version:
        raise PartitionError(f"version is {found!r}; this release reads {version}")
    return {name: item for name, item in fields.items() if name not in ("schema", "version")}


def as_object(value: object, what: str) -> dict[str, Any]:
    """Return `value` if it is an object of JSON."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise PartitionError(f"{what} is not an object; write one in braces")
    return value


def as_text(value: object, where: str) -> str:
    """Return `value` if it is a text."""
    if not isinstance(value, str):
        raise PartitionError(f"{where} is {value!r}; write a text")
    return value


def as_natural(value: object, where: str) -> int:
    """Return `value` if it is a whole number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PartitionError(f"{where} is {value!r}; write a whole number that is not negative")
    return value


def as_flag(value: object, where: str) -> bool:
    """Return `value` if it is true or false."""
    if not isinstance(value, bool):
        raise PartitionError(f"{where} is {value!r}; write true or false")
    return value


def optional(parse: Parser) -> Parser:
    """Return a parser that takes null too."""
    return lambda value, where: None if value is None else parse(value, where)


def several(parse: Parser) -> Parser:
    """Return a parser of lists, which become tuples."""

    def parse_all(value: object, where: str) -> tuple[Any, ...]:
        # Tuples too: data need not have been through a file.
        if not isinstance(value, (list, tuple)):
            raise PartitionError(f"{where} is not a list")
        return tuple(parse(item, f"{where}[{index}]") for index, item in enumerate(value))

    return parse_all


def by_name(parse: Parser) -> Parser:
    """Return a parser of objects whose keys are names."""

    def parse_all(value: object, where: str) -> dict[str, Any]:
        fields = as_object(value, where)
        return {name: parse(item, f"{where}[{name!r}]") for name, item in fields.items()}

    return parse_all


def record(kind: type[Any], parsers: Mapping[str, Parser]) -> Parser:
    """Return a parser of a dataclass; `parsers` may be filled later."""
    return lambda value, where: build(kind, value, where, parsers)


PLAIN: Final[Mapping[str, Parser]] = {
    "str": as_text,
    "int": as_natural,
    "bool": as_flag,
    "str | None": optional(as_text),
    "int | None": optional(as_natural),
    "tuple[str, ...]": several(as_text),
    "tuple[int, ...]": several(as_natural),
    "tuple[int, ...] | None": optional(several(as_natural)),
    "Mapping[str, str]": by_name(as_text),
}
"""Parsers of what is no dataclass, by annotation."""
