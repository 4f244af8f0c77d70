"""Batch propagation through layers: normalisation, pooling, attention, recurrence, losses."""

from __future__ import annotations

from typing import Final

import torch

from fx_bridge.batch.rules.call import Call, Outcome, broadcast, names, rule
from fx_bridge.batch.rules.dims import REPLICATED, BatchDim, batch, partial


@rule("native_layer_norm _fused_rms_norm")
def _layer_norm(call: Call) -> Outcome:
    state = call.state("input")
    rank = len(call["normalized_shape"])
    if state.dim is None or any(s.kind != "replicated" for s in call.states[1:]):
        return call.no_rule("has a weight for each sample")
    if state.dim >= call.first.dim() - rank:
        return call.mixed("normalises over the batch")
    return state


@rule("native_group_norm")
def _group_norm(call: Call) -> Outcome:
    state = call.state("input")
    if state.dim != 0:
        return call.mixed("normalises over the batch")
    return state


@rule(
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training "
    "_batch_norm_with_update _batch_norm_no_update cudnn_batch_norm miopen_batch_norm"
)
def _batch_norm(call: Call) -> Outcome:
    state = call.state("input")
    if state.dim is None:
        return call.no_rule("has statistics for each sample")
    given = call["training"]
    training = call.name == "_batch_norm_with_update" if given is None else bool(given)
    if training and state.dim != 1:
        return call.mixed("in training mode normalises over the batch")
    if not training and state.dim == 1:
        return call.no_rule("has statistics for each sample")
    # Instance normalisation merges samples into channels, each with its statistics.
    saved = batch(0, state.outer, state.inner) if training else REPLICATED
    return [state, *[saved] * (len(call.out) - 1)]


_SPATIAL: Final = {"1d": 1, "2d": 2, "3d": 3}


@rule(
    " ".join(
        f"{name}{rank}"
        for rank in _SPATIAL
        for name in names(
            "avg_pool adaptive_avg_pool _adaptive_avg_pool adaptive_max_pool reflection_pad "
            "replication_pad upsample_nearest _upsample_nearest_exact"
        )
    )
    + " max_pool1d max_pool2d_with_indices max_pool3d_with_indices max_pool2d upsample_linear1d "
    "upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d _upsample_bilinear2d_aa "
    "_upsample_bicubic2d_aa fractional_max_pool2d"
)
def _spatial(call: Call) -> Outcome:
    state, tensor, batch_dim = call.only()
    rank = next(rank for name, rank in _SPATIAL.items() if name in call.name)
    if batch_dim >= tensor.dim() - rank:
        return call.mixed("has the batch among its spatial dimensions")
    return state


@rule(
    "pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im grid_sampler_2d "
    "grid_sampler_3d affine_grid_generator max_unpool2d"
)
def _images(call: Call) -> Outcome:
    if any(s not in (REPLICATED, batch(0)) and s.dim != 0 for s in call.states):
        return call.no_rule("has the batch elsewhere than in dimension 0")
    states = {state for state in call.states if state.kind == "batch"}
    return states.pop() if len(states) == 1 else call.no_rule("has the batch merged in two ways")


@rule(
    "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
    "_scaled_dot_product_attention_math _scaled_dot_product_fused_attention_overrideable "
    "_scaled_dot_product_attention_math_for_mps"
)
def _attention(call: Call) -> Outcome:
    pairs = list(zip(call.states, call.tensors, strict=True))
    matrix_dims = any(s.dim is not None and s.dim >= t.dim() - 2 for s, t in pairs)
    if call.state("query").kind != "batch" or matrix_dims:
        return call.mixed("attends over the batch")
    joined = broadcast(call, [(s, (*t.shape[:-2], 1, 1)) for s, t in pairs])
    outputs = [leaf for leaf in call.out if isinstance(leaf, torch.Tensor)]
    at = joined.dim or 0
    return [joined if leaf.dim() > at and leaf.numel() else REPLICATED for leaf in outputs]


@rule("mkldnn_rnn_layer _cudnn_rnn _thnn_fused_lstm miopen_rnn")
def _recurrent(call: Call) -> Outcome:
    state = call.state("input")
    first = bool(call["batch_first"]) and call.name != "mkldnn_rnn_layer"
    if state.dim != (0 if first else 1) or state.factor != 1:
        return call.mixed("steps over the batch")
    outputs = [leaf for leaf in call.out if isinstance(leaf, torch.Tensor)]

    def of_hidden(leaf: torch.Tensor) -> BatchDim:
        has_batch = leaf.dim() >= 2 and leaf.size(-2) == call.batch_size
        return batch(leaf.dim() - 2) if has_batch else REPLICATED

    return [state, *map(of_hidden, outputs[1:])]


@rule(
    "nll_loss_forward nll_loss2d_forward mse_loss smooth_l1_loss huber_loss soft_margin_loss "
    "binary_cross_entropy multi_margin_loss multilabel_margin_loss_forward"
)
def _loss(call: Call) -> Outcome:
    state, target = call.state("self"), call.state("target")
    class_losses = "nll" in call.name or "margin" in call.name
    joined = state if class_losses else broadcast(call, call.operands[:2])
    if class_losses and (
        state.dim != 0 or target != state or call.state("weight").kind != "replicated"
    ):
        return call.mixed("compares samples with the targets of others")
    if joined.kind == "unknown" or not call["reduction"]:
        return [joined, REPLICATED] if class_losses and "nll" in call.name else joined
    if call["reduction"] == 2:
        return partial("sum")
    if "nll" in call.name:
        why = "where each part has as many targets that are not ignored"
        if call["weight"] is not None:
            why = "where the classes of each part's targets weigh as much"
        return [partial("mean", why), partial("sum")]
    return partial("mean")
