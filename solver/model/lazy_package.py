"""Packages that import the names they offer on first use."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package whose ``__init__`` names modules, and imports none of them.

    It makes itself one by ``sys.modules[__name__].__class__ = LazyPackage``.

    Attributes
    ----------
    MODULE_OF : dict of str to str
        By name, the module that defines it.

    Notes
    -----
    Importing a module imports the packages above it. If these imported all that they offer, every
    module would take the seconds of the slowest, such as those of torch.
    """

    MODULE_OF: dict[str, str]

    @property
    def __all__(self) -> list[str]:
        """What ``from PACKAGE import *`` takes; type checkers read it off the imports."""
        return list(self.MODULE_OF)

    def __getattr__(self, name: str) -> Any:
        module = vars(self)["MODULE_OF"].get(name)
        if module is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module), name)
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Python puts a module into its package when it is first imported. One that is called like
        # what the package offers, as `fx_bridge.capture` is, must not take its place.
        if not (isinstance(value, ModuleType) and name in self.MODULE_OF):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.MODULE_OF})
