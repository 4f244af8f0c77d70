"""The CP-SAT model of a partitioning problem.

Notation: units u (operators that must share a device), positions p = 0 … P-1, device classes
k (interchangeable devices). Stages fill positions from the right: the last position is always
used, so that a stage's distance to the last stage, which counts the microbatches in flight of
1F1B, is a constant of its position.

==========================  =====================================================  ===============
variable                    meaning                                                added by
==========================  =====================================================  ===============
y[u,p]                      u is on position p or later;                           stage variables
                            x[u,p] = y[u,p] - y[u,p+1]: u is on p
behind[b,p]                 all of block b is on position p or later               cuts
occupied[p]                 some unit is on p                                      pinned stages
used[p]                     position p has a device                                devices
q[p,k]                      position p has a device of class k                     devices
received[n,p]               net n is read on p and produced elsewhere              transfers
pair[n,p,r]                 net n is transferred from p to r                       transfers
hop[n,b]                    n is made before position b and needed there or later  transfers
crosses[u,C,p]              u is on p and some unit of C is not                    transfers
held[U,p]                   some unit of U is on p                                 memory
load[p], start[p]           time of the stage on p, and its start                  loads, latency
start[j]                    start of a job j of a pipeline's step                  step
again[u,p], anchor[u,p]     u is recomputed on p; is kept for operators that are   recomputation
==========================  =====================================================  ===============

==========================  =====================================================  ===============
constraint                  formula                                                added by
==========================  =====================================================  ===============
monotone                    y[u,p+1] <= y[u,p];  y[u,p] <= y[v,p] on edge (u,v)    stage variables
cuts                        y[u,p] <= behind[b,p+1] for u in block b - 1;          cuts
                            behind[b,p] <= y[v,p] for v in block b
pinned to stage k           x[u,p] => sum over q < p of occupied[q] = k            pinned stages
right-aligned               used[p] <= used[p+1];  1 - used[p] <= y[u,p+1]         devices
device choice               sum_k q[p,k] = used[p]; sum_p q[p,k] <= devices of k   devices
pins                        x[u,p] <= sum of q[p,k] over the allowed k             devices
receive                     received[n,p] >= x[c,p] - x[producer,p]                transfers
send                        sum_p pair[n,p,r] >= received[n,r];                    transfers
                            pair[n,p,r] <= x[producer,p]
relay, instead of these     hop[n,b] >= y[c,b] - y[producer,b]; for outputs of     transfers
                            the graph hop[n,b] = 1 - y[producer,b]
memory, at every t          weights[p] + received[p]                               memory
                            + (in_flight(p) - 1) * saved[p]
                            + sum of x[u,p] over storages with first <= t <= last
                            + sum of crosses (x if an output) with last < t
                            <= sum_k capacity[k] q[p,k]
load                        load[p] >= compute + send + receive of class k         loads
                            if q[p,k]
latency                     start[r] >= start[p] + load[p] if an edge runs p to r  latency
step                        start[j] >= start[i] + time[i] if j comes after i      step
recomputation               rows of :mod:`solver.cp.recompute_choice` and          recomputation
                            :mod:`solver.cp.recompute_rows`
==========================  =====================================================  ===============

The memory rows are exact although they ignore whether an operator runs on p at t; the proof is in
``docs/definition.md``, section 3. The model has no costs of its own: its objective values equal
those of :mod:`solver.evaluation.evaluate`, which :mod:`solver.search.branch_models` asserts.
"""

from __future__ import annotations

from collections.abc import Callable

from solver.cp.crossings import Crossings
from solver.cp.cut_rows import add_cuts, add_pinned_stages
from solver.cp.latency_rows import LatencyRows
from solver.cp.linear import LinearSum
from solver.cp.load_rows import LoadRows
from solver.cp.memory_rows import MemoryRows
from solver.cp.position_times import PositionTimes
from solver.cp.recompute_choice import RecomputeChoice
from solver.cp.stage_model import StageModel
from solver.cp.step_rows import StepRows
from solver.model.problem_fields import ObjectiveName


class CpSatFormulation:
    """Variables, constraints and objective expressions of one problem.

    They are added to `stages`, whose windows must leave at least one optimal plan; of the devices
    in a round, at most one per device and per unit is of use. `largest_load_ns` is an upper bound
    on the bottleneck of the plans of interest. When the clock of the stages is over,
    :class:`~solver.cp.hinted_model.OutOfTime` is raised, now or by :meth:`objective`.
    `step.is_exact` is False if the objective ``step`` is a lower bound.
    """

    def __init__(self, stages: StageModel, largest_load_ns: int | None = None) -> None:
        self.stages = stages
        add_cuts(self.stages)
        add_pinned_stages(self.stages)
        self._crossings = Crossings(self.stages)
        recomputed = RecomputeChoice(self.stages) if stages.problem.may_recompute else None
        self.stages.choices += [] if recomputed is None else [recomputed]
        self._memory = MemoryRows(self._crossings, recomputed)
        self._loads = LoadRows(self._crossings, largest_load_ns)
        self._times = PositionTimes(self._crossings, self._loads)
        self._latency = LatencyRows(self._crossings, self._loads, self._times)
        self.step = StepRows(self._latency, self._times)
        self._objectives: dict[str, LinearSum] = {}

    def objective(self, name: ObjectiveName) -> LinearSum:
        """Return the expression of one objective, after adding its variables and rows."""
        if name not in self._objectives:
            builders: dict[str, Callable[[], LinearSum]] = {
                "devices": lambda: self.stages.sum_of(self.stages.used),
                "transfer": self._transfer_bytes,
                "bottleneck": lambda: self._loads.bottleneck,
                "latency": lambda: self._latency.end,
                "peak_memory": lambda: self._memory.peak_permille,
                "step": lambda: self.step.end,
            }
            self._objectives[name] = builders[name]()
        return self._objectives[name]

    def _transfer_bytes(self) -> LinearSum:
        total, units = LinearSum(), self.stages.units
        # Hops between chunks of one device transfer nothing.
        borders = self.stages.positions[1:] if len(self.stages.slots) > 1 else ()
        for net in units.relays:
            for border in borders if net.value_bytes else ():
                total.add_sum(self._crossings.hops(net, border), net.value_bytes)
        for net in units.direct_nets:
            for place in self.stages.places if net.value_bytes else ():
                total.add(self._crossings.received(net, place), net.value_bytes)
        return total
