"""Inputs of the microbatches of a pipeline, made from the example inputs of a model."""

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
    captured: CapturedGraph, specs: ChunkSpecs | None, microbatches: int, *, identical: bool = False
) -> tuple[tuple[Inputs, ...], Inputs]:
    """Return the inputs of each microbatch, and of the whole batch.

    The example inputs of `captured` are one microbatch; `specs` is None for a single one. Unless
    the microbatches are `identical`, their values are rolled by one more element each, so that they
    differ and are valid for the model.
    """
    example = (tuple(captured.args), dict(captured.kwargs))
    if specs is None:
        return (example,), example
    chunks = (specs.args, dict(specs.kwargs))

    def moved(index: int) -> Any:
        def part(value: Any, chunk: Any) -> Any:
            return value.roll(index) if _is_split(value, chunk) else value

        return pytree.tree_map(part, example, chunks)

    inputs = tuple(example if identical else moved(index) for index in range(microbatches))

    def joined(chunk: Any, *parts: Any) -> Any:
        return torch.cat(parts, chunk.split_dim) if _is_split(parts[0], chunk) else parts[0]

    return inputs, pytree.tree_map(joined, chunks, *inputs)


def _is_split(value: Any, chunk: Any) -> bool:
    return isinstance(value, torch.Tensor) and hasattr(chunk, "split_dim")
