"""Refusal of calls for which a graph was not captured.

A graph has the inputs of its capture: their number and structure, and the numbers, flags and other
objects among them, which decided what Python did. Shapes, dtypes, the precision of autocast, the
mode, and the settings that forward queries may differ if :mod:`fx_bridge.split.recapture` finds
that the graph is the same for them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.model.inputs import flat_inputs, in_order, input_names
from fx_bridge.capture.model.mode import CALLS, GraphOfOneMode
from fx_bridge.capture.model.written_values import GIVEN, written_down
from fx_bridge.equivalence.calls import first_line
from fx_bridge.split.recapture import RECAPTURE, OtherCalls
from solver import PartitionError
from solver.model.quantities import counted, listed
from solver.model.text import shown

_NUMBERS: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)


class CheckedModel(GraphOfOneMode):
    """A module of stages that refuses calls for which its graph was not captured.

    ``meta["calls"]`` holds the checks, which copies share.
    """

    def __repr__(self) -> str:
        """Return one line; :meth:`print_readable` shows the code."""
        stages = self.meta.get("stages", {})
        return f"{type(self).__name__}({counted(len(stages), 'stage')}: {listed([*stages])})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call that was captured, or is equivalent to one."""
        checks: CapturedCalls | None = self.meta.get(CALLS)
        differs = ""
        if checks is not None:
            args, kwargs = checks.as_captured(args, kwargs)
            differs = checks.check(self, args, kwargs)
        try:
            return super().__call__(*args, **kwargs)
        except PartitionError:
            raise
        except Exception as error:
            if not differs:
                raise
            raise PartitionError(
                f"{differs}, and fails ({type(error).__name__}: {first_line(error)}); pass inputs "
                f"as captured, or {RECAPTURE}"
            ) from error


def check_calls(module: CheckedModel, captured: CapturedGraph) -> None:
    """Let `module`, a split of `captured`, refuse calls that were not captured.

    Graphs with any number of inputs without a name, which they read one by one, are left alone.
    """
    names = [str(node.target) for node in captured.graph.find_nodes(op="placeholder")]
    module.meta.pop(CALLS, None)
    if not any(re.match(r"\*(?!\*)", name) for name in names):
        calls = CapturedCalls(captured)
        for part in (module, *map(module.get_submodule, module.meta["stages"])):
            assert isinstance(part, fx.GraphModule)
            part.meta[CALLS] = calls


class _Constant(NamedTuple):
    """An input that decided the capture: its name, as text, and for comparison."""

    name: str
    shown: str
    written: Any
    tensor: torch.Tensor | None


def _fixed(captured: CapturedGraph) -> dict[int, _Constant]:
    """Return the inputs that decided the capture, by position.

    Exporters run Python once: the decisions of a non-tensor input are final, and its placeholder
    has no reader. A given ``GraphModule`` reads all that it needs.
    """
    placeholders = captured.graph.find_nodes(op="placeholder")
    examples = captured.example_values or [node.meta.get("val") for node in placeholders]
    found: dict[int, _Constant] = {}
    for place, (node, value) in enumerate(zip(placeholders, examples, strict=True)):
        tensor = node.meta.get("constant")
        is_read = bool(node.users) or isinstance(node.meta.get("val"), _NUMBERS)
        if tensor is None and (is_read or isinstance(value, torch.Tensor)):
            continue
        if tensor is None and captured.how == "graph_module":
            continue
        text = _shown(value if tensor is None else tensor.tolist())
        written = node.meta[GIVEN] if GIVEN in node.meta else written_down(value)
        found[place] = _Constant(str(node.target), text, written, tensor)
    return found


def _shown(value: object) -> str:
    return "a tensor" if isinstance(value, torch.Tensor) else shown(value)


