"""Placement of a split's tensors: on a device, or in host memory and streamed to it."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

import torch
from torch import fx, nn

from fx_bridge.checkpoint.manifest import position_of
from fx_bridge.checkpoint.tensors import overlapping, slots_of
from fx_bridge.placement.links import reads_pinned
from fx_bridge.placement.weights import HOST, PlacedWeights, tensors_within
from fx_bridge.storages.mutations import memory_of
from fx_bridge.storages.tensor_subclasses import pieces_of
from solver import PartitionError

TiedWeights = Literal["sum", "copy"]
"""Treatment of a parameter that stages on several devices read."""

Streamed = Mapping[torch.device, Collection[int]]
"""Identities of the tensors that every call copies to a device, by device."""


@dataclass(slots=True)
class Placing:
    """The assignment of a split's tensors to devices."""

    split: fx.GraphModule  # not changed
    stages: Mapping[str, fx.GraphModule]  # by name, in order
    device_of: Mapping[str, torch.device]  # of each stage
    placed: PlacedWeights  # the placed tensors, shared by the splits of one model
    tied_weights: TiedWeights
    streams: Collection[str] = ()  # stages whose weights are to be streamed
    owner: dict[int, str] = field(default_factory=dict)
    """First stage that reads a tensor, by the tensor's identity."""
    device_of_unread: dict[int, torch.device] = field(default_factory=dict)
    """Device of a tensor that no stage here reads and another split writes, by its identity."""

    def __post_init__(self) -> None:
        for name, stage in self.stages.items():
            for tensor in tensors_within(stage):
                self.owner.setdefault(id(tensor), name)

    def load(self, folder: str | os.PathLike[str], streamed: Streamed) -> None:
        """Read the tensors of all stages from their files."""
        plan = self.split.meta["plan"]
        for index, (name, stage) in enumerate(self.stages.items()):
            device = self.device_of[name]
            ids = streamed.get(device, ()) if name in self.streams else ()
            position = position_of(plan, index)
            self.placed.load(stage, folder, position, device, ids, pin=reads_pinned(device))

    def held(self, *, borrowed: bool = False) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of each stage that its own device holds or streams.

        The `borrowed` ones are those that every call sends from another device.
        """
        for name, stage in self.stages.items():
            for tensor in tensors_within(stage):
                is_shared = self.tied_weights == "sum" and isinstance(tensor, nn.Parameter)
                owner = self.owner[id(tensor)] if is_shared else name
                if borrowed == (self.device_of[owner] != self.device_of[name]):
                    yield name, tensor

    @property
    def returned(self) -> dict[str, torch.Tensor]:
        """The tensors that the graph returns unchanged, by path."""
        paths = (str(node.target) for node in self.split.graph.find_nodes(op="get_attr"))
        return {path: attrgetter(path)(self.split) for path in dict.fromkeys(paths)}

    @property
    def unread(self) -> list[torch.Tensor]:
        """The tensors that the graph returns unchanged and no stage reads."""
        return [tensor for tensor in self.returned.values() if id(tensor) not in self.owner]

    @property
    def written(self) -> dict[str, torch.Tensor]:
        """The tensors that a stage writes, by path."""
        paths = self.split.meta.get("written_weights", ())
        return {path: attrgetter(path)(self.split) for path in paths}

    def device_at(self, tensor: torch.Tensor) -> torch.device:
        """Return the device that owns a tensor of the split."""
        owner = self.owner.get(id(tensor))
        if owner is None:
            return self.device_of_unread.get(id(tensor), self.placed.home)
        return self.device_of[owner]

    def elsewhere(self) -> dict[str, dict[str, str]]:
        """Return, by stage, its parameters that another device owns, with the owner's names."""
        found: dict[str, dict[str, str]] = {}
        for name, stage in self.stages.items():
            for path, parameter in stage.named_parameters(remove_duplicate=False):
                owner = self.owner[id(parameter)]
                if self.device_of[owner] != self.device_of[name]:
                    own = self.stages[owner].named_parameters()
                    there = next(path for path, tensor in own if tensor is parameter)
                    found.setdefault(name, {})[path] = f"{owner}.{there}"
        return found

    def streamed_paths(self, streamed: Streamed) -> dict[str, tuple[str, ...]]:
        """Return the paths of streamed tensors by stage; stages without any are left out."""
        found = {}
        for name in self.stages:
            ids = streamed.get(self.device_of[name], ()) if name in self.streams else ()
            places = slots_of(self.stages[name]).items()
            paths = tuple(path for path, slot in places if id(slot.tensor) in ids)
            if paths:
                found[name] = paths
        return found


