r"""Parts of the layers of GPUs that llama.cpp computes on the host, by names of weights.

``--override-tensor`` (``-ot``) has regular expressions, each with a place: the first one found in
the name of a weight places it, and an operation runs where its weight is. ``--n-cpu-moe`` and
``--cpu-moe`` stand for expressions that find the experts of the first layers, or of all. Weights of
a layer are called ``blk.3.ffn_up_exps.weight`` if there are experts, else ``blk.3.ffn_up.weight``.
Caches stay where ``-ngl`` puts their layer. Based on ``common/arg.cpp`` and
``llama-model-loader.cpp`` of 2026, without a test against the program.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from fx_bridge.interop.llama_cpp import (
    ALL_EXPERTS,
    FIRST_EXPERTS,
    NO_OP_OFFLOAD,
    OVERRIDE,
    read_options,
    split_options,
    stages_of_options,
    write_split,
)
from fx_bridge.interop.stage_layers import LayerNames, StageLayers, is_host
from fx_bridge.interop.weight_patterns import WeightPattern
from fx_bridge.interop.words import Words, read_number
from solver import PartitionError

Feed = Literal["experts", "dense", "none"]
"""The second half of a layer; ``"none"`` if it has no such half."""

OP_OFFLOAD_TOKENS: Final = 32
"""``GGML_OP_OFFLOAD_MIN_BATCH``: smallest batch with copies of host matrices."""

_HOST: Final = "CPU"
_SUFFIX: Final[Mapping[Feed, str]] = {"experts": "_exps", "dense": ""}
_ATTENTION: Final = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output")
_BESIDE_ATTENTION: Final = (
    *("attn_norm", "attn_norm_2", "attn_q_norm", "attn_k_norm", "attn_gate", "attn_sinks"),
    *("attn_q_a", "attn_q_a_norm", "attn_q_b", "attn_kv_a_mqa", "attn_kv_a_norm", "attn_kv_b"),
    *("attn_k_b", "attn_v_b"),
    *("ssm_in", "ssm_conv1d", "ssm_x", "ssm_dt", "ssm_a", "ssm_d", "ssm_norm", "ssm_out"),
    *("attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_output.bias"),
)
_BESIDE_BOTH: Final = ("ffn_norm", "post_ffw_norm", "post_attention_norm")
_BESIDE: Final[Mapping[Feed, tuple[str, ...]]] = {
    "experts": (
        *("ffn_gate_inp", "ffn_gate_inp_shexp", "exp_probs_b.bias"),
        *("ffn_up_shexp", "ffn_down_shexp", "ffn_gate_shexp"),
    ),
    "dense": ("ffn_up.bias", "ffn_down.bias"),
}
"""Names of ``llama-arch.cpp``, of all architectures together."""
_EXPERTS_OF: Final = r"blk\.{}\.ffn_(up|down|gate)_exps"


def write_experts(
    names: LayerNames,
    stages: Sequence[StageLayers],
    on_host: Collection[int],
    feeds: Sequence[Feed],
) -> Words:
    """Return stages as arguments, with the shortest option for second halves on the host.

    `stages` are as for :func:`fx_bridge.interop.llama_cpp.write_split`, `on_host` the layers of
    GPUs whose second half is on the host, `feeds` the second half of each layer.
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
    """Return the stages of arguments, the layers with a half on the host, and a flag.

    The flag is True if the host computes for any number of tokens (``--no-op-offload``). An
    argument that a plan of halves of layers cannot express is refused.
    """
    found = read_options(text)
    stages = stages_of_options(found, names, devices)
    return stages, _moved(stages, _overrides(found, feeds), feeds), NO_OP_OFFLOAD in found


def check_options(text: str, devices: Sequence[str]) -> None:
    """Refuse arguments that are invalid for any model; errors as for `read_experts`."""
    found = read_options(text)
    split_options(found, devices)
    if FIRST_EXPERTS in found:
        read_number(found[FIRST_EXPERTS], f"llama.cpp's {FIRST_EXPERTS}")
    if OVERRIDE in found:
        _read_overrides(found[OVERRIDE])


class _Override(NamedTuple):
    """An expression for weights, their device (``CPU`` for the host), and the option with it."""

    pattern: WeightPattern
    device: str
    option: str = OVERRIDE


def _overrides(found: Mapping[str, str], feeds: Sequence[Feed]) -> list[_Override]:
    made: list[_Override] = []
    for option, value in found.items():
        if option in (FIRST_EXPERTS, ALL_EXPERTS) and "experts" not in feeds:
            raise PartitionError(
                f"llama.cpp's {option} is about experts, and the model has none; write such as "
                rf'{OVERRIDE} "blk\.(0|1)\.ffn_(up|down|gate)\.weight={_HOST}"'
            )
        layers = r"\d+"
        if option == FIRST_EXPERTS:
            count = min(read_number(value, f"llama.cpp's {option}"), len(feeds))
            layers = f"({'|'.join(map(str, range(count)))})" if count else "(?!)"
        if option in (FIRST_EXPERTS, ALL_EXPERTS):
            pattern = WeightPattern(_EXPERTS_OF.format(layers), f"llama.cpp's {option}")
            made.append(_Override(pattern, _HOST, option))
        elif option == OVERRIDE:
            made += _read_overrides(value)
    return made


