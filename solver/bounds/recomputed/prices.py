"""What stages cost at least where operators may run again, operator by operator, by a price.

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

Only operators of one region pay for a storage, so that flows of regions have no arc in common: some
regions may have costs for one price, and others for another.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from solver.model.arrays import Floats, Ints
from solver.model.holdings import StorageGraph
from solver.model.problem import PartitionProblem
from solver.presolve.instance import Instance

_PRICES = 12
_LARGEST = float(1 << 44)
"""Of capacities, so that their sums are integers of 64 bits."""


class MemoryPrices:
    """Costs of units by price.

    Parameters
    ----------
    units : Instance
        Of a problem in which operators may run again.

    Attributes
    ----------
    prices : array of float
        Nanoseconds for a byte of each microbatch; ascending, from 0.
    """

    def __init__(self, units: Instance) -> None:
        self._units, self._problem = units, units.problem
        self.prices = _prices(self._problem)
        self._flows: dict[str, Floats] = {}

    def costs(self, name: str) -> Floats:
        """Return what units of a class of devices cost, by price and unit, but for weights."""
        if name not in self._flows:
            flows = _flows(self._problem, name, self.prices)
            work_ns = self._units.work_ns[name]
            by_unit = [self._by_unit(flow) + work_ns for flow in flows]
            self._flows[name] = np.array(by_unit)
        return self._flows[name]

    def _by_unit(self, values: Floats) -> Floats:
        unit_of = np.array(self._units.unit_of_operator)
        sums = np.bincount(unit_of, weights=values, minlength=len(self._units))
        return sums.astype(np.float64)


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
        self._regions = [op.backward.region for op in problem.operators]
        structure = problem.storage_graph
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
            others = structure.savers[index]
            if any(operators[i].backward.region != backward.region for i in others):
                self.kept_bytes[index] = min(backward.saved_bytes, op.storage_bytes)
                continue
            starting.append((index, float(backward.saved_bytes)))
            family = [operators[i] for i in structure.families[index] if operators[i].in_place]
            for read in {read for own in (op, *family) for read in own.reads}:
                root = roots[index_of[read]] if read in index_of else -1
                if root not in (-1, index) and self._pays(structure, root) == backward.region:
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

    def _pays(self, structure: StorageGraph, root: int) -> int:
        """Return the one region whose paths may go through a storage.

        So flows of different regions have no arc in common, and may be for different prices.
        """
        return min(self._regions[reader] for reader in structure.readers[root])
