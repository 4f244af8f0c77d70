"""Places that hold Python state: snapshots, comparison, restoration."""

from __future__ import annotations

import operator
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch.utils import _pytree as pytree

from fx_bridge.storages.tensor_subclasses import parts_of

MISSING: Final = object()
_PLAIN: Final = (bool, int, float, complex, str, bytes)
_EXPORTED: Final = "__getattribute__"
"""torch.export replaces it in classes of wrappers, and leaves them with what they had inherited."""


class Entries:
    """Some or all entries of a dict: attributes of an object, globals of a module, a container.

    Only methods of ``dict`` itself are called on `held`, because some classes load missing items.
    `label` is that of the whole, or of the object with these attributes. An entry is labelled after
    `prefix`; without one, any change is one of the whole. `names` are the entries covered, present
    or not; all by default. Changes of `silent` ones need no report.
    """

    def __init__(
        self,
        held: dict[Any, Any],
        label: str,
        prefix: str | None = None,
        names: Iterable[str] | None = None,
        silent: frozenset[str] = frozenset(),
    ) -> None:
        self.held, self.label, self.prefix, self.silent = held, label, prefix, silent
        self.kind: Any = OrderedDict if isinstance(held, OrderedDict) else dict
        self.names: set[str] | None = None if names is None else set()
        self.before = self._now()
        self.include(names or ())

    def include(self, names: Iterable[str]) -> set[str]:
        """Cover these entries too; return those of them that are new and present."""
        if self.names is None:
            return set()
        new = set(names) - self.names
        self.names |= new
        there = {name for name in new if name in self.held}
        self.before |= {name: self.held[name] for name in there}
        return there

    def replace(self, name: Any, old: Any, new: Any, *, keep: bool = False) -> None:
        """Replace `old` by `new` in an entry; with `keep`, in the snapshot too."""
        if keep:
            self.before[name] = new
        if dict.get(self.held, name) is old:
            self.kind.__setitem__(self.held, name, new)

    def _now(self) -> dict[Any, Any]:
        if type(self.held) is dict and self.names is None:
            return self.held.copy()
        names = self.kind.__iter__(self.held) if self.names is None else self.names
        return {n: dict.__getitem__(self.held, n) for n in names if dict.__contains__(self.held, n)}

    def _is_as_before(self) -> bool:
        now, before = self.held, self.before
        return (
            self.names is None
            and len(now) == len(before)
            and all(map(operator.is_, self.kind.__iter__(now), before))
            and all(dict.__getitem__(now, name) is value for name, value in before.items())
        )

    def changed(self, assigned: Mapping[str, Any] = MappingProxyType({})) -> list[str]:
        """Return the labels of the changed entries, or of a container its own.

        Values in `assigned` were there meanwhile, even if they are gone.
        """
        if not assigned and self._is_as_before():
            return []
        now, before = {**self._now(), **assigned}, self.before
        names = [name for name in _differing(before, now) if name not in self.silent]
        if self.prefix is not None:
            return [f"{self.prefix}{name}" for name in names]
        return [self.label] if names or [*map(id, now)] != [*map(id, before)] else []

    def put_back(self) -> None:
        """Restore the entries, in their order."""
        if self._is_as_before():
            return
        if self.names is None:
            self.kind.clear(self.held)
        else:
            for name in self._now().keys() - self.before.keys():
                del self.held[name]
        for name, value in self.before.items():
            self.kind.__setitem__(self.held, name, value)


class Members:
    """The members of a list, set or deque."""

    def __init__(self, held: Any, label: str) -> None:
        self.held, self.label = held, label
        self.kind: Any = next(kind for kind in (list, set, deque) if isinstance(held, kind))
        self.before = [*self.kind.__iter__(held)]

    def replace(self, name: int, old: Any, new: Any, *, keep: bool = False) -> None:
        """Replace `old` by `new` in the container; with `keep`, in the snapshot too."""
        if self.kind is set:
            return
        if keep:
            self.before[name] = new
        for index, value in enumerate(self.kind.__iter__(self.held)):
            if value is old:
                self.kind.__setitem__(self.held, index, new)

    def changed(self) -> list[str]:
        """Return the label if any member has changed."""
        now = [*self.kind.__iter__(self.held)]
        same = len(now) == len(self.before) and all(map(is_same, self.before, now))
        return [] if same else [self.label]

    def put_back(self) -> None:
        """Restore the members."""
        now = [*self.kind.__iter__(self.held)]
        if len(now) == len(self.before) and all(map(operator.is_, now, self.before)):
            return
        self.kind.clear(self.held)
        (set.update if self.kind is set else self.kind.extend)(self.held, self.before)


