"""Batch propagation through indexing: embeddings, lookups, gathers and scatters."""

from __future__ import annotations

from typing import Any, Final

import torch

from fx_bridge.batch.rules.call import Call, Outcome, broadcast, names, rule
from fx_bridge.batch.rules.dims import REPLICATED, BatchDim, batch

TAKES_NUMBERS: Final = names(
    "index index_put embedding gather index_select _embedding_bag _embedding_bag_forward_only "
    "_index_put_impl _unsafe_index _unsafe_index_put"
)
"""Operators whose rules accept the numbers of the samples as an argument."""


def numbers(call: Call) -> BatchDim:
    """Return the state of a range: the numbers of the samples, or replicated."""
    size = call.out.size(0)
    batches = size % call.batch_size == 0 if call.unique_size else size == call.batch_size > 1
    if not size or not batches:
        return REPLICATED
    start, step = call["start"] or 0, 1 if call["step"] is None else call["step"]
    if call.name != "arange" or start != 0 or not isinstance(step, int):
        return call.no_rule("numbers the samples from an offset")
    return BatchDim("index", 0, 1, size // call.batch_size, scale=step)


class _Positions:
    """The dimensions of an indexed tensor, and of its indices, in the result."""

    def __init__(self, tensor: torch.Tensor, indices: list[Any]) -> None:
        self.at = [n for n, index in enumerate(indices) if index is not None]
        shapes = [indices[n].shape for n in self.at]
        self.shape = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
        together = self.at == list(range(self.at[0], self.at[0] + len(self.at)))
        self.start = self.at[0] if together else 0
        self.rank = tensor.dim() - len(self.at) + len(self.shape)

    def of_unindexed(self, dim: int) -> int:
        """Return the position in the result of a dimension without an index."""
        kept = dim - sum(n < dim for n in self.at)
        return kept + (len(self.shape) if kept >= self.start else 0)


def _indexed(call: Call) -> tuple[BatchDim, _Positions] | BatchDim:
    tensor, indices = call["self"], list(call["indices"])
    given = [index for index in indices if index is not None]
    if any(index.dtype in (torch.bool, torch.uint8) for index in given):
        return call.no_rule("takes as many entries as the data says")
    places = _Positions(tensor, indices)
    own = call.state("self")
    pairs = [(call.state_of(index), index.shape) for index in given]
    varying = [state for state, _ in pairs if state.kind != "replicated"]
    if own.kind == "batch" and own.dim not in places.at:
        if varying:
            return call.mixed("takes entries of all samples for each")
        assert own.dim is not None
        return own.moved(places.of_unindexed(own.dim)), places
    joined: BatchDim | None = None
    if varying:
        # A sample's own number leads to the sample itself.
        as_batch = [
            (batch(s.dim or 0, s.outer, s.inner) if s.kind == "index" else s, shape)
            for s, shape in pairs
        ]
        joined = broadcast(call, as_batch)
    numbered = [n for n in places.at if call.state_of(indices[n]).kind == "index"]
    if own.kind == "replicated" and joined is not None:
        if numbered:
            return call.mixed("gives each sample an entry of its own of a replicated value")
    else:
        # The other indices belong to the samples with these numbers.
        alone = joined is not None and joined.factor == own.factor == 1
        if not alone or numbered != [own.dim] or call.state_of(indices[numbered[0]]).scale != 1:
            return call.mixed("takes samples by their place in the batch")
    if joined is None or joined.kind != "batch":
        return joined or call.no_rule()
    return joined.moved((joined.dim or 0) + places.start), places


@rule("index _unsafe_index")
def _index(call: Call) -> Outcome:
    found = _indexed(call)
    return found if isinstance(found, BatchDim) else found[0]


@rule("index_put _index_put_impl _unsafe_index_put")
def _index_put(call: Call) -> Outcome:
    own = call.state("self")
    if own.kind != "batch":
        return call.mixed("writes samples into a replicated value")
    found = _indexed(call)
    if isinstance(found, BatchDim):
        return found
    where, places = found
    source = call.state("values")
    if source.dim is not None:
        source = source.moved(source.dim + places.rank - call["values"].dim())
        if source != where:
            return call.mixed("writes entries of one sample to another")
    return own


@rule("embedding")
def _embedding(call: Call) -> Outcome:
    if call.state("weight").kind != "replicated":
        return call.no_rule("looks up in a table of samples")
    state = call.state("indices")
    if state.kind == "index":
        return call.mixed("gives each sample an entry of its own of a replicated value")
    return state


@rule("_embedding_bag _embedding_bag_forward_only")
def _embedding_bag(call: Call) -> Outcome:
    state, offsets = call.state("indices"), call.state("offsets")
    even = offsets.kind == "index" and offsets.factor == 1 and offsets.scale == state.inner
    if call.state("weight").kind != "replicated" or state.outer != 1 or not even:
        return call.no_rule("has bags of sizes that are given as data")
    rest = [call.no_rule("returns values for its backward pass")] * (len(call.out) - 1)
    return [batch(0), *rest]


@rule("gather take_along_dim")
def _gather(call: Call) -> Outcome:
    dim = call.dims(call["dim"], call["self"])[0]
    own, index = call.state("self"), call.state("index")
    if index.kind == "index" or own.kind == "index":
        return call.no_rule("computes with the numbers of the samples")
    if own.kind == "replicated" and index.dim == dim:
        return index
    if own.kind == "batch" and own.dim == dim:
        return call.mixed("takes samples by their place in the batch")
    if own != index:
        return call.mixed("takes entries of some samples for others")
    return own


@rule("index_select")
def _index_select(call: Call) -> Outcome:
    tensor = call["self"]
    dim = call.dims(call["dim"], tensor)[0]
    own, index = call.state("self"), call.state("index")
    if own.kind == "batch" and index.kind == "replicated" and own.dim != dim:
        return own
    if own.kind == "replicated" and index.kind == "batch":
        return index.moved(dim)
    if own == batch(dim) and index == BatchDim("index", 0):
        return own
    return call.mixed("takes samples by their place in the batch")


@rule("scatter scatter_add scatter_reduce index_add index_copy index_fill index_reduce")
def _scatter(call: Call) -> Outcome:
    own = call.state("self")
    dim = call.dims(call["dim"], call["self"])[0]
    if own.kind != "batch":
        return call.mixed("writes samples into a replicated value")
    if own.dim == dim:
        return call.mixed("writes samples by their place in the batch")
    by_index = call.name.startswith("index")
    for name in ("index", "src", "source", "value"):
        value = call[name]
        if not isinstance(value, torch.Tensor):
            continue
        state = call.state_of(value)
        spread = state.kind == "replicated" and (
            by_index or call.batch_size == 1 or not value.dim()
        )
        if not spread and (state != own or (by_index and name == "index")):
            return call.mixed("writes entries of one sample to another")
    return own


@rule(
    "masked_scatter nonzero masked_select unique _unique2 unique_consecutive unique_dim "
    "_local_scalar_dense item searchsorted put take allclose equal"
)
def _by_data(call: Call) -> Outcome:
    return call.no_rule("takes as many entries as the data of all samples says")
