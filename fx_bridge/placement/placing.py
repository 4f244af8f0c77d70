"""Which device has which tensor of a split, and which tensors travel to it in every call."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import torch
from torch import fx, nn

from fx_bridge.capture.model.attributes import attribute_at
from fx_bridge.checkpoint.manifest import position_of
from fx_bridge.checkpoint.tensors import slots_of
from fx_bridge.placement.links import reads_pinned
from fx_bridge.placement.weights import (
    HOST,
    PlacedWeights,
    overlapping,
    pieces_of,
    tensors_within,
)
from fx_bridge.storages.mutations import memory_of
from solver import PartitionError

TiedWeights = Literal["sum", "copy"]
"""What becomes of a parameter that stages on several devices read."""

Streamed = Mapping[torch.device, Collection[int]]
"""Identities of the tensors of a split that travel to a device in every call."""

NOTHING_STREAMED: Final[Streamed] = {}


@dataclass(slots=True)
class Placing:
    """A split whose tensors go to devices.

    Attributes
    ----------
    split : torch.fx.GraphModule
        Not changed.
    stages : mapping of str to torch.fx.GraphModule
        Of the split, in order.
    device_of : mapping of str to torch.device
        Of each stage.
    placed : PlacedWeights
        Where tensors are put; splits of one model share it.
    tied_weights : {"sum", "copy"}
        See :func:`fx_bridge.placement.model.place`.
    streams : collection of str
        The stages whose weights are to travel.
    owner : dict
        The stage that first reads a tensor, by the tensor's identity.
    lodged : dict
        Where a tensor goes that no stage reads and another split has there, by its identity.
    """

    split: fx.GraphModule
    stages: Mapping[str, fx.GraphModule]
    device_of: Mapping[str, torch.device]
    placed: PlacedWeights
    tied_weights: TiedWeights
    streams: Collection[str] = ()
    owner: dict[int, str] = field(default_factory=dict)
    lodged: dict[int, torch.device] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, stage in self.stages.items():
            for tensor in tensors_within(stage):
                self.owner.setdefault(id(tensor), name)

    def load(self, folder: str | os.PathLike[str], streamed: Streamed = NOTHING_STREAMED) -> None:
        """Read the tensors of all stages from their files."""
        plan = self.split.meta["plan"]
        for index, (name, stage) in enumerate(self.stages.items()):
            device = self.device_of[name]
            ids = streamed.get(device, ()) if name in self.streams else ()
            position = position_of(plan, index)
            self.placed.load(stage, folder, position, device, ids, pin=reads_pinned(device))

    def held(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of each stage that its own device holds, or that travel to it."""
        for name, stage in self.stages.items():
            for tensor in tensors_within(stage):
                if not self._is_lent(name, tensor):
                    yield name, tensor

    @property
    def returned(self) -> dict[str, torch.Tensor]:
        """The tensors that the graph itself returns as they are, by path."""
        paths = (str(node.target) for node in self.split.graph.find_nodes(op="get_attr"))
        return {path: attribute_at(self.split, path) for path in dict.fromkeys(paths)}

    @property
    def alone(self) -> list[torch.Tensor]:
        """The tensors that the graph returns as they are, and no stage reads."""
        return [tensor for tensor in self.returned.values() if id(tensor) not in self.owner]

    @property
    def written(self) -> dict[str, torch.Tensor]:
        """The tensors that a stage writes, by path."""
        paths = self.split.meta.get("written_weights", ())
        return {path: attribute_at(self.split, path) for path in paths}

    @property
    def kept(self) -> set[int]:
        """Identities of the tensors that cannot travel: written ones, and returned ones."""
        return {id(tensor) for tensor in (*self.returned.values(), *self.written.values())}

    def device_at(self, tensor: torch.Tensor) -> torch.device:
        """Return where a tensor of the split is owned."""
        owner = self.owner.get(id(tensor))
        if owner is None:
            return self.lodged.get(id(tensor), self.placed.home)
        return self.device_of[owner]

    def elsewhere(self) -> dict[str, dict[str, str]]:
        """Return, by stage, its parameters that another device owns, with their names there."""
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
        """Return the paths of the tensors that travel, by stage; stages without are left out."""
        found = {}
        for name in self.stages:
            ids = streamed.get(self.device_of[name], ()) if name in self.streams else ()
            places = slots_of(self.stages[name]).items()
            paths = tuple(path for path, slot in places if id(slot.tensor) in ids)
            if paths:
                found[name] = paths
        return found

    def lent(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of each stage that come from another device in every call."""
        for name, stage in self.stages.items():
            for tensor in tensors_within(stage):
                if self._is_lent(name, tensor):
                    yield name, tensor

    def _is_lent(self, name: str, tensor: torch.Tensor) -> bool:
        if self.tied_weights == "copy" or not isinstance(tensor, nn.Parameter):
            return False
        return self.device_of[self.owner[id(tensor)]] != self.device_of[name]


def check_owners(placings: Sequence[Placing]) -> None:
    """Refuse parameters that stay one where splits first read them on different devices."""
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
    """Let what one split writes be one tensor for all of them.

    What another one returns as it is, and does not read, goes to where the writer has it.

    Raises
    ------
    PartitionError
        If another one reads it on another device, where it would be a copy that stays as it was.
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
    lodgers: dict[int, list[tuple[Placing, torch.Tensor]]] = {}
    for placing in placings:
        held = [(tensor, placing.device_of[name]) for name, tensor in placing.held()]
        for tensor, device in (*held, *((tensor, None) for tensor in placing.alone)):
            for piece in pieces_of(tensor).values():
                if memory_of(piece) not in memories:
                    continue
                pieces[id(piece)] = piece
                if device is None:
                    lodgers.setdefault(id(piece), []).append((placing, tensor))
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
        for placing, tensor in (each for piece in group for each in lodgers.get(id(piece), ())):
            placing.lodged.update((id(tensor), device) for device in found)


def place_tensors(placings: Sequence[Placing], streamed: Streamed) -> None:
    """Put all tensors on their devices, and those that travel into host memory."""
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
        for tensor in placing.alone:
            held.setdefault(placing.device_at(tensor), []).append(tensor)
    # One copy serves all devices; if one of them needs it pinned, it is.
    pin = any(reads_pinned(device) for _, device in at_host)
    placed.add([tensor for tensor, _ in at_host], HOST, pin=pin)
    for tensor, device in at_host:
        placed.share(tensor, HOST, device)
    for device, tensors in held.items():
        placed.add(tensors, device)
    for placing in placings:
        for name, tensor in placing.lent():
            placed.share(tensor, placing.device_at(tensor), placing.device_of[name])


def streamed_tensors(placings: Sequence[Placing]) -> Streamed:
    """Return what travels: the tensors that streamed stages alone read on a device.

    What a stage writes does not, nor what the model returns, what is not where the model has its
    parameters, and what overlaps with any of that.
    """
    read: dict[torch.device, list[torch.Tensor]] = {}
    kept: dict[torch.device, set[int]] = {}
    for placing in placings:
        never = placing.kept
        for name, tensor in placing.held():
            device = placing.device_of[name]
            read.setdefault(device, []).append(tensor)
            is_elsewhere = tensor.device != placing.placed.home
            if name not in placing.streams or id(tensor) in never or is_elsewhere:
                kept.setdefault(device, set()).add(id(tensor))
    found: dict[torch.device, set[int]] = {}
    for device, tensors in read.items():
        # Every capture wraps a buffer in a tensor of its own: memory says what is the same.
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
