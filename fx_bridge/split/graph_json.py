"""Read a stage graph from plain data, and say what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fx_bridge.split.graph import StageGraph, StageNode, StageValue, StageWeight
from solver import PartitionError
from solver.io.json_fields import PLAIN, Parser, build, check_schema, record, several
from solver.model.quantities import counted


def stage_graph_from_json(data: object, schema: str, version: int) -> StageGraph:
    """Build a stage graph; see :meth:`fx_bridge.split.graph.StageGraph.from_dict`."""
    fields = check_schema(data, "the stage graph", schema, version)
    graph = build(StageGraph, fields, "", _PARSERS)
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
                    f"{where} names stage {position}, but there {'is' if count == 1 else 'are'} "
                    f"only {counted(count, 'stage')}"
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


_PARSERS: Final[dict[str, Parser]] = dict(PLAIN)
_PARSERS.update(
    {
        f"tuple[{kind.__name__}, ...]": several(record(kind, _PARSERS))
        for kind in (StageNode, StageValue, StageWeight)
    }
)
"""How to read a field, by its annotation."""
