"""One region of a stage for one microbatch: its kept values, and its second run.

Autograd is given handles in place of recomputed tensors (``saved_tensors_hooks``). A handle refers
to a slot, one for each storage, and the slot to the region's run until the storage has been
recomputed. Nothing refers back: autograd alone holds handles, so all is freed with them, without
the garbage collector.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from weakref import ref

import torch
from torch import fx, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.node import map_arg
from torch.multiprocessing.reductions import StorageWeakRef

from fx_bridge.recomputation.kept_tensors import (
    KeptValue,
    SavedTensor,
    detached,
    version_counter,
    written_since,
)
from fx_bridge.recomputation.steps import Step, call
from fx_bridge.storages.autocast import autocast_dtypes, precision, types_here
from fx_bridge.storages.tensor_subclasses import named_tensors, tensor_leaves
from solver import PartitionError

_OF_MODULE: Final = ("get_attr", "call_module")
# Shared, since every object per operator brings the next garbage collection nearer.
_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


class Slot:
    """A storage that is recomputed on autograd's first access."""

    __slots__ = ("__weakref__", "run", "storage")

    def __init__(self, run: RegionRun) -> None:
        self.run: RegionRun | None = run
        self.storage: torch.UntypedStorage | None = None

    def fill(self, storage: torch.UntypedStorage) -> None:
        """Take the storage, and release the run that recomputes it."""
        self.storage, self.run = storage, None


class Handle:
    """Autograd's stand-in for a recomputed tensor."""

    __slots__ = ("conjugate", "counter", "dtype", "negative", "slot", "version", "view")

    def __init__(self, slot: Slot, tensor: torch.Tensor) -> None:
        self.slot, self.dtype = slot, tensor.dtype
        self.counter, self.version = version_counter(tensor), tensor._version
        self.view = tensor.storage_offset(), tensor.size(), tensor.stride()
        self.conjugate, self.negative = tensor.is_conj(), tensor.is_neg()

    def tensor(self) -> torch.Tensor:
        """Return the tensor; run its region again if that has not been done yet."""
        if self.counter._version != self.version:
            what = f"a value of the shape {list(self.view[1])}, which runs again"
            raise written_since(what, self.counter._version, self.version)
        run = self.slot.run
        if run is not None:
            run.run_again()
        storage = self.slot.storage
        if storage is None:
            raise PartitionError(
                "an operator that ran again kept other tensors for its backward pass than before; "
                "leave the operators of its region out of recomputed"
            )
        with torch.no_grad():
            empty = torch.empty(0, dtype=self.dtype, device=storage.device)
            made = empty.set_(storage, *self.view)
            made = made.conj() if self.conjugate else made
            return torch._neg_view(made) if self.negative else made


def unpacked(packed: SavedTensor | Handle) -> torch.Tensor:
    """Return a saved tensor."""
    return packed.tensor()


class GeneratorState(NamedTuple):
    """The state of the generator of a device."""

    device: torch.device
    state: torch.Tensor


@dataclass(slots=True)
class FirstRun:
    """The state of the first run of an operator that its second run reproduces."""

    requires_grad: tuple[bool, ...] = ()
    precision: Mapping[str, torch.dtype] = field(default_factory=lambda: _NOTHING)
    random_state: GeneratorState | None = None
    residuals: Mapping[int, ref[Slot]] = field(default_factory=lambda: _NOTHING)
    """Slots of the tensors that it allocates and saves, by position among those it saves."""


class RegionRun:
    """The values of a region that a microbatch keeps until its backward pass."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._lock = threading.Lock()
        self.kept: dict[fx.Node, KeptValue] = {}
        self.first_runs: dict[fx.Node, FirstRun] = {step.node: FirstRun() for step in steps}
        self.results: dict[tuple[fx.Node, int], ref[Slot]] = {}

    def slot_of(self, node: fx.Node, place: int) -> Slot:
        """Return the slot of a result, a new one if it has none."""
        alive = self.results.get((node, place))
        slot = None if alive is None else alive()
        if slot is None:
            slot = Slot(self)
            self.results[node, place] = ref(slot)
        return slot

    def run_again(self) -> None:
        """Run all recomputed steps, and fill the slots of live handles."""
        with self._lock, torch.no_grad():  # autograd has a thread for each device
            for read, kept in self.kept.items():
                kept.check(str(read.target) if read.op in _OF_MODULE else read.name)
            values = {read: kept.value for read, kept in self.kept.items()}
            self.kept = {}
            for step in self._steps:
                if step.node in self.first_runs:
                    self._run_step(step, values, self.first_runs.pop(step.node))
                    for read in step.dropped_again:
                        del values[read]

    def _run_step(self, step: Step, values: dict[fx.Node, Any], first: FirstRun) -> None:
        def argument(read: fx.Node) -> Any:
            return values[read].clone() if read.name in step.written else values[read]

        residuals = {n: slot for n, alive in first.residuals.items() if (slot := alive())}
        with contextlib.ExitStack() as stack:
            # Contexts can take as long as an operator: enter only those that change something.
            if first.precision != autocast_dtypes(types_here()):
                stack.enter_context(precision(first.precision))
            if first.random_state is not None:
                stack.enter_context(replaying(first.random_state))
            if residuals:
                stack.enter_context(torch.enable_grad())
                stack.enter_context(_catching(residuals))
            node = step.node
            args, kwargs = map_arg((node.args, node.kwargs), argument)
            target: Any = node.target
            if node.op == "call_module":
                target, weights = values[node]
                buffers = {name for name, _ in target.named_buffers(remove_duplicate=False)}
                weights = {n: t.clone() if n in buffers else t for n, t in weights.items()}
                value = torch.func.functional_call(target, weights, args, kwargs)
            else:
                value = call(node.op, target, args, kwargs)
        for place, leaf in enumerate(tensor_leaves(value)):
            alive = self.results.get((step.node, place))
            if alive is not None and (slot := alive()) is not None:
                slot.fill(leaf.untyped_storage())
        values[step.node] = detached(value, first.requires_grad)


@contextlib.contextmanager
def _catching(slots: dict[int, Slot]) -> Iterator[None]:
    """Fill slots with the tensors that autograd saves, by position; let it keep nothing."""
    count = 0

    def caught(tensor: torch.Tensor) -> None:
        nonlocal count
        if count in slots:
            slots[count].fill(tensor.untyped_storage())
        count += 1

    def never(_: None) -> torch.Tensor:
        raise AssertionError("no backward pass goes through recomputed operators")

    with saved_tensors_hooks(caught, never):
        yield


def generator_state(node: fx.Node, read: Sequence[torch.Tensor]) -> GeneratorState | None:
    """Return the state of the generator that an operator is about to use; None on meta tensors.

    The operator runs on the device of its inputs `read`, or on that of its argument.
    """
    device = torch.device(node.kwargs.get("device") or "cpu")  # type: ignore[arg-type]
    device = next((t.device for t in read if t.device.type != "cpu"), device)
    if device.type == "meta":
        return None
    return GeneratorState(device, _generator(device).get_rng_state(*_where(device)))


@contextlib.contextmanager
def replaying(saved: GeneratorState) -> Iterator[None]:
    """Draw the same numbers as from a saved state; the generator's own state is restored."""
    generator, where = _generator(saved.device), _where(saved.device)
    before = generator.get_rng_state(*where)
    generator.set_rng_state(saved.state, *where)
    try:
        yield
    finally:
        generator.set_rng_state(before, *where)


