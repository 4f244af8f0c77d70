"""The kinds of layers of hybrid models, and engines that need attention on each stage of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from fx_bridge.interop.stage_layers import LayerNames, StageLayers
from solver import PartitionError

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph

_RECURRENT: Final = "linear_attention"  # others have no ``attention`` in their kind


def kinds_of_layers(captured: CapturedGraph, layers: int) -> tuple[str, ...]:
    """Return the kinds of a model of transformers, by layer; empty if it has no or other ones."""
    source = captured.source
    for module in () if source is None else source.modules():
        config: Any = getattr(module, "config", None)
        if hasattr(config, "get_text_config"):
            config = config.get_text_config()
        kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
        if isinstance(kinds, (list, tuple)) and len(kinds) == layers:
            return tuple(map(str, kinds))
    return ()


def check_attention(
    program: str, kinds: Sequence[str], names: LayerNames, stages: Sequence[StageLayers]
) -> None:
    """Refuse a stage without attention if the model has layers with attention and without.

    vLLM looks on each stage for the attention layer by which it sizes all caches (issue 51752).
    """
    has = [("attention" in kind and kind != _RECURRENT) or kind[:6] == "hybrid" for kind in kinds]
    having = [at for at, is_attention in enumerate(has) if is_attention]
    if all(has) or not having:
        return
    first = 0
    for stage in stages:
        end = first + stage.count
        if stage.count and not any(has[first:end]):
            near = min(having, key=lambda at: max(first - at, at - end))
            ends = sorted((near, first if near >= end else end - 1))
            whole = "+".join(names.layers[at] for at in ends)
            raise PartitionError(
                f"{stage} has layers {first} to {end - 1}, none of them with attention, and "
                f"{program} needs one on each stage of a hybrid model; plan with "
                f"Placement(keep_whole=[{whole!r}])"
            )
        first = end
