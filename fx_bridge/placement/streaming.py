"""Stages whose weights stay in host memory and are copied to their device in every call.

``docs/placement.md``, "Weights that do not fit", has the slots, and the order of loads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from fx_bridge.checkpoint.tensors import Slot, slots_of
from fx_bridge.placement.links import link_to
from fx_bridge.placement.slots import HostWeights, Slots
from fx_bridge.placement.transfers import call_with_weights
from fx_bridge.placement.weights import moved_together
from fx_bridge.storages.tensor_subclasses import pieces_of
from solver import PartitionError

_KEY: Final = "streamed"

Cycle = Mapping[nn.Module, Sequence[str]]
"""Streamed stages of a placed model on one device in order, with the paths of streamed weights."""


@dataclass(frozen=True, slots=True)
class _Load:
    weights: HostWeights
    slot: int
    versions: tuple[int, ...]
    arrival: Any


class WeightStream:
    """The loads of a device's slots with any of `weights`, pending or waiting for their reader."""

    def __init__(self, device: torch.device, count: int, weights: Sequence[HostWeights]) -> None:
        self.slots = Slots(device, count, weights)
        self._link = link_to(device, self.slots.memory)
        self._free = deque(range(count))
        self._ahead: deque[_Load] = deque()

    def load(self, upcoming: Sequence[HostWeights]) -> None:
        """Start to load the next weights, one for each slot at most.

        Earlier loads are dropped if they do not come next or their weights were written since:
        after an error, say, or a call of another model of the same weights.
        """
        for index, weights in enumerate(upcoming):
            versions = weights.versions
            if index < len(self._ahead):
                load = self._ahead[index]
                if load.weights is weights and load.versions == versions:
                    continue
                while len(self._ahead) > index:
                    self._free.append(self._ahead.pop().slot)
            slot = self._free.popleft()
            arrival = self._link.load(slot, self.slots.copies(weights, slot))
            self._ahead.append(_Load(weights, slot, versions, arrival))

    def call(
        self,
        stage: nn.Module,
        weights: Mapping[str, torch.Tensor],
        places: Mapping[str, int],
        arguments: Sequence[Any],
        upcoming: Sequence[HostWeights],
    ) -> Any:
        """Call a stage on the first of `upcoming`, and load the others meanwhile."""
        self.load(upcoming[:-1])
        load = self._ahead.popleft()
        try:
            self._link.arrive(load.arrival)
            views = self.slots.views(load.weights, load.slot)
            own = {path: views[index] for path, index in places.items()}
            with _casts_forgotten():
                result = call_with_weights(stage, {**weights, **own}, arguments)
            # A result may be a view of a weight, such as an expanded token.
            return tree_map_only(torch.Tensor, self._apart, result)
        finally:
            self._link.leave(load.slot)
            self._free.append(load.slot)
            self.load(upcoming[1:])

    def wait(self) -> None:
        """Wait until no load reads host memory."""
        self._link.wait()

    def _apart(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self.slots.has(tensor):
            return tensor
        if pieces_of(tensor).keys() != {""} or tensor.is_conj() or tensor.is_neg():
            return tensor.clone()
        # Keep its strides: the rounding of kernels depends on them.
        return moved_together([tensor], tensor.device)[0]

    def __reduce__(self) -> NoReturn:
        raise PartitionError(
            "a placed model with streamed stages cannot be copied or pickled; place its split again"
        )


@dataclass(frozen=True, slots=True)
class _StreamedStage:
    stream: WeightStream
    places: Mapping[str, int]
    """Index of each streamed weight in the first of `upcoming`, by path."""
    own: Sequence[tuple[Slot, torch.Tensor]]
    """The stage's streamed weights in host memory, with their attributes."""
    upcoming: tuple[HostWeights, ...]
    """The stage's weights and those of the next stages; one more than slots."""


def call_streamed(
    stage: fx.GraphModule, weights: Mapping[str, torch.Tensor], arguments: Sequence[Any]
) -> Any:
    """Call a stage on streamed copies of its weights, with `weights` in place of others.

    Raises PartitionError if gradients would be recorded, or a streamed weight was replaced by
    another tensor.
    """
    streamed: _StreamedStage = stage.meta[_KEY]
    if torch.is_grad_enabled():
        own = (*stage.parameters(), *(tensor for _, tensor in streamed.own))
        leaves = (*own, *weights.values(), *tree_leaves(arguments))
        if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
            raise PartitionError(
                f"the weights of stage {stage.meta['stage']} are streamed and gone when a backward "
                "pass would read them; call the model under torch.no_grad(), or place it without "
                "streamed"
            )
    for slot, tensor in streamed.own:
        if slot.tensor is not tensor:
            raise PartitionError(
                f"weight {slot.name!r} of stage {stage.meta['stage']} is streamed and was "
                "replaced; write into the tensor that was there, or place the split again"
            )
    return streamed.stream.call(stage, weights, streamed.places, arguments, streamed.upcoming)


@contextmanager
def _casts_forgotten() -> Iterator[None]:
    """Disable the autocast cache, whose casts would outlive the values in a slot."""
    was_enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(was_enabled)


def check_streamable(name: str, stage: fx.GraphModule, paths: Sequence[str]) -> None:
    """Raise PartitionError unless the stage's weights at `paths` can be copied as bytes."""
    remedy = f"leave {name!r} out of streamed"
    for module in stage.modules():
        if isinstance(module, nn.RNNBase):
            raise PartitionError(
                f"stage {name!r} calls a {type(module).__name__} as a whole, whose weights cuDNN "
                f"moves elsewhere; {remedy}, or export the model"
            )
    own = slots_of(stage)
    for path in paths:
        for piece in pieces_of(own[path].tensor).values():
            is_dense = piece.layout is torch.strided and not piece.is_quantized
            if not is_dense or piece.is_nested or piece.is_conj() or piece.is_neg():
                raise PartitionError(
                    f"weight {path!r} of stage {name!r} is sparse, quantised, nested or conjugate "
                    f"and cannot be streamed; {remedy}, or make the weight dense"
                )


def stream_stages(device: torch.device, cycles: Sequence[Cycle], count: int) -> None:
    """Stream the weights of stages on one device, and start the first loads.

    There is a cycle for each placed model; models of the same weights share loads. There are
    `count` slots, or as many as a model has streamed stages if that is less.
    """
    known: dict[tuple[int, ...], HostWeights] = {}
    loads: list[list[HostWeights]] = []
    for cycle in cycles:
        loads.append([])
        for stage, paths in cycle.items():
            own = slots_of(stage)
            found = {id(own[path].tensor): own[path].tensor for path in paths}
            loads[-1].append(known.setdefault(tuple(found), HostWeights(list(found.values()))))
    count = min(count, max(map(len, loads)))
    stream = WeightStream(device, count, list(known.values()))
    for cycle, each in zip(cycles, loads, strict=True):
        for index, (stage, paths) in enumerate(cycle.items()):
            upcoming = tuple(each[(index + ahead) % len(each)] for ahead in range(count + 1))
            assert isinstance(stage, fx.GraphModule)
            stage.meta[_KEY] = _streamed_stage(stage, paths, stream, upcoming)
    first = next(each for each in loads if each)
    stream.load([first[index % len(first)] for index in range(count)])


def wait_for_loads(stages: Iterable[nn.Module]) -> None:
    """Wait until no load reads the stages' weights in host memory."""
    for stage in stages:
        streamed = stage.meta.get(_KEY) if isinstance(stage, fx.GraphModule) else None
        if streamed is not None:
            streamed.stream.wait()


def _streamed_stage(
    stage: nn.Module, paths: Sequence[str], stream: WeightStream, upcoming: tuple[HostWeights, ...]
) -> _StreamedStage:
    index_of = {id(tensor): index for index, tensor in enumerate(upcoming[0].tensors)}
    places: dict[str, int] = {}
    own: dict[tuple[int, str], tuple[Slot, torch.Tensor]] = {}
    for path, slot in slots_of(stage).items():
        # A module with several names in a stage is given its weights once.
        if path in paths and (id(slot.table), slot.name) not in own:
            own[id(slot.table), slot.name] = slot, slot.tensor
            places[path] = index_of[id(slot.tensor)]
    return _StreamedStage(stream, places, tuple(own.values()), upcoming)
