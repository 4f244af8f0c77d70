"""Models without weights in memory, captured like models with weights.

A model on the meta device is captured differently: attention picks another kernel there, and
operators name the wrong device.
"""

from __future__ import annotations

import torch
from torch import nn

from experiments.zoo.building import LoadedModel, ModelSpec, build_model
from fx_bridge.checkpoint.tensors import in_place_of, slots_of
from fx_bridge.storages.mutations import memory_of
from fx_bridge.storages.tensor_subclasses import mapped_parts


def build_weightless(spec: ModelSpec) -> LoadedModel:
    """Build the model of `spec` with weights in untouched memory on the CPU.

    An operating system maps each page of memory at its first use, so untouched allocations only
    take addresses. Inputs are on the meta device, unless the factory names another. Raises
    PartitionError if the factory does not run with ``torch.device("meta")`` as the default device.
    """
    with torch.device("meta"):
        loaded = build_model(spec)
    give_memory(loaded.module)
    return loaded


def give_memory(module: nn.Module) -> None:
    """Move every meta tensor of `module` into untouched memory on the CPU.

    Ties, overlaps and strides stay. Values are undefined.
    """
    made: dict[int, torch.Tensor] = {}
    memories: dict[object, torch.UntypedStorage] = {}
    # Kept until the end, so that no identity is reused.
    kept: list[torch.Tensor] = []
    for slot in slots_of(module).values():
        tensor = slot.tensor
        if not tensor.is_meta:
            continue
        kept.append(tensor)
        if id(tensor) not in made:
            # Quantised weights are mapped by their parts.
            plain = mapped_parts(tensor, lambda _, part: _in_memory(part, memories))
            made[id(tensor)] = in_place_of(tensor, plain)
        slot.fill(made[id(tensor)])


def _in_memory(tensor: torch.Tensor, memories: dict[object, torch.UntypedStorage]) -> torch.Tensor:
    """Return a tensor like `tensor`, in the CPU memory that replaces its own."""
    key = memory_of(tensor)
    if key not in memories:
        raw = torch.empty(tensor.untyped_storage().nbytes(), dtype=torch.uint8)
        memories[key] = raw.untyped_storage()
    return torch.empty(0, dtype=tensor.dtype).set_(
        memories[key], tensor.storage_offset(), tensor.size(), tensor.stride()
    )
