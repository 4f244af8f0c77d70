"""Least costs of stages with recomputation, operator by operator, for a price of memory.

Let mu be the price of a byte that a stage S keeps of each microbatch, f of which are in flight, so
that a byte held once costs mu / f. The time that S adds by recomputation, and the bytes it keeps
at that price, cost at least a minimum cut of S alone. In a maximum flow of the whole graph every
path starts at an operator v that keeps something, goes from readers to the values they read, and
ends at a recomputed operator or at an anchor. Let c(v) be the flow that starts at v. The paths of S
that stay in S are a flow of its own network. A path that leaves S does so through a value that S
receives; no more flow goes through it than mu times its bytes, and S holds m >= f of these, which
cost at least as much. So, with the work w and the weights b of operators,

    load(S) >= sum over v in S of w(v) + c(v) + mu / f b(v) - mu / f memory(S).

If time counts for nothing and a byte for one, all of this holds with 0 in the place of the load and
of w. That is an infinite price: S cannot fit if the right side is above 0.

An operator that others regions save is kept, or read by its saver on another stage: then it is
sent, and m of its storages are held. So it counts as kept.

Only operators of one region pay for a storage, so that flows of regions have no arc in common: some
regions may have costs for one price, and others for another.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from solver.model.arrays import Floats, Ints
from solver.model.problem import PartitionProblem
from solver.presolve.instance import Instance
from solver.presolve.minimum_cut import UNCUT, PricedNetwork

_MOST_PRICES = 24
_FLAT = 1e-6
"""Choices whose costs differ by no more than this part of them are equal."""
_LARGEST = float(1 << 44)
"""Of capacities, so that their sums are integers of 64 bits."""


@dataclass(frozen=True, slots=True)
class MemoryPrices:
    """Costs of units on a device class at some prices, without weights.

    Between two prices the same mixture of two flows is a flow, so that costs may be interpolated.

    `prices` are nanoseconds for a byte of each microbatch, ascending, from 0 to infinity. Costs are
    in nanoseconds, but bytes of each microbatch at the infinite price.

    By price and unit, `costs` are the work, and the flows that start at operators. `sent` is the
    additional cost of a unit whose value is sent, at this price and all higher finite ones: if it
    is kept it costs all its saved bytes, and else the storages of all microbatches are held.
    """

    prices: Floats
    costs: Floats
    sent: Floats

    @classmethod
    def of(cls, units: Instance, device_class: str) -> MemoryPrices:
        """Return the costs at the prices that improve the bound most."""
        flows = GraphFlows(units.problem, device_class)
        prices = np.array([0.0, *_breakpoints(flows), math.inf])
        unit_of = np.array(units.unit_of_operator)

        def by_unit(amounts: Callable[[float], Floats]) -> Floats:
            rows = [np.bincount(unit_of, amounts(at), len(units)) for at in prices.tolist()]
            return np.array(rows, dtype=np.float64)

        costs = by_unit(flows.starting)
        costs[:-1] += units.work_ns[device_class]
        sent = by_unit(flows.slack) * (np.bincount(unit_of) == 1)
        sent[:-1] = np.minimum.accumulate(sent[-2::-1])[::-1]
        return cls(prices, costs, sent)

    def byte_cost(self, number: int) -> float:
        """Return the cost of a byte of each microbatch at a price."""
        return _worth(float(self.prices[number]))[0]

    def mixture(self, number: int, part: float) -> list[tuple[int, float]]:
        """Return prices with their shares, which together are a part below 1 of a price."""
        price = float(self.prices[number])
        if math.isinf(price):
            # A part of a flow is a flow as well, with no work.
            return [(number, part)]
        lower = int(np.searchsorted(self.prices, price * part, side="right")) - 1
        low, high = self.prices[lower : lower + 2].tolist()
        share = (price * part - low) / (high - low)
        return [(lower, 1 - share), (lower + 1, share)]


def _worth(price: float) -> tuple[float, float]:
    """Return the costs of a byte and of a nanosecond at a price."""
    return (1.0, 0.0) if math.isinf(price) else (price, 1.0)


def _breakpoints(flows: GraphFlows) -> list[float]:
    """Return prices at which the cheapest choice changes: all, or those with the largest change.

    Source: Eisner and Severance, "Mathematical techniques for efficient record segmentation in
    large shared databases", J. ACM 23, 1976.
    """
    first, last = flows.choice(0.0), flows.choice(flows.largest_price)
    # The largest error between two known choices comes first.
    gaps: list[tuple[float, float, tuple[float, float], tuple[float, float]]] = []
    found: list[float] = []

    def look(before: tuple[float, float], after: tuple[float, float]) -> None:
        if before[1] > after[1]:
            price = (after[0] - before[0]) / (before[1] - after[1])
            value = before[0] + price * before[1]
            middle = flows.choice(price)
            error = value - (middle[0] + price * middle[1])
            if error <= _FLAT * value:
                found.append(price)
            else:
                heapq.heappush(gaps, (-error, price, before, after))
                between[price] = middle

    between: dict[float, tuple[float, float]] = {}
    look(first, last)
    while gaps and len(found) + len(gaps) < _MOST_PRICES:
        _, price, before, after = heapq.heappop(gaps)
        look(before, between[price])
        look(between[price], after)
    return sorted({*found, *(price for _, price, _, _ in gaps)} - {0.0})


class GraphFlows:
    """The flows of the module's docstring; node 0 is the source, 1 the sink.

    By operator, `kept_bytes` are those kept whatever is recomputed. Paths start at `sources`.
    """

    def __init__(self, problem: PartitionProblem, device_class: str) -> None:
        self._problem = problem
        self._flows: dict[float, tuple[Floats, tuple[float, float]]] = {}
        self.regions = [op.backward.region for op in problem.operators]
        structure = problem.storage_graph
        forward, _ = problem.arrays.pass_latency_ns(device_class)
        self._forward_ns = forward
        operators, index_of = problem.operators, problem.index_of
        roots = [index_of.get(problem.root_of[op.name], -1) for op in operators]
        may = [root >= 0 and operators[root].backward.recomputable for root in roots]
        self.kept_bytes: Floats = np.zeros(len(operators))
        arcs: list[tuple[int, int, int, int]] = []
        starting: list[tuple[int, int]] = []
        count = len(operators)

        for index, op in enumerate(operators):
            backward, node, value = op.backward, 2 + index, 2 + count + index
            region = backward.region
            # Values in a storage are held with it; a received value counts by itself.
            if roots[index] == index:
                released_bytes = op.storage_bytes - backward.kept_bytes
                size = min(op.value_bytes, released_bytes)
                # Operators recomputed in a later region need it as an anchor.
                head = node if may[index] and self._paying[index] == region else 1
                arcs.append((value, head, 0, size))
            elif op.alias_of is not None and op.alias_of in index_of:
                parent = 2 + count + index_of[op.alias_of]
                arcs.append((value, parent, 0, op.value_bytes))
            if not may[index]:
                self.kept_bytes[index] = backward.saved_bytes
                continue
            if roots[index] != index:
                continue
            arcs.append((node, 1, int(forward[index]), backward.again_bytes))
            others = structure.savers[index]
            if any(operators[i].backward.region != region for i in others):
                self.kept_bytes[index] = min(backward.saved_bytes, op.storage_bytes)
                continue
            starting.append((index, backward.saved_bytes))
            family = [operators[i] for i in structure.families[index] if operators[i].in_place]
            for read in dict.fromkeys(read for own in (op, *family) for read in own.reads):
                root = roots[index_of[read]] if read in index_of else -1
                if root not in (-1, index) and self._paying[root] == region:
                    arcs.append((node, 2 + count + index_of[read], UNCUT, 0))
        self.sources = [index for index, _ in starting]
        self._first = len(arcs)
        arcs += [(0, 2 + index, 0, saved_bytes) for index, saved_bytes in starting]
        self._network = PricedNetwork(arcs)
        self._saved_bytes: Ints = np.array([saved_bytes for _, saved_bytes in starting], np.int64)

    @cached_property
    def _paying(self) -> list[int]:
        """By operator, the one region whose paths may go through its storage.

        So flows of different regions have no arc in common, and may be for different prices.
        """
        readers = self._problem.storage_graph.readers
        return [
            min((self.regions[reader] for reader in readers[root]), default=own)
            for root, own in enumerate(self.regions)
        ]

    @property
    def largest_price(self) -> float:
        """A price at which hardly any recomputable operator is kept."""
        own_ns, some = self._forward_ns[self.sources], self._saved_bytes > 0
        return 4 * float((own_ns[some] / self._saved_bytes[some]).max(initial=0.0))

    def starting(self, price: float) -> Floats:
        """Return the flow that starts at every operator, a lower bound of its cost."""
        return self._solved(price)[0]

    def slack(self, price: float) -> Floats:
        """Return the additional costs of operators whose values are sent, by operator.

        A cut costs more than a flow by the residual capacity of its arcs.
        """
        operators, batches = self._problem.operators, self._problem.microbatches
        kept_bytes = np.array([op.backward.kept_bytes for op in operators], dtype=np.float64)
        found = np.zeros(len(operators))
        own, (byte, _) = self.sources, _worth(price)
        left = self._saved_bytes * byte - self.starting(price)[own]
        found[own] = np.minimum(left, kept_bytes[own] * byte * (batches - 1) / batches)
        return np.maximum(found, 0.0)

    def choice(self, price: float) -> tuple[float, float]:
        """Return time and bytes of a minimum cut."""
        return self._solved(price)[1]

    def _solved(self, price: float) -> tuple[Floats, tuple[float, float]]:
        if price in self._flows:
            return self._flows[price]
        costs = self._network.costs(*_worth(price))
        scale = _scale(costs)
        cut = self._network.cut(costs * scale)
        starts = self.kept_bytes * _worth(price)[0]
        starts[self.sources] += cut.flows[self._first :] / scale
        self._flows[price] = starts, self._network.measured(cut.is_before)
        return self._flows[price]


def _scale(costs: Floats) -> float:
    """Return the largest safe number of capacity units per nanosecond."""
    scale = min(1.0, _LARGEST / max(float(costs.max(initial=0.0)) * len(costs), 1.0))
    return scale * (1 if scale < 1 else min(1024.0, _LARGEST / max(float(costs.sum()), 1.0)))
