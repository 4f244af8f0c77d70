"""Find the state that a model's Python code can reach and change, by a walk from the model.

The walk follows attributes, containers, closures and defaults. From a function it goes to the
globals that its code names, to the attributes of modules and classes of these names, and to methods
with such a name. So it finds more than forward uses, and never the whole of a library. Code of
torch and of the standard library is not followed.
"""

from __future__ import annotations

import array
import contextvars
import copy
import functools
import gc
import itertools
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from fx_bridge.python_state.holders import (
    MISSING,
    Cell,
    Entries,
    Holder,
    Members,
    Named,
    Status,
    Values,
    same_state,
)
from fx_bridge.python_state.outside_values import OUTSIDE
from fx_bridge.python_state.source_files import is_foreign
from fx_bridge.python_state.stand_ins import LRU_CACHE, memoised
from fx_bridge.storages.tensor_subclasses import tensor_leaves

_MOST: Final = 500_000
"""Most objects that a walk visits, nearest first."""
_ATOMS: Final = frozenset(
    (
        *(type(None), bool, int, float, complex, str, bytes, range, slice, type(...)),
        *(types.BuiltinFunctionType, types.CodeType, types.MethodDescriptorType),
        *(types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
    )
)
_ITERATED: Final[tuple[Any, ...]] = ([], (), range(0), "", b"", {}, {}.values(), {}.items())
_ITERATORS: Final = frozenset(
    (
        *(type(iter(each)) for each in _ITERATED),
        *(type(iter(set())), type(iter(range(1 << 70))), enumerate, zip, map, filter, reversed),
        *(kind for kind in vars(itertools).values() if isinstance(kind, type)),
        *(type(reversed([])), types.GeneratorType),
    )
)
_WRAPPERS: Final = (property, classmethod, staticmethod, functools.cached_property)
_LOOKED_INTO: Final = ("collections", "types", "weakref", "_weakrefset", "queue", "_thread")
"""Modules of the standard library whose objects hold values of their users."""
OWN: Final = frozenset(vars(nn.Module()))
"""Attributes that torch gives every module."""
_SWITCHES: Final = ("_", "fx", "jit", "export", "ops", "distributed", "multiprocessing", "cuda")
"""Parts of torch whose objects are internal to it."""
_LIBRARIES: Final = frozenset({"numpy", "scipy", "sympy", "triton", "torch", "fx_bridge", "solver"})


class Slot(NamedTuple):
    """The place of a value that a stand-in replaces during a run."""

    holder: Any
    name: Any
    value: Any
    label: str


class Reachable:
    """The Python state that a model, and `others` such as its inputs, can reach."""

    def __init__(self, model: nn.Module, others: object) -> None:
        self.holders: list[Holder] = []  # all that can be restored, in the order of discovery
        self.modules: list[tuple[nn.Module, Entries]] = []  # each with its attributes
        self.registered: dict[int, set[str]] = {}
        """The names of parameters, buffers and submodules of every module, by its identity."""
        self.slots: list[Slot] = []
        """Iterators and memoised functions, whose states cannot be set, and functions that read
        clocks."""
        self.generators: list[Status] = []  # of random numbers, except the global ones
        self.variables: list[tuple[contextvars.ContextVar[Any], str, Any]] = []
        """Context variables, each with its label and its value."""
        # No run writes to inputs: those with values are copied first.
        tensors = (*model.parameters(), *model.buffers(), *tensor_leaves([others]))
        self._registered = {id(tensor) for tensor in tensors}
        self._seen: dict[int, Any] = {}
        self._globals: dict[int, Entries] = {}
        self._names: set[str] = {"forward"}
        self._homes = {type(part).__module__ for part in model.modules()}
        self._classes: set[type] = set()
        self._methods: dict[str, list[tuple[Named, str, Any]]] = {}
        self._waiting: deque[tuple[Any, str]] = deque([(model, ""), (others, "")])
        while self._waiting and len(self._seen) < _MOST:
            self._visit(*self._waiting.popleft())

    def _put(self, holder: Any, name: Any, value: Any, label: str) -> None:
        """Queue a value that `holder` has under a name."""
        kind = type(value)
        if kind in _ATOMS:
            if kind is types.BuiltinFunctionType and value in OUTSIDE:
                self.slots.append(Slot(holder, name, value, label))
            return
        if kind in _ITERATORS or memoised(value) is not None:
            self.slots.append(Slot(holder, name, value, label))
        if id(value) not in self._seen:
            self._waiting.append((value, label))

    def _put_all(self, values: Iterable[Any], label: str) -> None:
        for value in values:
            if type(value) not in _ATOMS and id(value) not in self._seen:
                self._waiting.append((value, label))

    def _visit(self, value: Any, label: str) -> None:
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        kind = type(value)
        if isinstance(value, torch.Tensor):
            if id(value) not in self._registered and not isinstance(value, FakeTensor):
                self.holders.append(Values(value, label))
            self._attributes(value, label)
        elif kind is types.FunctionType:
            self._function(value)
        elif kind is types.MethodType:
            self._put_all((value.__self__, value.__func__), label)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, nn.Module):
            self._module(value, label)
        elif isinstance(value, (dict, list, tuple, set, frozenset, deque)):
            self._container(value, label)
        elif isinstance(value, functools.partial):
            self._put_all((value.func, value.args, value.keywords), label)
        elif kind is LRU_CACHE:
            if not any(memoised(slot.value) is value for slot in self.slots):
                # In a tuple, or another place that takes no stand-in.
                forget = Status(
                    label, lambda: value.cache_info().misses, lambda _: value.cache_clear()
                )
                self.holders.append(forget)
            self._put_all([value.__wrapped__], label)
        elif isinstance(value, _WRAPPERS):
            wrapped = ("fget", "fset", "__func__", "func")
            self._put_all((getattr(value, name, None) for name in wrapped), label)
        elif kind in _ITERATORS:
            self._iterator(value, label)
        elif not isinstance(value, (types.ModuleType, Enum)):
            self._object(value, label)

    # -- modules, containers, objects -------------------------------------------------------

    def _module(self, module: nn.Module, label: str) -> None:
        own = not type(module).__module__.startswith("torch.")
        prefix = f"{label}." if label else ""
        holder = Entries(vars(module), (label or "model") if own else "", prefix, silent=OWN)
        self.holders.append(holder)
        self.modules.append((module, holder))
        tables = (module._parameters, module._buffers, module._modules)
        self.registered[id(module)] = {name for table in tables for name in table}
        for name, value in vars(module).items():
            if name == "_modules" and isinstance(value, dict):
                self.holders.append(Entries(value, ""))
                for child, part in value.items():
                    self._put(None, child, part, f"{prefix}{child}")
            else:
                # Hooks of torch's own tables hold functions too.
                is_labelled = own and name not in OWN
                self._put(holder, name, value, f"{prefix}{name}" if is_labelled else "")
        self._class(type(module))

    def _container(self, value: Any, label: str) -> None:
        if isinstance(value, (tuple, frozenset)):
            self._put_all(value, label)
        elif isinstance(value, dict):
            entries = Entries(value, label)
            self.holders.append(entries)
            self._put_all(entries.before, label)
            for key, each in entries.before.items():
                self._put(entries, key, each, label)
        else:
            members = Members(value, label)
            self.holders.append(members)
            for index, each in enumerate(members.before):
                self._put(members, index, each, label)
        if type(value).__module__ not in ("builtins", "collections"):
            self._attributes(value, label)

    def _object(self, value: Any, label: str) -> None:
        if (generator := _generator(value, label)) is not None:
            self.generators.append(generator)
        elif (elements := _elements(value, label)) is not None:
            self.holders.append(elements)
        elif isinstance(value, weakref.ref):
            self._put_all([value()], label)
        elif isinstance(value, types.MappingProxyType):
            self._put_all(gc.get_referents(value), label)
        elif isinstance(value, contextvars.ContextVar):
            held = value.get(MISSING)
            self.variables.append((value, label, held))
            self._put_all([held], label)
        elif not _is_closed(type(value)):
            self._attributes(value, label)

    def _iterator(self, value: Any, label: str) -> None:
        """Hold the state of an iterator in a tuple, which takes no stand-in."""
        if any(slot.value is value for slot in self.slots) or not hasattr(value, "__setstate__"):
            return
        place = Status(label, lambda: value.__reduce__()[2:], lambda at: value.__setstate__(*at))
        self.holders.append(place)

    def _attributes(self, value: Any, label: str) -> None:
        """Hold the dict and the slots of an object, and visit its class."""
        prefix = f"{label}." if label else ""
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            holder = Entries(attributes, label, prefix)
            self.holders.append(holder)
            for name, each in holder.before.items():
                self._put(holder, name, each, f"{prefix}{name}" if label else "")
        slots = [
            name
            for base in type(value).__mro__
            if "__slots__" in vars(base)
            for name, each in vars(base).items()
            if type(each) is types.MemberDescriptorType
        ]
        if slots:
            named = Named(value, slots, label, prefix)
            self.holders.append(named)
            for name, each in named.before.items():
                self._put(named, name, each, f"{prefix}{name}" if label else "")
        self._class(type(value))

    # -- code ------------------------------------------------------------------------------

    def _class(self, cls: type) -> None:
        for base in cls.__mro__:
            if base in self._classes:
                continue
            self._classes.add(base)
            if _is_libraries(base.__module__) or issubclass(base, Enum):
                continue
            prefix = f"{base.__qualname__}."
            named = Named(base, (), base.__qualname__, prefix, vars(base))
            self.holders.append(named)
            for name, value in named.before.items():
                is_code = isinstance(value, (types.FunctionType, LRU_CACHE, *_WRAPPERS))
                is_method = is_code and not name.startswith("__") and name not in self._names
                if is_method:
                    self._methods.setdefault(name, []).append((named, prefix, value))
                elif is_code or not name.startswith("__"):
                    self._put(named, name, value, f"{prefix}{name}")

    def _function(self, function: types.FunctionType) -> None:
        code, table = function.__code__, function.__globals__
        if is_foreign(code.co_filename) or _is_libraries(table.get("__name__", "")):
            return
        names = _names(code)
        place = str(table.get("__name__", ""))
        is_models = not _is_installed(place) or place in self._homes
        self._named(table, names, "" if is_models else place)
        for name in names - self._names:
            for holder, prefix, method in self._methods.pop(name, ()):
                self._put(holder, name, method, f"{prefix}{name}")
        self._names |= names
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            held = Cell(cell, name)
            self.holders.append(held)
            if held.before is not MISSING:
                self._put(held, name, held.before, name)
        attributes = Entries(vars(function), function.__qualname__, f"{function.__qualname__}.")
        self.holders.append(attributes)
        for name, value in attributes.before.items():
            self._put(attributes, name, value, f"{function.__qualname__}.{name}")
        defaults = (function.__defaults__, function.__kwdefaults__)
        self._put_all(defaults, function.__qualname__)

    def _named(self, table: dict[str, Any], names: frozenset[str], only: str = "") -> None:
        """Visit the globals of a module that code names, and recursively the modules among them.

        With `only`, functions and classes of no other module: this limits the walk within installed
        packages that the code of a model calls.
        """
        place = str(table.get("__name__", ""))
        holder = self._globals.get(id(table))
        if holder is None:
            self._globals[id(table)] = holder = Entries(table, place, f"{place}.", ())
            self.holders.append(holder)
        for name in sorted(holder.include(names)):
            value = table[name]
            is_code = isinstance(value, (types.FunctionType, type, LRU_CACHE))
            if isinstance(value, types.ModuleType):
                if not _is_libraries(value.__name__) and not only:
                    self._named(vars(value), names)
            elif not (only and is_code and value.__module__ != only):
                self._put(holder, name, value, f"{place}.{name}")


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> frozenset[str]:
    """Return the names in code and its nested code, and its strings that could be names."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            found.add(constant)
    return frozenset(found)


@functools.cache
def _is_libraries(module: str) -> bool:
    """Return True if a module is torch's or Python's, whose state belongs to no model."""
    if module.partition(".")[0] in _LIBRARIES or module == "builtins":
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return module != "__main__" and module in sys.modules and (not file or is_foreign(file))


@functools.cache
def _is_installed(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    return "site-packages" in (file or "")


def _is_closed(kind: type) -> bool:
    """Return True if objects of a class are internal to a library, and not visited."""
    module = kind.__module__
    if module.startswith("torch."):
        return module.split(".")[1].startswith(_SWITCHES)
    return _is_libraries(module) and module not in _LOOKED_INTO


def _elements(value: Any, label: str) -> Status | None:
    """Return the state of an array, whose elements have no names in Python."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        put = functools.partial(value.__setitem__, ...)
        same: Any = lambda a, b: a.dtype == b.dtype and a.tobytes() == b.tobytes()  # noqa: E731
        return Status(label, value.copy, put, same)
    if isinstance(value, (bytearray, array.array)):
        put = functools.partial(value.__setitem__, slice(None))
        return Status(label, lambda: copy.copy(value), put)
    return None


def _generator(value: Any, label: str) -> Status | None:
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return Status(label, value.getstate, value.setstate)
    if isinstance(value, torch.Generator):
        return Status(label, value.get_state, value.set_state, torch.equal)
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(value, numpy.RandomState):
        get = functools.partial(value.get_state, legacy=False)
        return Status(label, get, value.set_state, same_state)
    if numpy is not None and isinstance(value, numpy.Generator):
        bits = value.bit_generator
        get = functools.partial(getattr, bits, "state")
        return Status(label, get, functools.partial(setattr, bits, "state"), same_state)
    return None
