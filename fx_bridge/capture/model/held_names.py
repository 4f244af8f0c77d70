"""Parts of a model that are called like attributes that a ``GraphModule`` has for itself."""

from __future__ import annotations

from typing import Any, Final

from torch import fx, nn

_OF_TORCH: Final = frozenset(
    {
        *(set(dir(fx.GraphModule)) - set(dir(nn.Module))),
        *vars(fx.GraphModule(nn.Module(), fx.Graph())).keys() - vars(nn.Module()).keys(),
        *("_in_spec", "_out_spec"),
    }
)
_OF_PLACED: Final = frozenset({"devices", "model_state_dict", "load_model_state_dict"})


def is_reserved(path: str) -> bool:
    """Return whether modules of stages have an attribute of their own where a path begins."""
    return path.partition(".")[0] in _OF_TORCH | _OF_PLACED


def is_of_torch(path: str) -> bool:
    """Return whether every ``GraphModule`` has an attribute of its own where a path begins."""
    return path.partition(".")[0] in _OF_TORCH


def own_attribute(module: Any, name: str) -> Any:
    """Return an attribute of the model, also where that of a GraphModule hides it."""
    if is_reserved(name) and isinstance(module, fx.GraphModule):
        for table in (module._parameters, module._buffers, module._modules):
            if name in table:
                return table[name]
    return getattr(module, name)