class Named:
    """Values that are read, set and deleted by name: attributes of classes, slots."""

    def __init__(
        self, owner: Any, names: Iterable[str], label: str, prefix: str, table: Any = None
    ) -> None:
        self.owner, self.label, self.prefix, self.table = owner, label, prefix, table
        self.before = {name: getattr(owner, name, MISSING) for name in names}
        if table is not None:
            self.before = dict(table)

    def replace(self, name: str, old: Any, new: Any, *, keep: bool = False) -> None:
        """Replace `old` by `new` under a name; with `keep`, in the snapshot too."""
        if keep:
            self.before[name] = new
        if self._now().get(name) is old:
            setattr(self.owner, name, new)

    def _now(self) -> Mapping[str, Any]:
        if self.table is not None:
            return dict(self.table)
        return {name: getattr(self.owner, name, MISSING) for name in self.before}

    def changed(self) -> list[str]:
        """Return the labels of the names with other values."""
        found = _differing(self.before, self._now())
        return [f"{self.prefix}{name}" for name in found if name != _EXPORTED]

    def put_back(self) -> None:
        """Restore the value of every name."""
        now = self._now()
        for name in dict.fromkeys((*self.before, *now)):
            old = self.before.get(name, MISSING)
            if old is now.get(name, MISSING):
                continue
            if old is MISSING:
                delattr(self.owner, name)
            else:
                setattr(self.owner, name, old)


class Cell:
    """A variable that a function shares with its enclosing function."""

    def __init__(self, cell: Any, label: str) -> None:
        self.cell, self.label = cell, label
        self.before = self._now()

    def _now(self) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:
            return MISSING

    def replace(self, _: str, old: Any, new: Any, *, keep: bool = False) -> None:
        """Replace `old` by `new`; with `keep`, in the snapshot too."""
        if keep:
            self.before = new
        if self._now() is old:
            self.cell.cell_contents = new

    def changed(self) -> list[str]:
        """Return the label if the variable has another value."""
        return [] if is_same(self.before, self._now()) else [self.label]

    def put_back(self) -> None:
        """Restore the value of the variable."""
        if self.before is not MISSING:
            self.cell.cell_contents = self.before
        elif self._now() is not MISSING:
            del self.cell.cell_contents


class Status:
    """A state with a getter and a setter, of independent values that `same` compares."""

    def __init__(
        self,
        label: str,
        get: Callable[[], Any],
        put: Callable[[Any], Any],
        same: Callable[[Any, Any], bool] = operator.eq,
    ) -> None:
        self.label, self.get, self.put, self.same = label, get, put, same
        self.before = get()

    def changed(self) -> list[str]:
        """Return the label if the state has changed."""
        return [] if self.same(self.before, self.get()) else [self.label]

    def put_back(self) -> None:
        """Restore the state."""
        if self.changed():
            self.put(self.before)


class Values:
    """The numbers in a tensor that no module has registered, and its requires_grad."""

    def __init__(self, tensor: torch.Tensor, label: str) -> None:
        self.tensor, self.label = tensor, label
        self.parts = [] if tensor.is_meta else [part.detach() for part in parts_of(tensor).values()]
        self.before = [part.clone() for part in self.parts]
        self.versions = [_version(part) for part in self.parts]
        self.requires_grad = tensor.requires_grad

    def changed(self) -> list[str]:
        """Return the label if any number has changed."""
        same = all(map(_equal, self.parts, self.before))
        return [] if same else [self.label]

    def put_back(self) -> None:
        """Restore the numbers and version counters, as if nothing had been written."""
        for part, value, version in zip(self.parts, self.before, self.versions, strict=True):
            # Versions do not suffice: batch norm writes its statistics without counting.
            if not _equal(part, value):
                with torch.no_grad():
                    part.copy_(value)
            if version is not None and _version(part) != version:
                torch._C._autograd._unsafe_set_version_counter((part,), (version,))
        if self.tensor.is_leaf and self.tensor.requires_grad != self.requires_grad:
            self.tensor.requires_grad_(self.requires_grad)


Holder = Entries | Members | Named | Cell | Status | Values
"""A place with a snapshot of its contents, and a label as a person would write it, such as
``"store.calls"``; empty if changes need no report."""


def _differing(before: Mapping[Any, Any], now: Mapping[Any, Any]) -> Iterator[Any]:
    for name in dict.fromkeys((*before, *now)):
        if not is_same(before.get(name, MISSING), now.get(name, MISSING)):
            yield name


def same_state(one: Any, other: Any) -> bool:
    """Return True if two states of a NumPy generator are equal: numbers, arrays, dicts."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_state(one[k], other[k]) for k in one)
    if hasattr(one, "tobytes"):
        return bool(one.tobytes() == other.tobytes())
    return bool(one == other)


def is_same(old: object, new: object) -> bool:
    """Return True if two values are one object, or equal numbers or texts of one type.

    Containers of such values count too: torch.export restores copies of them.
    """
    if old is new:
        return True
    if type(old) is not type(new) or isinstance(old, torch.Tensor):
        return False
    if isinstance(old, _PLAIN):
        return bool(old == new)
    (left, one), (right, other) = pytree.tree_flatten(old), pytree.tree_flatten(new)
    is_leaf = len(left) == 1 and left[0] is old
    return not is_leaf and one == other and all(map(is_same, left, right))


def _version(tensor: torch.Tensor) -> int | None:
    """Return autograd's count of the writes to a tensor; None if it does not count them."""
    return None if tensor.is_inference() else tensor._version


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    if torch.equal(a, b):
        return True
    # NaN is not equal to itself.
    return a.is_floating_point() and bool(((a == b) | ((a != a) & (b != b))).all())
