"""Halves of layers: the units of plans for language models that do not fit in memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fx_bridge.capture.layers import layer_calls
from solver.model.checks import only_given

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph

_BEFORE, _AFTER = "before the layers", "after the layers"


@dataclass(frozen=True, slots=True)
class HalfLayer:
    """Operators that share one mode, by name in execution order.

    `layer` is the path of their layer; None before the first layer and after the last.
    `has_experts` says that they read weights of a mixture of experts.
    """

    operators: tuple[str, ...]
    layer: str | None
    has_experts: bool
    __repr__ = only_given


def half_layers(captured: CapturedGraph) -> dict[str, HalfLayer]:
    """Return the halves of all layers, in execution order.

    Returns
    -------
    dict of str to HalfLayer
        Halves by the path of the part that gives each its name, such as
        ``"model.layers.0.self_attn"``.

    Notes
    -----
    The first half ends with the first part of a layer that has experts, or more than a tenth of
    the layer's weights outside experts. Operators between two layers are in the half before them.
    """
    layers = layer_calls(captured)
    part_of = _parts(captured)
    heavy = _heavy_parts(captured, part_of)
    inside = [at for at, layer in enumerate(layers.values()) if layer is not None]
    ends = {part: at for at, part in enumerate(part_of.values()) if part is not None}
    found: dict[str, list[str]] = {}
    layer_of: dict[str, str | None] = {}
    now, path = _BEFORE, None
    for at, (name, layer) in enumerate(layers.items()):
        if inside and at > inside[-1]:
            now, path = _AFTER, None
        elif layer is not None:
            first, *rest = heavy.get(layer.path, [layer.path])
            now, path = rest[0] if rest and at > ends[first] else first, layer.path
        found.setdefault(now, []).append(name)
        layer_of[now] = path
    read = captured.storage_table.weights_read
    return {
        unit: HalfLayer(
            tuple(names),
            layer_of[unit],
            any(_is_of_experts(key) for name in names for key in read.get(name, ())),
        )
        for unit, names in found.items()
    }


def joined(
    units: Mapping[str, tuple[str, ...]], groups: Sequence[Collection[str]]
) -> dict[str, tuple[str, ...]]:
    """Return units of which each group of operators has one, with all that runs between them."""
    names = list(units)
    unit_of = {name: at for at, unit in enumerate(names) for name in units[unit]}
    last = list(range(len(names)))
    for group in groups:
        touched = [unit_of[name] for name in group if name in unit_of]
        if touched:
            last[min(touched)] = max(last[min(touched)], *touched)
    found: dict[str, tuple[str, ...]] = {}
    end, unit = -1, ""
    for at, name in enumerate(names):
        unit = name if at > end else unit
        end = max(end, last[at])
        found[unit] = found.get(unit, ()) + units[name]
    return found


def parts_of_units(
    captured: CapturedGraph, units: Mapping[str, Sequence[str]]
) -> dict[str, HalfLayer]:
    """Return the operators of a graph by unit, each of which has one or more half layers."""
    halves = [*half_layers(captured).values()]
    found: dict[str, HalfLayer] = {}
    for unit, names in units.items():
        own = [half for half in halves if half.operators[0] in names]
        layers = {half.layer for half in own}
        found[unit] = HalfLayer(
            tuple(name for half in own for name in half.operators),
            layers.pop() if len(layers) == 1 else None,
            any(half.has_experts for half in own),
        )
    return found


def _is_of_experts(key: str) -> bool:
    return "experts" in key.split(".")


def _parts(captured: CapturedGraph) -> dict[str, str | None]:
    """Return the part that runs each operator, a direct child module of its layer, by path."""
    calls = captured.modules.calls
    found: dict[str, str | None] = {}
    for name, layer in layer_calls(captured).items():
        found[name] = None
        for call in calls[name]:
            if layer is not None and call.path.startswith(f"{layer.path}."):
                own = call.path.removeprefix(f"{layer.path}.").partition(".")[0]
                found[name] = f"{layer.path}.{own}"
                break
    return found


def _heavy_parts(captured: CapturedGraph, part_of: dict[str, str | None]) -> dict[str, list[str]]:
    """Return the parts of every layer that have experts or over a tenth of its weights."""
    table = captured.storage_table
    keys: dict[str, dict[str, set[str]]] = {}
    for name, part in part_of.items():
        if part is not None:
            own = keys.setdefault(part.rpartition(".")[0], {}).setdefault(part, set())
            own.update(table.weights_read.get(name, ()))
    found: dict[str, list[str]] = {}
    for layer, parts in keys.items():
        sizes = {
            part: sum(table.weights[key].size_bytes for key in own if not _is_of_experts(key))
            for part, own in parts.items()
        }
        heavy = [
            part
            for part, own in parts.items()
            if 10 * sizes[part] > sum(sizes.values()) or any(map(_is_of_experts, own))
        ]
        if heavy:
            found[layer] = heavy
    return found
