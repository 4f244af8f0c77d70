"""The memory of parameters, buffers and constants: tied, viewed, or made of several tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType

import torch
from torch import fx, nn

from fx_bridge.storages.mutations import memory_of
from fx_bridge.storages.replay import value_bytes
from fx_bridge.storages.tensor_subclasses import named_tensors, parts_of
from solver.model.checks import only_given


@dataclass(frozen=True, slots=True, eq=False)
class WeightStorage:
    """The memory of a parameter, buffer or constant, under all of its names.

    Usually one storage. Of tensors with inner tensors, such as quantised weights, all storages with
    the same names are one weight. Inner tensors that wrappers share, such as a codebook, are a
    weight of their own, so that each device counts them once.
    """

    key: str  # the first of `names`; for shared inner tensors with the path of one
    names: tuple[str, ...]  # parameters before buffers before constants; several when tied
    tensors: tuple[torch.Tensor, ...]  # the distinct tensors in it: the module's own, not copies
    size_bytes: int
    """Bytes that a device holds for them: those of the storages, or of the tensors if less (a slice
    of a large file), or as given."""
    memory_bytes: Mapping[object, int]
    """The parts of `size_bytes` by storage, as ``memory_of`` identifies it."""
    is_given: bool = False  # True if the bytes were given, and are not those of the tensors
    __repr__ = only_given

    @property
    def trainable(self) -> tuple[torch.Tensor, ...]:
        """Parameters among `tensors` that require a gradient."""
        return tuple(t for t in self.tensors if isinstance(t, nn.Parameter) and t.requires_grad)


def weight_storages(
    module: nn.Module,
    graph: fx.Graph | None = None,
    given_bytes: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, WeightStorage]:
    """Return the weights of `module` by key, tied tensors together.

    They include the constants that `graph` reads by ``get_attr``. `given_bytes` has the bytes of
    some plain tensors, by any of their names, in place of their own.
    """
    named = named_tensors(module)
    for node in graph.nodes if graph is not None else ():
        if node.op == "get_attr" and node.target not in named:
            value = attrgetter(node.target)(module)
            if isinstance(value, torch.Tensor):
                named[node.target] = value
    parts: dict[object, dict[str, torch.Tensor]] = {}
    users: dict[object, dict[str, None]] = {}
    for name, tensor in named.items():
        for path, part in parts_of(tensor).items():
            parts.setdefault(memory_of(part), {})[name + path] = part
            users.setdefault(memory_of(part), {})[name] = None
    groups: dict[tuple[str, ...], list[object]] = {}
    for memory, using in users.items():
        groups.setdefault(tuple(using), []).append(memory)
    # Of groups with one first name, the smallest is keyed by it, others by the path of a part.
    own = {names[0]: names for names in sorted(groups, key=len, reverse=True)}
    weights: dict[str, WeightStorage] = {}
    for names, memories in groups.items():
        key = names[0] if own[names[0]] == names else next(iter(parts[memories[0]]))
        tensors = tuple({id(named[name]): named[name] for name in names}.values())
        sizes = {memory: _held_bytes(parts[memory].values()) for memory in memories}
        given: dict[int, int] = {}
        for name in given_bytes.keys() & names:
            given[id(named[name])] = max(given_bytes[name], given.get(id(named[name]), 0))
        if given:
            sizes = {memories[0]: sum(given.get(id(t), value_bytes(t)) for t in tensors)}
        total_bytes = sum(sizes.values())
        weights[key] = WeightStorage(key, names, tensors, total_bytes, sizes, bool(given))
    return weights


def _held_bytes(parts: Iterable[torch.Tensor]) -> int:
    """Return the bytes held for tensors in one storage: its size, or theirs if less."""
    views = {(t.storage_offset(), t.shape, t.stride(), t.dtype): t for t in parts if is_flat(t)}
    if not views:
        return sum({id(part): value_bytes(part) for part in parts}.values())
    whole_bytes = next(iter(views.values())).untyped_storage().nbytes()
    return int(min(sum(map(value_bytes, views.values())), whole_bytes))


def is_flat(tensor: torch.Tensor) -> bool:
    """Return True if `tensor` has strides within a storage."""
    return tensor.layout is torch.strided and not isinstance(tensor, nn.UninitializedParameter)
