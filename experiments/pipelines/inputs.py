"""Inputs of the microbatches of a pipeline, made of the example inputs of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fx_bridge.batch.microbatches import ChunkSpecs
from fx_bridge.capture.graph import CapturedGraph

Inputs = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and named ones."""


def microbatch_inputs(
    captured: CapturedGraph, specs: ChunkSpecs | None, microbatches: int, *, alike: bool = False
) -> tuple[tuple[Inputs, ...], Inputs]:
    """Return the inputs of each microbatch, and of the batch that they make.

    Parameters
    ----------
    captured : CapturedGraph
        Its example inputs are one microbatch.
    specs : ChunkSpecs or None
        How a batch is cut into microbatches; None for one alone.
    alike : bool
        Each has the numbers of the example. Otherwise they are moved on by one element each, so
        that no two microbatches are the same and every number is one that the model takes.
    """
    example = (tuple(captured.args), dict(captured.kwargs))
    if specs is None:
        return (example,), example
    chunks = (specs.args, dict(specs.kwargs))

    def moved(index: int) -> Any:
        def part(value: Any, chunk: Any) -> Any:
            return value.roll(index) if _is_split(value, chunk) else value

        return pytree.tree_map(part, example, chunks)

    inputs = tuple(example if alike else moved(index) for index in range(microbatches))

    def joined(chunk: Any, *parts: Any) -> Any:
        return torch.cat(parts, chunk.split_dim) if _is_split(parts[0], chunk) else parts[0]

    return inputs, pytree.tree_map(joined, chunks, *inputs)


def _is_split(value: Any, chunk: Any) -> bool:
    return isinstance(value, torch.Tensor) and hasattr(chunk, "split_dim")
