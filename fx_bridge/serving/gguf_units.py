"""Units of models in GGUF files.

Units are the embedding, the parts of each layer, and the output. The first part of a layer has all
but the matrices of its feed-forward half, or of its experts if there are any. Each kind of these is
a part of its own, since options of llama.cpp can place it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from fx_bridge.files.gguf_layers import GgufModel, HalfLayer
from fx_bridge.interop.llama_cpp_tensors import MATRICES
from solver.offload.host_first import UnitGroup

_KERNELS: Final = {"first": 6, "dense": 4, "experts": 9, "whole": 10, "output": 2, "embedding": 1}
"""Kernels of a unit as the engine fuses them; a layer has about 10, or 15 with experts."""


class UnitKind(NamedTuple):
    """A kind of units, of which some in a row may be one half of a layer."""

    name: str
    number: int = 0
    parts: int = 1

    @property
    def kernels(self) -> int:
        """Kernels of the unit: those of the half are shared."""
        most = _KERNELS[self.name]
        return most * (self.number + 1) // self.parts - most * self.number // self.parts

    @property
    def ends(self) -> int:
        """Number of times that the unit moves the values between layers: to read and to write."""
        return (self.number == 0) + (self.number == self.parts - 1)


def units_of(
    model: GgufModel,
) -> tuple[tuple[HalfLayer, ...], tuple[UnitGroup, ...], tuple[UnitKind, ...]]:
    """Return the units of a model, their groups, and the kind of each unit."""
    units, kinds, groups = [model.embedding], [UnitKind("embedding")], [UnitGroup((0,))]
    for number, (first, feed) in enumerate(model.layers):
        kind = "experts" if feed.expert_bytes else "dense"
        names = [f"blk.{number}.{name}{'_exps' * bool(feed.expert_bytes)}" for name in MATRICES]
        found = [tuple(t for t in feed.tensors if t.name.startswith(f"{n}.")) for n in names]
        parts = [HalfLayer(*own) for own in zip(names, found, strict=True) if own[1]]
        beside = tuple(t for t in feed.tensors if not any(t in own for own in found))
        first = replace(first, tensors=(*first.tensors, *beside))
        groups.append(UnitGroup((*range(len(units), len(units) + 1 + len(parts)),), len(parts)))
        kinds.append(UnitKind("first" if parts else "whole"))
        kinds += [UnitKind(kind, at, len(parts)) for at in range(len(parts))]
        units += [first, *parts]
    groups.append(UnitGroup((len(units),)))
    return (*units, model.output), tuple(groups), (*kinds, UnitKind("output"))
