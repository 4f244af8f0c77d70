"""Fake tensors that are fully described by their sizes: keys, and copies made from them."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Final, Self

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.function import _SingleLevelFunction

PLAIN: Final = (
    *(bool, int, float, complex, str, type(None), EllipsisType),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
"""Types of arguments that are equal if and only if their keys are equal."""
_TYPES: Final = (FakeTensor, nn.Parameter, nn.Buffer)


@dataclass(frozen=True, slots=True)
class Argument:
    """The index of an argument that a call returns itself."""

    index: int


class NotRepeatableError(Exception):
    """A tensor that is more than its sizes, or a value of an unknown type."""


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """Inspect and make tensors unseen by modes."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        yield


@dataclass(frozen=True, slots=True)
class Fake:
    """A description from which a fake tensor can be made."""

    storage: int  # index of its storage
    layout: tuple[tuple[int, ...], tuple[int, ...], int]  # sizes, strides and offset
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool = False
    """As of an operator's result: no leaf, which could not be written in place."""
    is_view: bool = False
    """Autograd regards it as a view; the caller of :meth:`made` has to make it one."""

    @classmethod
    def like(
        cls, fake: FakeTensor, storages: dict[int, int], given: int, new_bytes: list[int]
    ) -> Self:
        """Return the description of a fake tensor.

        `storages` has the indices of storages by address; a missing one is added after the `given`
        ones, and its size appended to `new_bytes`.
        """
        storage = fake.untyped_storage()
        if storage._cdata not in storages:
            storages[storage._cdata] = given + len(new_bytes)
            new_bytes.append(storage.nbytes())
        own = fake.dtype, fake.fake_device, fake.requires_grad
        is_view = fake.requires_grad and fake._is_view()
        return cls(storages[storage._cdata], layout_of(fake), *own, is_view)

    def made(self, storages: Sequence[torch.UntypedStorage], mode: FakeTensorMode) -> torch.Tensor:
        """Return a tensor of a mode on one of `storages`; call it within :func:`untouched`."""

        def make() -> FakeTensor:
            sizes, strides, offset = self.layout
            made = torch.empty(0, dtype=self.dtype, device="meta")
            made.set_(storages[self.storage], offset, sizes, strides)
            return FakeTensor(mode, made, self.device)

        if not self.requires_grad:
            return make()
        # Not by _Made.apply, which is replaced while functions are recorded.
        applied: Any = super(_SingleLevelFunction, _Made)
        result: torch.Tensor = applied.apply(_SEED, make)
        return result


class _Made(torch.autograd.Function):
    """Makes a tensor that requires a gradient and has no backward pass."""

    @staticmethod
    def forward(ctx: Any, seed: torch.Tensor, make: Any) -> Any:
        return make()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotRepeatableError("there is no way back from a tensor that was made")


_SEED: Final = torch.empty(0, device="meta", requires_grad=True)


def described(
    leaf: Any, tensors: Sequence[FakeTensor], storages: dict[int, int], new_bytes: list[int]
) -> Any:
    """Return a description from which a result of a call on distinct `tensors` can be made again.

    It is an :class:`Argument`, a :class:`Fake`, or the plain value itself; NotRepeatableError if
    `leaf` is none of these. `storages` and `new_bytes` are as for :meth:`Fake.like`.
    """
    same = next((index for index, each in enumerate(tensors) if each is leaf), None)
    if same is not None:
        return Argument(same)
    if isinstance(leaf, torch.Tensor):
        return Fake.like(checked(leaf), storages, len(tensors), new_bytes)
    if type(leaf) not in PLAIN:
        raise NotRepeatableError
    return leaf


def places_of(tensors: Sequence[FakeTensor]) -> dict[int, int]:
    """Return the index of the first of some tensors in each storage, by address."""
    return {t.untyped_storage()._cdata: at for at, t in reversed([*enumerate(tensors)])}


def new_storage(size_bytes: int) -> torch.UntypedStorage:
    """Return a storage without memory."""
    return torch.UntypedStorage(size_bytes, device="meta")  # type: ignore[no-untyped-call]


def keys(
    values: Iterable[Any], tensors: list[FakeTensor], storages: dict[int, int]
) -> Iterator[Hashable]:
    """Yield the parts of a key of arguments; equal keys mean interchangeable arguments.

    Appends the distinct tensors to `tensors`, and numbers their storages in `storages`, by address.
    Raise NotRepeatableError if a key does not describe its argument fully.
    """
    for value in values:
        if isinstance(value, torch.Tensor):
            same = next((index for index, each in enumerate(tensors) if each is value), None)
            if same is not None:
                yield "same", same
            else:
                fake = checked(value)
                yield _key(fake, storages)
                tensors.append(fake)
        elif isinstance(value, (tuple, list)):
            yield type(value), len(value)
            yield from keys(value, tensors, storages)
        elif type(value) is slice:
            yield slice
            yield from keys((value.start, value.stop, value.step), tensors, storages)
        elif type(value) in (float, complex):
            # 0.0 equals -0.0.
            yield type(value), repr(value)
        elif type(value) in PLAIN:
            # 1 equals True.
            yield type(value), value
        else:
            raise NotRepeatableError


def _key(fake: FakeTensor, storages: dict[int, int]) -> tuple[Hashable, ...]:
    storage = fake.untyped_storage()
    place = storages.setdefault(storage._cdata, len(storages))
    own = fake.dtype, fake.fake_device, fake.requires_grad
    return (*layout_of(fake), *own, place, storage.nbytes())


def checked(tensor: object) -> FakeTensor:
    """Return a fake tensor that is fully described by sizes, strides, type and place."""
    if not isinstance(tensor, FakeTensor) or type(tensor) not in _TYPES:
        raise NotRepeatableError
    if tensor.constant is not None or not is_flat(tensor):
        raise NotRepeatableError
    return tensor


def is_flat(tensor: torch.Tensor) -> bool:
    """Return True if a tensor is dense, with numbers as sizes, and stores its values themselves."""
    flat = tensor.layout is torch.strided and not tensor.is_quantized
    if not flat or tensor.is_conj() or tensor.is_neg() or tensor.is_inference():
        return False
    numbers = *tensor.shape, *tensor.stride(), tensor.storage_offset()
    # The storage of an input that is a view has a symbolic size.
    return all(type(number) is int for number in (*numbers, tensor.untyped_storage().nbytes()))


def layout_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return sizes, strides and offset of a tensor."""
    return tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
