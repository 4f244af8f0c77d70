"""Checks that a graph holds for shapes, dtypes or a precision other than those of its capture.

The graph does not show which of its constants are sizes and dtypes that forward read. So the model
is captured once more (``docs/splitting.md``, "Other calls").
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from fx_bridge.capture.digest import first_difference
from fx_bridge.capture.graph import CapturedGraph, capture
from fx_bridge.capture.model.inputs import described_inputs, described_tensor, in_order, listed
from fx_bridge.capture.python.surroundings import GRAD_MODE, GRADIENTS, answering, answers_now
from fx_bridge.equivalence.calls import first_line
from fx_bridge.split.captures import (
    as_trained,
    example_like,
    has_modes,
    in_mode,
    lines_of,
    relax_guards,
    weights_by_name,
    writes_casts,
)
from fx_bridge.storages.autocast import (
    autocast_dtypes,
    described,
    home_precision,
    home_type,
    precision,
)
from solver import PartitionError
from solver.model.text import shown

RECAPTURE: Final = "capture the model with dynamic_shapes"
"""Advice for a model that is called with several shapes."""
_GONE: Final = "the model is gone, so its graph is unknown"

Precision = Mapping[str, torch.dtype]


class OtherCalls:
    """Calls of a split that differ from its capture, and the outcomes of their checks.

    The captured model is not kept alive. Without it, other shapes are accepted, and another
    precision is refused; if there was none at all, the graph is the model.
    """

    def __init__(self, captured: CapturedGraph) -> None:
        placeholders = captured.graph.find_nodes(op="placeholder")
        self._examples = tuple(_example(node) for node in placeholders)
        self._inputs = described_inputs(captured.graph)
        self._home = home_type(captured.graph)
        self._precision = home_precision(captured.module)
        self._is_symbolic = any(None in sizes for _, sizes, *_ in filter(None, self._examples))
        self._lines = {} if self._is_symbolic else lines_of(captured)
        self._writes_casts = writes_casts(captured)
        self._had_model = captured.source is not None
        self._reference = None if captured.source is None else weakref.ref(captured.source)
        self._call = (captured.args, dict(captured.kwargs))
        self._options: Any = {"constants": captured.constants, "check": captured.check}
        self._asked = captured.asked
        self._in_training = captured.in_training
        self._training = captured.module.training
        self._has_modes = self._had_model or has_modes(captured)
        self._known: set[Any] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reference": None, "_call": ((), {}), "_known": set()}

    @property
    def _model(self) -> nn.Module | None:
        return None if self._reference is None else self._reference()

    def check(
        self, module: fx.GraphModule, given: Sequence[Any], args: Any, kwargs: Mapping[str, Any]
    ) -> str:
        """Refuse a call of `module`, the split or a copy, that has another graph.

        `given` are the values of its placeholders. The result is the difference of the call from
        the capture; empty if there is none.
        """
        if self._asked:
            weights = weights_by_name(module)
            now = answers_now(self._asked, given, weights)
            self._check_answers(now, self._example_as(given) or (args, kwargs), weights)
        shapes = self._other_inputs(given)
        precisions = self._precisions(module)
        key = (tuple(shapes.items()), tuple(tuple(each.items()) for each in precisions))
        if not shapes and precisions == [self._precision]:
            return ""
        if key not in self._known:
            for each in precisions:
                self._check(args, kwargs, shapes, each)
            self._known.add(key)
        if precisions != [self._precision] and self._had_model:
            relax_guards(module)
        under = " and ".join(described(each) or "no autocast" for each in precisions)
        inputs = listed([f"{name} {shape}" for name, shape in shapes.items()])
        return (
            f"the call has {inputs or 'the same inputs'} under {under}, where the graph was "
            f"captured with {self._inputs} under {described(self._precision) or 'no autocast'}"
        )

    def check_mode(self, training: bool) -> None:
        """Refuse another mode than that of the capture, if it changes the graph."""
        if training == self._training or not self._has_modes or training in self._known:
            return
        model = self._model
        if model is not None:
            every = frozenset(path for path, _ in model.named_modules() if training)
            lines = self._lines_of(model, self._call, self._precision, in_training=every)
            reason = first_difference(self._lines_before(model), lines)
        else:
            reason = "the model is gone" if self._had_model else "it has operators of that mode"
        if reason:
            here, there = ("training", "evaluation")[:: 1 if training else -1]
            call, other = ("train()", "eval()")[:: 1 if training else -1]
            raise PartitionError(
                f"the graph was captured in {there} mode, {call} leaves it as it is, and it is "
                f"another in {here} mode: {reason}; call {other}, or capture the model after "
                f"{call} and split that by the same plan"
            )
        self._known.add(training)

    def check_settings(self) -> None:
        """Refuse other answers to queries of torch's settings, if that changes the graph."""
        asked = [question for question in self._asked if question.startswith("torch.")]
        self._check_answers(answers_now(asked, (), {}), self._call, {})

    def _check_answers(
        self, now: Mapping[str, Any], call: tuple[Any, Any], weights: Mapping[str, torch.Tensor]
    ) -> None:
        """Refuse other answers `now` to queries of forward, if that changes the graph."""
        others = {q: answer for q, answer in now.items() if answer != self._asked[q]}
        key = frozenset(others.items())
        if not others or key in self._known:
            return
        model = self._model
        if model is not None:
            with as_trained(model, weights):
                lines = self._lines_of(model, call, self._precision, others)
            reason = first_difference(self._lines_before(model), lines)
        else:
            reason = _GONE
        if reason:
            raise PartitionError(
                f"forward asks for {' and '.join(sorted(others))}, where the answer is another "
                f"than when the graph was captured, and so is its graph: {reason}; call it as it "
                "was captured, or capture the model as it is called"
            )
        self._known.add(key)

    def check_order(self, structure: pytree.TreeSpec) -> None:
        """Refuse a call with another `structure` of its inputs, if it changes the graph.

        The structure is the captured one except for the order of dicts.
        """
        key = str(structure)
        if key in self._known:
            return
        model, reason = self._model, _GONE
        if model is not None:
            call = in_order(self._call, structure)
            before, lines = (
                {name: line for name, line in each.items() if not line.startswith("placeholder ")}
                for each in (
                    self._lines_before(model),
                    self._lines_of(model, call, self._precision),
                )
            )
            reason = first_difference(before, lines)
        if reason:
            raise PartitionError(
                f"the items of a dict among the inputs come in another order than when the graph "
                f"was captured, and its graph is another then: {reason}; pass them in the order of "
                f"the capture, {self._inputs}, or capture the model anew"
            )
        self._known.add(key)

    def _lines_before(self, model: nn.Module) -> dict[str, str]:
        return self._lines or self._lines_of(model, self._call, self._precision)

    def _example_as(self, given: Sequence[Any]) -> Any:
        """Return the captured call with tensors that have the strides and flags of `given`."""
        leaves, structure = pytree.tree_flatten(self._call)
        if len(leaves) != len(given):
            return None
        return pytree.tree_unflatten(
            [
                example_like(example, value) if isinstance(value, torch.Tensor) else example
                for example, value in zip(leaves, given, strict=True)
            ],
            structure,
        )

    def _other_inputs(self, given: Sequence[Any]) -> dict[str, str]:
        found: dict[str, str] = {}
        for example, value in zip(self._examples, given, strict=True):
            if example is None:
                continue
            name, sizes, dtype, layout = example
            if not isinstance(value, torch.Tensor):
                raise PartitionError(
                    f"{name!r} is {shown(value)}, but the graph was captured with {self._inputs}; "
                    "pass a tensor, or capture the model with this"
                )
            if torch._C._functorch.is_functorch_wrapped_tensor(value):
                return {}
            if isinstance(value, FakeTensor):
                continue
            same = len(sizes) == value.dim() and all(
                size in (None, there) for size, there in zip(sizes, value.shape, strict=True)
            )
            if not same or value.dtype != dtype or value.layout != layout:
                found[name] = described_tensor(value)
        return found

    def _precisions(self, module: fx.GraphModule) -> list[Precision]:
        """Return the autocast settings of the devices of `module`, for the captured device type."""
        devices = module.meta.get("devices", {}).values()
        types = {device.type for device in devices} or {self._home}
        found: list[Precision] = []
        for each in sorted(types - {"meta"}):
            dtypes = autocast_dtypes((each,))
            at_home = {self._home: dtypes[each]} if dtypes else {}
            if at_home not in found:
                found.append(at_home)
        return found or [self._precision]

    def _check(
        self, args: Any, kwargs: Mapping[str, Any], shapes: Mapping[str, str], dtypes: Precision
    ) -> None:
        model = self._model
        if dtypes != self._precision:
            if self._had_model and (model is None or self._home == "meta"):
                where = "the model is on the meta device, so its graph is unknown"
                raise self._other_precision(dtypes, _GONE if model is None else where)
            if self._writes_casts:
                raise self._other_precision(dtypes, "the graph writes in place to what it casts")
        if model is None:
            return
        if not shapes or self._is_symbolic:
            args, kwargs = self._call
        try:
            lines = self._lines_of(model, (args, kwargs), dtypes)
        except PartitionError as error:
            cause = error.__cause__ or error
            reason = f"its capture fails ({type(cause).__name__}: {first_line(cause)})"
            raise self._refusal(shapes, dtypes, reason) from error
        if lines != self._lines:
            # Otherwise the model has changed or is in another mode, which changes both graphs.
            before = self._lines_of(model, self._call, self._precision)
            if difference := first_difference(before, lines):
                raise self._refusal(shapes, dtypes, difference)

    def _lines_of(
        self,
        model: nn.Module,
        call: tuple[Any, Any],
        dtypes: Precision,
        answers: Mapping[str, Any] = MappingProxyType({}),
        in_training: frozenset[str] | None = None,
    ) -> dict[str, str]:
        """Return the operators of `model` for a call as text.

        Queries of forward get `answers`, and else the answers of the capture.
        """
        asks_gradients = GRADIENTS in self._asked
        args, kwargs = pytree.tree_map_only(
            torch.Tensor,
            lambda tensor: (tensor if asks_gradients else tensor.detach()).to(self._home),
            (tuple(call[0]), dict(call[1])),
        )
        answers = {**self._asked, **answers}
        # Regions of a grad mode other than that of the capture are operators.
        grad_mode = answers[GRADIENTS][0] if asks_gradients else self._asked.get(GRAD_MODE, True)
        in_training = self._in_training if in_training is None else in_training
        with (
            precision(dtypes),
            torch.set_grad_enabled(grad_mode),
            answering(answers),
            in_mode(model, in_training),
        ):
            return lines_of(capture(model, args, kwargs, **self._options))

    def _refusal(self, shapes: Mapping[str, str], dtypes: Precision, reason: str) -> PartitionError:
        if dtypes != self._precision and not shapes:
            return self._other_precision(dtypes, reason)
        given = listed([f"{name} {shape}" for name, shape in shapes.items()])
        if dtypes != self._precision:
            given += f" under {described(dtypes) or 'no autocast'}"
        return PartitionError(
            f"the graph was captured with {self._inputs} and is another for {given}: {reason}; "
            f"pass inputs as captured, or {RECAPTURE}"
        )

    def _other_precision(self, dtypes: Precision, reason: str) -> PartitionError:
        here, there = described(dtypes), described(self._precision)
        if there:
            return PartitionError(
                f"the graph was captured under {there} and is another "
                f"{f'under {here}' if here else 'without'}: {reason}; call it under {there}, or "
                f"capture the model {f'under {here}' if here else 'without it'}"
            )
        return PartitionError(
            f"the graph was captured without autocast and is another under {here}: {reason}; "
            f"capture the model under {here}"
        )


def _example(node: fx.Node) -> tuple[str, tuple[int | None, ...], torch.dtype, torch.layout] | None:
    """Return name, sizes (None if symbolic), dtype and layout of a tensor input."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    sizes = tuple(size if isinstance(size, int) else None for size in value.shape)
    return str(node.target), sizes, value.dtype, value.layout
