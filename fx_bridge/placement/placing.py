"""Which device has which tensor of a split, and which tensors travel to it in every call."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import torch
from torch import fx, nn

from fx_bridge.capture.attributes import attribute_at
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
    """

    split: fx.GraphModule
    stages: Mapping[str, fx.GraphModule]
    device_of: Mapping[str, torch.device]
    placed: PlacedWeights
    tied_weights: TiedWeights
    streams: Collection[str] = ()
    owner: dict[int, str] = field(default_factory=dict)

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

    def place(self, streamed: Streamed = NOTHING_STREAMED) -> None:
        """Put all tensors on their devices, and those that travel into host memory."""
        held: dict[torch.device, list[torch.Tensor]] = {}
        at_host: list[tuple[torch.Tensor, torch.device]] = []
        for name, tensor in self.held():
            device = self.device_of[name]
            if id(tensor) in streamed.get(device, ()):
                at_host.append((tensor, device))
            else:
                held.setdefault(device, []).append(tensor)
        alone = [tensor for tensor in self.returned.values() if id(tensor) not in self.owner]
        held.setdefault(self.placed.home, []).extend(alone)
        # One copy serves all devices; if one of them needs it pinned, it is.
        pin = any(reads_pinned(device) for _, device in at_host)
        self.placed.add([tensor for tensor, _ in at_host], HOST, pin=pin)
        for tensor, device in at_host:
            self.placed.share(tensor, HOST, device)
        for device, tensors in held.items():
            self.placed.add(tensors, device)
        for name, stage in self.stages.items():
            for tensor in tensors_within(stage):
                if self._is_lent(name, tensor):
                    owner = self.device_of[self.owner[id(tensor)]]
                    self.placed.share(tensor, owner, self.device_of[name])

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
    def kept(self) -> set[int]:
        """Identities of the tensors that cannot travel: written ones, and returned ones."""
        written = self.split.meta.get("written_weights", ())
        tensors = [*self.returned.values(), *(attribute_at(self.split, p) for p in written)]
        return {id(tensor) for tensor in tensors}

    def device_at(self, tensor: torch.Tensor) -> torch.device:
        """Return where a tensor of the split is owned."""
        owner = self.owner.get(id(tensor))
        return self.placed.home if owner is None else self.device_of[owner]

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
