"""A bound on the bottleneck where operators may run again, by a price for memory.

Let mu be the price of a byte that a stage S keeps of each microbatch, f of which are in flight, so
that a byte there is once costs mu / f. What S adds by running operators again, and what it keeps at
that price, is at least a minimum cut of S alone (:mod:`solver.stages.recompute_hull`). In a maximum
flow of the whole graph every path starts at an operator v that keeps something, goes from readers
to what they read, and ends where something runs again or is an anchor. Let c(v) be the flow that
starts at v. The paths of S that stay in S are a flow of its own network. One that leaves S does so
through a value that S receives; no more flow goes through it than mu times its bytes, and S holds m
>= f of these, which costs at least as much. So, with the work w and the weights b of operators,

    load(S) >= sum over v in S of w(v) + c(v) + mu / f b(v) - mu / f room(S).

An operator that others regions save is kept, or read by who saves it on another stage: then it is
sent, and m of its storages are held. So it counts as kept.

These inequalities, for all positions and some prices, with operators divided at will, are a linear
program; its dual values make one of them, whose least value over all assignments is the bound. It
needs no order of operators, so that it holds for all plans (Lagrangian duality).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solver.model.arrays import Floats, Ints
from solver.model.devices import Device
from solver.model.problem import PartitionProblem
from solver.model.recomputation import Recomputation
from solver.presolve.instance import Instance
from solver.stages.in_flight import in_flight

_PRICES = 24
_LARGEST = float(1 << 44)
"""Of capacities, so that their sums are integers of 64 bits."""


class MemoryPrices:
    """The linear program of a problem.

    Parameters
    ----------
    units : Instance
        Of a problem in which operators may run again.
    """

    def __init__(self, units: Instance) -> None:
        self._units, self._problem = units, units.problem
        self._prices = _prices(self._problem)
        self._flows: dict[str, Floats] = {}

    @staticmethod
    def applies(problem: PartitionProblem) -> bool:
        """Whether there is a bound."""
        is_limited = any(device.memory_bytes is not None for device in problem.devices)
        return problem.may_recompute and problem.chunks_per_device == 1 and is_limited

    def least_bottleneck_ns(self, devices: Sequence[Device]) -> int:
        """Return a lower bound on the bottleneck of plans with devices in this order.

        Parameters
        ----------
        devices : sequence of Device
            All that are used; the last of more, if they are alike.
        """
        costs = np.stack([self._costs(device) for device in devices])
        flying = [in_flight(self._problem, len(devices) - p) for p in range(len(devices))]
        rooms = [math.inf if d.memory_bytes is None else d.memory_bytes for d in devices]
        rows = []
        for position, (room, count) in enumerate(zip(rooms, flying, strict=True)):
            for number, price in enumerate(self._prices.tolist()):
                if price == 0 or room < math.inf:
                    once = price / count
                    weights = self._units.first_weights * once
                    paid = 0.0 if price == 0 else once * room
                    rows.append(_Row(position, costs[position, number] + weights, paid))
        return _bound(rows, len(devices))

    def _costs(self, device: Device) -> Floats:
        """Return what units cost on a device, by price and unit, but for weights."""
        name = device.device_class
        if name not in self._flows:
            flows = _flows(self._problem, name, self._prices)
            work_ns = self._units.work_ns[name]
            by_unit = [self._by_unit(flow) + work_ns for flow in flows]
            self._flows[name] = np.array(by_unit)
        return self._flows[name]

    def _by_unit(self, values: Floats) -> Floats:
        unit_of = np.array(self._units.unit_of_operator)
        sums = np.bincount(unit_of, weights=values, minlength=len(self._units))
        return sums.astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """An inequality: the load of a position is at least the cost of its units less what is paid."""

    position: int
    costs: Floats
    paid: float


def _prices(problem: PartitionProblem) -> Floats:
    """Return prices from nothing to more than any operator takes for what it keeps."""
    ratios = [
        op.latency_on(device_class) / op.backward.saved_bytes
        for op in problem.operators
        for device_class in {device.device_class for device in problem.devices}
        if op.backward.saved_bytes and op.latency_on(device_class)
    ]
    if not ratios:
        return np.zeros(1)
    return np.append(0.0, np.geomspace(min(ratios) / 2, max(ratios) * 4, _PRICES))


def _flows(problem: PartitionProblem, device_class: str, prices: Floats) -> list[Floats]:
    """Return by price the flow that starts at every operator, no more than it is."""
    from ortools.graph.python import max_flow

    network = _Network(problem, device_class)
    found: list[Floats] = []
    for price in prices.tolist():
        costs = network.times + network.bytes * price
        scale = min(1.0, _LARGEST / max(float(costs.max(initial=0.0)) * len(costs), 1.0))
        # Whole parts of a nanosecond, as fine as they can be.
        scale *= 1 if scale < 1 else min(1024.0, _LARGEST / max(float(costs.sum()), 1.0))
        capacity: Ints = np.floor(costs * scale).astype(np.int64)
        capacity[network.free] = 1 << 58
        solver = max_flow.SimpleMaxFlow()
        arcs = solver.add_arcs_with_capacity(network.tails, network.heads, capacity)
        solver.solve(0, 1)
        flows = np.asarray(solver.flows(arcs[network.first :]), dtype=np.float64)
        starts = network.kept_bytes * price
        starts[network.sources] += flows / scale
        found.append(starts)
    return found


class _Network:
    """The network of the module's docstring; node 0 is where paths start, 1 where they end.

    Attributes
    ----------
    tails, heads : array of int32
        Of arcs; the last ones, from `first` on, start at 0 and lead to `sources`.
    times, bytes : array of float
        Of arcs.
    free : array of bool
        Arcs without a limit.
    kept_bytes : array of float
        By operator, what is kept whatever runs again.
    """

    def __init__(self, problem: PartitionProblem, device_class: str) -> None:
        structure = Recomputation(problem, {}, ())
        forward, _ = problem.arrays.pass_latency_ns(device_class)
        operators, index_of = problem.operators, problem.index_of
        roots = [index_of.get(problem.root_of[op.name], -1) for op in operators]
        may = [root >= 0 and operators[root].backward.recomputable for root in roots]
        self.kept_bytes: Floats = np.zeros(len(operators))
        arcs: list[tuple[int, int, float, float, bool]] = []
        starting: list[tuple[int, float]] = []
        count = len(operators)
        for index, op in enumerate(operators):
            backward, node, value = op.backward, 2 + index, 2 + count + index
            # What lives in a storage is there with it; a value that is received counts by itself.
            if roots[index] == index:
                released_bytes = op.storage_bytes - backward.kept_bytes
                size = float(min(op.value_bytes, released_bytes))
                arcs.append((value, node if may[index] else 1, 0.0, size, False))
            elif op.alias_of is not None and op.alias_of in index_of:
                parent = 2 + count + index_of[op.alias_of]
                arcs.append((value, parent, 0.0, float(op.value_bytes), False))
            if not may[index]:
                self.kept_bytes[index] = backward.saved_bytes
                continue
            if roots[index] != index:
                continue
            arcs.append((node, 1, float(forward[index]), float(backward.rng_bytes), False))
            others = structure.savers(index)
            if any(operators[i].backward.region != backward.region for i in others):
                self.kept_bytes[index] = min(backward.saved_bytes, op.storage_bytes)
                continue
            starting.append((index, float(backward.saved_bytes)))
            family = [operators[i] for i in structure.family(index) if operators[i].in_place]
            for read in {read for own in (op, *family) for read in own.reads}:
                if read in index_of and roots[index_of[read]] != index:
                    arcs.append((node, 2 + count + index_of[read], 0.0, 0.0, True))
        self.first = len(arcs)
        arcs += [(0, 2 + index, 0.0, size, False) for index, size in starting]
        self.sources = [index for index, _ in starting]
        columns = list(zip(*arcs, strict=True)) if arcs else [()] * 5
        self.tails: npt.NDArray[np.int32] = np.array(columns[0], dtype=np.int32)
        self.heads: npt.NDArray[np.int32] = np.array(columns[1], dtype=np.int32)
        self.times: Floats = np.array(columns[2], dtype=np.float64)
        self.bytes: Floats = np.array(columns[3], dtype=np.float64)
        self.free = np.array(columns[4], dtype=np.bool_)


def _bound(rows: Sequence[_Row], positions: int) -> int:
    """Return the largest bound that dual values of the linear program prove."""
    count = len(rows[0].costs)
    costs = np.array([row.costs for row in rows])
    # Alike units are one variable for each position.
    kinds, alike = np.unique(costs, axis=1, return_inverse=True)
    sizes = np.bincount(alike.reshape(-1), minlength=kinds.shape[1]).astype(np.float64)
    assert sizes.sum() == count
    scale = max(float(kinds.max()), 1.0)
    duals = _duals(rows, kinds / scale, sizes, positions, scale)
    if not duals.sum() > 0:
        return 0
    duals = duals / math.fsum(duals.tolist())
    by_position = np.zeros((positions, kinds.shape[1]))
    for row, own, dual in zip(rows, kinds, duals.tolist(), strict=True):
        by_position[row.position] += dual * own
    paid = [dual * row.paid for row, dual in zip(rows, duals.tolist(), strict=True)]
    gained = (by_position.min(axis=0) * sizes).tolist()
    # Each sum of k terms is wrong by at most k roundings of what they come to.
    terms = len(rows) + count + 4
    error = terms * 2 * sys.float_info.epsilon * (math.fsum(gained) + math.fsum(paid))
    return max(0, math.ceil(math.fsum(gained) - math.fsum(paid) - error - 1e-6))


def _duals(
    rows: Sequence[_Row], kinds: Floats, sizes: Floats, positions: int, scale: float
) -> Floats:
    """Return the dual values of the inequalities, as far as they are found."""
    from ortools.linear_solver import pywraplp

    solver = pywraplp.Solver.CreateSolver("GLOP")
    infinity = solver.infinity()
    bottleneck = solver.NumVar(0.0, infinity, "")
    shares = [[solver.NumVar(0.0, infinity, "") for _ in sizes] for _ in range(positions)]
    for kind, size in enumerate(sizes.tolist()):
        whole = solver.RowConstraint(size, size, "")
        for own in shares:
            whole.SetCoefficient(own[kind], 1.0)
    constraints = []
    for row, costs in zip(rows, kinds.tolist(), strict=True):
        constraint = solver.RowConstraint(-row.paid / scale, infinity, "")
        constraint.SetCoefficient(bottleneck, 1.0)
        for variable, cost in zip(shares[row.position], costs, strict=True):
            constraint.SetCoefficient(variable, -cost)
        constraints.append(constraint)
    solver.Minimize(bottleneck)
    if solver.Solve() != pywraplp.Solver.OPTIMAL:
        return np.zeros(len(rows))
    values = np.array([constraint.dual_value() for constraint in constraints])
    result: Floats = np.maximum(np.nan_to_num(values), 0.0)
    return result
