"""Find out which backward passes of a model's own a capture loses: gradients may be others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Final

from torch import nn
from torch.autograd.function import _SingleLevelFunction

# What makes an operator differentiable, which is in the graph as that operator.
_OF_OPERATORS: Final = ("torch._library.", "torch._higher_order_ops.")
# Stands for a function that strict export found, without its name.
_NAMELESS: Final = "torch._functorch."


@contextlib.contextmanager
def applied_functions() -> Iterator[set[type]]:
    """Collect the classes of ``torch.autograd.Function`` that are applied in the block.

    ``Function.apply`` itself is not replaced, since models keep it (``act = Act.apply``), but
    what it calls.
    """
    applied: set[type] = set()
    # What every torch.autograd.Function calls; torch does not say that it has an attribute apply.
    base: Any = _SingleLevelFunction
    before = vars(base).get("apply")

    def apply(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
        if not cls.__module__.startswith(_OF_OPERATORS):
            applied.add(cls)
        return super(base, cls).apply(*args, **kwargs)

    base.apply = classmethod(apply)
    try:
        yield applied
    finally:
        if before is None:
            del base.apply
        else:
            base.apply = before


def lost_functions(applied: Iterable[type]) -> str:
    """Say that the backward passes of these classes are lost; empty if there are none."""
    applied = tuple(applied)
    if not applied:
        return ""
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
