"""Effects of forward that run no operator, carried out in its graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fx_bridge.capture.model.call import named_leaves
from fx_bridge.capture.model.inputs import described_tensor
from fx_bridge.capture.python.assignments import Assignments
from fx_bridge.capture.python.eager_code import around_forward
from fx_bridge.capture.python.held_tensors import HeldTensors
from fx_bridge.storages.tensor_subclasses import named_tensors


@contextlib.contextmanager
def carried_out(model: nn.Module) -> Iterator[list[str]]:
    """Carry out effects without operators in traced calls of `model` within the block.

    Yields a list, filled with remarks about the graph for its user.
    """
    registered = named_tensors(model)
    notes: list[str] = []

    @contextlib.contextmanager
    def inside(*args: Any, **kwargs: Any) -> Iterator[None]:
        traced = named_tensors(model)
        leaves = named_leaves(model, args, kwargs)
        inputs = {path: leaf for path, leaf in leaves if isinstance(leaf, torch.Tensor)}
        assignments = Assignments(model, traced, inputs)
        held = HeldTensors(registered, traced)
        gradients = torch.is_grad_enabled()
        with assignments.carried_out(), held:
            yield
        assignments.settle(named_tensors(model))
        notes[:] = [*assignments.notes, *_untrained(held)]
        if torch.is_grad_enabled() != gradients:
            torch.set_grad_enabled(gradients)
            notes.append(
                f"forward leaves gradients switched {'off' if gradients else 'on'}, which the "
                "graph does not"
            )

    with around_forward(model, inside):
        yield notes


def _untrained(held: HeldTensors) -> list[str]:
    if not held.untrained:
        return []
    shown = described_tensor(held.untrained[0])
    others = len(held.untrained) - 1
    more = f" and {others} more" if others else ""
    return [
        f"forward reads a tensor {shown}{more} that requires a gradient and is no parameter of the "
        "model: it is a constant of the graph, which gets none; register it (nn.Parameter, "
        "nn.ModuleList)"
    ]
