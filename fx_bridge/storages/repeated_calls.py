"""Results of operators on fake tensors, reused from earlier calls with the same key.

A model of many layers calls the same operators on the same sizes in each. A fake kernel takes a
hundred times as long as making tensors of known sizes, so each is run once.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from fx_bridge.storages.fakes import (
    PLAIN,
    Argument,
    Fake,
    NotRepeatableError,
    checked,
    described,
    is_flat,
    keys,
    layout_of,
    new_storage,
    places_of,
    untouched,
)
from fx_bridge.storages.mutations import written_arguments

_REAL = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator whose result depends only on sizes."""

    key: tuple[Hashable, ...]
    """Equal for two calls with interchangeable results: the operator, numbers, and for every tensor
    its sizes, strides, type, device and requires_grad, and the identity and storage that it shares
    with others."""
    tensors: tuple[FakeTensor, ...]  # distinct tensors among the arguments, in order
    repeats: bool
    """True if the result can be made again: the call writes to none of its arguments, and autograd
    does not record it."""


@dataclass(frozen=True, slots=True)
class Given:
    """Snapshots of the values that a call reads, from which they can be made again."""

    values: Mapping[fx.Node, Any]
    storage_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Result:
    """The result of a call: tensors, indices of arguments, and plain values."""

    parts: tuple[Any, ...]
    container: type | None
    new_bytes: tuple[int, ...]


class RepeatedCalls:
    """Results of calls on the fake tensors of one mode, in which they are made again."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._known: dict[tuple[Any, ...], tuple[_Result, Any]] = {}
        self._fakes: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def fake(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return a fake of a real tensor, or None if it is more than its sizes.

        Fakes of tensors in one storage share one too.
        """
        if type(tensor) not in _REAL or not is_flat(tensor):
            return None
        with untouched():
            storage = tensor.untyped_storage()
            if storage._cdata not in self._fakes:
                # The real one is held, so that its address is not reused.
                self._fakes[storage._cdata] = storage, new_storage(storage.nbytes())
            made = Fake(0, layout_of(tensor), tensor.dtype, tensor.device)
            return made.made([self._fakes[storage._cdata][1]], self._mode)

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Return a call with its key, or None if no other can be interchangeable with it.

        That is a call on tensors that are more than their sizes, or of a target that is no operator
        of ATen or of a library.
        """
        if not isinstance(target, OpOverload) and target is not operator.getitem:
            return None
        tensors: list[FakeTensor] = []
        with untouched():
            try:
                key = (target, *keys((*args, *kwargs.items()), tensors, {}))
            except NotRepeatableError:
                return None
            views = tuple(tensor.requires_grad and tensor._is_view() for tensor in tensors)
            differentiated = any(tensor.requires_grad for tensor in tensors)
        writes = isinstance(target, OpOverload) and [*written_arguments(target, args, kwargs)]
        return Call((*key, views), tuple(tensors), not (writes or differentiated))

    def again(self, call: Call) -> tuple[Any, Any] | None:
        """Return the result and the notes of an earlier call with this key, or None."""
        known = self._known.get(call.key) if call.repeats else None
        if known is None:
            return None
        result, notes = known
        with untouched():
            storages = [tensor.untyped_storage() for tensor in call.tensors]
            storages += [new_storage(n) for n in result.new_bytes]
            parts = [self._part(part, call, storages) for part in result.parts]
        return (parts[0] if result.container is None else result.container(parts)), notes

    def keep(self, call: Call, value: Any, notes: Any) -> None:
        """Record the result of a call, if it can be made again."""
        if not call.repeats:
            return
        container = type(value) if type(value) in (tuple, list) else None
        parts = value if container else (value,)
        with untouched(), contextlib.suppress(NotRepeatableError):
            self._known[call.key] = _result(call, parts, container), notes

    def given(self, given: Given) -> dict[fx.Node, Any]:
        """Return the values of a snapshot, made again in storages of their own."""
        storages = [new_storage(size_bytes) for size_bytes in given.storage_bytes]
        known: dict[int, torch.Tensor] = {}
        differentiates = torch.is_grad_enabled()

        def made(leaf: Any) -> Any:
            if not isinstance(leaf, Fake):
                return leaf
            if id(leaf) not in known:
                part = leaf if differentiates else replace(leaf, requires_grad=False, is_view=False)
                with untouched():
                    tensor = part.made(storages, self._mode)
                known[id(leaf)] = tensor.view_as(tensor) if part.is_view else tensor
            return known[id(leaf)]

        return {read: pytree.tree_map(made, value) for read, value in given.values.items()}

    def _part(self, part: Any, call: Call, storages: list[torch.UntypedStorage]) -> Any:
        if isinstance(part, Argument):
            return call.tensors[part.index]
        return part.made(storages, self._mode) if isinstance(part, Fake) else part


class RepeatingFakeTensorMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """A FakeTensorMode that runs a fake kernel once for all calls with the same key."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._repeated = RepeatedCalls(self)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run `func` on fake tensors, or return the result of an earlier call with its key."""
        call = self._repeated.call(func, tuple(args), kwargs or {})
        known = None if call is None else self._repeated.again(call)
        if known is not None:
            return known[0]
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if call is not None:
            self._repeated.keep(call, result, None)
        return result


def given_by(values: Mapping[fx.Node, Any]) -> Given | None:
    """Return a snapshot of values, or None if one is more than its sizes."""
    storages: dict[int, int] = {}
    sizes_bytes: list[int] = []
    known: dict[int, Fake] = {}

    def noted(leaf: Any) -> Any:
        if isinstance(leaf, PLAIN):
            return leaf
        fake = checked(leaf)
        if id(fake) not in known:
            known[id(fake)] = Fake.like(fake, storages, 0, sizes_bytes)
        return known[id(fake)]

    with untouched(), contextlib.suppress(NotRepeatableError):
        noted_values = {read: pytree.tree_map(noted, value) for read, value in values.items()}
        return Given(noted_values, tuple(sizes_bytes))
    return None


def changeable(value: Any) -> tuple[Hashable, ...]:
    """Return the sizes of a value and its requires_grad, which may change in place."""
    with untouched():
        return tuple(
            (*layout_of(leaf), leaf.requires_grad)
            for leaf in ([value] if isinstance(value, torch.Tensor) else pytree.tree_leaves(value))
            if isinstance(leaf, FakeTensor) and leaf.layout is torch.strided
        )


def _result(call: Call, parts: Iterable[Any], container: type | None) -> _Result:
    places, new_bytes = places_of(call.tensors), list[int]()
    found = tuple(described(part, call.tensors, places, new_bytes) for part in parts)
    if any(isinstance(part, Fake) and part.requires_grad for part in found):
        raise NotRepeatableError
    return _Result(found, container, tuple(new_bytes))
