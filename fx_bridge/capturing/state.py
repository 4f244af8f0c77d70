"""Keep what a model remembers in Python while its forward is traced."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

from torch import nn

_CONTAINERS: Final = (dict, list, set, deque)


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restore the attributes of `model` and its submodules on exit.

    Tracing runs forward, which may count its calls, keep a value, or register hooks and remember
    that it has. Lists, dicts, sets and deques get back what was in them, too: with the hooks kept
    and the memory of them gone, the next call would register them again.
    """
    before = [(module.__dict__, dict(module.__dict__)) for module in model.modules()]
    contents = _contents(value for _, values in before for value in values.values())
    try:
        yield
    finally:
        for attributes, values in before:
            for name in attributes.keys() - values.keys():
                del attributes[name]
            attributes.update(values)
        for container, held in contents:
            _restore(container, held)


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


def _restore(container: Any, held: list[Any]) -> None:
    now = _held(container)
    if len(now) == len(held) and all(a is b for a, b in zip(now, held, strict=True)):
        return
    container.clear()
    if isinstance(container, dict):
        container.update(zip(held[::2], held[1::2], strict=True))
    elif isinstance(container, set):
        container.update(held)
    else:
        container.extend(held)
