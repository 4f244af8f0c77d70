"""Find out which backward passes of a model's own a capture loses: gradients may be others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch.autograd.function import _SingleLevelFunction
from torch.utils import checkpoint

# What makes an operator differentiable, which is in the graph as that operator.
_OF_OPERATORS: Final = ("torch._library.", "torch._higher_order_ops.")
# Stands for a function that strict export found, without its name.
_NAMELESS: Final = "torch._functorch."
_HOOKS: Final = (
    (torch.Tensor, "register_hook", "Tensor.register_hook"),
    (torch.autograd.graph.saved_tensors_hooks, "__enter__", "saved_tensors_hooks"),
)
"""Owner and name of a method that changes gradients, and how it is written."""
_HARMLESS: Final = (checkpoint._checkpoint_hook, torch.autograd.graph.save_on_cpu)
"""Hooks of torch that change nothing but when, or where, values are kept."""


@dataclass(slots=True)
class OwnBackward:
    """What forward did for backward passes that a graph of forward does not do.

    Attributes
    ----------
    functions : set of type
        Classes of ``torch.autograd.Function`` that it applied.
    hooks : set of str
        What changes gradients, or values that are saved for them, as a person writes it.
    """

    functions: set[type] = field(default_factory=set)
    hooks: set[str] = field(default_factory=set)

    @property
    def note(self) -> str:
        """What a person has to know of the graph; empty if there was nothing."""
        notes = [_lost_functions(self.functions)] if self.functions else []
        if self.hooks:
            named = " and ".join(sorted(self.hooks))
            notes.append(f"forward uses {named}, which the graph does not, so gradients may differ")
        return "; ".join(notes)


@contextlib.contextmanager
def own_backward() -> Iterator[OwnBackward]:
    """Collect what is done for backward in the block.

    ``Function.apply`` itself is not replaced, since models keep it (``act = Act.apply``), but
    what it calls.
    """
    found = OwnBackward()
    # What every torch.autograd.Function calls; torch does not say that it has an attribute apply.
    base: Any = _SingleLevelFunction
    before = vars(base).get("apply")

    def apply(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
        if not cls.__module__.startswith(_OF_OPERATORS):
            found.functions.add(cls)
        return super(base, cls).apply(*args, **kwargs)

    base.apply = classmethod(apply)
    try:
        with contextlib.ExitStack() as stack:
            for owner, name, shown in _HOOKS:
                stack.enter_context(_noted(owner, name, shown, found.hooks))
            yield found
    finally:
        if before is None:
            del base.apply
        else:
            base.apply = before


@contextlib.contextmanager
def _noted(owner: Any, name: str, shown: str, called: set[str]) -> Iterator[None]:
    """Note calls of a method, which does what it always does."""
    original = getattr(owner, name)

    def noted(called_on: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(called_on, _HARMLESS):
            called.add(shown)
        return original(called_on, *args, **kwargs)

    setattr(owner, name, noted)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _lost_functions(applied: Iterable[type]) -> str:
    """Say that the backward passes of these classes are lost."""
    names = {c.__qualname__ for c in applied if not c.__module__.startswith(_NAMELESS)}
    named = f" ({', '.join(sorted(names))})" if names else ""
    return (
        f"the graph has the forward pass alone of torch.autograd.Function{named}, "
        "so gradients may differ"
    )


def lost_hooks(model: nn.Module) -> str:
    """Say which modules have backward hooks, which torch.export leaves out."""
    hooked = [n for n, m in model.named_modules() if m._backward_hooks or m._backward_pre_hooks]
    if not hooked:
        return ""
    where = f"{hooked[0]!r}" if hooked[0] else "the model"
    others = f" and {len(hooked) - 1} more" if len(hooked) > 1 else ""
    return f"backward hooks of {where}{others} are not in the graph, so gradients may differ"
