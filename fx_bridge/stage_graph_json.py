"""Read a stage graph from plain data, and say what is wrong with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from fx_bridge.stage_graph import StageGraph, StageNode, StageValue, StageWeight
from solver import PartitionError

T = TypeVar("T")


def stage_graph_from_json(data: object, schema: str, version: int) -> StageGraph:
    """Build a stage graph; see :meth:`StageGraph.from_dict`."""
    fields = _object(data, "the stage graph")
    for name, expected in (("schema", schema), ("version", version)):
        if fields.get(name) != expected:
            raise PartitionError(f"{name} is {fields.get(name)!r}; expected {expected!r}")
    graph = _build(
        StageGraph, {k: v for k, v in fields.items() if k not in ("schema", "version")}, ""
    )
    _check_references(graph)
    return graph


def _check_references(graph: StageGraph) -> None:
    names = [value.name for value in graph.values]
    if len(set(names)) != len(names):
        raise PartitionError("values: a name is given twice")
    count = len(graph.stages)

    def check_positions(positions: Iterable[int | None], where: str) -> None:
        for position in positions:
            if position is not None and position >= count:
                raise PartitionError(
                    f"{where} names stage {position}, but there are only {count} stages"
                )

    def check_values(used: Iterable[str], where: str) -> None:
        for name in used:
            if name not in graph.value_of:
                raise PartitionError(f"{where} names {name!r}, which is not one of the values")

    for value in graph.values:
        check_positions((value.source, *value.targets), f"value {value.name!r}")
    for index, stage in enumerate(graph.stages):
        where = f"stages[{index}]"
        if stage.position != index:
            raise PartitionError(f"{where}: position is {stage.position}; write {index}")
        check_positions((*stage.parents, *stage.children), where)
        for weight in stage.weights:
            check_positions(weight.stages, f"{where}: weight {weight.key!r}")
        check_values((*stage.inputs, *stage.outputs), where)
    check_values((*graph.inputs, *graph.outputs), "the stage graph")


def _build(kind: type[T], value: object, where: str) -> T:
    fields = _object(value, where or "the stage graph")
    prefix = f"{where}: " if where else ""
    known = {entry.name: str(entry.type) for entry in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for name in fields:
        if name not in known:
            raise PartitionError(f"{prefix}{name!r} is unknown; the fields are {', '.join(known)}")
    for name in known:
        if name not in fields:
            raise PartitionError(f"{prefix}{name} is missing")
    return kind(
        **{name: _PARSERS[known[name]](item, f"{prefix}{name}") for name, item in fields.items()}
    )


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise PartitionError(f"{what} is not an object")
    return value


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise PartitionError(f"{where} is {value!r}; write a text")
    return value


def _natural(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PartitionError(f"{where} is {value!r}; write a whole number that is not negative")
    return value


def _flag(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise PartitionError(f"{where} is {value!r}; write true or false")
    return value


def _optional(parse: Callable[[object, str], T]) -> Callable[[object, str], T | None]:
    return lambda value, where: None if value is None else parse(value, where)


def _several(parse: Callable[[object, str], T]) -> Callable[[object, str], tuple[T, ...]]:
    def parse_all(value: object, where: str) -> tuple[T, ...]:
        # Tuples too: data need not have been through a file.
        if not isinstance(value, (list, tuple)):
            raise PartitionError(f"{where} is not a list")
        return tuple(parse(item, f"{where}[{index}]") for index, item in enumerate(value))

    return parse_all


def _dataclass(kind: type[T]) -> Callable[[object, str], T]:
    return lambda value, where: _build(kind, value, where)


_PARSERS: Final[Mapping[str, Callable[[object, str], Any]]] = {
    "str": _text,
    "int": _natural,
    "bool": _flag,
    "str | None": _optional(_text),
    "int | None": _optional(_natural),
    "tuple[str, ...]": _several(_text),
    "tuple[int, ...]": _several(_natural),
    "tuple[int, ...] | None": _optional(_several(_natural)),
    "tuple[StageNode, ...]": _several(_dataclass(StageNode)),
    "tuple[StageValue, ...]": _several(_dataclass(StageValue)),
    "tuple[StageWeight, ...]": _several(_dataclass(StageWeight)),
}
"""How to read a field, by its annotation."""