def check_owners(placings: Sequence[Placing]) -> None:
    """Refuse shared parameters that two splits first read on different devices."""
    device_of: dict[int, torch.device] = {}
    for placing in placings:
        if placing.tied_weights == "copy":
            continue
        for name, stage in placing.stages.items():
            for path, parameter in stage.named_parameters():
                device = placing.device_at(parameter)
                first = device_of.setdefault(id(parameter), device)
                if first != device:
                    raise PartitionError(
                        f"parameter {path!r} of {name} is first read on {first} in one split and "
                        f"on {device} in another, and with tied_weights='sum' it is on one device; "
                        "plan the splits alike, or write tied_weights='copy' to serve"
                    )


def join_written(placings: Sequence[Placing]) -> None:
    """Let all splits share the tensors that one of them writes.

    A split that returns such a tensor without reading it gets the writer's.

    Raises PartitionError if a split reads one on another device, where it would be a stale copy.
    """
    written = {
        id(piece): (path, piece)
        for placing in placings
        for path, tensor in placing.written.items()
        for piece in pieces_of(tensor).values()
    }
    memories = {memory_of(piece) for _, piece in written.values()}
    pieces: dict[int, torch.Tensor] = {}
    devices: dict[int, set[torch.device]] = {}
    unread: dict[int, list[tuple[Placing, torch.Tensor]]] = {}
    for placing in placings:
        held = [(tensor, placing.device_of[name]) for name, tensor in placing.held()]
        for tensor, device in (*held, *((tensor, None) for tensor in placing.unread)):
            for piece in pieces_of(tensor).values():
                if memory_of(piece) not in memories:
                    continue
                pieces[id(piece)] = piece
                if device is None:
                    unread.setdefault(id(piece), []).append((placing, tensor))
                elif piece.device == placing.placed.home or placing.placed.copy:
                    devices.setdefault(id(piece), set()).add(device)
    for group in overlapping(list(pieces.values())):
        paths = [written[id(piece)][0] for piece in group if id(piece) in written]
        found = set().union(*(devices.get(id(piece), ()) for piece in group)) if paths else set()
        if len(found) > 1:
            one, other = sorted(map(str, found))[:2]
            raise PartitionError(
                f"weight {paths[0]!r} is written in one split and read on {one} and {other}, where "
                "copies would differ; plan the splits alike, or give both devices one place"
            )
        for placing, tensor in (each for piece in group for each in unread.get(id(piece), ())):
            placing.device_of_unread.update((id(tensor), device) for device in found)


def place_tensors(placings: Sequence[Placing], streamed: Streamed) -> None:
    """Put all tensors on their devices, and streamed ones into host memory."""
    placed = placings[0].placed
    held: dict[torch.device, list[torch.Tensor]] = {}
    at_host: list[tuple[torch.Tensor, torch.device]] = []
    for placing in placings:
        for name, tensor in placing.held():
            device = placing.device_of[name]
            if id(tensor) in streamed.get(device, ()):
                at_host.append((tensor, device))
            else:
                held.setdefault(device, []).append(tensor)
        for tensor in placing.unread:
            held.setdefault(placing.device_at(tensor), []).append(tensor)
    # One copy serves all devices; it is pinned if one of them needs that.
    pin = any(reads_pinned(device) for _, device in at_host)
    placed.add([tensor for tensor, _ in at_host], HOST, pin=pin)
    for tensor, device in at_host:
        placed.share(tensor, HOST, device)
    for device, tensors in held.items():
        placed.add(tensors, device)
    for placing in placings:
        for name, tensor in placing.held(borrowed=True):
            placed.share(tensor, placing.device_at(tensor), placing.device_of[name])


def streamed_tensors(placings: Sequence[Placing]) -> Streamed:
    """Return the streamed tensors: those that only streamed stages read on a device.

    Exceptions are tensors that a stage writes or the model returns unchanged, tensors off the
    model's home, and those that overlap with any of these.
    """
    read: dict[torch.device, list[torch.Tensor]] = {}
    kept: dict[torch.device, set[int]] = {}
    for placing in placings:
        never = {id(t) for t in (*placing.returned.values(), *placing.written.values())}
        for name, tensor in placing.held():
            device = placing.device_of[name]
            read.setdefault(device, []).append(tensor)
            is_elsewhere = tensor.device != placing.placed.home
            if name not in placing.streams or id(tensor) in never or is_elsewhere:
                kept.setdefault(device, set()).add(id(tensor))
    found: dict[torch.device, set[int]] = {}
    for device, tensors in read.items():
        # Every capture wraps a buffer in a tensor of its own: compare by memory.
        pieces = {id(p): p for tensor in tensors for p in pieces_of(tensor).values()}
        stays = {
            id(p) for t in tensors if id(t) in kept.get(device, ()) for p in pieces_of(t).values()
        }
        for group in overlapping(list(pieces.values())):
            if not stays.isdisjoint(map(id, group)):
                stays.update(map(id, group))
        found[device] = {
            id(tensor)
            for tensor in tensors
            if stays.isdisjoint(map(id, pieces_of(tensor).values()))
        }
    return found
