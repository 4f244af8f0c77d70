"""Batch propagation through views, copies and joins, which move entries and compute nothing."""

from __future__ import annotations

from dataclasses import replace

import torch

from fx_bridge.batch.rules.call import Call, Outcome, broadcast, rule
from fx_bridge.batch.rules.dims import REPLICATED, BatchDim, batch, reshaped


def grown(call: Call, before: torch.Tensor | None = None) -> BatchDim:
    """Return the state of a value made from sizes alone, which tell the batch dimension.

    A size is the batch's if it is a multiple of a batch size that divides no other, as chosen by
    :func:`fx_bridge.batch.table.batch_dimensions`; without such a size, if it is that of dimension
    0, and more than one.
    """
    size = call.batch_size
    if call.unique_size:
        found = [dim for dim, extent in enumerate(call.out.shape) if extent and extent % size == 0]
    else:
        # An expansion to one row implies that there can be more.
        likely = call.out.dim() > 0 and call.out.size(0) == size
        found = [0] if likely and (size > 1 or before is not None) else []
    if not found:
        return REPLICATED
    if len(found) > 1:
        return call.mixed("makes an entry for every pair of samples")
    factor = call.out.size(found[0]) // call.batch_size
    # Repeating tiles: the old entries are innermost.
    inner = factor
    if before is not None and before.dim() == call.out.dim():
        inner = before.size(found[0])
    return batch(found[0], factor // inner, inner)


@rule(
    "clone alias detach _to_copy to lift_fresh lift_fresh_copy contiguous native_dropout "
    "bernoulli view_as_real view_as_complex _conj conj resolve_conj resolve_neg _neg_view "
    "real imag dropout multinomial isfinite"
)
def _same(call: Call) -> Outcome:
    state, *_ = call.only()
    if call.name == "multinomial" and state.dim != 0:
        return call.no_rule("draws along the batch")
    return state


@rule("view _unsafe_view reshape _reshape_alias view_copy")
def _view(call: Call) -> Outcome:
    state, tensor, _ = call.only()
    if call["dtype"] is not None:
        return state
    found = reshaped(state, tensor.shape, call.out.shape, call.batch_size)
    if found is None:
        shapes = f"{list(tensor.shape)} as {list(call.out.shape)}"
        return call.no_rule(f"splits the batch over dimensions: {shapes}")
    if state.kind == "index" and found != state.moved(found.dim or 0):
        return call.no_rule("merges the numbers of the samples")
    return found


@rule("permute transpose t numpy_T movedim swapaxes")
def _permute(call: Call) -> Outcome:
    state, tensor, batch_dim = call.only()
    rank = tensor.dim()
    order = list(range(rank))
    if call.name == "permute":
        order = list(call.dims(call["dims"], tensor))
    elif call.name == "transpose":
        one, two = call.dims([call["dim0"], call["dim1"]], tensor)
        order[one], order[two] = order[two], order[one]
    else:
        order.reverse()
    return state.moved(order.index(batch_dim))


@rule("unsqueeze")
def _unsqueeze(call: Call) -> Outcome:
    state, tensor, batch_dim = call.only()
    dim = call["dim"] % (tensor.dim() + 1)
    return state.moved(batch_dim + (dim <= batch_dim))


@rule("squeeze")
def _squeeze(call: Call) -> Outcome:
    state, tensor, batch_dim = call.only()
    gone = [dim for dim in call.dims(call["dim"], tensor) if tensor.size(dim) == 1]
    if batch_dim in gone:
        return call.no_rule("removes the batch, which has one sample here")
    return state.moved(batch_dim - sum(dim < batch_dim for dim in gone))


@rule("expand")
def _expand(call: Call) -> Outcome:
    state, tensor, batch_dim = call.only()
    return state.moved(batch_dim + call.out.dim() - tensor.dim())


@rule("repeat tile")
def _repeat(call: Call) -> Outcome:
    state, tensor, batch_dim = call.only()
    added = call.out.dim() - tensor.dim()
    times = call.out.size(batch_dim + added) // tensor.size(batch_dim)
    if state.kind == "index" and times > 1:
        return call.no_rule("repeats the numbers of the samples")
    return replace(state, dim=batch_dim + added, outer=state.outer * times)


@rule(
    "slice narrow split split_with_sizes chunk tensor_split unsafe_split unsafe_chunk "
    "unsafe_split_with_sizes split_copy split_with_sizes_copy slice_copy"
)
def _part(call: Call) -> Outcome:
    state, tensor, batch_dim = call.only()
    dim = call.dims(call["dim"] or 0, tensor)[0]
    if dim != batch_dim:
        return state
    parts = call.out if isinstance(call.out, (tuple, list)) else [call.out]
    if len(parts) == 1 and parts[0].size(dim) == tensor.size(dim):
        return state
    each = state.inner * call.batch_size
    if all(part.size(dim) % each == 0 for part in parts) and call["step"] in (None, 1):
        # Whole batches out of several that were concatenated.
        start = (call["start"] or 0) % max(tensor.size(dim), 1)
        if start % each == 0:
            return [replace(state, outer=part.size(dim) // each) for part in parts]
    return call.mixed("takes some of the samples and leaves others")


@rule("select unbind select_copy unbind_copy")
def _one(call: Call) -> Outcome:
    state, tensor, batch_dim = call.only()
    dim = call.dims(call["dim"] or 0, tensor)[0]
    if dim == batch_dim:
        return call.mixed("takes single samples out of the batch")
    return state.moved(batch_dim - (dim < batch_dim))


@rule("cat concat")
def _cat(call: Call) -> Outcome:
    pairs = [
        (state, tensor)
        for state, tensor in zip(call.states, call.tensors, strict=True)
        # An empty vector is left out, for any shapes of the others.
        if tensor.shape != (0,)
    ]
    state = next(state for state, _ in pairs if state.kind != "replicated")
    dim = call.dims(call["dim"] or 0, pairs[0][1])[0]
    if dim != state.dim:
        return broadcast(call, [(state, tensor.shape) for state, tensor in pairs])
    if state.kind != "batch" or any(
        other.kind != "batch" or other.dim != dim or other.inner != state.inner
        for other, _ in pairs
    ):
        return call.no_rule("puts other rows beside those of the samples")
    return replace(state, outer=sum(other.outer for other, _ in pairs))


@rule("stack")
def _stack(call: Call) -> Outcome:
    state = broadcast(call, call.operands)
    if state.dim is None or state.kind == "unknown":
        return state
    dim = (call["dim"] or 0) % call.out.dim()
    return state.moved(state.dim + (dim <= state.dim))


@rule("flip roll unfold _fft_r2c _fft_c2c _fft_c2r")
def _along(call: Call) -> Outcome:
    state, tensor, batch_dim = call.only()
    reorders = call.name in ("flip", "roll")
    argument = "dims" if reorders else "dimension" if call.name == "unfold" else "dim"
    if batch_dim in call.dims(call[argument], tensor):
        return call.mixed("reorders the samples" if reorders else "runs along the batch")
    return state


@rule("constant_pad_nd pad")
def _pad(call: Call) -> Outcome:
    state, tensor, batch_dim = call.only()
    if call.out.size(batch_dim) != tensor.size(batch_dim):
        return call.no_rule("pads the batch")
    return state


@rule("diagonal linalg_diagonal")
def _diagonal(call: Call) -> Outcome:
    state, tensor, batch_dim = call.only()
    one, two = call.dims([call["dim1"] or 0, 1 if call["dim2"] is None else call["dim2"]], tensor)
    if batch_dim in (one, two):
        return call.mixed("pairs samples with each other")
    return state.moved(batch_dim - (one < batch_dim) - (two < batch_dim))


@rule("as_strided")
def _as_strided(call: Call) -> Outcome:
    state, tensor, _ = call.only()
    same = tensor.shape == call.out.shape and tensor.stride() == call.out.stride()
    return state if same else call.no_rule()


@rule("repeat_interleave")
def _repeat_interleave(call: Call) -> Outcome:
    state, tensor, _ = call.only()
    if not isinstance(call["repeats"], int) or state.kind != "batch" or call["dim"] is None:
        return call.no_rule()
    times = call["repeats"]
    dim = call.dims(call["dim"], tensor)[0]
    return replace(state, inner=state.inner * times) if dim == state.dim else state


@rule("copy fill zero slice_scatter select_scatter set")
def _write(call: Call) -> Outcome:
    target = call.first
    if call.name == "slice_scatter" or call.name == "select_scatter":
        source = call["src"]
        dim = call.dims(call["dim"] or 0, target)[0]
        state = call.state_of(source)
        if call.name == "select_scatter" and state.dim is not None:
            state = state.moved(state.dim + (dim <= state.dim))
        own = call.states[0]
        if own.dim == dim or (state.dim is not None and state != own):
            return call.mixed("writes into the rows of some samples")
        return own
    if call.name == "copy":
        # The whole target is overwritten.
        source = call.state("src")
        if source.dim is not None:
            return source.moved(source.dim + target.dim() - call["src"].dim())
    return call.states[0]
