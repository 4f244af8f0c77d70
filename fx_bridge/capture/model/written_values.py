"""Snapshots of the numbers, flags and objects of a call, to compare calls with the capture.

Python's equality does not suffice: ``True == 1 == 1.0``, NaN is unequal to itself, arrays compare
by entry, and an object that its owner changed is still itself. So the contents of an object are
recorded at the capture, by types and values.
"""

from __future__ import annotations

import enum
import functools
import inspect
import types
from collections.abc import Mapping, Set
from pathlib import PurePath
from typing import Any, Final

import torch

_ATOMS: Final = (bool, int, float, complex, str, bytes, type(None), type(...), torch.dtype)
GIVEN: Final = "given"
"""Key of a placeholder's metadata: the snapshot of an example input that is no tensor."""
_MOST_PARTS: Final = 10_000
"""Most parts of an object that is compared by value; others are compared by identity."""


class _Itself:
    """An object without a value to compare; in another process, any object of its type."""

    def __init__(self, held: object) -> None:
        self.held, self.kind = held, _name(type(held))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Itself) or self.kind != other.kind:
            return False
        return self.held is other.held or self.held is None or other.held is None

    def __hash__(self) -> int:
        return hash(self.kind)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Itself:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"held": None, "kind": self.kind}


class _Tensor(_Itself):
    """A tensor within an object, whose values the graph has."""

    def __init__(self, held: torch.Tensor) -> None:
        super().__init__(held)
        self.version = None if held.is_inference() else held._version

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and self.version == getattr(other, "version", None)

    __hash__ = _Itself.__hash__


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def written_down(value: object) -> Any:
    """Return a snapshot of `value`; equal snapshots are indistinguishable to a model's code.

    Examples
    --------
    >>> written_down(1) == written_down(True), written_down(0.0) == written_down(-0.0)
    (False, False)
    >>> written_down(float("nan")) == written_down(float("nan"))
    True
    """
    try:
        return _Writer().write(value)
    except _TooManyPartsError:
        return _Itself(value)


def holds_tensors(value: object) -> bool:
    """Return True if an object holds tensors, or more than `_MOST_PARTS` parts."""
    writer = _Writer()
    try:
        writer.write(value)
    except _TooManyPartsError:
        return True
    return writer.has_tensors


class _TooManyPartsError(Exception):
    """An object has too many parts to compare in every call."""


class _Writer:
    def __init__(self) -> None:
        self.parts = 0
        self.has_tensors = False
        self.seen: dict[int, int] = {}

    def write(self, value: Any) -> Any:
        self.parts += 1
        if self.parts > _MOST_PARTS:
            raise _TooManyPartsError
        # Functions and local classes cannot be pickled by reference.
        kind = _name(type(value))
        if type(value) in _ATOMS:
            return kind, repr(value)
        if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType, torch.Generator)):
            return _Itself(value)
        if id(value) in self.seen:
            # A reference cycle.
            return kind, self.seen[id(value)]
        self.seen[id(value)] = len(self.seen)
        try:
            return kind, self._content(value)
        finally:
            del self.seen[id(value)]

    def _content(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            self.has_tensors = True
            return _Tensor(value)
        if isinstance(value, enum.Enum):
            return self.write(value.value)
        if isinstance(value, PurePath):
            # A path caches its text in an attribute when first asked.
            return str(value)
        if isinstance(value, (tuple, list)):
            return (*map(self.write, value), *self._attributes(value))
        if isinstance(value, Set):
            return (frozenset(map(self.write, value)), *self._attributes(value))
        if isinstance(value, Mapping):
            items = ((self.write(key), self.write(item)) for key, item in value.items())
            return (*items, *self._attributes(value))
        if isinstance(value, slice):
            return tuple(map(self.write, (value.start, value.stop, value.step)))
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return self.write(value.__func__), self.write(value.__self__)
        if isinstance(value, functools.partial):
            return tuple(map(self.write, (value.func, value.args, value.keywords)))
        if hasattr(value, "dtype") and hasattr(value, "tobytes"):
            # A NumPy array or number.
            shown = value.tolist() if value.dtype.hasobject else value.tobytes()
            strides = getattr(value, "strides", None)
            return str(value.dtype), value.shape, strides, self.write(shown)
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        if attributes := self._attributes(value):
            return attributes
        # Value types of the standard library and of extensions have a repr with their value.
        shown = repr(value)
        return _Itself(value) if " at 0x" in shown or " object" in shown else shown

    def _attributes(self, value: Any) -> tuple[Any, ...]:
        found = dict(getattr(value, "__dict__", {}))
        for cls in type(value).__mro__[:-1]:
            if cls.__module__ == "builtins":
                continue
            slots = cls.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, name):
                    found[name] = getattr(value, name)
        return tuple((name, self.write(item)) for name, item in found.items())

    def _function(self, function: types.FunctionType) -> Any:
        read = inspect.getclosurevars(function).nonlocals
        defaults = function.__defaults__, function.__kwdefaults__
        return self._code(function.__code__), self.write(read), self.write(defaults)

    def _code(self, code: types.CodeType) -> Any:
        constants = (
            self._code(each) if isinstance(each, types.CodeType) else self.write(each)
            for each in code.co_consts
        )
        return code.co_code, code.co_names, tuple(constants)
