"""Allocations and releases by operator while PyTorch runs on fake tensors."""

from __future__ import annotations

import bisect
import contextlib
import functools
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fx_bridge.storages.fake_kernels import hidden_bytes
from fx_bridge.storages.tensor_subclasses import any_wrapper, tensors_in

Phase = Literal["forward", "backward", "optimizer"]
Kind = Literal[
    "weight", "input", "activation", "saved", "output", "gradient", "optimizer", "temporary"
]

_KIND_OF: Final[dict[Phase, Kind]] = {
    "forward": "activation",
    "backward": "gradient",
    "optimizer": "temporary",
}
_ACCUMULATE: Final = 2**64 - 1
"""Sequence number of the autograd nodes that add to ``.grad``: they belong to no operator."""


@dataclass(slots=True)
class Allocation:
    """One storage and its lifetime, in changes of the total."""

    kind: Kind
    owner: str  # key of a weight, or name of a node
    size_bytes: int  # of the whole storage
    born: int  # the change that allocated it
    first: int  # the position at that change
    died: int = 2**62  # the change that released it, and
    last: int = 2**62  # the position then


@dataclass(slots=True)
class Position:
    """The peak while one node ran, and the live bytes when it had run."""

    phase: Phase
    node: str
    peak_bytes: int
    live_bytes: int


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every storage that dispatched operators return, until Python and autograd drop it.

    Weak references to storages report releases; nothing here extends the life of a tensor.
    """

    # Read by HigherOrderOperator.dispatch.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.allocations: list[Allocation] = []  # all, in the order of allocation
        self.positions: list[Position] = []  # one for each node that ran, in order
        self.before_bytes = 0  # alive before the first position
        # `peak_change` is the first change after which `peak_bytes` were alive.
        self.live_bytes = self.peak_bytes = self.peak_change = self.changes = 0
        self._paused = False
        self._alive: dict[int, tuple[Allocation, Any]] = {}
        self._starts: list[tuple[int, str]] = []

    def begin(self, phase: Phase, node: str) -> None:
        """Charge later allocations to `node`, and its share of the backward pass if in forward."""
        if not self.positions:
            self.before_bytes = self.live_bytes
        self.positions.append(Position(phase, node, self.live_bytes, self.live_bytes))
        if phase == "forward":
            self._starts.append((torch.autograd._get_sequence_nr(), node))  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Ignore allocations, as while the state of a run is prepared."""
        self._paused = True
        try:
            yield
        finally:
            self._paused = False

    def hold(self, value: Any, kind: Kind, owner: str, size_bytes: int | None = None) -> None:
        """Record existing storages; those already recorded are unchanged."""
        for tensor in tensors_in(value):
            self._note(tensor, kind, owner, size_bytes)

    def backdate(self, tensors: Iterable[tuple[str, torch.Tensor]], kind: Kind) -> None:
        """Record storages, by owner, as if they existed from the beginning."""
        added_bytes = 0
        for owner, tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._alive:
                size_bytes = int(storage.nbytes())
                self._add(storage, Allocation(kind, owner, size_bytes, born=0, first=0))
                added_bytes += size_bytes
        self.live_bytes += added_bytes
        self.peak_bytes += added_bytes
        for position in self.positions:
            position.peak_bytes += added_bytes
            position.live_bytes += added_bytes

    def known(self, value: Any) -> Iterable[Allocation]:
        """Yield the allocations of the storages of `value`."""
        for tensor in tensors_in(value):
            entry = self._alive.get(tensor.untyped_storage()._cdata)
            if entry is not None:
                yield entry[0]

    @property
    def alive(self) -> list[Allocation]:
        """Allocations without a release."""
        return [allocation for allocation, _ in self._alive.values()]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any_wrapper(types):
            return NotImplemented
        position = self.positions[-1] if self.positions else None
        stepping = position is not None and (self._paused or position.phase == "optimizer")
        if stepping and func is torch.ops.aten._local_scalar_dense.default:
            # Optimisers read their step count, which affects no size.
            return 1.0
        result = func(*args, **(kwargs or {}))
        if position is None or self._paused:
            return result
        if position.phase == "backward":
            self._attribute(position)
        self.hold(result, _KIND_OF[position.phase], self.positions[-1].node)
        if own_bytes := hidden_bytes(func, args):  # allocated and released by the kernel
            self._change(own_bytes)
            here = len(self.positions) - 1
            own = Allocation("temporary", self.positions[-1].node, own_bytes, self.changes, here)
            self.allocations.append(own)
            self._change(-own_bytes)
            own.died, own.last = self.changes, here
        return result

    def _attribute(self, position: Position) -> None:
        current = torch._C._current_autograd_node()
        if current is None or current._sequence_nr() == _ACCUMULATE:
            return
        index = bisect.bisect_right(self._starts, current._sequence_nr(), key=lambda s: s[0])
        node = self._starts[max(index - 1, 0)][1]
        if node != position.node:
            self.begin("backward", node)

    def _note(self, tensor: torch.Tensor, kind: Kind, owner: str, size_bytes: int | None) -> None:
        storage = tensor.untyped_storage()
        address = storage._cdata
        entry = self._alive.get(address)
        if entry is not None:
            if size_bytes is not None or entry[0].size_bytes == storage.nbytes():
                return
            if entry[0].kind in ("weight", "input"):
                return
            # Resized in place: another allocation of the same value.
            self._release(address)
            kind, owner = entry[0].kind, entry[0].owner
        size_bytes = int(storage.nbytes()) if size_bytes is None else size_bytes
        self._change(size_bytes)
        first = len(self.positions) - 1
        self._add(storage, Allocation(kind, owner, size_bytes, self.changes, first))

    def _add(self, storage: torch.UntypedStorage, allocation: Allocation) -> None:
        address = storage._cdata
        reference = weakref.ref(storage, functools.partial(self._release, address))
        self._alive[address] = allocation, reference
        self.allocations.append(allocation)

    def _release(self, address: int, _: object = None) -> None:
        allocation, _ = self._alive.pop(address)
        self._change(-allocation.size_bytes)
        allocation.died, allocation.last = self.changes, len(self.positions) - 1

    def _change(self, size_bytes: int) -> None:
        self.changes += 1
        self.live_bytes += size_bytes
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_change = self.live_bytes, self.changes
        if self.positions:
            position = self.positions[-1]
            position.live_bytes = self.live_bytes
            position.peak_bytes = max(position.peak_bytes, self.live_bytes)
