"""What operators yield on fake tensors, known from a call on fakes like them.

A model of many layers calls the same operators on the same sizes in each. A fake kernel takes a
hundred times as long as making tensors of known sizes, so each is asked once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

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
        its sizes, strides, type, device, and which others share its storage.
    tensors : tuple of FakeTensor
        Among the arguments, in order.
    """

    key: tuple[Any, ...]
    tensors: tuple[FakeTensor, ...]


@dataclass(frozen=True, slots=True)
class _Made:
    """A tensor of a result: where it lives, among the arguments' storages or new ones."""

    storage: int
    layout: tuple[tuple[int, ...], tuple[int, ...], int]
    dtype: torch.dtype
    device: torch.device


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
        """Return a call as one that may be repeated, or None where it may not be.

        Those that write to what they read, and those on tensors that are more than sizes, are not.
        """
        if not isinstance(target, OpOverload) or [*written_arguments(target, args, kwargs)]:
            return None
        tensors: list[FakeTensor] = []
        with _untouched():
            try:
                key = (target, *_keys((*args, *kwargs.items()), tensors, {}))
            except _NotRepeatableError:
                return None
        return Call(key, tuple(tensors))

    def again(self, call: Call) -> tuple[Any, Any] | None:
        """Return the result and the notes of a call that was made before, or None."""
        known = self._known.get(call.key)
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
        container = type(value) if type(value) in (tuple, list) else None
        parts = value if container else (value,)
        with _untouched(), contextlib.suppress(_NotRepeatableError):
            self._known[call.key] = _result(call, parts, container), notes

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


class _NotRepeatableError(Exception):
    """A tensor that is more than its sizes, or a value of a type of its own."""


@contextlib.contextmanager
def _untouched() -> Iterator[None]:
    """Look at tensors and make them, unseen by modes."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


def _keys(
    values: Iterable[Any], tensors: list[FakeTensor], storages: dict[int, int]
) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            fake = _checked(value)
            yield _key(fake, storages)
            tensors.append(fake)
        elif isinstance(value, (tuple, list)):
            yield "(", *_keys(value, tensors, storages), ")"
        elif isinstance(value, (*_PLAIN, *_OTHERS)):
            # 1, 1.0 and True are equal, and not the same to an operator.
            yield type(value), value
        else:
            raise _NotRepeatableError


def _key(fake: FakeTensor, storages: dict[int, int]) -> tuple[Any, ...]:
    storage = fake.untyped_storage()
    place = storages.setdefault(storage._cdata, len(storages))
    return (*_layout(fake), fake.dtype, fake.device, place, storage.nbytes())


def _layout(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())


def _checked(tensor: torch.Tensor) -> FakeTensor:
    """Return a fake tensor of which sizes, strides, type and place are all that there is."""
    if not isinstance(tensor, FakeTensor) or tensor.constant is not None or tensor.requires_grad:
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
