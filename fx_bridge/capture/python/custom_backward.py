"""Keep a model's own backward passes where a graph can, and report lost ones."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from unittest import mock

import torch
from torch import fx, nn
from torch._functorch import eager_transforms
from torch._functorch.autograd_function import CustomFunctionHigherOrderOperator
from torch.autograd.function import Function, _SingleLevelFunction
from torch.utils import _pytree as pytree
from torch.utils import checkpoint

from fx_bridge.capture.model.messages import source_place
from fx_bridge.capture.python.autograd_functions import NotKeptError, is_traced, record
from fx_bridge.capture.python.held_tensors import traced_arguments
from solver import PartitionError

# Functions that make operators differentiable, which are in the graph as those operators, and
# those that torch derives from a Function for transforms, which is recorded by then.
_OF_TORCH: Final = (
    *("torch._library.", "torch._higher_order_ops.", "torch._functorch.", "torch._dynamo."),
)
_TENSOR_HOOK: Final = "Tensor.register_hook"
_WITHOUT_HOOKS: Final = (
    "capture the model without such hooks, or write what they do as a torch.autograd.Function"
)
_HOOKS: Final[tuple[tuple[Any, str, str], ...]] = (
    (torch.Tensor, "register_hook", _TENSOR_HOOK),
    (torch.autograd.graph.saved_tensors_hooks, "__enter__", "saved_tensors_hooks"),
)
"""Owner and name of a method that changes gradients, and its name in messages."""
_DIFFERENTIATING: Final[tuple[tuple[Any, str], ...]] = (
    *((torch.autograd, "grad"), (torch.autograd, "backward"), (eager_transforms, "vjp")),
    *((eager_transforms, "grad_and_value_impl"), (eager_transforms, "_autograd_grad")),
)
"""Owner and name of the functions that differentiate."""
_HARMLESS: Final = (checkpoint._checkpoint_hook, torch.autograd.graph.save_on_cpu)
"""Hooks of torch that only change the time or place at which values are kept."""
_GRAD_MODES: Final = (
    (torch.no_grad, "__enter__"),
    (torch.no_grad, "__exit__"),
    (torch.enable_grad, "__enter__"),
    (torch.enable_grad, "__exit__"),
    (torch.set_grad_enabled, "__init__"),
    (torch.set_grad_enabled, "__enter__"),
    (torch.set_grad_enabled, "__exit__"),
)
"""Owner and name of methods that set the grad mode."""
_LOST: Final = "lost_backward"
"""Key of a module's ``meta``: the backward passes that its graph lacks."""


@dataclass(slots=True)
class OwnBackward:
    """Parts of a model that change backward passes, and that a graph of forward lacks."""

    model: nn.Module
    functions: dict[type, str] = field(default_factory=dict)
    """Classes of ``torch.autograd.Function`` whose backward pass is lost, with the place of the
    first call and the reason."""
    hooks: set[str] = field(default_factory=set)
    """Methods that change gradients, or values saved for them, by name."""

    @property
    def lost(self) -> str:
        """The lost backward passes and a remedy; empty if none is lost."""
        if lost := self._functions():
            lost += "; give it all that it reads as tensors, or write it as a "
            return lost + "torch.library.custom_op with register_autograd"
        lost = self._module_hooks()
        if _TENSOR_HOOK in self.hooks:
            lost = f"forward uses {_TENSOR_HOOK}, which the graph does not, so gradients may differ"
        return f"{lost}; {_WITHOUT_HOOKS}" if lost else ""

    def _functions(self) -> str:
        if not self.functions:
            return ""
        function, where = next(iter(self.functions.items()))
        others = len(self.functions) - 1
        more = f" and {others} more" if others else ""
        return (
            "the graph has the forward pass alone of torch.autograd.Function "
            f"{function.__qualname__!r}{more} {where}, so gradients would be wrong"
        )

    def _module_hooks(self) -> str:
        """Return a remark about modules with backward hooks, which torch.export leaves out."""
        modules = self.model.named_modules()
        hooked = [n for n, m in modules if m._backward_hooks or m._backward_pre_hooks]
        if not hooked:
            return ""
        where = f"{hooked[0]!r}" if hooked[0] else "the model"
        others = f" and {len(hooked) - 1} more" if len(hooked) > 1 else ""
        return f"backward hooks of {where}{others} are not in the graph, so gradients may differ"

    @property
    def note(self) -> str:
        """A remark about the graph for its user; empty without losses."""
        notes = [self._module_hooks(), self._functions()]
        if self.hooks:
            named = " and ".join(sorted(self.hooks))
            notes.append(f"forward uses {named}, which the graph does not, so gradients may differ")
        return "; ".join(filter(None, notes))


def mark_lost(module: fx.GraphModule, lost: str) -> None:
    """Record in `module` the backward passes that its graph lost, if any."""
    if lost:
        module.meta[_LOST] = lost


def lost_backward(module: fx.GraphModule) -> str:
    """Return the backward passes that a module's graph lost, with a remedy; "" if none."""
    return str(module.meta.get(_LOST, ""))


def check_backward(module: fx.GraphModule, verb: str) -> None:
    """Raise PartitionError ("cannot `verb`: ...") if gradients of `module` would be wrong."""
    if lost := lost_backward(module):
        raise PartitionError(f"cannot {verb}: {lost}")


