"""Ground truth for the batch in every value: the graph run on a batch, and on its two halves."""

from __future__ import annotations

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fx_bridge.batch.inputs import batch_inputs
from fx_bridge.capture.graph import capture, placeholder_values


class Recorder(fx.Interpreter):
    """Keeps a copy of what every node returned, made at once: values can be written later."""

    def __init__(self, module):
        super().__init__(module)
        self.seen = {}

    def run_node(self, n):
        value = super().run_node(n)
        self.seen[n.name] = pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), value)
        return value


def run(captured, args, kwargs):
    recorder = Recorder(captured.module)
    values = placeholder_values(captured, args, kwargs)
    deterministic = torch.are_deterministic_algorithms_enabled()
    # What torch.empty returns is the same in every run then.
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with torch.no_grad():
            recorder.run(
                *pytree.tree_map_only(torch.Tensor, torch.clone, values), enable_io_processing=False
            )
    finally:
        torch.use_deterministic_algorithms(deterministic)
    return recorder.seen


def halves(captured):
    """Values of every node in the whole batch, in its first half, and in its second."""
    inputs = batch_inputs(captured)
    half = inputs.size // 2
    assert half * 2 == inputs.size

    def part(start):
        def cut(tensor):
            batch = tensor.dim() and tensor.size(0) == inputs.size
            return tensor[start : start + half] if batch else tensor

        return pytree.tree_map_only(torch.Tensor, cut, (captured.args, dict(captured.kwargs)))

    small = capture(captured.source, *part(0))
    whole = run(captured, captured.args, captured.kwargs)
    return whole, run(small, *part(0)), run(small, *part(half)), inputs.size


def apart(tensor, state, size):
    """The dimension of the batch split into (outer, batch, inner)."""
    shape = list(tensor.shape)
    shape[state.dim : state.dim + 1] = [state.outer, size, state.inner]
    return tensor.reshape(shape)


def merged(first, second, state, size):
    """Two halves joined as `state` says they make up the whole."""
    if state.kind == "batch":
        joined = torch.cat([apart(t, state, size // 2) for t in (first, second)], state.dim + 1)
        return joined.flatten(state.dim, state.dim + 2)
    if state.kind == "replicated":
        return first
    return {
        "sum": lambda: first + second,
        "mean": lambda: (first + second) / 2,
        "max": lambda: torch.maximum(first, second),
        "min": lambda: torch.minimum(first, second),
    }[state.reduction]()


def compare(captured, table, tolerance=1e-4):
    """Assert that every value is what the table says; return how many there are of each kind."""
    whole, first, second, size = halves(captured)
    counts = {}
    for node in captured.graph.nodes:
        if node.op == "output" or node.name not in first:
            continue
        states = pytree.tree_leaves(table[node.name])
        values = [pytree.tree_leaves(seen[node.name]) for seen in (whole, first, second)]
        for state, value, one, two in zip(states, *values, strict=True):
            counts[state.kind] = counts.get(state.kind, 0) + 1
            if state.kind in ("unknown", "index"):
                assert state.reason or state.kind != "unknown", node
                continue
            if not isinstance(value, torch.Tensor):
                if isinstance(value, int) and state.kind == "partial":
                    assert one + two == value, node
                continue
            if state.kind == "replicated":
                torch.testing.assert_close(one, two, equal_nan=True, rtol=0, atol=0, msg=node.name)
            found = merged(one, two, state, size)
            torch.testing.assert_close(
                found,
                value,
                rtol=tolerance,
                atol=tolerance,
                equal_nan=True,
                msg=lambda text, node=node, state=state: f"{node.format_node()} is {state}: {text}",
            )
    return counts
