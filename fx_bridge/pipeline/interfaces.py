"""The interfaces between neighbouring positions of a pipeline (``docs/pipelines.md``, "The chain").

A value passes through all positions between its source and its last reader, like a live register (a
*liveness relay*). Position p is chunk p // P of device p mod P.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from fx_bridge.split.graph import StageGraph, StageValue, StageWeight
from solver import PartitionError, PartitionPlan
from solver.model.checks import only_given


@dataclass(frozen=True, slots=True)
class PipelinePosition:
    """One link of the chain; values are by name."""

    position: int  # from 0 to chunks x devices - 1
    rank: int  # of the process that runs it: the index of `device` in the order of the devices
    device: str
    chunk: int  # earlier passes of data through the devices; 0 without interleaving
    stage: str | None  # child of the split that runs here; None if values are only relayed
    arguments: tuple[str, ...]  # of `stage`, in order
    results: tuple[str, ...]  # of `stage`, in order
    inputs: tuple[str, ...]
    """Graph inputs that are read here, in the order of the graph; the caller gives them to every
    rank."""
    weights: tuple[str, ...]
    """``get_attr`` nodes of weights that the graph returns unchanged and that are read here."""
    receives: tuple[str, ...]  # from the previous position, in order
    sends: tuple[str, ...]
    """To the next position: the values alive between the two. Those that are not in `receives` are
    made here."""
    __repr__ = only_given

    @property
    def relays(self) -> tuple[str, ...]:
        """Values received from the previous position and sent to the next."""
        here = set(self.receives)
        return tuple(name for name in self.sends if name in here)


@dataclass(frozen=True, slots=True)
class SharedWeight:
    """A weight, with its names in all stages, and the ranks that hold it, in ascending order."""

    weight: StageWeight
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class StageInterfaces:
    """The chain of positions of a split, made by :func:`stage_interfaces`."""

    positions: tuple[PipelinePosition, ...]  # in the order in which data flows
    devices: tuple[str, ...]  # by rank
    values: Mapping[str, StageValue]
    """Values sent between positions, by name; `StageValue.source` and `StageValue.targets` are
    positions of the chain."""
    outputs: tuple[str, ...]  # distinct results of the graph; all of them are at the last position
    shared_weights: tuple[SharedWeight, ...]  # weights that several ranks hold
    __repr__ = only_given

    @property
    def rounds(self) -> int:
        """Passes of data through the devices: the chunks of a device."""
        return len(self.positions) // len(self.devices)

    def of_rank(self, rank: int) -> tuple[PipelinePosition, ...]:
        """Return the positions that `rank` runs."""
        return self.positions[rank :: len(self.devices)]


def stage_interfaces(
    graph: StageGraph, plan: PartitionPlan, returned_weights: Mapping[str, str] | None = None
) -> StageInterfaces:
    """Return the values sent along the chain of positions of a split, graph inputs excluded.

    `returned_weights` has the path of each weight that the graph returns unchanged, by the name of
    its ``get_attr`` node. It is sent from the last stage that holds it, so that the trained weight
    is returned; a weight that no stage holds is held at the last position. PartitionError if a
    value that is not a tensor would be sent, or the plan has no devices.

    Examples
    --------
    >>> import torch
    >>> from fx_bridge import capture, split_by_plan, stage_graph
    >>> class Skip(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.sin().cos() * x.sin()
    >>> captured = capture(Skip(), (torch.ones(2, 4),))
    >>> plan = PartitionPlan(
    ...     {"sin": "a", "cos": "b", "sin_1": "a", "mul": "c"}, ("a", "b", "c")
    ... )
    >>> split = split_by_plan(captured, plan)
    >>> chain = stage_interfaces(stage_graph(split, captured), plan)
    >>> [position.sends for position in chain.positions]
    [('sin', 'sin_1'), ('sin_1', 'cos'), ()]
    """
    count = len(plan.device_order)
    if not count:
        raise PartitionError("the plan has no operators, so there is no pipeline to run")
    rounds = 1 + max((stage.chunk for stage in graph.stages), default=0)
    rank_of = {device: rank for rank, device in enumerate(plan.device_order)}
    place = [stage.chunk * count + rank_of[stage.device] for stage in graph.stages]
    last = rounds * count - 1
    values = _values(graph, place)
    held: list[list[str]] = [[] for _ in range(last + 1)]
    for weight in _returned_weights(graph, place, last, returned_weights or {}):
        assert weight.source is not None
        held[weight.source].append(weight.name)
        values[weight.name] = weight
    alive = [
        tuple(
            value.name
            for value in values.values()
            if value.source is not None and value.source <= position < _end(value, last)
        )
        for position in range(last)
    ]
    _check_tensors(alive, values)
    stage_at = dict(zip(place, graph.stages, strict=True))
    returned = {name for name in graph.outputs if values[name].source is None}
    positions = []
    for position in range(last + 1):
        stage = stage_at.get(position)
        needed = set(stage.inputs) if stage is not None else set()
        if position == last:
            needed |= returned
        positions.append(
            PipelinePosition(
                position=position,
                rank=position % count,
                device=plan.device_order[position % count],
                chunk=position // count,
                stage=None if stage is None else stage.name,
                arguments=() if stage is None else stage.inputs,
                results=() if stage is None else stage.outputs,
                inputs=tuple(name for name in graph.inputs if name in needed),
                weights=tuple(held[position]),
                receives=alive[position - 1] if position else (),
                sends=alive[position] if position < last else (),
            )
        )
    return StageInterfaces(
        positions=tuple(positions),
        devices=plan.device_order,
        values=MappingProxyType(values),
        outputs=(*graph.outputs, *(returned_weights or {})),
        shared_weights=_shared_weights(graph, place, count),
    )


def _values(graph: StageGraph, place: Sequence[int]) -> dict[str, StageValue]:
    """Return the values of `graph`, with positions of the chain in place of stage numbers."""
    return {
        value.name: replace(
            value,
            source=None if value.source is None else place[value.source],
            targets=tuple(place[target] for target in value.targets),
        )
        for value in graph.values
    }


def _returned_weights(
    graph: StageGraph, place: Sequence[int], last: int, paths: Mapping[str, str]
) -> list[StageValue]:
    """Return the weights in the graph's results, as values of the last position that holds them."""
    found = []
    for name, path in paths.items():
        holders = [
            (place[number], weight.size_bytes)
            for number, stage in enumerate(graph.stages)
            for weight in stage.weights
            if path in weight.names
        ]
        position, size_bytes = max(holders, default=(last, 0))
        found.append(StageValue(name, position, (), True, size_bytes, "Tensor", None, None))
    return found


def _end(value: StageValue, last: int) -> int:
    """Return the last position to which a value is sent."""
    return last if value.is_output else max(value.targets, default=-1)


def _check_tensors(alive: Sequence[Sequence[str]], values: Mapping[str, StageValue]) -> None:
    for position, names in enumerate(alive):
        for name in names:
            if values[name].kind != "Tensor":
                raise PartitionError(
                    f"{name!r}, of type {values[name].kind}, would pass from position {position} "
                    f"to {position + 1} of the pipeline, and only tensors travel between ranks; "
                    "put its readers into its stage or plan with colocation=True, and leave it out "
                    "of the outputs of the model"
                )


def _shared_weights(
    graph: StageGraph, place: Sequence[int], count: int
) -> tuple[SharedWeight, ...]:
    weights: dict[str, StageWeight] = {}
    ranks: dict[str, set[int]] = {}
    for number, stage in enumerate(graph.stages):
        for weight in stage.weights:
            known = weights.setdefault(weight.key, weight)
            names = tuple(dict.fromkeys((*known.names, *weight.names)))
            weights[weight.key] = replace(known, names=names)
            ranks.setdefault(weight.key, set()).add(place[number] % count)
    return tuple(
        SharedWeight(weights[key], tuple(sorted(found)))
        for key, found in ranks.items()
        if len(found) > 1
    )
