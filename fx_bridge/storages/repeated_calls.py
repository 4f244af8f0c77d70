"""What operators yield on fake tensors, known from a call on fakes like them.

A model of many layers calls the same operators on the same sizes in each. A fake kernel takes a
hundred times as long as making tensors of known sizes, so each is asked once.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from fx_bridge.storages.mutations import written_arguments

_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout)
_OTHERS = (torch.memory_format, complex)
_REAL = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operator whose result depends on nothing but sizes.

    Attributes
    ----------
    key : tuple
        Equal for two calls whose results are alike: the operator, numbers, and for every tensor
        its sizes, strides, type, device, whether it has a gradient, and which others it is, or
        shares its storage with.
    tensors : tuple of FakeTensor
        Among the arguments, each once, in order.
    repeats : bool
        Whether the result can be made again: not of a call that writes to what it reads, nor of one
        that autograd follows.
    """

    key: tuple[Hashable, ...]
    tensors: tuple[FakeTensor, ...]
    repeats: bool


@dataclass(frozen=True, slots=True)
class _Made:
    """A tensor to be made: where it lives, among some storages, and what autograd knows of it."""

    storage: int
    layout: tuple[tuple[int, ...], tuple[int, ...], int]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False
    is_view: bool = False


@dataclass(frozen=True, slots=True)
class Given:
    """Values that a call reads, as they were when it ran, to be made again without it."""

    values: Mapping[fx.Node, Any]
    storage_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Result:
    """What a call yields: tensors, arguments by their index, and plain values."""

    parts: tuple[Any, ...]
    container: type | None
    new_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Argument:
    index: int


class RepeatedCalls:
    """Results of calls on the fake tensors of one mode.

    Parameters
    ----------
    mode : FakeTensorMode
        In which results are made.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._known: dict[tuple[Any, ...], tuple[_Result, Any]] = {}
        self._fakes: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def fake(self, tensor: torch.Tensor) -> FakeTensor | None:
        """Return a fake of a real tensor, or None if there is more to it than sizes.

        Fakes of tensors in one storage share one too.
        """
        if type(tensor) not in _REAL or not _is_flat(tensor):
            return None
        with _untouched():
            storage = tensor.untyped_storage()
            if storage._cdata not in self._fakes:
                # The real one is held, so that no other can have its address.
                self._fakes[storage._cdata] = storage, _new_storage(storage.nbytes())
            made = _Made(0, _layout(tensor), tensor.dtype, tensor.device)
            return self._made(made, self._fakes[storage._cdata][1])

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Return a call as one that others may be like, or None where none may be.

        Those on tensors that are more than sizes, and those of what is no operator of ATen or of a
        library, may not be.
        """
        if not isinstance(target, OpOverload) and target is not operator.getitem:
            return None
        tensors: dict[int, FakeTensor] = {}
        with _untouched():
            try:
                key = (target, *_keys((*args, *kwargs.items()), tensors, {}))
            except _NotRepeatableError:
                return None
            differentiated = any(tensor.requires_grad for tensor in tensors.values())
        writes = isinstance(target, OpOverload) and [*written_arguments(target, args, kwargs)]
        return Call(key, tuple(tensors.values()), not (writes or differentiated))

    def again(self, call: Call) -> tuple[Any, Any] | None:
        """Return the result and the notes of a call that was made before, or None."""
        known = self._known.get(call.key) if call.repeats else None
        if known is None:
            return None
        result, notes = known
        with _untouched():
            storages = [tensor.untyped_storage() for tensor in call.tensors]
            storages += [_new_storage(n) for n in result.new_bytes]
            parts = [self._part(part, call, storages) for part in result.parts]
        return (parts[0] if result.container is None else result.container(parts)), notes

    def keep(self, call: Call, value: Any, notes: Any) -> None:
        """Note what a call yielded, if that can be made again."""
        if not call.repeats:
            return
        container = type(value) if type(value) in (tuple, list) else None
        parts = value if container else (value,)
        with _untouched(), contextlib.suppress(_NotRepeatableError):
            self._known[call.key] = _result(call, parts, container), notes

    def given(self, given: Given) -> dict[fx.Node, Any]:
        """Return values that are as those of a call were, and in storages of their own."""
        storages = [_new_storage(size_bytes) for size_bytes in given.storage_bytes]
        known: dict[int, torch.Tensor] = {}

        def made(leaf: Any) -> Any:
            if isinstance(leaf, _Made) and id(leaf) not in known:
                known[id(leaf)] = self._differentiable(leaf, storages[leaf.storage])
            return known[id(leaf)] if isinstance(leaf, _Made) else leaf

        return {read: pytree.tree_map(made, value) for read, value in given.values.items()}

    def _differentiable(self, part: _Made, storage: torch.UntypedStorage) -> torch.Tensor:
        with _untouched():
            if not (part.requires_grad and torch.is_grad_enabled()):
                return self._made(part, storage)
            anchor = torch.empty(0, device="meta", requires_grad=True)
            made: torch.Tensor = _Inner.apply(anchor, lambda: self._made(part, storage))  # type: ignore[no-untyped-call]
        return made.view_as(made) if part.is_view else made

    def _part(self, part: Any, call: Call, storages: list[torch.UntypedStorage]) -> Any:
        if isinstance(part, _Argument):
            return call.tensors[part.index]
        return self._made(part, storages[part.storage]) if isinstance(part, _Made) else part

    def _made(self, part: _Made, storage: torch.UntypedStorage) -> FakeTensor:
        sizes, strides, offset = part.layout
        made = torch.empty(0, dtype=part.dtype, device="meta")
        made.set_(storage, offset, sizes, strides)
        return FakeTensor(self._mode, made, part.device)


class RepeatingFakeTensorMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """A FakeTensorMode that asks a fake kernel once for all calls that are alike."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._repeated = RepeatedCalls(self)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run `func` on fake tensors, or make what a call like it yielded."""
        call = self._repeated.call(func, tuple(args), kwargs or {})
        known = None if call is None else self._repeated.again(call)
        if known is not None:
            return known[0]
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if call is not None:
            self._repeated.keep(call, result, None)
        return result


class _Inner(torch.autograd.Function):
    """Makes a tensor that is no leaf, so that it may be written to."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        return make()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None]:
        return None, None


class _NotRepeatableError(Exception):
    """A tensor that is more than its sizes, or a value of a type of its own."""


@contextlib.contextmanager
def _untouched() -> Iterator[None]:
    """Look at tensors and make them, unseen by modes."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


def _keys(
    values: Iterable[Any], tensors: dict[int, FakeTensor], storages: dict[int, int]
) -> Iterator[Hashable]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if id(value) in tensors:
                yield "the same", [*tensors].index(id(value))
                continue
            fake = _checked(value)
            yield _key(fake, storages)
            tensors[id(value)] = fake
        elif isinstance(value, (tuple, list)):
            yield "(", *_keys(value, tensors, storages), ")"
        elif isinstance(value, (*_PLAIN, *_OTHERS)):
            # 1, 1.0 and True are equal, and not the same to an operator.
            yield type(value), value
        else:
            raise _NotRepeatableError


def _key(fake: FakeTensor, storages: dict[int, int]) -> tuple[Hashable, ...]:
    storage = fake.untyped_storage()
    place = storages.setdefault(storage._cdata, len(storages))
    graph = (fake.requires_grad, fake.requires_grad and fake._is_view())
    return (*_layout(fake), fake.dtype, fake.device, place, storage.nbytes(), *graph)


def given_by(values: Mapping[fx.Node, Any]) -> Given | None:
    """Note values that are read, or return None if one has more to it than sizes."""
    storages: dict[int, int] = {}
    sizes_bytes: list[int] = []
    known: dict[int, _Made] = {}

    def noted(leaf: Any) -> Any:
        if isinstance(leaf, (*_PLAIN, *_OTHERS)):
            return leaf
        fake = _checked(leaf)
        if id(fake) not in known:
            storage = fake.untyped_storage()
            place = storages.setdefault(storage._cdata, len(storages))
            if place == len(sizes_bytes):
                sizes_bytes.append(storage.nbytes())
            view = fake.requires_grad and fake._is_view()
            known[id(fake)] = _Made(
                place, _layout(fake), fake.dtype, fake.device, fake.requires_grad, view
            )
        return known[id(fake)]

    with _untouched(), contextlib.suppress(_NotRepeatableError):
        noted_values = {read: pytree.tree_map(noted, value) for read, value in values.items()}
        return Given(noted_values, tuple(sizes_bytes))
    return None


def changeable(value: Any) -> tuple[Hashable, ...]:
    """Return what may change of a value in place: sizes, and whether it has a gradient."""
    with _untouched():
        return tuple(
            (*_layout(leaf), leaf.requires_grad)
            for leaf in ([value] if isinstance(value, torch.Tensor) else pytree.tree_leaves(value))
            if isinstance(leaf, FakeTensor) and leaf.layout is torch.strided
        )


def _layout(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


def _checked(tensor: object) -> FakeTensor:
    """Return a fake tensor of which sizes, strides, type and place are all that there is."""
    if not isinstance(tensor, FakeTensor) or tensor.constant is not None:
        raise _NotRepeatableError
    if not _is_flat(tensor):
        raise _NotRepeatableError
    return tensor


def _new_storage(size_bytes: int) -> torch.UntypedStorage:
    return torch.UntypedStorage(size_bytes, device="meta")  # type: ignore[no-untyped-call]


def _is_flat(tensor: torch.Tensor) -> bool:
    flat = tensor.layout is torch.strided and not tensor.is_quantized
    return flat and not tensor.is_conj() and not tensor.is_neg()


def _result(call: Call, parts: Iterable[Any], container: type | None) -> _Result:
    index_of = {id(tensor): index for index, tensor in enumerate(call.tensors)}
    places = {t.untyped_storage()._cdata: i for i, t in reversed([*enumerate(call.tensors)])}
    new_bytes: list[int] = []
    found: list[Any] = []
    for part in parts:
        if id(part) in index_of:
            found.append(_Argument(index_of[id(part)]))
        elif isinstance(part, torch.Tensor):
            if part.requires_grad:
                raise _NotRepeatableError
            layout, storage = _layout(_checked(part)), part.untyped_storage()
            if storage._cdata not in places:
                places[storage._cdata] = len(call.tensors) + len(new_bytes)
                new_bytes.append(storage.nbytes())
            found.append(_Made(places[storage._cdata], layout, part.dtype, part.device))
        elif isinstance(part, _PLAIN):
            found.append(part)
        else:
            raise _NotRepeatableError
    return _Result(tuple(found), container, tuple(new_bytes))
