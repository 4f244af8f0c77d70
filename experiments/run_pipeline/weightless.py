"""Build a model without weights in memory, so that it is captured as one with weights would be.

A model on the meta device is not: attention, for one, picks another kernel there, so that the
graph differs, and its operators name the wrong device.
"""

from __future__ import annotations

import torch
from torch import nn

from experiments.zoo.building import LoadedModel, ModelSpec, build_model
from fx_bridge.checkpoint.tensors import slots_of
from fx_bridge.storages.mutations import memory_of
from fx_bridge.storages.tensor_subclasses import mapped_parts


def build_weightless(spec: ModelSpec) -> LoadedModel:
    """Build the model of `spec` with weights on the CPU whose memory nothing has touched.

    An operating system gives memory to a process page by page, when each is first used. What
    is allocated and left alone takes addresses alone.

    Returns
    -------
    LoadedModel
        Its inputs are on the meta device, wherever the factory lets torch choose.

    Raises
    ------
    PartitionError
        If the factory does not run with ``torch.device("meta")`` as the default device.
    """
    with torch.device("meta"):
        loaded = build_model(spec)
    give_memory(loaded.module)
    return loaded


def give_memory(module: nn.Module) -> None:
    """Put every tensor of `module` that is on the meta device into untouched memory on the CPU.

    Ties, overlaps and strides stay. Numbers are whatever was there.
    """
    made: dict[int, torch.Tensor] = {}
    memories: dict[object, torch.UntypedStorage] = {}
    # Kept until the end, so that no two have had one identity.
    kept: list[torch.Tensor] = []
    for slot in slots_of(module).values():
        tensor = slot.tensor
        if not tensor.is_meta:
            continue
        kept.append(tensor)
        if id(tensor) not in made:
            # Of a quantised weight, the tensors within.
            plain = mapped_parts(tensor, lambda _, part: _in_memory(part, memories))
            is_parameter = isinstance(tensor, nn.Parameter)
            made[id(tensor)] = nn.Parameter(plain, tensor.requires_grad) if is_parameter else plain
        slot.fill(made[id(tensor)])


def _in_memory(tensor: torch.Tensor, memories: dict[object, torch.UntypedStorage]) -> torch.Tensor:
    """Return a tensor like `tensor`, in the memory on the CPU that stands for its own."""
    key = memory_of(tensor)
    if key not in memories:
        raw = torch.empty(tensor.untyped_storage().nbytes(), dtype=torch.uint8)
        memories[key] = raw.untyped_storage()
    return torch.empty(0, dtype=tensor.dtype).set_(
        memories[key], tensor.storage_offset(), tensor.size(), tensor.stride()
    )
