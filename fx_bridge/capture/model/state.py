"""Keep what a model remembers in Python while its forward is traced, and say what that was."""

from __future__ import annotations

import contextlib
import inspect
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from solver.model.quantities import counted

_CONTAINERS: Final = (dict, list, set, deque)
_PLAIN: Final = (bool, int, float, str, bytes)
_SHOWN: Final = 3
_OF_TORCH: Final = frozenset(vars(nn.Module()))
_MISSING: Final = object()


@dataclass(slots=True)
class Changes:
    """What forward did that the graph does not, known after the block of `unchanged`.

    Attributes
    ----------
    attributes : list of str
        What it assigned that was another value before, and containers whose content it changed.
        No buffers, which the graph writes.
    inputs : list of str
        Inputs in whose lists, dicts or sets it put, replaced or removed something.
    seeds : bool
        Whether it set the state of the random number generator.
    """

    attributes: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    seeds: bool = False

    @property
    def note(self) -> str:
        """What a person has to know of the graph; empty if there were no changes."""
        notes: list[str] = []
        if self.attributes:
            named = ", ".join(map(repr, self.attributes[:_SHOWN]))
            others = len(self.attributes) - _SHOWN
            named += f" and {counted(others, 'other')}" if others > 0 else ""
            them = "it a buffer" if len(self.attributes) == 1 else "them buffers"
            notes.append(
                f"forward changes {named}, which the graph does not; make {them} if later calls "
                "read what an earlier one left"
            )
        if self.inputs:
            named = ", ".join(map(repr, self.inputs))
            notes.append(
                f"forward changes what the caller's {named} holds, which the graph does not; "
                "return it instead, and go on with what a call returns"
            )
        if self.seeds:
            notes.append(
                "forward sets the state of the random number generator, which the graph does "
                "not, so random numbers differ; set it before the call"
            )
        return "; ".join(notes)


@contextlib.contextmanager
def unchanged(
    model: nn.Module, *, watch: bool = True, watch_inputs: bool = False
) -> Iterator[Changes]:
    """Restore the attributes of `model` and its submodules, and the random state, on exit.

    Tracing runs forward, which may count its calls, keep a value, or register hooks and remember
    that it has. Lists, dicts, sets and deques get back what was in them, too: with the hooks kept
    and the memory of them gone, the next call would register them again.

    Parameters
    ----------
    watch : bool
        Notice assignments. Not where Python is compiled, which would compile that too.
    watch_inputs : bool
        Notice changes of inputs, by hooks on `model`. Not where it is traced with its hooks.
    """
    named = list(model.named_modules())
    before = [(module.__dict__, dict(module.__dict__)) for _, module in named]
    contents = _contents(value for _, values in before for value in values.values())
    random_state = torch.get_rng_state()
    changes = Changes()
    assigned: dict[tuple[int, str], Any] = {}
    try:
        with contextlib.ExitStack() as stack:
            if watch:
                stack.enter_context(_assignments(assigned))
            if watch_inputs:
                stack.enter_context(_kept_inputs(model, changes.inputs))
            yield changes
    finally:
        if not torch.equal(random_state, torch.get_rng_state()):
            torch.set_rng_state(random_state)
            changes.seeds = True
        altered = {id(container) for container, held in contents if _is_altered(container, held)}
        for (path, module), (_, values) in zip(named, before, strict=True):
            own = {name: value for (at, name), value in assigned.items() if at == id(module)}
            changes.attributes += [
                f"{path}.{name}" if path else name
                for name in _changed(module, values, own, altered)
            ]
        for attributes, values in before:
            for name in attributes.keys() - values.keys():
                del attributes[name]
            attributes.update(values)
        for container, held in contents:
            _restore(container, held)


@contextlib.contextmanager
def _assignments(assigned: dict[tuple[int, str], Any]) -> Iterator[None]:
    """Collect what is assigned to attributes of modules, by module and name.

    torch.export itself puts back some of them before anyone can look.
    """
    original: Any = nn.Module.__setattr__

    def assign(module: nn.Module, name: str, value: Any) -> None:
        assigned[id(module), name] = value
        original(module, name, value)

    patched: Any = nn.Module
    patched.__setattr__ = assign
    try:
        yield
    finally:
        patched.__setattr__ = original


@contextlib.contextmanager
def _kept_inputs(model: nn.Module, changed: list[str]) -> Iterator[None]:
    """Collect the inputs of calls of `model` whose containers hold something else afterwards.

    torch.export passes copies of the caller's containers, so that these say nothing.
    """
    before: dict[str, tuple[Any, list[tuple[Any, list[Any]]], list[Any], Any]] = {}

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        names = [*inspect.signature(module.forward).parameters]
        named = {**dict(zip(names, args, strict=False)), **kwargs}
        # Caches are containers too: what they hold is what a pytree finds in them.
        before.update(
            {
                name: (value, _contents([value]), *pytree.tree_flatten(value))
                for name, value in named.items()
            }
        )

    def compare(*_: Any) -> None:
        for name, (value, contents, leaves, structure) in before.items():
            found, given = pytree.tree_flatten(value)
            same = given == structure and all(a is b for a, b in zip(found, leaves, strict=True))
            if (not same or any(_is_altered(*each) for each in contents)) and name not in changed:
                changed.append(name)

    handles = [
        model.register_forward_pre_hook(note, with_kwargs=True),
        model.register_forward_hook(compare),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _changed(
    module: nn.Module, before: Mapping[str, Any], assigned: Mapping[str, Any], altered: set[int]
) -> list[str]:
    """Return the attributes of a module that forward changed, but for those of torch's own."""
    if type(module).__module__.startswith("torch."):
        return []
    return [
        name
        for name in dict.fromkeys((*before, *assigned))
        if name not in _OF_TORCH
        and name not in module._buffers
        and name not in module._parameters
        and name not in module._modules
        and (
            not _is_same(before.get(name, _MISSING), assigned.get(name, before.get(name)))
            or any(id(each) in altered for each, _ in _contents([before.get(name)]))
        )
    ]


def _is_same(old: object, new: object) -> bool:
    return old is new or (type(old) is type(new) and isinstance(old, _PLAIN) and old == new)


def _contents(values: Iterable[Any]) -> list[tuple[Any, list[Any]]]:
    """Return each container among `values`, and those within it, with what it holds."""
    found: dict[int, tuple[Any, list[Any]]] = {}
    waiting = [value for value in values if isinstance(value, _CONTAINERS)]
    while waiting:
        container = waiting.pop()
        if id(container) not in found:
            found[id(container)] = container, _held(container)
            inside = container.values() if isinstance(container, dict) else container
            waiting += [value for value in inside if isinstance(value, _CONTAINERS)]
    return list(found.values())


def _held(container: Any) -> list[Any]:
    """Return keys and values of a dict, in turn, or the members of another container."""
    if isinstance(container, dict):
        return [part for item in container.items() for part in item]
    return list(container)


def _is_altered(container: Any, held: list[Any]) -> bool:
    now = _held(container)
    return len(now) != len(held) or any(a is not b for a, b in zip(now, held, strict=True))


def _restore(container: Any, held: list[Any]) -> None:
    if not _is_altered(container, held):
        return
    container.clear()
    if isinstance(container, dict):
        container.update(zip(held[::2], held[1::2], strict=True))
    elif isinstance(container, set):
        container.update(held)
    else:
        container.extend(held)
