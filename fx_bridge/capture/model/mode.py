"""Graphs of one mode, training or evaluation: ``train()`` and ``eval()`` only change flags."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx

CALLS: Final = "calls"
"""Key of a module's metadata: the checker of its calls."""


class GraphOfOneMode(fx.GraphModule):
    """A module that refuses to run in another mode than that of its capture, if that matters.

    Libraries and enclosing modules may call ``train()`` and ``eval()``. Only a call in the wrong
    mode is refused, because the graph computes the captured mode regardless.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the graph."""
        calls = self.meta.get(CALLS)
        if calls is not None and self.training is not calls.training:
            _check(calls, self.training)
        return super().__call__(*args, **kwargs)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _check(calls: Any, training: bool) -> None:
    calls.check_mode(training)


def of_one_mode(module: fx.GraphModule) -> GraphOfOneMode:
    """Return a module with all attributes of `module` that checks its mode."""
    made = GraphOfOneMode.__new__(GraphOfOneMode)
    made.__dict__.update(module.__dict__)
    made.meta = {**module.meta}
    made.graph = module.graph
    return made
