"""The plain tensors inside of wrappers, such as quantised weights, and of sparse tensors.

A tensor subclass that wraps others (``__tensor_flatten__`` and ``__tensor_unflatten__``, torch's
protocol of traceable wrapper subclasses) reports the dtype and size that it represents. So does its
storage, which has no memory. The bytes are in its inner tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import (
    is_traceable_wrapper_subclass,
    is_traceable_wrapper_subclass_type,
)

_PLACES: Final = re.compile(r"device\([^)]*\)|requires_grad=\w+| at 0x\w+")


def is_wrapper(tensor: object) -> bool:
    """Return True if `tensor` holds its values in inner tensors.

    Examples
    --------
    >>> is_wrapper(torch.ones(2))
    False
    """
    return is_traceable_wrapper_subclass(tensor)


def any_wrapper(types: Iterable[type]) -> bool:
    """Return True if an operator is called on a wrapper.

    A dispatch mode that observes operators returns ``NotImplemented`` then: torch asks the class of
    the wrapper, and passes its operators on inner tensors to the mode.
    """
    return any(map(is_traceable_wrapper_subclass_type, types))


def parts_of(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the strided tensors inside of `tensor`, by the path to each.

    A strided tensor itself is under ``""``. A sparse one has indices and values; a wrapper has
    inner tensors under ``".qdata"``, ``".scale"``, and nested wrappers under
    ``".tensor_impl.scale"``.

    Examples
    --------
    >>> list(parts_of(torch.ones(2))), list(parts_of(torch.ones(2).to_sparse()))
    ([''], ['._indices', '._values'])
    """
    if is_wrapper(tensor):
        return {
            f".{name}{path}": part
            for name, inner in _inner_tensors(tensor).items()
            for path, part in parts_of(inner).items()
        }
    if tensor.layout is torch.sparse_coo:
        return {"._indices": tensor._indices(), "._values": tensor._values()}
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        names: tuple[str, ...] = ("crow_indices", "col_indices", "values")
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        names = ("ccol_indices", "row_indices", "values")
    else:
        return {"": tensor}
    return {f".{name}": getattr(tensor, name)() for name in names}


def pieces_of(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the tensors with the values of `tensor`: itself, or the parts of a wrapper."""
    return parts_of(tensor) if is_wrapper(tensor) else {"": tensor}


def settings_of(tensor: torch.Tensor) -> str:
    """Return the settings of a wrapper besides its parts, such as the size of blocks, as text.

    Devices, requires_grad and addresses are left out, because they may differ.
    """
    _, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    return _PLACES.sub("", str(context))


def with_parts(tensor: torch.Tensor, parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return a wrapper like `tensor` with other parts, by the paths of :func:`parts_of`."""
    return mapped_parts(tensor, lambda path, _: parts[path])


def cloned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a detached copy of `tensor`; a wrapper is copied without calling its operators."""
    if not is_wrapper(tensor) or tensor.is_nested:
        return tensor.detach().clone()
    return mapped_parts(tensor, lambda _, part: part.detach().clone())


def mapped_parts(
    tensor: torch.Tensor, function: Callable[[str, torch.Tensor], torch.Tensor], path: str = ""
) -> torch.Tensor:
    """Return `tensor` with each plain tensor inside replaced; a plain one is replaced itself.

    `function` maps the path of a plain tensor, as in :func:`parts_of` after `path`, and the tensor
    to its replacement.
    """
    if not is_wrapper(tensor):
        return function(path, tensor)
    kind: Any = type(tensor)
    _, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    inner = {
        name: mapped_parts(each, function, f"{path}.{name}")
        for name, each in _inner_tensors(tensor).items()
    }
    made: torch.Tensor = kind.__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())
    return made


def _inner_tensors(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    values = {name: getattr(tensor, name) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def named_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers of a module, under all of their names."""
    found: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
    return found | dict(module.named_buffers(remove_duplicate=False))


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the strided tensors inside of `value`, in order.

    These are the elements of a container, indices and values of a sparse tensor, and inner tensors
    of a wrapper.
    """
    return [part for leaf in tensor_leaves(value) for part in parts_of(leaf).values()]


def tensor_leaves(value: Any) -> list[torch.Tensor]:
    """Return the tensors in a container as autograd knows them, wrappers included."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple) and all(isinstance(each, torch.Tensor) for each in value):
        return list(value)
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
