"""A graph is one of training or of evaluation: ``train()`` and ``eval()`` change flags alone."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import fx

from fx_bridge.capture.model.generated_names import ModuleOfAnyNames

CALLS: Final = "calls"
"""Key of a module's metadata: what knows which calls it was captured for."""


class GraphOfOneMode(ModuleOfAnyNames):
    """A module that does not run in another mode than that of its capture, if that matters.

    Libraries and modules around it may call ``train()`` and ``eval()`` as they like, and only a
    call in the wrong mode is refused: it would compute what it does in the other one.
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
    """Return a module that shares all that `module` has, and checks its mode."""
    made = GraphOfOneMode.__new__(GraphOfOneMode)
    made.__dict__.update(module.__dict__)
    made.meta = {**module.meta}
    made.graph = module.graph
    return made
