"""The CP-SAT model of a partitioning problem.

Notation: units u (operators that must share a device), positions p = 0 … P-1, device classes
k (interchangeable devices). Stages fill positions from the right: the last position is always
used, so that a stage's distance to the last stage, which counts the microbatches in flight of
1F1B, is a constant of its position.

==========================  =====================================================  ===============
variable                    meaning                                                added by
==========================  =====================================================  ===============
y[u,p]                      u is on position p or later;                           stage variables
                            x[u,p] = y[u,p] - y[u,p+1] says that it is on p
used[p]                     position p has a device                                devices
q[p,k]                      position p has a device of class k                     devices
received[n,p]               net n is read on p and produced elsewhere              transfers
pair[n,p,r]                 net n travels from p to r                              transfers
crosses[u,C,p]              u is on p and some unit of C is not                    transfers
held[U,p]                   some unit of U is on p                                 memory
load[p], start[p]           time of the stage on p, and when it starts             loads, latency
==========================  =====================================================  ===============

==========================  =====================================================  ===============
constraint                  formula                                                added by
==========================  =====================================================  ===============
monotone                    y[u,p+1] <= y[u,p];  y[u,p] <= y[v,p] on edge (u,v)    stage variables
right-aligned               used[p] <= used[p+1];  1 - used[p] <= y[u,p+1]         devices
device choice               sum_k q[p,k] = used[p];  sum_p q[p,k] <= |k|           devices
pins                        x[u,p] <= sum of q[p,k] over the allowed k             devices
receive                     received[n,p] >= x[c,p] - x[producer,p]                transfers
send                        sum_p pair[n,p,r] >= received[n,r];                    transfers
                            pair[n,p,r] <= x[producer,p]
memory, at every t          weights[p] + received[p] + in_flight(p) * saved[p]     memory
                            + sum of x[u,p] over storages with first <= t <= last
                            + sum of crosses (x if an output) with last < t
                            <= sum_k capacity[k] q[p,k]
load                        load[p] >= compute + send + receive of class k         loads
                            if q[p,k]
latency                     start[r] >= start[p] + load[p] if an edge runs p to r  latency
==========================  =====================================================  ===============

The memory rows are exact although they ignore whether an operator runs on p at t; the proof
is in ``docs/formulation.md``, section 3. The model has no costs of its own: its objective
values equal those of :mod:`solver.evaluate`, which :mod:`solver.cp_sat` asserts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from solver.bounds import StageWindows
from solver.linear import LinearSum, Literal
from solver.load_rows import LoadRows
from solver.memory_rows import MemoryRows
from solver.problem import ObjectiveName
from solver.reduce import UnitGraph
from solver.stage_model import StageChoice, StageModel


class CpSatFormulation:
    """Variables, constraints and objective expressions of one problem.

    Parameters
    ----------
    units : UnitGraph
    positions : int
        Number of stage positions P; at most one per device and per unit is of use.
    windows : StageWindows
        Must leave at least one optimal plan.
    largest_load_ns : int, optional
        An upper bound on the bottleneck of the plans of interest.
    order : sequence of int, optional
        The kind of device on each position; without it the order is part of the decision.

    Attributes
    ----------
    stages : StageModel
        Holds the CP-SAT model, turns plans into hints and solutions into plans.
    """

    def __init__(
        self,
        units: UnitGraph,
        positions: int,
        windows: StageWindows,
        *,
        largest_load_ns: int | None = None,
        order: Sequence[int] | None = None,
    ) -> None:
        self.stages = StageModel(units, positions, windows, order)
        self._memory = MemoryRows(self.stages)
        self._loads = LoadRows(self.stages, largest_load_ns)
        self._objectives: dict[str, LinearSum] = {}

    def objective(self, name: ObjectiveName) -> LinearSum:
        """Return the expression of one objective, adding what it needs to the model."""
        if name not in self._objectives:
            builders: dict[str, Callable[[], LinearSum]] = {
                "devices": lambda: self.stages.sum_of(self.stages.used),
                "transfer": self._transfer_bytes,
                "bottleneck": self._bottleneck_ns,
                "latency": self._end_ns,
                "peak_memory": lambda: self._memory.peak_permille,
            }
            self._objectives[name] = builders[name]()
        return self._objectives[name]

    def _transfer_bytes(self) -> LinearSum:
        total = LinearSum()
        for net in self.stages.units.nets:
            if net.value_bytes:
                for position in self.stages.positions:
                    total.add(self.stages.received(net, position), net.value_bytes)
        return total

    def _bottleneck_ns(self) -> LinearSum:
        return self.stages.largest_of(self._loads.loads)

    def _end_ns(self) -> LinearSum:
        """Add start[p] and return the end of the last stage: the longest path of loads."""
        loads = self._loads.loads
        horizon = sum(load.largest(self.stages.upper) for load in loads)
        arcs = {
            (source, target): self._arc(source, target)
            for target in self.stages.positions
            for source in self.stages.positions[:target]
        }
        values = self.stages.values
        finishes: list[LinearSum] = []
        for target in self.stages.positions:
            start = self.stages.model.new_int_var(0, horizon, "")
            self.stages.upper[start.index] = horizon
            before: list[tuple[Literal, LinearSum]] = []
            for source in self.stages.positions[:target]:
                arc = arcs[source, target]
                if arc is False:
                    continue
                before.append((arc, finishes[source]))
                constraint = self.stages.model.add(start >= finishes[source].expression)
                if arc is not True:
                    constraint.only_enforce_if(arc)

            def start_ns(_: StageChoice, before: list[tuple[Literal, LinearSum]] = before) -> int:
                return max(
                    (
                        finish.value(values)
                        for arc, finish in before
                        if (arc if isinstance(arc, bool) else values[arc.index])
                    ),
                    default=0,
                )

            self.stages.definitions.append((start, start_ns))
            finishes.append(LinearSum().add(start).add_sum(loads[target]))
        return self.stages.largest_of(finishes)

    def _arc(self, source: int, target: int) -> Literal:
        """Whether some forward edge runs from position `source` to position `target`."""
        edges = [
            (tail, head)
            for tail, head in self.stages.units.edges
            if self.stages.may_be_on(tail, source) and self.stages.may_be_on(head, target)
        ]
        if not edges:
            return False
        if any(
            self.stages.is_fixed_on(a, source) and self.stages.is_fixed_on(b, target)
            for a, b in edges
        ):
            return True
        literal = self.stages.new_bool(
            lambda s: any(s.on(a, source) and s.on(b, target) for a, b in edges)
        )
        for tail, head in edges:
            total = LinearSum(1).add(literal)
            self.stages.add_on(total, tail, source, -1)
            self.stages.add_on(total, head, target, -1)
            self.stages.model.add(total.expression >= 0)
        return literal