def _read_overrides(text: str) -> list[_Override]:
    made: list[_Override] = []
    for part in text.split(","):
        expression, equals, place = part.partition("=")
        device = place.replace("CUDA", "cuda:") if place.startswith("CUDA") else place
        if not equals or not (device == _HOST or device.startswith("cuda:")):
            raise PartitionError(
                f"llama.cpp's {OVERRIDE} has {part[:100]!r}; write an expression, = and {_HOST} or "
                "such as CUDA0"
            )
        made.append(_Override(WeightPattern(expression, f"llama.cpp's {OVERRIDE}"), device))
    return made


class _LayerWeights(NamedTuple):
    first: tuple[str, ...]  # matrices of the half with the cache
    rare: tuple[str, ...]  # weights that this half has in some architectures only
    second: tuple[str, ...]  # matrices of the other half, which define its place
    beside: tuple[str, ...]  # other weights of that half: a router, shared experts, norms


def _weights_of(layer: int, feed: Feed) -> _LayerWeights:
    def named(parts: Iterable[str]) -> tuple[str, ...]:
        return tuple(
            f"blk.{layer}.{part}" if "." in part else f"blk.{layer}.{part}.weight" for part in parts
        )

    first, rare = named(_ATTENTION), named(_BESIDE_ATTENTION)
    if feed == "none":
        return _LayerWeights(first, rare, (), ())
    second = named(f"ffn_{part}{_SUFFIX[feed]}" for part in ("up", "down", "gate"))
    return _LayerWeights(first, rare, second, named((*_BESIDE[feed], *_BESIDE_BOTH)))


def _moved(
    stages: Sequence[StageLayers], overrides: Sequence[_Override], feeds: Sequence[Feed]
) -> frozenset[int]:
    """Return the layers whose second half goes to the host while the first does not."""
    if not overrides:
        return frozenset()
    device_of = [stage.device for stage in stages for _ in range(stage.count)]
    weights = [_weights_of(at, feed) for at, feed in enumerate(feeds)]
    head = next(stage.device for stage in stages if stage.has_head)
    others = {
        "token_embd.weight": stages[0].device,
        "output.weight": head,
        "output_norm.weight": head,
    }
    rare = frozenset(name for own in weights for name in own.rare)
    second = frozenset(name for own in weights for name in own.second)
    more = (name for own in weights for name in (*own.first, *own.beside))
    names = (*more, *rare, *second, *others)
    places: dict[str, str] = {}
    for override in overrides:
        found = override.pattern.found_in(names)
        if not found and override.option == OVERRIDE:
            last = next((own.second[-1] for own in reversed(weights) if own.second), "none")
            raise PartitionError(
                f"llama.cpp's {OVERRIDE} has {override.pattern.text[:100]!r}, which is found in no "
                f"weight of the model, such as {last}; write it for these names"
            )
        # An expression that finds these matrices is hardly meant for rare weights.
        for name in found - rare if found & second else found:
            places.setdefault(name, override.device)
    for name, device in others.items():
        own = _HOST if is_host(device) else device
        if places.get(name, own) != own:
            raise PartitionError(
                f"llama.cpp's {OVERRIDE} moves {name!r} away from {device}, where plans have it; "
                "write expressions of ffn weights alone"
            )
    return frozenset(
        at
        for at, (own, device) in enumerate(zip(weights, device_of, strict=True))
        if _is_moved(own, device, places)
    )


def _is_moved(weights: _LayerWeights, device: str, places: Mapping[str, str]) -> bool:
    """Return True if the second half of a layer goes to the host and the first does not."""
    own = _HOST if is_host(device) else device
    for name in (*weights.first, *weights.rare):
        if places.get(name, own) != own:
            raise PartitionError(
                f"llama.cpp's {OVERRIDE} moves {name!r} away from {device}, where its cache "
                "stays; write expressions of ffn weights alone, or a smaller -ngl"
            )
    found = {name: places.get(name, own) for name in weights.second}
    if len(set(found.values())) > 1:
        places_of = ", ".join(f"{name} on {place}" for name, place in found.items())
        raise PartitionError(
            f"llama.cpp's {OVERRIDE} divides a layer: {places_of}; write ffn_(up|down|gate)"
        )
    place = next(iter(found.values()), own)
    allowed = {own, place} if place == _HOST else {own}
    for name in (*weights.second, *weights.beside):
        there = places.get(name, own)
        if there not in allowed:
            raise PartitionError(
                f"llama.cpp's {OVERRIDE} has {name!r} on {there}, and the layer is on {device}; "
                f"write {_HOST} for all ffn weights of it, or another -ts"
            )
    return place != own
