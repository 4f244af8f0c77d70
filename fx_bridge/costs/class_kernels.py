"""Attention kernels of device classes, and the costs that depend on them.

A graph is costed once for each set of kernels with which its classes run its attention. Differences
go into the operator graph by device class. :func:`~solver.io.digraph.problem_from_digraph` takes
the time of a device from its class, and the largest memory that a class of the problem's devices
needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from torch import fx

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.costs.device_specs import DeviceSpec
from fx_bridge.costs.recomputation import rng_state_bytes
from fx_bridge.storages.attention import AttentionCall
from fx_bridge.storages.device_kernels import DeviceKernels
from fx_bridge.storages.replay import Replay

Kernels = tuple[str | None, tuple[str, ...] | None]
"""A device type, and its kernels of attention."""


@dataclass(frozen=True, slots=True)
class ClassCosts:
    """A graph with the kernels of some device classes.

    `kernels` has the attention kernel of each operator; several are separated by commas.
    """

    captured: CapturedGraph
    specs: Mapping[str, DeviceSpec]
    kernels: Mapping[str, str]


def classes_by_kernels(
    captured: CapturedGraph, specs: Mapping[str, DeviceSpec], *, training: bool
) -> list[ClassCosts]:
    """Group device classes that run every attention of a graph by the same kernel.

    In training, their random number generators also have states of one size. Kernels given to
    `captured` hold for all classes.
    """
    wanted: dict[Kernels, dict[str, DeviceSpec]] = {}
    for name, spec in specs.items():
        attention = captured.attention if captured.attention is not None else spec.attention
        assert not isinstance(attention, str)
        own = None if attention is None else tuple(attention)
        device_type = captured.device_type or spec.device_type
        wanted.setdefault((device_type, own), {})[name] = spec
    if not wanted:
        wanted[captured.device_type, captured.attention] = {}
    graphs = [captured.with_kernels(*kernels) for kernels in wanted]
    kinds = graphs[0].storage_table.kinds
    replay = _ChoiceReplay(captured, tuple(wanted), training)
    replay.replay(kinds)
    chosen = kinds.for_all(replay.chosen)
    together: dict[tuple[str, ...], ClassCosts] = {}
    for index, own_specs in enumerate(wanted.values()):
        of_node = {name: [c[index] for c in found] for name, found in chosen.items()}
        choices = tuple(choice for found in of_node.values() for choice in found)
        if training:
            # Generator states saved to draw the same random numbers again.
            choices += tuple(map(str, rng_state_bytes(graphs[index]).values()))
        if choices in together:
            same = together[choices]
            together[choices] = replace(same, specs={**same.specs, **own_specs})
            continue
        names = {
            name: ",".join(dict.fromkeys(choice for choice in found if choice not in _OTHERS))
            for name, found in of_node.items()
        }
        kernels = {name: own for name, own in names.items() if own}
        together[choices] = ClassCosts(graphs[index], own_specs, kernels)
    return list(together.values())


_OTHERS: Final = ("fused", "apart")
_ABSENT: Final[Mapping[str, Any]] = {
    "alias_of": None,
    "in_place": False,
    "passes_to": None,
    "slices": [],
    "saves": [],
    "recomputable": False,
    "must_recompute": False,
}
"""Defaults of attributes other than 0."""


class _Choosing(DeviceKernels):
    """Records the choices of several devices, and runs that of the first."""

    def __init__(self, each: tuple[Kernels, ...]) -> None:
        super().__init__(*each[0])
        self.others = [DeviceKernels(*kernels) for kernels in each]
        self.choices: list[tuple[str, ...]] = []

    def choose(self, call: AttentionCall) -> str:
        self.choices.append(tuple(other.choose(call) for other in self.others))
        return self.choices[-1][0]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        fusing = [other.fuses(func, args, kwargs or {}) for other in self.others]
        if any(fusing):
            self.choices.append(tuple(_OTHERS[not fuses] for fuses in fusing))
        return super().__torch_function__(func, types, args, kwargs)


class _ChoiceReplay(Replay):
    def __init__(self, captured: CapturedGraph, each: tuple[Kernels, ...], training: bool) -> None:
        self.choosing = _Choosing(each)
        super().__init__(captured.module, kernels=self.choosing)
        # The choice depends on whether a mask has a gradient.
        self.differentiates = training
        self.chosen: dict[str, list[tuple[str, ...]]] = {}

    def observe(self, node: fx.Node) -> Any:
        self.choosing.choices.clear()
        value = super().observe(node)
        if self.notes:
            self.chosen[node.name] = list(self.notes)
        return value

    def take_notes(self) -> tuple[tuple[str, ...], ...]:
        return tuple(self.choosing.choices)


# -- merging costs -------------------------------------------------------------------------


def merged(costs: Sequence[tuple[Sequence[str], Mapping[str, Any]]]) -> dict[str, Any]:
    """Merge the attributes of one operator that were found for several sets of device classes.

    The result has the attributes of the first set with the times of all; other differences are
    under ``by_device_class``.
    """
    first = costs[0][1]
    result = _timed_by_class(costs)
    by_class: dict[str, dict[str, Any]] = {}
    for classes, attributes in costs[1:]:
        changed = _changed(first, attributes)
        if changed:
            by_class.update(dict.fromkeys(classes, changed))
    if by_class:
        result["by_device_class"] = by_class
    return result


def _timed_by_class(costs: Sequence[tuple[Sequence[str], Mapping[str, Any]]]) -> dict[str, Any]:
    result = dict(costs[0][1])
    times = [(classes, attributes.get("latency_ns", 0)) for classes, attributes in costs]
    if any(isinstance(time, Mapping) for _, time in times):
        by_class: dict[str, int] = {}
        for classes, time in times:
            # A backward pass may take time only on some classes.
            by_class.update(time if isinstance(time, Mapping) else dict.fromkeys(classes, time))
        result["latency_ns"] = by_class
    if "backward" in result:
        result["backward"] = _timed_by_class([(own, cost["backward"]) for own, cost in costs])
    return result


def _changed(first: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name in dict.fromkeys((*first, *other)):
        if name == "backward":
            inner = _changed(first[name], other[name])
            if inner:
                changed[name] = inner
        elif name != "latency_ns" and first.get(name) != other.get(name):
            changed[name] = other.get(name, _ABSENT.get(name, 0))
    return changed


def attention_of(found: Sequence[ClassCosts], name: str) -> str | dict[str, str] | None:
    """Return the kernel of an operator's attention: one, or by device class; None without any."""
    kernels = {each.kernels.get(name) for each in found}
    if len(kernels) == 1:
        return kernels.pop()
    return {cls: each.kernels[name] for each in found for cls in each.specs}


def attention_by_class(found: Sequence[ClassCosts]) -> dict[str, dict[str, int]]:
    """Return the number of operators for each kernel of attention, by device class."""
    counts: dict[str, dict[str, int]] = {}
    for each in found:
        if each.kernels:
            counts.update({cls: dict(Counter(each.kernels.values())) for cls in each.specs})
    return counts
