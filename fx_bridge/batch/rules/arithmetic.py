"""Batch propagation through arithmetic: pointwise, reductions, products, layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch

from fx_bridge.batch.rules import indexing, layers, views
from fx_bridge.batch.rules.call import RULES, Call, Outcome, broadcast, names, pointwise, rule
from fx_bridge.batch.rules.dims import REPLICATED, BatchDim, Reduction, batch, partial

_FROM_SIZES: Final = names(
    "empty zeros ones full rand randn randint randperm empty_strided new_empty new_zeros "
    "new_ones new_full new_empty_strided empty_like zeros_like ones_like full_like rand_like "
    "randn_like randint_like eye scalar_tensor normal"
)
_REPEATING: Final = names("expand repeat tile repeat_interleave")
_MOVES: Final = names(
    "clone alias detach _to_copy to contiguous lift_fresh view _unsafe_view reshape permute "
    "transpose t unsqueeze squeeze expand repeat slice narrow split split_with_sizes chunk select "
    "unbind flip roll diagonal tril triu constant_pad_nd unfold as_strided cat stack copy "
    "_reshape_alias index_select gather index"
)
_SUMS: Final = names("sum cumsum mean")


assert layers  # Its rules are registered by the import.


def outcome(call: Call) -> Outcome:
    """Return the states of the tensors that `call` returned."""
    if call.name in _FROM_SIZES:
        like = call.states[0] if call.states else REPLICATED
        if like.dim is not None and call.first.shape == call.out.shape and like.kind != "unknown":
            return batch(like.dim, like.outer, like.inner)
        made = views.grown(call)
        if call.name == "eye" and made.dim is not None:
            return call.mixed("makes a one for each sample, at its own place")
        return made
    if call.name in ("arange", "linspace"):
        return indexing.numbers(call)
    lost = [state for state in call.states if state.kind == "unknown"]
    if lost:
        return next((state for state in lost if state.mixes), lost[0])
    if all(state.kind == "replicated" for state in call.states):
        if call.name in _REPEATING and call.tensors:
            return views.grown(call, call.first)
        return REPLICATED
    if any(state.kind == "partial" for state in call.states):
        return _of_partial(call)
    if call.name in indexing.TAKES_NUMBERS or call.name in _MOVES:
        return RULES[call.name](call)
    if any(state.kind == "index" for state in call.states):
        return call.no_rule("computes with the numbers of the samples")
    if call.name in RULES:
        return RULES[call.name](call)
    if torch.Tag.pointwise in call.func.tags or call.name in _POINTWISE:
        return pointwise(call)
    return call.no_rule()


_POINTWISE: Final = names(
    "masked_fill where gelu silu dropout clamp lerp addcmul addcdiv nan_to_num isin isclose "
    "softplus log_sigmoid_forward floor_divide __and__ __or__ __xor__ __lshift__ __rshift__ "
    "complex polar fmod remainder celu hardswish prelu _prelu_kernel rrelu_with_noise "
    "fake_quantize_per_tensor_affine _thnn_fused_lstm_cell _thnn_fused_gru_cell bucketize"
)


def _of_partial(call: Call) -> Outcome:
    """Return the state of a linear or order-preserving function of reductions over the batch."""
    states = [state for state in call.states if state.kind != "replicated"]
    first = states[0]
    if any(state.kind != "partial" for state in states):
        given = next(state for state in states if state.kind == "partial")
        return call.mixed(f"gives samples a {given.reduction} over the batch")
    if call.name == "copy":
        return call.state("src")  # the whole target is overwritten
    same_reduction = len({state.reduction for state in states}) == 1
    if call.name in ("add", "sub") and len(call.tensors) == 2 and len(states) == 1:
        # A constant commutes with means and extremes, not with sums.
        if first.reduction == "mean" or (first.reduction in ("max", "min") and call.name == "add"):
            return first
    elif (call.name in ("add", "sub") and len(call.tensors) == 1 and first.reduction == "mean") or (
        same_reduction
        and first.reduction in ("sum", "mean")
        and (
            (call.name in ("add", "sub") and len(states) == 2)
            or (call.name == "mul" and len(states) == 1)
            or (call.name == "div" and len(states) == 1 and call.states[0] is states[0])
            or call.name in ("neg", *_SUMS)
            or (call.name in ("mm", "bmm", "mv", "dot") and len(states) == 1)
        )
    ):
        return first
    extreme = {"amax": "max", "max": "max", "amin": "min", "min": "min"}.get(call.name)
    if same_reduction and extreme == first.reduction and len(call.tensors) == 1:
        return first if call["dim"] is None or call.name[0] == "a" else call.no_rule()
    if call.name in _MOVES and same_reduction and len(states) == len(call.tensors):
        if call.name == "_to_copy" and not (
            call.out.is_floating_point()
            or first.reduction in ("max", "min")
            or not call.first.is_floating_point()
        ):
            return call.no_rule(f"rounds a {first.reduction} over the batch")
        if call.name == "constant_pad_nd" and first.reduction == "sum" and call["value"]:
            return call.no_rule("puts numbers beside a sum over the batch, which parts would add")
        return states[0]
    return call.no_rule(f"is not linear, and takes a {first.reduction} over the batch")


_REDUCTIONS: Final[dict[str, Reduction]] = {
    "sum": "sum",
    "nansum": "sum",
    "count_nonzero": "sum",
    "mean": "mean",
    "amax": "max",
    "amin": "min",
    "any": "max",
    "all": "min",
}


@rule(
    "sum nansum count_nonzero mean amax amin any all max min prod var std var_mean std_mean "
    "logsumexp linalg_vector_norm norm argmax argmin nanmean aminmax"
)
def _reduce(call: Call) -> Outcome:
    state, tensor, batch_dim = call.only()
    if len(call.tensors) > 1:
        return pointwise(call)  # max and min of two tensors
    dims = call.dims(call["dim"], tensor)
    if batch_dim in dims:
        name = call.name
        if call["dim"] is None and name in ("max", "min"):
            return partial("max" if name == "max" else "min")
        if name in _REDUCTIONS:
            return partial(_REDUCTIONS[name])
        return call.mixed("reduces over the batch")
    return state if call["keepdim"] else state.moved(batch_dim - sum(d < batch_dim for d in dims))


@rule(
    "cumsum cumprod cummax cummin logcumsumexp _softmax _log_softmax softmax log_softmax "
    "_safe_softmax sort topk kthvalue argsort median mode nanmedian glu"
)
def _along(call: Call) -> Outcome:
    state, tensor, batch_dim = call.only()
    dim = call["dim"]
    if call.name in ("median", "nanmedian") and dim is None:
        return call.mixed("runs over the batch")
    if call.dims(-1 if dim is None else dim, tensor)[0] == batch_dim:
        return call.mixed("runs along the batch")
    if call.name in ("kthvalue", "median", "mode", "nanmedian") and not call["keepdim"]:
        return state.moved(batch_dim - (call.dims(dim, tensor)[0] < batch_dim))
    return state


@rule("mm bmm addmm baddbmm mv dot vdot addmv _int_mm linalg_solve _scaled_mm")
def _product(call: Call) -> Outcome:
    names = {"addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"), "addmv": ("mat", "vec")}
    if call.name in names:
        left, right = (call[name] for name in names[call.name])
    else:
        left, right = call.tensors[:2]
    product = _multiplied(call, left, right)
    bias = call.state("self") if call.name in names else REPLICATED
    if bias.kind == "replicated" and product.dim is not None:
        shape = call.first.shape if call.name in names else (1,)
        return broadcast(call, [(product, call.out.shape), (bias, shape)])
    if product.kind in ("partial", "unknown") or bias.kind == "replicated":
        # A constant added to a sum over the batch would be added once for each part.
        return call.no_rule("adds to a sum over the batch") if call.name in names else product
    return broadcast(call, [(bias, call.first.shape), (product, call.out.shape)])


def _multiplied(call: Call, left: torch.Tensor, right: torch.Tensor) -> BatchDim:
    one, two = call.state_of(left), call.state_of(right)
    lead = left.dim() - 2 if left.dim() == right.dim() == 3 else 0
    contracted_left = left.dim() - 1
    contracted_right = lead if right.dim() > 1 else 0
    in_left = one.kind == "batch" and one.dim == contracted_left
    in_right = two.kind == "batch" and two.dim == contracted_right
    if in_left or in_right:
        same = in_left and in_right and (one.outer, one.inner) == (two.outer, two.inner)
        return partial("sum") if same else call.mixed("contracts the batch")
    if one.kind == "batch" and two.kind == "batch":
        if one.dim == two.dim and one == two and (one.dim or 0) < lead:
            return one
        return call.mixed("multiplies samples with each other")
    state, other = (one, right) if one.kind == "batch" else (two, left)
    assert state.dim is not None
    if state.dim < lead:
        if other.size(state.dim) != 1 and call.batch_size * state.factor != 1:
            return call.mixed("gives each sample an entry of its own of a replicated value")
        return state
    if state is one:
        return state
    # The last dimension of the right operand is the last of the result.
    return state.moved(call.out.dim() - 1)


@rule("_trilinear")
def _trilinear(call: Call) -> Outcome:
    operands = []
    for state, tensor, name in zip(call.states, call.tensors, ("1", "2", "3"), strict=True):
        shape = list(tensor.shape)
        dim = state.dim
        for at in sorted(call[f"expand{name}"]):
            shape.insert(at, 1)
            dim = dim + (at <= dim) if dim is not None else None
        operands.append((replace(state, dim=dim), shape))
    state = broadcast(call, operands)
    summed = call["sumdim"]
    if state.dim is None:
        return state
    if state.dim in summed:
        return partial("sum") if len(call.states) > 1 else call.mixed("contracts the batch")
    return state.moved(state.dim - sum(dim < state.dim for dim in summed))


@rule("convolution _convolution mkldnn_convolution")
def _convolution(call: Call) -> Outcome:
    state = call.state("input")
    if state.dim != 0 or any(s.kind != "replicated" for s in call.states[1:]):
        return call.no_rule("has the batch elsewhere than in dimension 0 of its input")
    return state


@rule("_cdist_forward")
def _distances(call: Call) -> Outcome:
    if any(state.kind == "batch" and state.dim != 0 for state in call.states):
        return call.mixed("compares samples with each other")
    return pointwise(call)


@rule(
    "linalg_inv_ex _linalg_det _linalg_slogdet linalg_cholesky_ex _linalg_svd _linalg_eigh "
    "linalg_qr linalg_lu_factor_ex linalg_lu linalg_eig linalg_eigvals linalg_matrix_exp tril triu"
)
def _matrices(call: Call) -> Outcome:
    state, tensor, batch_dim = call.only()
    if batch_dim >= tensor.dim() - 2:
        return call.mixed("takes the batch for a side of a matrix")
    return state
