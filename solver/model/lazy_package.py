"""Packages that import their public names on first use."""

from __future__ import annotations

import importlib
import re
from functools import cached_property
from types import ModuleType
from typing import Any, Final

_IMPORT: Final = re.compile(r"^    from (\S+) import (\w+) as \2$", re.MULTILINE)


class LazyPackage(ModuleType):
    """A package whose ``__init__`` names modules, and imports none of them.

    An ``__init__`` opts in by ``sys.modules[__name__].__class__ = LazyPackage``. Its public names
    stand once, for type checkers and for this class: each is a line ``from MODULE import NAME as
    NAME`` below ``if TYPE_CHECKING``. Importing a module imports its parent packages: if these
    imported all their public names, every import would take the seconds of the slowest one, such
    as torch.
    """

    @cached_property
    def module_of(self) -> dict[str, str]:
        """The defining module of each public name."""
        loader: Any = self.__loader__
        return {name: module for module, name in _IMPORT.findall(loader.get_source(self.__name__))}

    @property
    def __all__(self) -> list[str]:
        """Names for ``from PACKAGE import *``; type checkers read them off the imports."""
        return list(self.module_of)

    def __getattr__(self, name: str) -> Any:
        if name not in self.module_of:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(self.module_of[name]), name)
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        # Python binds a module in its package at first import. A module with the same name as a
        # public object, such as `fx_bridge.capture`, must not replace it.
        if not (isinstance(value, ModuleType) and name in self.module_of):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.module_of})
