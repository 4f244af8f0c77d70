r"""What llama.cpp computes on the host of layers that are on a GPU, by names of their weights.

``--override-tensor`` (``-ot``) has regular expressions, each with a place: the first that is found
in the name of a weight says where it is, and an operation runs where its weight is. ``--n-cpu-moe``
and ``--cpu-moe`` stand for expressions that find the experts of the first layers, or of all. The
weights of a layer are called ``blk.3.ffn_up_exps.weight`` where there are experts,
``blk.3.ffn_up.weight`` where there are none. Caches stay where ``-ngl`` has their layer. Written
after ``common/arg.cpp`` and ``llama-model-loader.cpp`` of 2026. It was not run.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

from fx_bridge.interop.llama_cpp import (
    ALL_EXPERTS,
    FIRST_EXPERTS,
    NO_OP_OFFLOAD,
    OVERRIDE,
    asked_of_options,
    read_options,
    stages_of_options,
    write_split,
)
from fx_bridge.interop.stage_layers import LayerNames, StageLayers, is_host
from fx_bridge.interop.words import Words, read_number
from solver import PartitionError

Feed = Literal["experts", "dense", "none"]
"""What the second half of a layer is; ``"none"`` if it has no such half."""

OP_OFFLOAD_TOKENS: Final = 32
"""``GGML_OP_OFFLOAD_MIN_BATCH``: for this number or more llama.cpp copies matrices of the host."""

_HOST: Final = "CPU"
_SUFFIX: Final[Mapping[Feed, str]] = {"experts": "_exps", "dense": ""}
_ATTENTION: Final = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output")
_EXPERTS_OF: Final = r"blk\.{}\.ffn_(up|down|gate)_exps"


def write_experts(
    names: LayerNames,
    stages: Sequence[StageLayers],
    on_host: Collection[int],
    feeds: Sequence[Feed],
) -> Words:
    """Return stages as arguments, with the shortest that has second halves of layers on the host.

    Parameters
    ----------
    stages : sequence of StageLayers
        As :func:`fx_bridge.interop.llama_cpp.write_split` takes them.
    on_host : collection of int
        Layers of GPUs whose second half is on the host.
    feeds : sequence of {"experts", "dense", "none"}
        What the second half of each layer is.
    """
    words = write_split(names, stages)
    assert isinstance(words, list)
    if not on_host:
        return words
    movable = [at for at, feed in enumerate(feeds) if at >= stages[0].count and feed == "experts"]
    chosen = sorted(on_host)
    if chosen == movable:
        return [*words, ALL_EXPERTS]
    if chosen == [at for at in movable if at <= chosen[-1]]:
        return [*words, FIRST_EXPERTS, str(chosen[-1] + 1)]
    suffixes = {_SUFFIX[feeds[at]] for at in chosen}
    suffix = "(_exps)?" if len(suffixes) > 1 else suffixes.pop()
    layers = "|".join(map(str, chosen))
    return [*words, OVERRIDE, rf"blk\.({layers})\.ffn_(up|down|gate){suffix}\.weight={_HOST}"]


def read_experts(
    text: str, names: LayerNames, devices: Sequence[str], feeds: Sequence[Feed]
) -> tuple[list[StageLayers], frozenset[int], bool]:
    """Return the stages that arguments say, the layers with a half on the host, and a flag.

    The flag says whether the host computes for any number of tokens (``--no-op-offload``).

    Raises
    ------
    PartitionError
        In one line: which argument says nothing that a plan of halves of layers can say.
    """
    found = read_options(text)
    stages = stages_of_options(found, names, devices)
    overrides = _overrides(found, feeds)
    device_of = [stage.device for stage in stages for _ in range(stage.count)]
    on_host = {
        at
        for at, (feed, device) in enumerate(zip(feeds, device_of, strict=True))
        if _is_moved(at, feed, device, overrides)
    }
    _check_found(overrides, feeds)
    return stages, frozenset(on_host), NO_OP_OFFLOAD in found


def check_options(text: str, devices: Sequence[str]) -> None:
    """Refuse arguments that say nothing, whatever the model is; errors as `read_experts`."""
    found = read_options(text)
    asked_of_options(found, devices)
    if FIRST_EXPERTS in found:
        _count_of_experts(found[FIRST_EXPERTS])
    if OVERRIDE in found:
        _override_all(found[OVERRIDE])


Override = tuple[re.Pattern[str], str]
"""An expression, and the device of what it is found in; of the host, ``CPU``."""


def _overrides(found: Mapping[str, str], feeds: Sequence[Feed]) -> list[Override]:
    """Return the expressions of all options, in their order."""
    made: list[Override] = []
    for option, value in found.items():
        if option in (FIRST_EXPERTS, ALL_EXPERTS) and "experts" not in feeds:
            raise PartitionError(
                f"llama.cpp's {option} is about experts, and the model has none; write such as "
                rf'{OVERRIDE} "blk\.(0|1)\.ffn_(up|down|gate)\.weight={_HOST}"'
            )
        if option == ALL_EXPERTS:
            made.append((re.compile(_EXPERTS_OF.format(r"\d+")), _HOST))
        elif option == FIRST_EXPERTS:
            count = min(_count_of_experts(value), len(feeds))
            layers = "|".join(map(str, range(count)))
            made += [(re.compile(_EXPERTS_OF.format(f"({layers})")), _HOST)] if count else []
        elif option == OVERRIDE:
            made += _override_all(value)
    return made


def _count_of_experts(text: str) -> int:
    return read_number(text, f"llama.cpp's {FIRST_EXPERTS}")


def _override_all(text: str) -> list[Override]:
    return [_override(part) for part in text.split(",")]


def _override(text: str) -> Override:
    expression, equals, place = text.partition("=")
    device = place.replace("CUDA", "cuda:") if place.startswith("CUDA") else place
    if not equals or not (device == _HOST or device.startswith("cuda:")):
        raise PartitionError(
            f"llama.cpp's {OVERRIDE} has {text!r}; write an expression, = and {_HOST} or such as "
            "CUDA0"
        )
    try:
        return re.compile(expression), device
    except re.error as error:
        raise PartitionError(
            f"llama.cpp's {OVERRIDE} has {expression!r}, which is no regular expression ({error});"
            r" write such as blk\.(3|4)\.ffn_(up|down|gate)_exps\.weight"
        ) from None


def _names(layer: int, feed: Feed) -> list[str]:
    """Return what llama.cpp calls the matrices of the second half of a layer."""
    if feed == "none":
        return []
    return [f"blk.{layer}.ffn_{part}{_SUFFIX[feed]}.weight" for part in ("up", "down", "gate")]


def _place(name: str, overrides: Sequence[Override]) -> str | None:
    return next((place for pattern, place in overrides if pattern.search(name)), None)


def _is_moved(layer: int, feed: Feed, device: str, overrides: Sequence[Override]) -> bool:
    """Return whether the second half of a layer goes to the host and the first does not."""
    own = _HOST if is_host(device) else device
    attention = [f"blk.{layer}.{part}.weight" for part in _ATTENTION]
    for name in attention:
        if (_place(name, overrides) or own) != own:
            raise PartitionError(
                f"llama.cpp's {OVERRIDE} moves {name!r} away from {device}, where its cache "
                "stays; write expressions of ffn weights alone, or a smaller -ngl"
            )
    places = {name: _place(name, overrides) or own for name in _names(layer, feed)}
    if len(set(places.values())) > 1:
        told = ", ".join(f"{name} on {place}" for name, place in places.items())
        raise PartitionError(
            f"llama.cpp's {OVERRIDE} divides a layer: {told}; write ffn_(up|down|gate)"
        )
    place = next(iter(places.values()), own)
    if place not in (own, _HOST):
        raise PartitionError(
            f"llama.cpp's {OVERRIDE} has the ffn weights of layer {layer} on {place}, and the "
            f"layer is on {device}; write {_HOST}, or another -ts"
        )
    return place != own


def _check_found(overrides: Sequence[Override], feeds: Sequence[Feed]) -> None:
    """Refuse an expression that is found in no name, such as one for another kind of model."""
    names = [name for at, feed in enumerate(feeds) for name in _names(at, feed)]
    for pattern, _ in overrides:
        if not any(map(pattern.search, names)):
            raise PartitionError(
                f"llama.cpp's {OVERRIDE} has {pattern.pattern!r}, which is found in no weight of "
                f"the model, such as {names[-1] if names else 'none'}; write it for these names"
            )
