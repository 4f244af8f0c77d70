"""Bytes that llama.cpp needs on a device beside weights and caches, while it computes a batch.

Its allocator (``ggml-alloc.c``) keeps all intermediate results in one buffer, whose size depends on
the holes between them. Here is an upper estimate by the shapes of the matrices. Its constants come
from comparisons with what the program says for RPC devices (``benchmarks/llama_cpp.py``); a CUDA
build also casts a quantised cache of one layer to f16.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final

from fx_bridge.files.gguf_layers import GgufModel, HalfLayer

_FLOAT_BYTES: Final = 4
_HALF_BYTES: Final = 2
CONTEXT_STEP: Final = 256
"""Contexts are multiples of this in llama.cpp, which rounds others up."""
_COPIES: Final = 4
"""Batches in a pipeline, each with inputs of its own (``GGML_SCHED_MAX_COPIES``)."""
_INDEX_BYTES: Final = 256
"""Of a token: its position, its places in caches and in the output."""


def compute_buffer_bytes(
    model: GgufModel,
    *,
    context: int,
    ubatch: int,
    flash: bool,
    has_output: bool,
    pipelined: bool = True,
    divided: bool = True,
    crossing: bool = True,
    layers: Collection[int] | None = None,
) -> int:
    """Return an upper estimate of the compute buffer of a device with some layers, by default all.

    `context` is the positions of the caches (``-c``), `ubatch` the tokens that are computed
    together (``-ub``). Fused attention (`flash`, ``-fa on``) keeps no scores. A device that has the
    output has the logits of these tokens. If several devices have all layers, without ``-ot``, they
    are `pipelined`: inputs are held four times. By ``-ot``, and so without a pipeline, layers may
    be `divided`, and their matrices be on the device of the next layer (`crossing`).
    """
    context = padded_positions(context)
    ubatch = min(ubatch, context)
    chosen = [layer for at, layer in enumerate(model.layers) if layers is None or at in layers]
    windows = {first.cache.most_positions for first, _ in chosen if first.cache.position_bytes}
    lengths = [cached_positions(context, window, ubatch) for window in windows]
    most = _most(_results(model, *layer, pipelined=pipelined) for layer in chosen)
    token = ubatch * _FLOAT_BYTES
    row = model.width * token
    spare = 0 if windows <= {None} else row
    mask = sum(lengths) * ubatch * (_HALF_BYTES if flash else _FLOAT_BYTES)
    indices = ubatch * _INDEX_BYTES
    inputs = (_COPIES if pipelined else 1) * (row + mask + indices)
    casts = (most.cast if flash else most.latent) * max(lengths, default=0) * _HALF_BYTES
    attention = row + most.attention * token + 2 * most.state_bytes + casts
    scores = [] if flash else [model.heads * length * token for length in lengths]
    # The copy of a result from another device lies before all later results.
    beside = 3 * row if pipelined else max(2 * row, crossing * most.inner * token)
    peak = _peak_bytes(most, attention, scores, token, row, spare, pipelined, beside)
    if not has_output:
        return inputs + peak
    logits = (model.vocabulary + 2 * most.keys_values) * token
    if pipelined:
        smaller = sum(scores) - max(scores, default=0)
        logits += inputs + attention + (7 if scores else 5) * row + 2 * spare + smaller
        return max(inputs + peak + 5 * row, logits)
    before = 2 * (row + most.routed * token) if most.state_bytes else attention
    logits += before + row + row // 2 + 2 * indices + (mask if spare or most.latent else 0)
    if divided:
        # Results return from elsewhere, and after attention the mask is before them in the buffer.
        last = next((first for first, _ in reversed(model.layers) if first.tensors), None)
        ends_with_attention = last is not None and last.cache.position_bytes > 0
        logits += row + indices + (mask if most.state_bytes and ends_with_attention else 0)
    return max(inputs + peak, logits)


def padded_positions(count: int) -> int:
    """Return the length of a cache for `count` positions."""
    return -(-count // CONTEXT_STEP) * CONTEXT_STEP


def cached_positions(context: int, window: int | None, ubatch: int) -> int:
    """Return the length of the cache of a layer, which may see a window alone."""
    whole = padded_positions(context)
    return whole if window is None else min(whole, padded_positions(window + ubatch))


def _peak_bytes(
    most: _Results,
    attention: int,
    scores: list[int],
    token: int,
    row: int,
    spare: int,
    pipelined: bool,
    beside: int,
) -> int:
    """Return the most bytes of intermediate results at once, with the holes between them."""
    feed = most.feed * token
    if not scores and (most.routed or not pipelined):
        return max(attention, feed) + beside + spare
    kept = attention + (sum(scores) if pipelined else max(scores))
    # The matrices after attention use the hole that it leaves, each if it fits.
    hole = max(max(scores, default=0) - 3 * row, attention - 2 * row)
    largest = max(most.largest * token, 1)
    beyond = max(feed - hole // largest * largest, 0) + (3 * row if scores else spare)
    peak = kept + max(4 * row, 2 * row + 4 * most.keys_values * token, beyond)
    return peak + (2 * row if most.routed else 0)


@dataclass(frozen=True, slots=True)
class _Results:
    """Intermediate results of one token in a layer, or the most of several layers, in floats.

    `attention` is of those before the matrices after attention, with the keys and values, and
    `keys_values` of these alone; `feed` of those of the matrices after attention, the `largest` of
    them; `inner` of the input of the last matrix, without experts; `routed` of those of the
    experts, before they are added up. `state_bytes` is the state of a sequence. `latent` and `cast`
    are entries of a position in a cache that is copied without fused attention, and with it.
    """

    attention: int = 0
    keys_values: int = 0
    feed: int = 0
    largest: int = 0
    inner: int = 0
    routed: int = 0
    state_bytes: int = 0
    latent: int = 0
    cast: int = 0


def _most(found: Iterable[_Results]) -> _Results:
    layers = [*found, _Results()]
    return _Results(
        *(max(getattr(own, field.name) for own in layers) for field in fields(_Results))
    )


def _results(model: GgufModel, first: HalfLayer, second: HalfLayer, *, pipelined: bool) -> _Results:
    shapes = {
        tensor.name.split(".")[2]: tensor.shape
        for tensor in (*first.tensors, *second.tensors)
        if len(tensor.shape) > 1 and tensor.name.endswith(".weight")
    }
    attention, keys_values = _attention(shapes)
    if first.cache.state_bytes:
        # The first kind of scan has results of its own for the steps in time.
        width = 8 if pipelined and "ssm_x" in shapes else 4
        inner = model.metadata.get(f"{model.architecture}.ssm.inner_size", model.width)
        attention += shapes.get("ssm_in", (0, 0))[1] + width * inner
    has_biases = any(tensor.name.endswith("_exps.bias") for tensor in second.tensors)
    feed, largest, routed = _feed(model, shapes, has_biases)
    return _Results(
        *(attention, keys_values, feed, largest),
        inner=0 if routed else shapes.get("ffn_down", (0,))[0],
        routed=routed,
        state_bytes=first.cache.state_bytes,
        latent=shapes["attn_k_b"][1] if "attn_k_b" in shapes else 0,
        cast=first.cache.entries if first.cache.is_quantised else 0,
    )


def _attention(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
    """Return the results of attention, and those of keys and values among them."""
    outputs = {name: shape[1] for name, shape in shapes.items() if name.startswith("attn_")}
    if len(shapes.get("attn_k_b", ())) == 3:
        _, latent, heads = shapes["attn_k_b"]
        joint = outputs.get("attn_kv_a_mqa", latent)
        queries = outputs.get("attn_q", 0) + outputs.get("attn_q_b", 0)
        return queries + joint + heads * (latent + joint + outputs.get("attn_v_b", latent)), 0
    if outputs.keys() >= {"attn_q", "attn_k", "attn_v"}:
        keys_values = outputs["attn_k"] + outputs["attn_v"]
        return 2 * outputs["attn_q"] + keys_values, keys_values
    if outputs.keys() >= {"attn_qkv", "attn_output"}:
        queries = shapes["attn_output"][0]
        keys_values = max(outputs["attn_qkv"] - queries, 0)
        return outputs["attn_qkv"] + 2 * queries + keys_values, keys_values
    return 2 * sum(outputs.values()), 0


def _feed(
    model: GgufModel, shapes: Mapping[str, tuple[int, ...]], has_biases: bool
) -> tuple[int, int, int]:
    """Return the results after attention, the largest of them, and those of experts."""
    routed = "ffn_down_exps" in shapes
    suffix = "_exps" if routed else ""
    if f"ffn_down{suffix}" not in shapes:
        return 0, 0, 0
    times = model.experts_used if routed else 1
    inner = times * shapes[f"ffn_down{suffix}"][0]
    names = (f"ffn_{name}{suffix}" for name in ("up", "gate", "gate_up"))
    before = [times * shapes[name][1] for name in names if name in shapes]
    largest = max(inner, *before, 0)
    if not routed:
        return sum(before) + inner, largest, 0
    after = times * model.width
    feed = max(sum(before) + (1 + has_biases) * inner, 2 * (inner + after)) + 2 * model.experts
    return feed, max(largest, after), after
