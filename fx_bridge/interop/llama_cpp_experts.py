r"""Parts of the layers of GPUs that llama.cpp computes on the host, by names of weights.

``--override-tensor`` (``-ot``) has regular expressions, each with a place: the first one found in
the name of a weight places it, and an operation runs where its weight is. ``--n-cpu-moe`` and
``--cpu-moe`` stand for expressions that find the experts of the first layers, or of all, and
``--n-cpu-ffn`` for the other matrices after attention. Weights of a layer are called
``blk.3.ffn_up_exps.weight`` if there are experts, else ``blk.3.ffn_up.weight``. Caches stay where
``-ngl`` puts their layer. These are the rules of ``common/arg.cpp`` and ``llama-model-loader.cpp``
of 2026, and those of the program itself (``benchmarks/llama_cpp.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from fx_bridge.interop.llama_cpp import (
    ALL_EXPERTS,
    FIRST_DENSE,
    FIRST_EXPERTS,
    NO_OP_OFFLOAD,
    OVERRIDE,
    device_of,
    program_device,
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

HOST_BUFFER: Final = "CPU"
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
_EXPERTS_OF: Final = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
_MATRICES: Final[Mapping[Feed, str]] = {
    "experts": "ffn_(up|down|gate|gate_up)_exps",
    "dense": r"ffn_(up|down|gate)\.",
}
_ANY_MATRICES: Final = r"ffn_(up|down|gate|gate_up)(_exps)?\."
_DENSE_OF: Final = r"\.ffn_(up|down|gate)\."


class Moved(NamedTuple):
    """Matrices of a second half that are elsewhere: those after the first ones, and their place."""

    kept: int = 0
    device: str = HOST_BUFFER


def write_experts(
    names: LayerNames,
    stages: Sequence[StageLayers],
    moved: Mapping[int, Moved],
    feeds: Sequence[Feed],
    weights: Sequence[LayerWeights] = (),
) -> Words:
    """Return stages as arguments, with the shortest option for second halves elsewhere.

    `stages` are as for :func:`fx_bridge.interop.llama_cpp.write_split`, `moved` has layers of GPUs,
    `feeds` the second half of each layer. Halves that are divided need the names of `weights`.
    """
    words = write_split(names, stages)
    assert isinstance(words, list)
    if not moved:
        return words
    movable = [at for at, feed in enumerate(feeds) if at >= stages[0].count and feed == "experts"]
    chosen = sorted(moved)
    if {*moved.values()} == {Moved()}:
        if chosen == movable:
            return [*words, ALL_EXPERTS]
        if chosen == [at for at in movable if at <= chosen[-1]]:
            return [*words, FIRST_EXPERTS, str(chosen[-1] + 1)]
    return [*words, OVERRIDE, ",".join(moved_expressions(moved, feeds, weights))]


def moved_expressions(
    moved: Mapping[int, Moved], feeds: Sequence[Feed], weights: Sequence[LayerWeights]
) -> list[str]:
    """Return the values of ``-ot`` for matrices that are elsewhere."""
    layers: dict[tuple[str, str], list[int]] = {}
    whole = sorted(at for at, each in moved.items() if each == Moved())
    if whole:
        kinds = {feeds[at] for at in whole}
        matrices = _MATRICES[kinds.pop()] if len(kinds) == 1 else _ANY_MATRICES
        layers[matrices, HOST_BUFFER] = whole
    for at, (kept, device) in sorted(moved.items()):
        if at not in whole:
            matrices = "|".join(name.split(".")[2] for name, *_ in weights[at].second[kept:])
            place = device if device == HOST_BUFFER else program_device(device)
            layers.setdefault((rf"({matrices})\.", place), []).append(at)
    return [
        rf"blk\.({'|'.join(map(str, chosen))})\.{matrices}={place}"
        for (matrices, place), chosen in layers.items()
    ]


def one_batch(layers: int) -> list[str]:
    """Return arguments for one batch at a time, where devices would else take several in turns.

    With any expression there is room for one batch alone. This one finds nothing: it is about the
    output, which is the item after the layers and has no name of this kind.
    """
    return [OVERRIDE, rf"blk\.{layers}\.={HOST_BUFFER}"]


def read_experts(
    text: str,
    names: LayerNames,
    devices: Sequence[str],
    feeds: Sequence[Feed],
    weights: Sequence[LayerWeights] | None = None,
) -> tuple[list[StageLayers], dict[int, Moved], bool]:
    """Return the stages of arguments, the layers with matrices elsewhere, and a flag.

    The flag is True if the host computes for any number of tokens (``--no-op-offload``). An
    argument that a plan of halves of layers cannot express is refused. `weights` are those of each
    layer; by default all that layers of such kinds may have.
    """
    found = read_options(text)
    stages = stages_of_options(found, names, devices)
    return stages, moved_halves(found, stages, feeds, weights), NO_OP_OFFLOAD in found


def moved_halves(
    found: Mapping[str, str],
    stages: Sequence[StageLayers],
    feeds: Sequence[Feed],
    weights: Sequence[LayerWeights] | None = None,
) -> dict[int, Moved]:
    """Return the layers with matrices elsewhere; errors are as for `read_experts`."""
    _check_halves(found, feeds)
    if weights is None:
        weights = [_weights_of(at, feed) for at, feed in enumerate(feeds)]
    return _moved(stages, overrides(found, len(feeds)), weights)


def check_options(text: str, devices: Sequence[str]) -> None:
    """Refuse arguments that are invalid for any model; errors as for `read_experts`."""
    found = read_options(text)
    split_options(found, devices)
    overrides(found, 1)


class Override(NamedTuple):
    """An expression for weights, their device (``CPU`` for the host), and the option with it."""

    pattern: WeightPattern
    device: str
    option: str = OVERRIDE


def overrides(found: Mapping[str, str], layers: int) -> list[Override]:
    """Return the expressions of options, the first of which counts."""
    made: list[Override] = []
    for option, value in found.items():
        texts: list[str] = []
        if option == ALL_EXPERTS:
            texts = [_EXPERTS_OF]
        elif option in (FIRST_EXPERTS, FIRST_DENSE):
            count = min(read_number(value, f"llama.cpp's {option}"), layers)
            weights = _EXPERTS_OF if option == FIRST_EXPERTS else _DENSE_OF
            texts = [rf"blk\.{layer}{weights}" for layer in range(count)]
        elif option == OVERRIDE:
            made += _read_overrides(value, found.get("--rpc", ""))
        made += [
            Override(WeightPattern(text, f"llama.cpp's {option}"), HOST_BUFFER, option)
            for text in texts
        ]
    return made


def _check_halves(found: Mapping[str, str], feeds: Sequence[Feed]) -> None:
    """Refuse options about halves that no layer has."""
    for option, feed, weights in (
        *((name, "experts", "experts") for name in (FIRST_EXPERTS, ALL_EXPERTS)),
        (FIRST_DENSE, "dense", "dense matrices after attention"),
    ):
        if option in found and feed not in feeds:
            raise PartitionError(
                f"llama.cpp's {option} is about {weights}, and the model has none; write such as "
                rf'{OVERRIDE} "blk\.(0|1)\.ffn_(up|down|gate)\.weight={HOST_BUFFER}"'
            )


def _read_overrides(text: str, servers: str) -> list[Override]:
    made: list[Override] = []
    for part in text.split(","):
        expression, equals, place = part.partition("=")
        device = _device_of_buffer(place, servers.split(","))
        if not equals or device is None:
            raise PartitionError(
                f"llama.cpp's {OVERRIDE} has {part[:100]!r}; write an expression, = and "
                f"{HOST_BUFFER} or such as CUDA0, and for a server of --rpc RPC0[HOST:PORT]"
            )
        made.append(Override(WeightPattern(expression, f"llama.cpp's {OVERRIDE}"), device))
    return made


def _device_of_buffer(place: str, servers: Sequence[str]) -> str | None:
    """Return the device of a buffer: each server calls its own ``RPC0``, with its address."""
    name, bracket, address = place.partition("[")
    if bracket:
        server = address.removesuffix("]")
        return f"rpc:{servers.index(server)}" if name == "RPC0" and server in servers else None
    device = device_of(place)
    return (
        device
        if device == HOST_BUFFER or (device != place and not device.startswith("rpc:"))
        else None
    )


class LayerWeights(NamedTuple):
    """Names of the weights of a layer."""

    first: tuple[str, ...]  # matrices of the half with the cache
    rare: tuple[str, ...]  # weights that this half has in some architectures only
    second: tuple[tuple[str, ...], ...]  # matrices of the other half, those together in a row
    beside: tuple[str, ...]  # other weights of that half: a router, shared experts, norms


def _weights_of(layer: int, feed: Feed) -> LayerWeights:
    def named(parts: Iterable[str]) -> tuple[str, ...]:
        return tuple(
            f"blk.{layer}.{part}" if "." in part else f"blk.{layer}.{part}.weight" for part in parts
        )

    first, rare = named(_ATTENTION), named(_BESIDE_ATTENTION)
    if feed == "none":
        return LayerWeights(first, rare, (), ())
    second = named(f"ffn_{part}{_SUFFIX[feed]}" for part in ("up", "down", "gate"))
    return LayerWeights(first, rare, (second,), named((*_BESIDE[feed], *_BESIDE_BOTH)))


def _moved(
    stages: Sequence[StageLayers], overrides: Sequence[Override], weights: Sequence[LayerWeights]
) -> dict[int, Moved]:
    """Return the layers whose second half, or a part of it, leaves the first."""
    if not overrides:
        return {}
    device_of = [stage.device for stage in stages for _ in range(stage.count)]
    head = next(stage.device for stage in stages if stage.has_head)
    others = {
        "token_embd.weight": stages[0].device,
        "output.weight": head,
        "output_norm.weight": head,
    }
    rare = frozenset(name for own in weights for name in own.rare)
    second = frozenset(name for own in weights for row in own.second for name in row)
    more = (name for own in weights for name in (*own.first, *own.beside))
    names = (*more, *rare, *second, *others)
    unloaded = _unloaded(weights)
    places: dict[str, str] = {}
    for override in overrides:
        found = override.pattern.found_in(names)
        is_meant = found or override.pattern.found_in(unloaded)
        if not is_meant and override.option == OVERRIDE:
            last = next((own.second[-1][-1] for own in reversed(weights) if own.second), "none")
            raise PartitionError(
                f"llama.cpp's {OVERRIDE} has {override.pattern.text[:100]!r}, which is found in no "
                f"weight of the model, such as {last}; write it for these names"
            )
        # An expression that finds these matrices is hardly meant for rare weights.
        for name in found - rare if found & second else found:
            places.setdefault(name, override.device)
    for name, device in others.items():
        own = HOST_BUFFER if is_host(device) else device
        if places.get(name, own) != own:
            raise PartitionError(
                f"llama.cpp's {OVERRIDE} moves {name!r} away from {device}, where plans have it; "
                "write expressions of ffn weights alone"
            )
    order = [stage.device for stage in stages]
    moved = {
        at: _moved_of(own, device, order[order.index(device) + 1 :], places)
        for at, (own, device) in enumerate(zip(weights, device_of, strict=True))
    }
    return {at: each for at, each in moved.items() if each is not None}


def _unloaded(weights: Sequence[LayerWeights]) -> frozenset[str]:
    """Return names of matrices by the numbers of items without any.

    ``--fit`` writes expressions for all items, such as blocks that are not loaded and the output.
    """
    empty = [at for at, own in enumerate(weights) if not own.first and not own.second]
    return frozenset(
        f"blk.{at}.{name.split('.', 2)[2]}"
        for own in weights
        for name in (*own.first, *(name for row in own.second for name in row))
        for at in (*empty, len(weights))
    )


def _moved_of(
    weights: LayerWeights, device: str, later: Sequence[str], places: Mapping[str, str]
) -> Moved | None:
    """Return the matrices of a second half that are elsewhere; None if it is where the first is."""
    own = HOST_BUFFER if is_host(device) else device
    for name in (*weights.first, *weights.rare):
        if places.get(name, own) != own:
            raise PartitionError(
                f"llama.cpp's {OVERRIDE} moves {name!r} away from {device}, where its cache "
                "stays; write expressions of ffn weights alone, or a smaller -ngl"
            )
    found = [{name: places.get(name, own) for name in row} for row in weights.second]
    rows = [{*row.values()} for row in found]
    kept = next((at for at, row in enumerate(rows) if row != {own}), len(rows))
    if len(set().union(*rows[kept:])) > 1:
        places_of = ", ".join(f"{name} on {place}" for row in found for name, place in row.items())
        raise PartitionError(
            f"llama.cpp's {OVERRIDE} divides a layer: {places_of}; write ffn_(up|down|gate), or "
            "the last of these together"
        )
    place = rows[kept].pop() if kept < len(rows) else own
    allowed = {own, place} if place in (HOST_BUFFER, *later) else {own}
    for name in (*(name for row in found for name in row), *weights.beside):
        there = places.get(name, own)
        if there not in allowed:
            raise PartitionError(
                f"llama.cpp's {OVERRIDE} has {name!r} on {there}, and the layer is on {device}; "
                f"write {HOST_BUFFER} for all ffn weights of it, or another -ts"
            )
    return None if place == own else Moved(kept, place)