class CapturedCalls:
    """The calls for which a graph was captured."""

    def __init__(self, captured: CapturedGraph) -> None:
        self.training = captured.module.training
        self._fixed = _fixed(captured)
        self._others = OtherCalls(captured)
        source = captured.source
        self._signature = None if source is None else inspect.signature(source.forward)
        self._names, self._count = input_names(captured.graph)
        own = () if self._signature is None else self._signature.parameters
        # Python binds arguments by name, except those of **kwargs, which keep the caller's order.
        self._sorted = [name for name in self._names[self._count :] if name in own]
        info = getattr(captured.graph._codegen, "pytree_info", None)
        has_order = len(self._sorted) + self._count < len(self._names) or (
            info is not None and str(info.in_spec).count("ict, [") > 1
        )
        self._structure = info.in_spec if info is not None and has_order else None

    def __deepcopy__(self, memo: dict[int, Any]) -> CapturedCalls:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_signature": None}  # defaults need not be picklable

    def as_captured(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a call with the arguments of the capture, and dicts in its order.

        A left-out argument is replaced by its default. PartitionError if an argument that the
        capture left out differs from its default, or forward depends on a dict's other order.
        """
        args, kwargs = self._with_defaults(args, kwargs)
        if self._structure is None:
            return args, kwargs
        kwargs = {**{name: kwargs[name] for name in self._sorted if name in kwargs}, **kwargs}
        structure = pytree.tree_structure((args, kwargs))
        if structure != self._structure:
            ordered = in_order((args, kwargs), self._structure)
            if pytree.tree_structure(ordered) == self._structure:
                self._others.check_order(structure)
                return ordered[0], ordered[1]
        return args, kwargs

    def _with_defaults(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        names, count = self._names, self._count
        if self._signature is None or (len(args) == count and kwargs.keys() == set(names[count:])):
            return args, kwargs
        try:
            values = dict(self._signature.bind(*args, **kwargs).arguments)
        except TypeError:
            return args, kwargs
        parameters = self._signature.parameters
        for parameter in parameters.values():
            if parameter.kind is parameter.VAR_KEYWORD:
                values |= values.pop(parameter.name, {})
        defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        values = {**{name: defaults[name] for name in names if name in defaults}, **values}
        for name in sorted(values.keys() - set(names)):
            if name not in defaults:
                return args, kwargs
            if written_down(values[name]) != written_down(defaults[name]):
                raise PartitionError(
                    f"{name!r} was left out when the graph was captured, which is for "
                    f"{_shown(defaults[name])}; leave it out, or capture the model with "
                    f"{name}={_shown(values[name])}"
                )
        if values.keys() < set(names):
            return args, kwargs
        return tuple(values[n] for n in names[:count]), {n: values[n] for n in names[count:]}

    def check(self, module: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Refuse a call that was not captured; return its difference from the capture.

        The PartitionError names the input, number or flag that differs, and the remedy.
        """
        if torch.compiler.is_compiling() and not self._fixed:
            return ""
        given = flat_inputs(module.graph, args, kwargs)
        self.check_constants(given)
        if torch.compiler.is_compiling():
            return ""
        return self._others.check(module, given, args, kwargs)

    def check_mode(self, training: bool) -> None:
        """Refuse another mode than that of the capture, if it changes the graph."""
        self._others.check_mode(training)

    def check_step(self, given: Sequence[Any]) -> None:
        """Refuse a step of microbatches, given whole, with other numbers, flags or settings."""
        self.check_constants(given, in_parts=True)
        self._others.check_settings()

    def check_constants(self, given: Sequence[Any], *, in_parts: bool = False) -> None:
        """Raise PartitionError unless the inputs that decided the graph are unchanged.

        With `in_parts`, tensors are not those of one call, and not compared.
        """
        for place, constant in self._fixed.items():
            value = given[place]
            if constant.tensor is not None:
                if not in_parts:
                    _check_tensor(constant, constant.tensor, value)
            elif isinstance(value, torch.Tensor) or written_down(value) != constant.written:
                raise PartitionError(
                    f"{constant.name!r} was {constant.shown} when the graph was captured, which "
                    f"decides what it computes, but is {_shown(value)} now; pass {constant.shown}, "
                    "or capture the model anew"
                )


def _check_tensor(constant: _Constant, expected: torch.Tensor, given: Any) -> None:
    if isinstance(given, torch.Tensor) and torch.equal(given.detach().to("cpu"), expected):
        return
    raise PartitionError(
        f"{constant.name!r} is one of the constants of the capture, and was {constant.shown}: the "
        "graph is for these values; pass them, or capture the model anew"
    )