def _generator(device: torch.device) -> Any:
    return torch.random if device.type == "cpu" else torch.get_device_module(device)


def _where(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "cpu" else (device,)


Made = dict[int, tuple[StorageWeakRef, RegionRun, fx.Node, int]]
"""Recomputed storages by address: their run, node, and position among its results.

A weak reference keeps the address, but not the memory, so that no other storage gets it.
"""


class Recording:
    """Records the first run of a region, and packs the tensors that autograd saves.

    `run` receives the values that its second run needs. All regions of a call share `made`.
    """

    def __init__(self, run: RegionRun, made: Made) -> None:
        self._run, self._made = run, made
        self._again = False
        self._operator = ""
        self._read: set[int] = set()
        self._pending: dict[int, tuple[StorageWeakRef, Slot, int]] = {}
        self._count = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Return the context around the region, to be entered once."""
        try:
            with saved_tensors_hooks(self._packed, unpacked):
                yield
        finally:
            # Autograd keeps the packing function, which refers to this object.
            del self._run, self._made

    def _packed(self, tensor: torch.Tensor) -> SavedTensor | Handle:
        place = self._count
        self._count += 1
        if has_storage(tensor):
            storage = tensor.untyped_storage()
            address = storage._cdata
            if address in self._made:
                _, run, node, result = self._made[address]
                return Handle(run.slot_of(node, result), tensor)
            if self._again and address not in self._read:
                # A result of the current operator, or a tensor that it allocates and saves.
                if address not in self._pending:
                    self._pending[address] = StorageWeakRef(storage), Slot(self._run), place  # type: ignore[no-untyped-call]
                return Handle(self._pending[address][1], tensor)
        return SavedTensor(tensor, self._operator)

    def before(self, step: Step, module: nn.Module, env: dict[fx.Node, Any]) -> None:
        """Keep the inputs and settings that an operator needs to run again."""
        self._again, self._count, self._operator = step.again, 0, step.node.name
        if not step.again:
            return
        first = self._run.first_runs[step.node]
        reads = step.node.all_input_nodes
        for read in reads:
            if read not in self._run.first_runs and read not in self._run.kept:
                self._run.kept[read] = KeptValue(env[read])
        read_values: list[Any] = [env[read] for read in reads]
        if step.node.op == "call_module":
            target = module.get_submodule(str(step.node.target))
            weights = named_tensors(target)
            self._run.kept[step.node] = KeptValue((target, weights))
            read_values.append(weights)
        read_values += [named_tensors(v) for v in read_values if isinstance(v, nn.Module)]
        tensors = tensor_leaves(read_values)
        self._read = {t.untyped_storage()._cdata for t in tensors if has_storage(t)}
        first.precision = autocast_dtypes(types_here())
        if step.random:
            first.random_state = generator_state(step.node, tensors)

    def after(self, step: Step, value: Any) -> None:
        """Assign the saved tensors that are results of an operator to their slots."""
        if not step.again:
            return
        for node, kept in self._run.kept.items():
            if node is step.node or node.name in step.written:
                kept.accept_writes()
        first = self._run.first_runs[step.node]
        leaves = tensor_leaves(value)
        first.requires_grad = tuple(leaf.requires_grad for leaf in leaves)
        for place, leaf in enumerate(leaves):
            if not has_storage(leaf):
                continue
            storage = leaf.untyped_storage()
            address = storage._cdata
            if address in self._read or address in self._made:
                continue
            self._made[address] = StorageWeakRef(storage), self._run, step.node, place  # type: ignore[no-untyped-call]
            if address in self._pending:
                self._run.results[step.node, place] = ref(self._pending.pop(address)[1])
        if self._pending:
            first.residuals = {n: ref(slot) for _, slot, n in self._pending.values()}
            self._pending.clear()
        self._again = False


def has_storage(tensor: torch.Tensor) -> bool:
    """Return True if a tensor is a plain strided view of its storage."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_quantized
    )
