"""Parts of a model with the names of ``GraphModule`` attributes."""

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
    """Return True if a path begins with an attribute name of stage modules."""
    return path.partition(".")[0] in _OF_TORCH | _OF_PLACED


def is_of_torch(path: str) -> bool:
    """Return True if a path begins with an attribute name of every ``GraphModule``."""
    return path.partition(".")[0] in _OF_TORCH


def own_attribute(module: Any, name: str) -> Any:
    """Return an attribute of the model, even if a GraphModule's own attribute hides it."""
    if is_reserved(name) and isinstance(module, fx.GraphModule):
        for table in (module._parameters, module._buffers, module._modules):
            if name in table:
                return table[name]
    return getattr(module, name)
