"""Refuse calls for which a graph was not captured.

A graph has the inputs of its capture: their number and structure, and the numbers and flags
among them, which decided what Python did. Shapes, dtypes and the precision of autocast may be
others where :mod:`fx_bridge.split.recapture` finds that the graph is the same for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.model.inputs import flat_inputs
from fx_bridge.capture.model.messages import first_line
from fx_bridge.split.recapture import RECAPTURE, OtherCalls
from solver import PartitionError

_KEY: Final = "calls"
_SHOWN: Final = 80
"""Letters of a constant tensor in an error."""


class CheckedModel(fx.GraphModule):
    """A module of stages that refuses calls for which its graph was not captured.

    ``meta["calls"]`` holds the checks, which copies share.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call that was captured, or that is like one."""
        checks: CapturedCalls | None = self.meta.get(_KEY)
        differs = "" if checks is None else checks.check(self, args, kwargs)
        try:
            return super().__call__(*args, **kwargs)
        except PartitionError:
            raise
        except Exception as error:
            if not differs:
                raise
            raise PartitionError(
                f"{differs}, and fails ({type(error).__name__}: {first_line(error)}); pass what "
                f"was captured, or {RECAPTURE}"
            ) from error


def check_calls(module: CheckedModel, captured: CapturedGraph) -> None:
    """Let `module`, which takes what `captured` does, refuse calls that were not captured.

    Graphs of dynamo are left alone, whose guards do that, and so are graphs that take any number
    of inputs, which they read one by one.
    """
    names = [str(node.target) for node in captured.graph.find_nodes(op="placeholder")]
    module.meta.pop(_KEY, None)
    if captured.how != "dynamo" and not any(name.startswith("*") for name in names):
        module.meta[_KEY] = CapturedCalls(_fixed(captured.graph), OtherCalls(captured))


def _fixed(graph: fx.Graph) -> dict[int, tuple[str, Any]]:
    """Return name and value of the inputs that decided what was captured, by their places.

    torch.export runs Python once: what a number or a flag decides is decided for good, and its
    placeholder has no reader. Other exporters read all that they are given.
    """
    if getattr(graph._codegen, "pytree_info", None) is None:
        return {}
    return {
        place: (str(node.target), node.meta.get("constant", node.meta.get("val")))
        for place, node in enumerate(graph.find_nodes(op="placeholder"))
        if "constant" in node.meta or (not node.users and _is_constant(node))
    }


def _is_constant(node: fx.Node) -> bool:
    return "val" in node.meta and isinstance(
        node.meta["val"], (bool, int, float, complex, str, type(None))
    )


class CapturedCalls:
    """Which calls a graph was captured for.

    Parameters
    ----------
    fixed : mapping of int to (str, object)
        Name and value of inputs, by the place of their placeholder.
    others : OtherCalls
        Judges other shapes, dtypes and precisions.
    """

    def __init__(self, fixed: Mapping[int, tuple[str, Any]], others: OtherCalls) -> None:
        self._fixed = dict(fixed)
        self._others = others

    def __deepcopy__(self, memo: dict[int, Any]) -> CapturedCalls:
        return self

    def check(self, module: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Refuse a call that is none of those; return in what another differs from the capture.

        Raises
        ------
        PartitionError
            In one line: which input, number or flag differs, and what to capture again.
        """
        if torch.compiler.is_compiling() and not self._fixed:
            return ""
        given = flat_inputs(module.graph, args, kwargs)
        self._check_fixed(given)
        if torch.compiler.is_compiling():
            return ""
        return self._others.check(module, given, args, kwargs)

    def _check_fixed(self, given: Sequence[Any]) -> None:
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
