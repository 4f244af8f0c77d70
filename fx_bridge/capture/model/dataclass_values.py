"""Let torch.export flatten the dataclasses that a model takes and returns."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils import _pytree as pytree

_T = TypeVar("_T")


def with_dataclasses(
    export: Callable[[], _T], model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> _T:
    """Call `export`, and again after each failure that reveals an unregistered dataclass.

    Dataclasses are registered with ``torch.export.register_dataclass``, as torch advises. They stay
    registered, because calls of the split need that too.
    """
    # Nested dataclasses show once the outer ones are registered.
    while unknown := _unregistered((args, kwargs)):
        _register(unknown)
    while True:
        try:
            with _returned_dataclasses(model) as unknown:
                return export()
        except Exception:
            if not unknown:
                raise
        _register(unknown)


def _register(classes: set[type[Any]]) -> None:
    for each in classes:
        torch.export.register_dataclass(each)


@contextlib.contextmanager
def _returned_dataclasses(model: nn.Module) -> Iterator[set[type[Any]]]:
    """Collect the unregistered dataclasses that calls of `model` return."""
    found: set[type[Any]] = set()

    def look(module: nn.Module, _: Any, output: Any) -> None:
        if module is model:
            found.update(_unregistered(output))

    handle = register_module_forward_hook(look)
    try:
        yield found
    finally:
        handle.remove()


def _unregistered(values: Any) -> set[type[Any]]:
    """Return the dataclasses that are leaves for torch."""
    leaves = pytree.tree_leaves(values)
    return {
        type(leaf)
        for leaf in leaves
        if dataclasses.is_dataclass(leaf)
        and not isinstance(leaf, type)
        and all(field.init for field in dataclasses.fields(leaf))
    }
