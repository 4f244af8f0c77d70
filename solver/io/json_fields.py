"""Read JSON, and dataclasses from plain data by their annotations; errors name the field."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping
from functools import cache
from itertools import repeat
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from solver.model.checks import check_choice, check_name, check_positive, did_you_mean
from solver.model.errors import PartitionError
from solver.model.text import shown

Reader: TypeAlias = Callable[[object, str], Any]
"""Takes what JSON holds and where it stands; returns a value or raises PartitionError."""

_MOST_LEVELS: Final = 100
"""What reads, shows and writes plain data calls itself at every level."""


def parse_json(text: str | bytes, source: str) -> Any:
    """Return the data of a JSON text, of which bytes are UTF-8; messages begin with `source`.

    Refuses a key that an object has twice, a number of thousands of digits, and lists and objects
    in more than 100 others.
    """

    def made(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            keys = [key for key, _ in pairs]
            key = next(key for key in keys if keys.count(key) > 1)
            raise PartitionError(f"{source}: the key {key!r} is given twice; write it once")
        return fields

    try:
        data = json.loads(text, object_pairs_hook=made)
    except json.JSONDecodeError as error:
        raise PartitionError(
            f"{source}, line {error.lineno}: not valid JSON ({error.msg}); give a JSON file"
        ) from None
    except RecursionError:
        raise _too_deep(source) from None
    except PartitionError:
        raise
    except ValueError:
        # Python refuses to read numbers of thousands of digits.
        raise PartitionError(f"{source} holds a number with too many digits; correct it") from None
    check_nesting(data, source)
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


def check_schema(value: object, where: str, schema: str, version: int) -> dict[str, Any]:
    """Return the fields of a document but for its schema and version, which are checked.

    Messages begin with `where`; it is empty for a whole file.
    """
    fields = as_object(value, where or "the content")
    prefix = f"{where}: " if where else ""
    if fields.get("schema") != schema:
        raise PartitionError(
            f"{prefix}schema is {shown(fields.get('schema'))}; expected {schema!r}"
        )
    found = fields.get("version")
    # 1.0 and True are equal to 1, but no release writes them.
    if type(found) is not int or found != version:
        raise PartitionError(f"{prefix}version is {shown(found)}; this release reads {version}")
    return {name: item for name, item in fields.items() if name not in ("schema", "version")}


def as_object(value: object, what: str) -> dict[str, Any]:
    """Return `value` if it is an object of JSON."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise PartitionError(f"{what} is not an object; write one in braces")
    return value


def read_as(
    kind: Any, value: object, where: str, readers: Mapping[Any, Reader] | None = None
) -> Any:
    """Return plain data as the type that an annotation names; messages begin with `where`.

    `kind` is a dataclass or named tuple, whose fields with a default may be left out; str, bool, or
    an int or finite float that is not negative; a tuple or set, a mapping with texts for keys, a
    literal; any of these or None. ``Annotated[T, reader]`` is read by `reader`, and so are the
    types in `readers`.

    Messages name the field that is missing, unknown or of the wrong kind.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if readers and kind in readers:
        return readers[kind](value, where)
    if origin is Annotated:
        return arguments[1](value, where)
    if origin in (Union, UnionType):
        wanted = next(argument for argument in arguments if argument is not type(None))
        return None if value is None else read_as(wanted, value, where, readers)
    if kind is Any:
        return value
    if origin is Literal:
        check_choice(value, arguments, where)
        return value
    if origin is frozenset:
        every: Any = tuple[arguments[0], ...]  # type: ignore[valid-type]
        return frozenset(read_as(every, value, where, readers))
    if origin is tuple:
        # Tuples too: data need not have been through a file.
        if not isinstance(value, (list, tuple)):
            raise PartitionError(f"{where} is not a list; write one in brackets")
        if arguments[-1] is not Ellipsis and len(value) != len(arguments):
            raise PartitionError(f"{where} has {len(value)} entries; write {len(arguments)}")
        kinds = repeat(arguments[0]) if arguments[-1] is Ellipsis else arguments
        return tuple(
            read_as(each, item, f"{where}[{index}]", readers)
            for index, (each, item) in enumerate(zip(kinds, value, strict=False))
        )
    if origin in (Mapping, dict):
        return {
            name: read_as(arguments[1], item, f"{where}[{name!r}]", readers)
            for name, item in as_object(value, where).items()
        }
    if kind in _SCALARS:
        is_right, wanted = _SCALARS[kind]
        if not is_right(value):
            raise PartitionError(f"{where} is {shown(value)}; write {wanted}")
        return value
    return _record(kind, value, where, readers)


def _record(kind: Any, value: object, where: str, readers: Mapping[Any, Reader] | None) -> Any:
    """Read a dataclass or a named tuple from an object with its fields and no others."""
    given = as_object(value, where or "the content")
    prefix = f"{where}: " if where else ""
    fields = _fields(kind)
    for name in given:
        if name not in fields:
            hint = did_you_mean(name, fields, f"the fields are {', '.join(fields)}", most=1)
            raise PartitionError(f"{prefix}{name!r} is unknown; {hint}")
    for name, (_, _, may_be_left_out) in fields.items():
        if name not in given and not may_be_left_out:
            raise PartitionError(f"{prefix}{name} is missing; write it")
    found: dict[str, Any] = {}
    for name, item in given.items():
        attribute, wanted, _ = fields[name]
        found[attribute] = read_as(wanted, item, f"{prefix}{name}", readers)
    try:
        return kind(**found)
    except PartitionError as error:
        raise PartitionError(f"{prefix}{error}") from None


@cache
def _fields(kind: Any) -> dict[str, tuple[str, Any, bool]]:
    """Return the attribute, the type and whether there is a default, by the name in a file.

    An attribute such as `class_` is called ``class`` there.
    """
    hints = get_type_hints(kind, include_extras=True)
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        left_out = {
            field.name: not (field.default is field.default_factory is missing)
            for field in dataclasses.fields(kind)
        }
    else:
        left_out = {name: name in kind._field_defaults for name in kind._fields}
    return {name.rstrip("_"): (name, hints[name], is_left) for name, is_left in left_out.items()}


_SCALARS: Final[Mapping[Any, tuple[Callable[[Any], bool], str]]] = {
    str: (lambda value: isinstance(value, str), "a text"),
    bool: (lambda value: isinstance(value, bool), "true or false"),
    int: (lambda value: type(value) is int and value >= 0, "a whole number that is not negative"),
    float: (
        lambda value: type(value) in (int, float) and 0 <= value <= sys.float_info.max,
        "a number that is not negative",
    ),
}


def _name(value: object, where: str) -> str:
    check_name(value, where)
    return str(value)


def _positive(value: Any, where: str) -> int:
    check_positive(value, where)
    return int(value)


Name: TypeAlias = Annotated[str, _name]
"""A text that is not empty."""
Positive: TypeAlias = Annotated[int, _positive]
"""A whole number from 1 on."""
