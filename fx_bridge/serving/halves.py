"""Halves of layers: what shares a mode where a language model does not fit."""

from __future__ import annotations

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.layers import layer_calls
from fx_bridge.capture.modules import module_calls

_BEFORE, _AFTER = "before the layers", "after the layers"


def half_layers(captured: CapturedGraph) -> dict[str, tuple[str, ...]]:
    """Return the operators of each half of a layer, in execution order.

    Returns
    -------
    dict of str to tuple of str
        By the path of the layer with the name of the part that is in the half, such as
        ``"model.layers.0.self_attn"``.

    Notes
    -----
    Operators that run between two layers are in the half before them.
    """
    layers = layer_calls(captured)
    part_of = _parts(captured)
    heavy = _heavy_parts(captured, part_of)
    inside = [at for at, layer in enumerate(layers.values()) if layer is not None]
    ends = {part: at for at, part in enumerate(part_of.values()) if part is not None}
    found: dict[str, list[str]] = {}
    now = _BEFORE
    for at, (name, layer) in enumerate(layers.items()):
        if inside and at > inside[-1]:
            now = _AFTER
        elif layer is not None:
            first, *rest = heavy.get(layer.path, [layer.path])
            now = rest[0] if rest and at > ends[first] else first
        found.setdefault(now, []).append(name)
    return {name: tuple(members) for name, members in found.items()}


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
    """Return the parts of every layer that have more than a tenth of its weights, in order."""
    table = captured.storage_table
    sizes: dict[str, dict[str, int]] = {}
    for name, part in part_of.items():
        if part is not None:
            own = sizes.setdefault(part, {})
            own |= {key: table.weights[key].size_bytes for key in table.weights_read.get(name, ())}
    found: dict[str, dict[str, int]] = {}
    for part, keys in sizes.items():
        found.setdefault(part.rpartition(".")[0], {})[part] = sum(keys.values())
    return {
        layer: [part for part, size in parts.items() if 10 * size > sum(parts.values())]
        for layer, parts in found.items()
        if any(parts.values())
    }
