"""Batch propagation through rows sorted for experts, multiplied in groups, and restored.

Tokens of all samples sorted by expert are in no sample's order, but each row is still computed from
its own token: kind ``"routed"`` of a ``BatchDim``. The values that hold the order carry the name of
the sorting node (`origin`) and their part in it (`role`); only with these are the rows restored,
and multiplied by their own experts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch

from fx_bridge.batch.rules.call import RULES, Call, Outcome, broadcast, names
from fx_bridge.batch.rules.dims import BatchDim, batch, partial
from fx_bridge.costs.operators import GROUPED_PRODUCTS

_ROWS: Final = ("rows", "keys")
# Operators on each row alone, provided that their rules do not meet the dimension of the rows.
_BY_ROW: Final = names(
    "sum mean amax amin prod var std logsumexp _softmax _log_softmax native_layer_norm "
    "_fused_rms_norm topk cumsum"
)


def sorted_rows(call: Call, state: BatchDim) -> Outcome:
    """Return the states of the sorted entries of all samples, and of their order."""
    if state.outer != 1:
        return call.mixed("runs along the batch")
    keys = replace(state, kind="routed", role="keys", origin=call.node)
    return [keys, replace(keys, role="order")]


def of_routed(call: Call) -> Outcome:
    """Return the states of the results of a call with routed rows."""
    routed = next(s for s in call.states if s.kind == "routed")
    name = call.name
    if any(s.kind == "routed" and s.origin != routed.origin for s in call.states):
        return call.mixed("joins rows in one order with rows in another")
    if name == "index":
        return _index(call)
    if name == "index_put":
        return _inverse(call)
    if name in ("sort", "argsort") and routed.role == "order" and routed.scale == 1:
        lost = call.no_rule("sorts an order")
        return [lost, replace(routed, role="inverse")]
    if name == "floor_divide" and routed.role == "order" and len(call.tensors) == 1:
        divisor = call["other"]
        if isinstance(divisor, int) and divisor and routed.inner % (divisor * routed.scale) == 0:
            return replace(routed, scale=routed.scale * divisor)
    ranged = name == "bincount" or (name == "histc" and call["min"] != call["max"])
    if ranged and routed.role == "keys" and len(call.tensors) == 1:
        return replace(partial("sum"), role="counts", origin=routed.origin)
    if name in GROUPED_PRODUCTS and len(call.states) == 3:
        first, weights, ends = call.states
        own = ends.kind == "partial" and ends.role == "ends" and ends.origin == first.origin
        if own and weights.kind == "replicated" and first is routed and first.role in _ROWS:
            return replace(first, role="rows")
        return call.mixed("multiplies rows by groups that are not theirs")
    if name in ("_to_copy", "alias", "clone", "detach"):
        return routed
    if routed.role not in _ROWS or any(
        s.kind not in ("routed", "replicated") or s.role == "order" for s in call.states
    ):
        return call.mixed("joins sorted rows with rows in another order")
    if name in RULES and name in _BY_ROW:
        return _as_rows(RULES[name](call))
    if name in RULES:
        moved = RULES[name](call)
        return _as_rows(moved) if name in _MOVES else call.no_rule("works on sorted rows")
    if torch.Tag.pointwise in call.func.tags or name in ("masked_fill", "where", "gelu", "silu"):
        rows = [(replace(s, role="rows") if s.role else s, shape) for s, shape in call.operands]
        return broadcast(call, rows)
    return call.no_rule("works on sorted rows")


_MOVES: Final = names(
    "view _unsafe_view permute transpose t unsqueeze squeeze expand slice split "
    "split_with_sizes chunk select unbind cat stack constant_pad_nd"
)


def _as_rows(outcome: Outcome) -> Outcome:
    if isinstance(outcome, BatchDim):
        return replace(outcome, role="rows") if outcome.kind == "routed" else outcome
    return [replace(s, role="rows") if s.kind == "routed" else s for s in outcome]


def _index(call: Call) -> Outcome:
    own, indices = call.state("self"), call["indices"]
    if len(indices) != 1 or indices[0].dim() != 1:
        return call.mixed("takes rows in an order that is not known")
    by = call.state_of(indices[0])
    if by.kind != "routed":
        return call.mixed("takes sorted rows by their place")
    whole = own.kind == "batch" and own.dim == 0 and own.outer == 1
    if by.role == "order" and whole and own.inner * by.scale == by.inner:
        return replace(by, role="rows", scale=1)
    if by.role == "keys" and own.kind == "replicated":
        return replace(by, role="rows")
    if by.role == "inverse" and own.kind == "routed" and own.dim == 0 and own.role in _ROWS:
        return batch(0, 1, by.inner)
    return call.mixed("takes rows in an order that is not known")


def _inverse(call: Call) -> Outcome:
    """Return the state of ``inverse[order] = arange(n)``."""
    indices, values = call["indices"], call.state("values")
    by = call.state_of(indices[0]) if len(indices) == 1 else None
    if (
        by is not None
        and by.role == "order"
        and by.scale == 1
        and values.kind == "index"
        and (values.factor, values.scale) == (by.inner, 1)
        and not call["accumulate"]
    ):
        return replace(by, role="inverse")
    return call.mixed("writes rows in an order that is not known")
