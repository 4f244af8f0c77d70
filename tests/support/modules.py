"""Modules of a few parts and one function, for tests that need a model with one quirk."""

from collections.abc import Callable
from typing import Any

from torch import nn


def module_with(forward: Callable[..., Any], /, **parts: Any) -> nn.Module:
    """Return a module that holds `parts` and runs `forward`, which takes it as its first argument.

    Parameters
    ----------
    forward : callable
        The module's own forward, with its own signature.
    parts : object
        Attributes: modules, parameters, buffers (`nn.Buffer`) and anything else.
    """
    module = type(forward.__name__.title(), (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        setattr(module, name, part)
    return module
