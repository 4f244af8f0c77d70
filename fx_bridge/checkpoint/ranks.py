"""Loading of the stage files of one rank of a pipeline, or of all; tied tensors stay tied."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import fx

from fx_bridge.checkpoint.manifest import check_file, load_manifest
from fx_bridge.checkpoint.stages import load_stage_weights, read_tensors
from fx_bridge.checkpoint.tensors import Slot, check_fits, made_of, parts_in, restored, slots_of


def load_rank_weights(
    split: fx.GraphModule,
    folder: str | os.PathLike[str],
    rank: int,
    device: str | torch.device = "cpu",
) -> int:
    """Load the tensors of a rank's stages from their files to a device.

    No other file is read.

    Parameters
    ----------
    split : torch.fx.GraphModule
        Of the same graph by the same plan as the files; its weights may be on the meta device.
    folder : path
        Written by :func:`fx_bridge.checkpoint.stages.save_stages`.
    rank : int
        Of the device in plan order; it runs a stage in every chunk that uses it.
    device : str or torch.device
        Device of the new tensors.

    Returns
    -------
    int
        Bytes of the loaded tensors.

    Raises
    ------
    PartitionError
        As :func:`fx_bridge.checkpoint.stages.load_stage_weights`.

    Notes
    -----
    A tensor that several stages of the rank share is one object again, and trains as one. Stages
    of other ranks have their own copies.
    """
    manifest = load_manifest(folder)
    ranks = len(manifest.plan.device_order)
    places: dict[int, list[Slot]] = {}
    kept: list[torch.Tensor] = []
    loaded_bytes = 0
    for entry in manifest.stages:
        if entry.position % ranks != rank:
            continue
        stage = split.get_submodule(entry.name)
        for slot in slots_of(stage).values():
            kept.append(slot.tensor)
            places.setdefault(id(slot.tensor), []).append(slot)
        loaded_bytes += load_stage_weights(stage, folder, entry.position, device)
    for slots in places.values():
        for slot in slots[1:]:
            slot.fill(slots[0].tensor)
    return loaded_bytes


def load_model_weights(
    module: fx.GraphModule, folder: str | os.PathLike[str], device: str | torch.device = "cpu"
) -> None:
    """Load the tensors of a captured module from all stage files to a device.

    Tied tensors stay tied; tensors that no operator reads are in no file and stay unchanged. Errors
    are those of :func:`~fx_bridge.checkpoint.stages.load_stage_weights`.
    """
    manifest = load_manifest(folder)
    found: dict[str, torch.Tensor] = {}
    for entry in manifest.stages:
        path = check_file(Path(folder), entry.file, entry.size_bytes, entry.sha256)
        tensors = restored(read_tensors(path, device), entry.aliases, entry.views)
        found = {**tensors, **found}
    slots = slots_of(module)
    parts = parts_in(slots)
    for name, tensor in found.items():
        check_fits(name, tensor, parts)
    made: dict[int, torch.Tensor] = {}
    # Stages may know only one of a tensor's names.
    kept = [slot.tensor for slot in slots.values()]
    for name, slot in slots.items():
        if found.keys() >= parts_in({name: slot}).keys():
            made.setdefault(id(slot.tensor), made_of(slot, name, found))
    for slot, old in zip(slots.values(), kept, strict=True):
        slot.fill(made.get(id(old), old))
