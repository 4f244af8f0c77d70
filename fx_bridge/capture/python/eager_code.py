"""Let a model's Python run in a trace as it runs in a plain call."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final
from unittest import mock

import torch
import torch._subclasses
from torch import nn
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_FLAGS: Final = ("_is_compiling_flag", "_is_exporting_flag")
_PAD: Final = torch.ops.aten._pad_packed_sequence.default
_PAD_KEY: Final = torch._C.DispatchKey.CompositeImplicitAutograd


@contextlib.contextmanager
def traceable() -> Iterator[None]:
    """Skip steps of forward in Python that cannot be traced and whose results no graph needs.

    ``torch.distributions`` checks its arguments, which reads their values, and ``Module.to``
    replaces parameters even if they stay the same. ``torch.tensor([x.sum(), 1])`` reads the values
    of tensors, which operators can stack instead.
    """
    validate = Distribution._validate_args
    convert = nn.Module.to

    def to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)
        tensors = [*module.parameters(), *module.buffers()]
        same = layout is None and all(
            device in (None, tensor.device)
            and (dtype in (None, tensor.dtype) or not tensor.dtype.is_floating_point)
            for tensor in tensors
        )
        return module if same else convert(module, *args, **kwargs)

    Distribution.set_default_validate_args(False)
    try:
        with mock.patch.object(nn.Module, "to", to), _Stacking(), _padded_by_operators():
            yield
    finally:
        Distribution.set_default_validate_args(validate)


@contextlib.contextmanager
def _padded_by_operators() -> Iterator[None]:
    """Run ``_pad_packed_sequence`` by operators: torch's own would read memory of fake tensors."""
    with mock.patch.dict(_PAD.py_kernels, {_PAD_KEY: _padded}):
        _PAD._dispatch_cache.clear()
        try:
            yield
        finally:
            _PAD._dispatch_cache.clear()


def _padded(
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    batch_first: bool,
    padding_value: float,
    total_length: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the padded sequences, and the length of each."""
    sizes = batch_sizes.tolist()
    width, steps = sizes[0], torch.split(data, sizes)
    rest = (0, 0) * (data.dim() - 1)
    rows = [nn.functional.pad(s, (*rest, 0, width - len(s)), value=padding_value) for s in steps]
    rows += [torch.full_like(rows[0], padding_value)] * (total_length - len(sizes))
    lengths = (batch_sizes[:, None] > torch.arange(width)).sum(0)
    return torch.stack(rows, 1 if batch_first else 0), lengths


class _Stacking(TorchFunctionMode):
    """Makes new tensors of lists that hold tensors by operators.

    torch itself reads their values outside the trace, and the graph would keep them as constants.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _TO_NUMBER and torch._C._dispatch_tls_is_dispatch_key_excluded(_PYTHON):
            raise RuntimeError(f"a tensor is made of another one's value by Tensor.{name}")
        if func in _SIZED:
            # For example torch.zeros(2, lengths[0]).
            args = pytree.tree_map_only(torch.Tensor, int, args)
        if name in ("__getitem__", "__setitem__") and isinstance(args[1], tuple):
            index = tuple(_one_index(each, args[0]) for each in args[1])
            return func(args[0], index, *args[2:], **kwargs)
        data = args[:1] if func in _MAKERS else args[1:2] if name in _METHODS else ()
        leaves = pytree.tree_leaves(data) if isinstance((*data, 0)[0], (list, tuple)) else ()
        if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            return func(*args, **kwargs)
        if func in _MAKERS and kwargs.keys() <= {"dtype", "device"} and all(map(_is_one, leaves)):
            device = kwargs.get("device") or torch.get_default_device()
            return _stacked(args[0], kwargs.get("dtype") or _common_dtype(leaves), device)
        raise RuntimeError(f"{name} reads the values of tensors in a list; use torch.stack")


_MAKERS: Final = (torch.tensor, torch.as_tensor, torch.asarray)
_SIZED: Final = (torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn)
_METHODS: Final = ("new", "new_tensor")
_TO_NUMBER: Final = ("__float__", "__int__", "__index__", "__bool__", "__complex__")
_PYTHON: Final = torch._C.DispatchKey.Python


def _one_index(index: Any, indexed: torch.Tensor) -> Any:
    leaves = pytree.tree_leaves(index) if isinstance(index, list) else []
    if any(isinstance(leaf, torch.Tensor) for leaf in leaves) and all(map(_is_one, leaves)):
        return _stacked(index, _common_dtype(leaves), indexed.device)
    return index


def _is_one(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor):
        return leaf.numel() == 1
    return isinstance(leaf, (bool, int, float, complex))


def _common_dtype(leaves: Sequence[Any]) -> torch.dtype:
    own = [x.dtype if torch.is_tensor(x) else torch.tensor(x).dtype for x in leaves]
    return functools.reduce(torch.promote_types, own)


def _stacked(data: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    if isinstance(data, torch.Tensor):
        return data.detach().to(device, dtype).reshape(())
    if isinstance(data, (list, tuple)):
        return torch.stack([_stacked(each, dtype, device) for each in data])
    return torch.scalar_tensor(data, dtype=dtype, device=device)


@contextlib.contextmanager
def around_forward(
    model: nn.Module, inside: Callable[..., contextlib.AbstractContextManager[Any]]
) -> Iterator[None]:
    """Run every call of ``model.forward`` within ``inside(*args, **kwargs)``.

    No hooks: under torch.export, those to be called always are not called after an error.
    """
    forward = model.forward
    own = vars(model).get("forward")

    @functools.wraps(forward)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with inside(*args, **kwargs):
            return forward(*args, **kwargs)

    vars(model)["forward"] = wrapped
    try:
        yield
    finally:
        if own is None:
            del vars(model)["forward"]
        else:
            vars(model)["forward"] = own


class _NoTensor:
    """A class without instances."""


def unaware(model: nn.Module) -> contextlib.AbstractContextManager[None]:
    """Hide from forward of `model` that it is exported: the flags, and the class of fake tensors.

    Package code asks ``torch.compiler.is_exporting()``, or for ``torch._subclasses.FakeTensor``;
    torch itself imports that class from its defining module.
    """

    @contextlib.contextmanager
    def inside(*_: Any, **__: Any) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for name in _FLAGS:
                stack.enter_context(mock.patch.object(torch.compiler, name, False))
            stack.enter_context(mock.patch.object(torch._subclasses, "FakeTensor", _NoTensor))
            yield

    return around_forward(model, inside)
