"""Halves of layers: what shares a mode where a language model does not fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fx_bridge.capture.layers import layer_calls
from fx_bridge.capture.modules import module_calls
from solver.model.checks import only_given

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph

_BEFORE, _AFTER = "before the layers", "after the layers"


@dataclass(frozen=True, slots=True)
class HalfLayer:
    """Operators that share a mode.

    Attributes
    ----------
    operators : tuple of str
        In execution order.
    layer : str or None
        The path of their layer; None for what is before the first or after the last one.
    has_experts : bool
        Whether they read weights of a mixture of experts.
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
        By the path of the layer with the name of the part that is in the half, such as
        ``"model.layers.0.self_attn"``.

    Notes
    -----
    The first half ends with the first part of a layer that has more than a tenth of its weights,
    experts not counted, or that has experts. Operators that run between two layers are in the half
    before them.
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


def _is_of_experts(key: str) -> bool:
    return "experts" in key.split(".")


def _parts(captured: CapturedGraph) -> dict[str, str | None]:
    """Return the path of the part of a layer, a module right below it, that runs an operator."""
    calls = module_calls(captured)
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
    """Return the parts of every layer that count for its halves, in order."""
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
