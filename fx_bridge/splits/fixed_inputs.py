"""Refuse calls for which a graph was not captured: another number, flag or None."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import fx, nn

from fx_bridge.capturing.inputs import flat_inputs
from solver import PartitionError

_SHOWN: Final = 80


def fix_inputs(module: nn.Module, graph: fx.Graph) -> None:
    """Let `module` refuse calls with other values of what the capture took for constants.

    torch.export runs Python once: what a number or a flag decides is decided for good, and its
    placeholder has no reader.

    Parameters
    ----------
    module : torch.nn.Module
        Takes what `graph` does.
    graph : torch.fx.Graph
        As torch.export wrote it. Others read all that they are given.
    """
    if getattr(graph._codegen, "pytree_info", None) is None:
        return
    fixed = {
        place: (str(node.target), node.meta.get("constant", node.meta.get("val")))
        for place, node in enumerate(graph.find_nodes(op="placeholder"))
        if "constant" in node.meta or (not node.users and _is_constant(node))
    }
    if fixed:
        module.register_forward_pre_hook(_FixedInputs(fixed), with_kwargs=True)


def _is_constant(node: fx.Node) -> bool:
    return "val" in node.meta and isinstance(
        node.meta["val"], (bool, int, float, complex, str, type(None))
    )


class _FixedInputs:
    """A forward pre-hook.

    Parameters
    ----------
    fixed : mapping of int to (str, object)
        Name and value of inputs, by the place of their placeholder.
    """

    def __init__(self, fixed: Mapping[int, tuple[str, Any]]) -> None:
        self._fixed = dict(fixed)

    def __call__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            given = flat_inputs(module.graph, args, kwargs)
        except PartitionError:
            # The call itself says what does not fit.
            return
        for place, (name, value) in self._fixed.items():
            if given[place] is value:
                continue
            if isinstance(value, torch.Tensor):
                _check_tensor(name, value, given[place])
                continue
            if isinstance(given[place], torch.Tensor) or value is None or given[place] != value:
                shown = "a tensor" if isinstance(given[place], torch.Tensor) else repr(given[place])
                raise PartitionError(
                    f"{name!r} was {value!r} when the graph was captured, which decides what it "
                    f"computes, but is {shown} now; pass {value!r}, or capture the model anew"
                )


def _check_tensor(name: str, value: torch.Tensor, given: Any) -> None:
    """Raise PartitionError unless a tensor has the values that it had in the capture."""
    if isinstance(given, torch.Tensor) and torch.equal(given.detach().to("cpu"), value):
        return
    shown = " ".join(str(value.tolist()).split())
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    raise PartitionError(
        f"{name!r} is one of the constants of the capture, and was {shown}: the graph is for "
        "these values; pass them, or capture the model anew"
    )
