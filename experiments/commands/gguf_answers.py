"""Parts of the output of ``serve`` that are about a model in a GGUF file alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from experiments.commands.serve_words import words_lines
from fx_bridge.interop import ik_llama_cpp, llama_cpp
from fx_bridge.presentation.tables import table_lines
from solver.model.devices import STAGING_HOST
from solver.model.quantities import format_bytes

if TYPE_CHECKING:
    from fx_bridge.serving.gguf_plan import DeviceUse, GgufPlan

_USES: Final = ("device", "layers", "weights", "cache", "buffer", "free")
_SINCE: Final = {"llama.cpp": llama_cpp.SINCE, ik_llama_cpp.PROGRAM: ik_llama_cpp.SINCE}


def gguf_json(found: GgufPlan) -> dict[str, Any]:
    """Return the line of the engine, and the contents of devices and host, as plain data."""
    plan = found.plan
    return {
        "words": found.line(plan),
        "since": _SINCE[found.jobs.engine],
        "devices": [asdict(use) for use in found.uses(plan)],
        "host_bytes": found.evaluation.host_bytes,
    }


def gguf_rows(found: GgufPlan) -> list[str]:
    """Return the line of the engine, and the contents of devices and host, as lines of text."""
    plan = found.plan
    uses = found.uses(plan)
    rows = []
    for use in uses:
        sizes = (use.weight_bytes, use.cache_bytes, use.buffer_bytes, use.free_bytes)
        rows.append((use.device, _layers(use), *map(format_bytes, sizes)))
    trained = found.jobs.model.longest_context
    beyond = f"; the model was trained for {trained}" if found.context > trained else ""
    return [
        *words_lines(found.line(plan)),
        f"for builds of {found.jobs.engine} since {_SINCE[found.jobs.engine]}",
        *table_lines(_USES, rows, text=["layers"]),
        f"host: {_host(found, uses)}, {format_bytes(found.evaluation.host_bytes)}",
        f"context: {found.context} tokens{beyond}",
    ]


def gguf_scope(found: GgufPlan) -> str:
    """Return the plans that a proof is about, in words."""
    order = "any" if found.has_all_orders else "this"
    where = f" in {order} order of the devices" if len(found.jobs.devices) > 1 else ""
    ends = [_ends(found), "batches in turns" if _take_turns(found) else ""]
    beside = " and ".join(filter(None, ends))
    return f" of all that {found.jobs.engine} can run{where}{beside and f' with {beside}'}"


def gguf_remedy(found: GgufPlan) -> str:
    """Return the end of a sentence on a missing plan, where another engine has more plans."""
    ends = _ends(found)
    return f"; plans for {found.jobs.engine} have {ends}, so write --for llama.cpp" if ends else ""


def _take_turns(found: GgufPlan) -> bool:
    """Return whether plans on several devices were searched with room for batches in turns alone.

    Contexts are the longest with or without them.
    """
    several = found.jobs.on(found.jobs.devices, may_fill=True)
    is_timed = found.objective != "context"
    return is_timed and several.takes_turns and several.can_fill(found.context)


def _ends(found: GgufPlan) -> str:
    """Return what the plans of an engine have in common that its lines need not have."""
    if found.jobs.engine == "llama.cpp" or found.jobs.host is None:
        return ""
    if not found.jobs.has_first_on_host:
        return "no whole layer on the host"
    return "the output beside the last layer"


def _layers(use: DeviceUse) -> str:
    parts = [_range(use.layers[0], use.layers[-1])] if use.layers else []
    parts += [f"{len(use.apart)} of them in part"] if use.apart else []
    return ", ".join([*parts, *(["output"] if use.has_output else [])]) or "-"


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _host(found: GgufPlan, uses: Sequence[DeviceUse]) -> str:
    layers = len(found.jobs.model.layers)
    has_experts = any(unit.expert_bytes for unit in found.jobs.units)
    first = layers - sum(len(use.layers) for use in uses)
    groups = ([found.jobs.units[at].name for at in group.units] for group in found.jobs.groups)
    places = [[found.plan.assignment[name] for name in group] for group in groups]
    apart = sum(own[0] != STAGING_HOST and STAGING_HOST in own for own in places)
    parts = ["embedding"]
    parts += [f"layers {_range(0, first - 1)}"] if first else []
    parts += [f"{'experts' if has_experts else 'feed-forward'} of {apart}"] if apart else []
    return ", ".join(parts)
