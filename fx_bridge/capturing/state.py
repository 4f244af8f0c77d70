"""Keep what a model remembers in Python while its forward is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restore the attributes of `model` and its submodules on exit.

    Tracing runs forward, which may count its calls or keep a value; what is inside of lists
    and dicts is not restored.
    """
    before = [(module.__dict__, dict(module.__dict__)) for module in model.modules()]
    try:
        yield
    finally:
        for attributes, values in before:
            for name in attributes.keys() - values.keys():
                del attributes[name]
            attributes.update(values)
