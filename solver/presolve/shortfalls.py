"""Bytes that no plan can place, found by adding up without a search."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from solver.model.checks import only_given
from solver.model.operators import Operator
from solver.model.problem import PartitionProblem
from solver.model.quantities import exact_bytes, listed, quoted
from solver.presolve.instance import condense


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Bytes that no plan can place, found by adding up, without search.

    If `together`, `operators` are those of one unit, which must share one of `devices`, and at most
    the largest of these is available. Otherwise they are all that may run on `devices` only, and
    the most that a plan may use of these is available. `needed_bytes` is the least that they hold,
    and `module` theirs, if they share one.
    """

    operators: tuple[str, ...]
    devices: tuple[str, ...]
    needed_bytes: int
    available_bytes: int
    together: bool
    module: str = ""
    __repr__ = only_given

    @property
    def missing_bytes(self) -> int:
        """Difference of needed and available bytes."""
        return self.needed_bytes - self.available_bytes

    @property
    def text(self) -> str:
        """The shortfall as a sentence."""
        missing = f"{exact_bytes(self.missing_bytes)} too few"
        if self.together:
            several = len(self.operators) > 1
            verb = ", which share a device, need" if several else " alone needs"
            of_module = f" of module {self.module!r}" if self.module else ""
            return (
                f"{quoted(self.operators)}{of_module}{verb} at least "
                f"{exact_bytes(self.needed_bytes)}, but the largest device for "
                f"{'them' if several else 'it'} has "
                f"{exact_bytes(self.available_bytes)}: {missing}"
            )
        return (
            f"what must be held on {listed(self.devices)} adds up to at least "
            f"{exact_bytes(self.needed_bytes)}, but there is room for "
            f"{exact_bytes(self.available_bytes)}: {missing}"
        )


def find_shortfalls(problem: PartitionProblem) -> tuple[Shortfall, ...]:
    """Return the largest shortfall of a unit, and of the operators with common devices.

    Each proves that `problem` has no plan; none proves nothing.

    Notes
    -----
    Proof. *One unit* is on one device. Until its stage ends the device holds its weights and the
    graph inputs that it reads. While one of the unit's operators v runs, the device holds v's own
    storage and, for each other storage that v reads, that storage or a received value of the chain
    of aliases from it to v, because a value that is not received lives in a storage of this device;
    in training it holds the holdings of the unit's own operators at that time. *Operators that may
    run only on a set of devices*: some device of the set holds each of their weights and graph
    inputs, and, when the last of its operators runs, their saved bytes for each microbatch in
    flight; so together these are at most the set's capacity.
    """
    units = condense(problem)
    # Units with contradicting pins have no devices, and are skipped.
    names = [tuple(problem.operators[i].name for i in members) for members in units.members]
    single: list[Shortfall] = []
    pinned: dict[frozenset[str], list[str]] = {}
    every = frozenset(problem.device_of)
    for unit, allowed in zip(names, units.allowed_devices, strict=True):
        may = every if allowed is None else allowed
        pinned.setdefault(may, []).extend(unit)
        capacity = _capacity(problem, may, 1)
        if capacity is None or not may:
            continue
        needed_bytes = least_bytes_together(problem, unit)
        if needed_bytes > capacity:
            modules = {problem.operators[problem.index_of[name]].module for name in unit}
            module = modules.pop() if len(modules) == 1 else ""
            devices = _ordered(problem, may)
            single.append(Shortfall(unit, devices, needed_bytes, capacity, True, module))
    several: list[Shortfall] = []
    for may in {every, *pinned}:
        capacity = _capacity(problem, may, problem.max_devices)
        if capacity is None or not may:
            continue
        operators = [name for own, held in pinned.items() if own <= may for name in held]
        needed_bytes = sum(_held_bytes(problem, operators))
        needed_bytes += _least_in_flight(problem) * _saved_bytes(problem, operators)
        if needed_bytes > capacity:
            devices = _ordered(problem, may)
            several.append(Shortfall(tuple(operators), devices, needed_bytes, capacity, False))
    worst = [max(found, key=lambda s: s.missing_bytes) for found in (single, several) if found]
    if len(worst) == 2 and worst[0].operators == worst[1].operators:
        del worst[1]  # the same shortfall
    return tuple(worst)


def least_bytes_together(problem: PartitionProblem, unit: Iterable[str]) -> int:
    """Return a lower bound of the bytes of a device that runs `unit`, and perhaps more."""
    names = list(unit)
    held_bytes = sum(_held_bytes(problem, names))
    if problem.memory_model == "weights":
        return held_bytes
    if problem.is_training:
        held_bytes += (_least_in_flight(problem) - 1) * _saved_bytes(problem, names)
        return held_bytes + _most_held(problem, names)
    ops = (problem.operators[problem.index_of[name]] for name in names)
    return held_bytes + max(_live_bytes(problem, op) for op in ops)


def _most_held(problem: PartitionProblem, names: list[str]) -> int:
    """Return the largest sum of the holdings of some operators while one of them runs."""
    steps = sorted(problem.index_of[name] for name in names)
    own = [holding for step in steps for holding in problem.least_holdings_of[step]]
    return max(
        sum(h.size_bytes for h in own if h.first <= step and (h.stays or step <= h.last))
        for step in steps
    )


def _least_in_flight(problem: PartitionProblem) -> int:
    return problem.microbatches if problem.schedule == "gpipe" else 1


def _saved_bytes(problem: PartitionProblem, names: list[str]) -> int:
    sizes = problem.least_saved_bytes
    return sum(sizes[problem.index_of[name]] for name in names)


def _live_bytes(problem: PartitionProblem, op: Operator) -> int:
    """Return a lower bound of the storages and received values while `op` runs."""
    least: dict[str, int] = {}
    for read in op.reads:
        root = problem.root_of[read]
        if root in problem.input_of:
            continue  # counted once for the whole stage
        smallest = problem.operators[problem.index_of[root]].storage_bytes
        name: str | None = read
        while name is not None:
            source = problem.operators[problem.index_of[name]]
            smallest = min(smallest, source.held_value_bytes)
            name = source.alias_of
        least[root] = max(least.get(root, 0), smallest)
    return op.storage_bytes + sum(least.values())


def _held_bytes(problem: PartitionProblem, names: list[str]) -> Iterable[int]:
    """Yield the bytes that devices hold for `names` until their stages end, each item once."""
    ops = [problem.operators[problem.index_of[name]] for name in names]
    for key in dict.fromkeys(key for op in ops for key in op.weights):
        yield problem.weights[key].held_bytes(problem.memory_model)
    if problem.memory_model == "weights":
        return
    for name in dict.fromkeys(read for op in ops for read in op.reads):
        if name in problem.input_of:
            yield problem.microbatches * problem.input_of[name].value_bytes


def _capacity(problem: PartitionProblem, names: frozenset[str], most: int | None) -> int | None:
    """Return the bytes of the `most` largest of these devices, or None if one is unlimited."""
    sizes = [problem.device_of[name].memory_bytes for name in names]
    limited = [size for size in sizes if size is not None]
    return sum(sorted(limited, reverse=True)[:most]) if len(limited) == len(sizes) else None


def _ordered(problem: PartitionProblem, names: frozenset[str]) -> tuple[str, ...]:
    return tuple(device.name for device in problem.devices if device.name in names)
