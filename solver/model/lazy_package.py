"""Packages that import their public names on first use."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package whose ``__init__`` names modules, and imports none of them.

    An ``__init__`` opts in by ``sys.modules[__name__].__class__ = LazyPackage``. Importing a module
    imports its parent packages: if these imported all their public names, every import would take
    the seconds of the slowest one, such as torch.
    """

    MODULE_OF: dict[str, str]
    """Defining module of each public name."""

    @property
    def __all__(self) -> list[str]:
        """Names for ``from PACKAGE import *``; type checkers read them off the imports."""
        return list(self.MODULE_OF)

    def __getattr__(self, name: str) -> Any:
        module = vars(self)["MODULE_OF"].get(name)
        if module is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module), name)
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Python binds a module in its package at first import. A module with the same name as a
        # public object, such as `fx_bridge.capture`, must not replace it.
        if not (isinstance(value, ModuleType) and name in self.MODULE_OF):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.MODULE_OF})