@contextlib.contextmanager
def own_backward(model: nn.Module, differentiated: set[str]) -> Iterator[OwnBackward]:
    """Record calls of ``torch.autograd.Function`` in the block; collect those that are lost.

    The names of functions that differentiate are added to `differentiated` when they are called.

    Models keep ``Function.apply`` (``act = Act.apply``), so the method that it calls is replaced
    instead. From torch 2.14 on it calls none in Python. There ``apply`` is replaced, and
    ``forward`` of each class for calls of an ``apply`` that was kept before.
    """
    watch = _Functions(model)
    with contextlib.ExitStack() as stack:
        for owner, name, made in watch.replacements():
            stack.enter_context(mock.patch.object(owner, name, made))
        noted = [(owner, name, shown, watch.found.hooks) for owner, name, shown in _HOOKS]
        noted += [(owner, name, name, differentiated) for owner, name in _DIFFERENTIATING]
        for owner, name, shown, called in noted:
            made = _noted(getattr(owner, name), shown, called)
            stack.enter_context(mock.patch.object(owner, name, made))
        yield watch.found


class _Functions:
    """Handles each call of a ``torch.autograd.Function`` while `model` is traced."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.found = OwnBackward(model)
        self._with_gradients = torch.is_grad_enabled()
        self._records = self._with_gradients
        self._known = 0

    def replacements(self) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
        # A lazy import: only captures need dynamo.
        from torch._dynamo.variables.misc import AutogradFunctionVariable

        in_python = isinstance(vars(Function)["apply"], classmethod)
        base: Any = _SingleLevelFunction if in_python else Function
        transformed = CustomFunctionHigherOrderOperator.__call__
        compiled = AutogradFunctionVariable.call_apply

        def apply(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
            above: Any = super(base, cls)
            given = traced_arguments(args)

            def run() -> Any:
                self._known += 1
                try:
                    return above.apply(*given, **kwargs)
                finally:
                    self._known -= 1

            return self._applied(cls, given, run)

        def transform(operator: Any, function: type[Any], *args: Any, **kwargs: Any) -> Any:
            if _has_gradients(function, args):
                self._lose(function, "it is called in a transform such as torch.vmap")
            return transformed(operator, function, *args, **kwargs)

        def trace(variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
            self.found.functions.setdefault(variable.fn_cls, _compiled_place(tx))
            return compiled(variable, tx, args, kwargs)

        yield base, "apply", classmethod(apply)  # type: ignore[misc]
        yield CustomFunctionHigherOrderOperator, "__call__", transform
        yield AutogradFunctionVariable, "call_apply", trace
        if not in_python:
            for owner, name in _GRAD_MODES:
                yield owner, name, self._noting(getattr(owner, name))
            for cls in _subclasses(Function):
                if "forward" in vars(cls) and not cls.__module__.startswith(_OF_TORCH):
                    yield cls, "forward", staticmethod(self._watched(cls, cls.forward))

    def _noting(self, set_mode: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that sets the grad mode and records it: within forward it is off."""

        @functools.wraps(set_mode)
        def noting(*args: Any, **kwargs: Any) -> Any:
            value = set_mode(*args, **kwargs)
            self._records = torch.is_grad_enabled()
            return value

        return noting

    def _watched(self, cls: type[Any], forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the forward of a class that handles calls of an ``apply`` that was kept before."""
        has_context = cls.setup_context is Function.setup_context

        @functools.wraps(forward)
        def watched(*args: Any, **kwargs: Any) -> Any:
            run = functools.partial(forward, *args, **kwargs)
            if self._known or torch.compiler.is_dynamo_compiling():
                return run()
            records = self._records
            try:
                return self._applied(cls, args[has_context:], run, is_recorded=records)
            finally:
                self._records = records

        return watched

    def _applied(
        self,
        cls: type[Any],
        args: tuple[Any, ...],
        apply: Callable[[], Any],
        is_recorded: bool | None = None,
    ) -> Any:
        if cls is checkpoint.CheckpointFunction:
            # It recomputes values in backward; gradients are the same without it.
            function, _, *inputs = args
            return function(*inputs)
        # No backward pass in a region without gradients, unless that is around the capture.
        wanted = torch.is_grad_enabled() if is_recorded is None else is_recorded
        unwanted = self._with_gradients and not wanted
        if unwanted or not is_traced(args) or not _has_gradients(cls, args):
            return apply()
        try:
            return record(cls, args, apply)
        except NotKeptError as error:
            self._lose(cls, str(error))
            return apply()

    def _lose(self, cls: type[Any], why: str) -> None:
        frames = list(traceback.walk_stack(None))[::-1]
        place = source_place(frames, self.model)
        self.found.functions.setdefault(cls, f"{place} ({why})".lstrip())


def _has_gradients(cls: type[Any], args: tuple[Any, ...]) -> bool:
    """Return True if a call may have a backward pass that is not one of torch's own."""
    if cls.__module__.startswith(_OF_TORCH):
        return False
    return any(
        isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
        for leaf in pytree.tree_leaves(args)
    )


def _subclasses(cls: type[Any]) -> set[type[Any]]:
    own = set(cls.__subclasses__())
    return own.union(*map(_subclasses, own))


def _compiled_place(tx: Any) -> str:
    """Return the module and line that dynamo is tracing."""
    stack = tx.nn_module_stack
    path = str(list(stack.values())[-1][0]) if stack else ""
    path = path.removeprefix("L['self']").removeprefix("._export_root").removeprefix(".")
    line = tx.frame_summary()
    module = f"in module {path!r} " if path else ""
    return f"{module}at {line.filename}:{line.lineno}, {line.line!r} (dynamo inlines it)"


def _noted(original: Callable[..., Any], shown: str, called: set[str]) -> Callable[..., Any]:
    """Return a function that records its calls in `called`."""

    def noted(*args: Any, **kwargs: Any) -> Any:
        if not isinstance(next(iter(args), None), _HARMLESS):
            called.add(shown)
        return original(*args, **kwargs)

    return noted
