"""Where the samples of a batch are in every value, and graphs of another batch size."""

from fx_bridge.batch.microbatches import ChunkSpecs, chunk_specs
from fx_bridge.batch.resize import rescale
from fx_bridge.batch.table import (
    BatchDim,
    BatchTable,
    batch_dimensions,
    check_microbatchable,
)

__all__ = [
    "BatchDim",
    "BatchTable",
    "ChunkSpecs",
    "batch_dimensions",
    "check_microbatchable",
    "chunk_specs",
    "rescale",
]
