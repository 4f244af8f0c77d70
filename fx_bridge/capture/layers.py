"""The layers of a model: the outermost modules that it repeats."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Final

from fx_bridge.capture.modules import (
    ModuleCall,
    called_classes,
    class_name,
    matching_modules,
)
from fx_bridge.presentation.modules import enclosing

if TYPE_CHECKING:
    from torch import nn

    from fx_bridge.capture.graph import CapturedGraph

_MODULE_LIST: Final = "torch.nn.modules.container.ModuleList"
_SEQUENTIAL: Final = "torch.nn.modules.container.Sequential"
_MODULE_DICT: Final = "torch.nn.modules.container.ModuleDict"
_UNKNOWN: Final = ("torch.nn.modules.module.Module", "")
"""Classes of the stand-ins that exporters and ``unflatten`` make for modules."""


def repeated_modules(captured: CapturedGraph) -> tuple[str, ...]:
    """Return the paths of the outermost modules that a model repeats, in order of registration.

    Modules with submodules repeat in three cases:

    * They are members of one ``ModuleList``; a single member counts if it is called repeatedly.
    * They are members of a ``Sequential``, two of which have one class, or are lists of the same
      classes. Unlike members, as the parts of a stem, only follow one another.
    * They have one class and one parent, and contain no such ``ModuleList``; otherwise the layers
      are in it, as in the stacks of an encoder and of a decoder.

    Modules without submodules, such as ``Linear``, repeat if they are all members of a list, have
    one class, and nothing else of the model repeats: beside layers they are projections.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from fx_bridge.capture.graph import capture
    >>> model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)))
    >>> repeated_modules(capture(model, (torch.ones(2, 4),)))
    ('0', '1', '2')
    """
    modules = _Modules(captured)
    return tuple(modules.repeated("") or modules.repeated("", alone=True))


def layer_calls(
    captured: CapturedGraph, modules: Sequence[str] = ()
) -> dict[str, ModuleCall | None]:
    """Return the call of a layer in which each operator runs, in execution order; None outside.

    `modules` are paths or patterns of the layers, by default :func:`repeated_modules`; of nested
    ones the outermost counts.
    """
    first_path = {path: paths[0] for paths in captured.modules.paths for path in paths}
    layers = set(repeated_modules(captured))
    if modules:
        known = captured.modules.operators
        named = (path for pattern in modules for path in matching_modules(pattern, known))
        layers = {first_path.get(path, path) for path in named}
    found: dict[str, ModuleCall | None] = {}
    for name, running in captured.modules.calls.items():
        numbers = {first_path.get(call.path, call.path): call.number for call in running}
        around = (first_path.get(path, path) for call in running for path in enclosing(call.path))
        layer = next((path for path in around if path in layers), None)
        found[name] = None if layer is None else ModuleCall(layer, numbers.get(layer, 0))
    return found


class _Modules:
    """The modules of a model that run operators, as a tree of their paths."""

    def __init__(self, captured: CapturedGraph) -> None:
        also = {path for paths in captured.modules.paths for path in paths[1:]}
        self.children: dict[str, list[str]] = defaultdict(list)
        for path, operators in captured.modules.operators.items():
            if operators and path not in also:
                self.children[path.rpartition(".")[0]].append(path)
        self.classes = called_classes(captured.operators) | _classes_of_modules(captured)
        # In graphs of shared modules, some of their operators are under other paths.
        self.around = {path.rpartition(".")[0] for path in self.classes} | set(self.children)
        calls = {call for running in captured.modules.calls.values() for call in running}
        self.calls = Counter(call.path for call in calls)

    def repeated(self, parent: str, *, alone: bool = False) -> list[str]:
        """Return the outermost repeated modules below `parent`.

        With `alone`, only members of lists in which no member has submodules.
        """
        children = self.children.get(parent, [])
        if self._is_list_of_layers(parent, alone=alone):
            return list(children)
        counts = Counter(self.classes.get(path) for path in children if self._may_be_layer(path))
        found: list[str] = []
        for path in children:
            is_layer = self._may_be_layer(path) and counts[self.classes.get(path)] > 1
            found += [path] if is_layer else self.repeated(path, alone=alone)
        return found

    def _is_list_of_layers(self, path: str, *, alone: bool = False) -> bool:
        members = self.children.get(path, [])
        if not self._is_list(path) or sum(max(1, self.calls[member]) for member in members) < 2:
            return False
        blocks = [member for member in members if member in self.around]
        if alone:
            return not blocks and len({self.classes.get(member) for member in members}) == 1
        if self.classes.get(path) != _SEQUENTIAL:
            return bool(blocks)
        kinds = Counter[Hashable]()
        for block in blocks:
            kinds[self._kind(block)] += max(1, self.calls[block])
        return max(kinds.values(), default=0) > 1

    def _kind(self, path: str) -> Hashable:
        """Return the class of a module; of a list the distinct classes of its members."""
        if not self._is_list(path):
            return self.classes.get(path)
        return tuple(dict.fromkeys(map(self._kind, self.children.get(path, ()))))

    def _may_be_layer(self, path: str) -> bool:
        own = self.classes.get(path, "")
        is_container = own in (_MODULE_LIST, _SEQUENTIAL, _MODULE_DICT, *_UNKNOWN)
        has_modules = bool(self.children.get(path))
        return has_modules and not is_container and not self._has_module_list(path)

    def _has_module_list(self, path: str) -> bool:
        return any(
            (self._is_list_of_layers(child) and self.classes.get(child) != _SEQUENTIAL)
            or self._has_module_list(child)
            for child in self.children.get(path, ())
        )

    def _is_list(self, path: str) -> bool:
        own = self.classes.get(path, "")
        if own not in _UNKNOWN:
            return own in (_MODULE_LIST, _SEQUENTIAL)
        # Saved graphs do not record lists, which are never called themselves.
        names = [child.rpartition(".")[2] for child in self.children.get(path, ())]
        return bool(names) and all(name.isdigit() for name in names)


def _classes_of_modules(captured: CapturedGraph) -> dict[str, str]:
    """Return the classes of the model's modules, with a base class for all lists."""
    from torch import fx

    return {
        path: _class_of(module)
        for path, module in captured.model.named_modules(remove_duplicate=False)
        if not isinstance(module, fx.GraphModule) and _class_of(module) not in _UNKNOWN
    }


def _class_of(module: nn.Module) -> str:
    from torch import nn

    if isinstance(module, nn.ModuleList):
        return _MODULE_LIST
    if isinstance(module, nn.Sequential):
        return _SEQUENTIAL
    return class_name(type(module))
