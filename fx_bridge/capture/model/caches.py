"""Let pytrees flatten the caches that transformers' models take and return.

transformers registers one cache class, on request, and loses the counters of its layers. Here a
cache of any class has its tensors as leaves, in the order of its attributes. Everything else is
structure, so a call with another length, where that is a number, is refused.
"""

from __future__ import annotations

import sys
from typing import Any, Final

import torch
from torch.fx._pytree import register_pytree_flatten_spec
from torch.utils import _pytree as pytree

_LIBRARY: Final = "transformers.cache_utils"
_BASES: Final = ("Cache", "CacheLayerMixin", "LinearAttentionCacheLayerMixin", "DummyLayer")


def register_caches() -> None:
    """Register the caches of transformers if the program has imported it."""
    library = sys.modules.get(_LIBRARY)
    base = getattr(library, "Cache", None)
    if base is None:
        return
    parts = tuple(getattr(library, name) for name in _BASES if hasattr(library, name))
    waiting = [base]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls not in pytree.SUPPORTED_NODES:
            _register(cls, parts)


def _register(cls: type[Any], parts: tuple[type[Any], ...]) -> None:
    def flatten_with_keys(cache: Any) -> tuple[list[Any], Any]:
        tensors: list[tuple[str, torch.Tensor]] = []
        structure = _flatten(cache, parts, "", tensors)
        # torch takes no path for the name of an attribute.
        keys = [pytree.GetAttrKey(name.replace(".", "_")) for name, _ in tensors]
        return list(zip(keys, (tensor for _, tensor in tensors), strict=True)), structure

    def flatten(cache: Any) -> tuple[list[Any], Any]:
        pairs, structure = flatten_with_keys(cache)
        return [tensor for _, tensor in pairs], structure

    def unflatten(tensors: Any, structure: Any) -> Any:
        return _unflatten(structure, iter(list(tensors)))

    pytree.register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        flatten_with_keys_fn=flatten_with_keys,
    )
    register_pytree_flatten_spec(cls, lambda cache, _: flatten(cache)[0])


def _flatten(
    value: Any, parts: tuple[type[Any], ...], path: str, tensors: list[tuple[str, Any]]
) -> tuple[Any, ...]:
    """Append the tensors of `value` to `tensors`; return its structure as comparable tuples."""

    def within(held: Any, name: Any) -> tuple[Any, ...]:
        return _flatten(held, parts, f"{path}.{name}".lstrip("."), tensors)

    if isinstance(value, parts):
        # The device is that of the tensors, and may be another in the next call.
        held = {k: v for k, v in vars(value).items() if not isinstance(v, torch.device)}
        left = tuple((k, _Place(v)) for k, v in vars(value).items() if k not in held)
        inside = tuple((name, within(each, name)) for name, each in held.items())
        return (type(value), inside, left)
    if isinstance(value, dict):
        return (dict, tuple((key, within(each, key)) for key, each in value.items()))
    if type(value) in (list, tuple):
        return (type(value), tuple(within(each, n) for n, each in enumerate(value)))
    if value is None or isinstance(value, (bool, int, float, str, type, torch.dtype)):
        return (None, value)
    # Tensors, and their stand-ins in a pytree: proxies, names, sizes.
    tensors.append((path, value))
    return ()


def _unflatten(structure: tuple[Any, ...], tensors: Any) -> Any:
    if not structure:
        return next(tensors)
    kind, held, *left = structure
    if kind is None:
        return held
    if kind is dict:
        return {key: _unflatten(each, tensors) for key, each in held}
    if kind in (list, tuple):
        return kind(_unflatten(each, tensors) for each in held)
    made = kind.__new__(kind)
    for name, each in held:
        setattr(made, name, _unflatten(each, tensors))
    for name, place in left[0]:
        devices = [v.device for v in vars(made).values() if isinstance(v, torch.Tensor)]
        setattr(made, name, devices[0] if devices else place.device)
    return made


class _Place:
    """A device, ignored in comparisons of structures."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Place)

    def __hash__(self) -> int:
        return 0
