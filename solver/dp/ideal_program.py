"""Exact dynamic program over ideals, for graphs that have few.

Source: Tarnawski, Phanishayee, Devanur, Mahajan, Nina Paravecino, "Efficient Algorithms for
Device Placement of DNN Graph Operators", NeurIPS 2020, sections 4 and 5.

**Why it is exact.** The stages of a feasible plan are in an order in which no forward edge
leads back. So the units of the first i stages, for every i, are an ideal I_i: they contain all
predecessors of their members. Conversely a chain of ideals {} = I_0 < ... < I_m = all units,
with distinct devices for its steps, is a feasible plan as far as order goes. The cost of a stage
is a function of its units S = I_{i+1} - I_i, its device, and the number of stages after it:

* *Compute, pins, weights, saved storages, memory*: of S and the device alone
  (:func:`solver.evaluation.evaluate.stage_memory_bytes`); under 1F1B also of the number of later
  stages, which is known because the program builds suffixes of a plan.
* *Receives*, and bytes transferred: a device receives every value that S reads and others
  produce, once. *Sends* under host-staged charging: every value that S produces and others read,
  once. Edges of a backward pass fit: they lead anywhere, but only S counts.
* *Sends* under peer-to-peer charging: one for each *device* that reads. With one reading unit
  outside the producer that is one or none, again a function of S. With more it depends on the
  division of the readers, which is not a function of S or of the ideals before or after it: two
  plans with the same S may differ in it. The program then counts one send, or the least number
  in any plan below the ceiling (:mod:`solver.dp.readers`). Neither counts too many, so the
  optimum is a lower bound; it claims optimality only if a plan turns out to cost no more.
* *Relayed* values: a stage receives the values made in I and read outside I, or made in I and
  returned by the graph; it sends the same of J, and the last stage sends nothing. These are
  functions of I and of J.

So ``best[s, I]``, the best value of running all outside I on exactly the devices s, is the best
over J and over the device taken from s of the cost of J - I joined with ``best[s', J]``: added
(``transfer``, ``devices``) or the larger of both (``bottleneck``, ``peak_memory``). Both are
monotone in the rest, and so is the pair (sum, largest) in lexicographic order: a rest with a
smaller sum is better, and with equal sums a smaller largest is no worse. The largest *before* a sum
is not (two rests may tie under the maximum of the stages before), so a tuple is solved in sweeps:
each ``bottleneck`` or ``peak_memory`` becomes a limit on every stage of the later sweeps.

If each unit reads from the one before, so does each stage, and ``latency`` is the sum of all
loads. There a value that several devices read is charged twice to each of them, and no send is
unknown. For other graphs ``latency`` is not a sum or maximum over stages, which run in parallel;
and links between pairs of devices make a cost depend on two devices, where the program
distinguishes kinds of devices only. Both are declined.

**Several chunks** take one program for each choice of the units run by each round through the
devices (:mod:`solver.dp.interleaved`, with the proof). This covers only ``bottleneck`` with the
memory model ``weights``; everything else is declined.

**Speed.** Units that some best plan keeps together are merged first
(:mod:`solver.presolve.dominance`, :func:`solver.stages.blocks.collapse_units`), which removes
most ideals of some graphs: every dangling output doubles their number. Costs of all pairs of ideals
in a block are one matrix product (:mod:`solver.stages.pair_sums`). The stages below a ceiling on
the load are few, and the same for all sets of devices: for the bottleneck they are listed once, and
each set is a bit (:mod:`solver.dp.stage_list`, :mod:`solver.dp.bottleneck`). For the peak memory of
weights, each set keeps its farthest ideals (:mod:`solver.dp.least_peak`). Other objectives take a
sweep for each set (:mod:`solver.dp.sweep`), in which limits leave few ideals where it can end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from solver.dp.contiguous.solver import contiguous_plan
from solver.dp.interleaved import MOST_IDEALS as _MOST_INTERLEAVED
from solver.dp.interleaved import InterleavedSearch
from solver.dp.kernels.stage_chains import Stage
from solver.dp.objectives import Minimiser
from solver.dp.sweep import GaveUp, Solution
from solver.evaluation.evaluate import Evaluation, evaluate
from solver.model.clock import UNLIMITED, Clock
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import ObjectiveName
from solver.presolve.device_kinds import DeviceKind, DeviceSets, interchangeable_kinds
from solver.presolve.dominance import simplify
from solver.presolve.instance import Instance, condense
from solver.presolve.transfers import Transfers
from solver.stages.blocks import Blocks, collapse_units
from solver.stages.costs import StageCosts
from solver.stages.ideals import Ideals, list_ideals

MOST_IDEALS = 40_000
MOST_SETS = 1_024
_MOST_PAIRS = 3_000_000_000
_CHAIN_LIMIT_S = 5.0
_FEW_IDEALS = 2_000

_INTERLEAVED = {2: (60, 250), 3: (20, 30)}
"""By chunks, the most ideals that count as few: with any transfers, and with cheap ones."""
_CHEAP_TRANSFERS = 0.5
"""Ratio of all transfer times to all work up to which transfers are cheap."""
_MOST_ENTRIES = 16_000_000
"""Most ideals times blocks; the costs take some twenty bytes for each."""


Improve = Callable[[Instance, Sequence[PartitionPlan], Clock], PartitionPlan | None]
"""Improves some plans of units; None if it finds no better one."""


@dataclass(frozen=True, slots=True)
class IdealAnswer:
    """Plan and bound of the program.

    The plan is feasible. If it is proven to be optimal, `optimum` has the values of all objectives;
    if neither that nor a refutation is known, `bound` is a lower bound of the first objective. With
    `is_refuted` it is proven that no plan fits. `reason` says why there is no plan.
    """

    plan: PartitionPlan | None = None
    optimum: tuple[int, ...] | None = None
    bound: int | None = None
    is_refuted: bool = False
    reason: str = ""

    @property
    def is_settled(self) -> bool:
        """True if nothing better can be said."""
        return self.optimum is not None or self.is_refuted


def solve_ideals(
    problem: PartitionProblem, clock: Clock = UNLIMITED, improve: Improve | None = None
) -> IdealAnswer:
    """Solve `problem` exactly if its graph has few ideals, or decline.

    Limits of work end the program even without a clock. `improve`, a heuristic for a better plan,
    is called where that saves more time than it takes.
    """
    try:
        return _solve(problem, clock, improve)
    except GaveUp as stopped:
        return IdealAnswer(reason=str(stopped))


def can_win(problem: PartitionProblem) -> bool:
    """Return True if :func:`solve_ideals` will likely prove the optimum in about a second.

    Takes milliseconds: it lists ideals and stops as soon as there are too many. Few ideals always
    suffice. With more, the ceiling on the load has to leave few ideals where a set of devices can
    end, which it does if the optimum is near the mean load: if transfers are cheap. With several
    chunks on a device the proof may take some seconds.
    """
    if why_declined(problem) is not None:
        return False
    units = simplify(condense(problem)).units
    kinds = interchangeable_kinds(units)
    if math.prod(len(kind.devices) + 1 for kind in kinds) > MOST_SETS or not _is_summed(units):
        return False
    blocks = collapse_units(units, forget_weights=problem.memory_model == "weights")
    most = _FEW_IDEALS
    if problem.objective == ("peak_memory",) and problem.memory_grows:
        most = MOST_IDEALS
    elif problem.objective == ("bottleneck",):
        work_ns = int(units.fastest_ns.sum())
        moved_ns = sum(units.transfers.most_ns)
        most = MOST_IDEALS if moved_ns <= _CHEAP_TRANSFERS * work_ns else MOST_IDEALS // 2
        if problem.chunks_per_device > 1:
            few, many = _INTERLEAVED.get(problem.chunks_per_device, (0, 0))
            most = many if moved_ns <= _CHEAP_TRANSFERS * work_ns else few
    most = min(most, _MOST_ENTRIES // max(blocks.count, 1))
    return list_ideals(blocks.count, blocks.edges, most) is not None


def why_declined(
    problem: PartitionProblem,
    objective: tuple[ObjectiveName, ...] | None = None,
    *,
    with_links: bool = True,
) -> str | None:
    """Return the reason in words for which the program declines `problem`, or None.

    `objective` replaces that of the problem. `with_links` declines links that depend on pairs of
    devices, and relays between chunks.
    """
    objective = problem.objective if objective is None else objective
    if problem.is_hand_made:
        return "cuts and pinned stages constrain stages by more than their operators"
    if problem.has_choices:
        return "recomputation is chosen within stages"
    if "step" in objective:
        return "step is not a sum or maximum over stages"
    if problem.chunks_per_device > 1:
        if objective != ("bottleneck",):
            return "with several chunks on a device only the bottleneck alone is minimised"
        if problem.memory_model != "weights":
            return "with several chunks on a device only weights are counted as memory"
    return Transfers(problem).dependence if with_links else None


def _is_summed(units: Instance) -> bool:
    """Return True if each objective is a sum or maximum over stages."""
    return "latency" not in units.problem.objective or units.is_chain


def _solve(problem: PartitionProblem, clock: Clock, improve: Improve | None) -> IdealAnswer:
    declined = why_declined(problem)
    if declined is not None:
        raise GaveUp(declined)
    units = simplify(condense(problem)).units
    if units.pins_contradict:
        reason = "operators that must share a device are pinned apart"
        return IdealAnswer(is_refuted=True, reason=reason)
    if not _is_summed(units):
        raise GaveUp("latency is the sum of all loads only where units are a chain")
    kinds = interchangeable_kinds(units)
    sets = device_sets(problem, kinds)
    known = _Known(units, clock, improve)
    whole = collapse_units(units, forget_weights=False)
    if problem.memory_model != "weights":
        return _solve_blocks(units, kinds, sets, whole, known, clock)
    # Ignoring the weights of units without other costs leaves far fewer ideals, and seldom changes
    # the answer. If it does, solve again with them.
    blocks = collapse_units(units, forget_weights=True)
    relaxed = _solve_blocks(units, kinds, sets, blocks, known, clock)
    if not blocks.weightless or relaxed.is_settled:
        return relaxed
    answer = _solve_blocks(units, kinds, sets, whole, known, clock)
    if answer.is_settled or answer.plan is not None:
        return answer
    if relaxed.plan is not None:
        return relaxed
    bounds = [bound for bound in (relaxed.bound, answer.bound) if bound is not None]
    return replace(answer, bound=max(bounds, default=None))


def device_sets(problem: PartitionProblem, kinds: Sequence[DeviceKind]) -> DeviceSets:
    """Return the sets of devices that a plan may use; raise `GaveUp` if there are too many."""
    if math.prod(len(kind.devices) + 1 for kind in kinds) > MOST_SETS:
        raise GaveUp(f"there are more than {MOST_SETS:,} different sets of devices")
    return DeviceSets.of([len(kind.devices) for kind in kinds], problem.most_devices)


def _solve_blocks(
    units: Instance,
    kinds: Sequence[DeviceKind],
    sets: DeviceSets,
    blocks: Blocks,
    known: _Known,
    clock: Clock,
) -> IdealAnswer:
    """Solve the problem on blocks.

    No plan is known if it gives up, or if it ignores weights and its plan does not fit with them;
    none is proven to be optimal if it costs more than the relaxation.
    """
    problem = units.problem
    most = MOST_IDEALS if problem.chunks_per_device == 1 else _MOST_INTERLEAVED
    most = min(most, _MOST_ENTRIES // max(blocks.count, 1))
    ideals = list_ideals(blocks.count, blocks.edges, most)
    if ideals is None:
        return IdealAnswer(reason=f"the graph has more than {most:,} ideals")
    if problem.chunks_per_device > 1:
        search = InterleavedSearch(
            units, kinds, blocks, ideals, sets, known.bottleneck_ns, clock, _MOST_PAIRS
        )
        return _interleave(search, known)
    costs = StageCosts(units, kinds, blocks, ideals)
    minimiser = Minimiser(costs, sets, known.bottleneck_ns, clock, _MOST_PAIRS)
    try:
        found = minimiser.minimise()
    except GaveUp as stopped:
        return _stopped(minimiser, str(stopped))
    if found is None:
        return IdealAnswer(is_refuted=True, reason="proven: no plan fits")
    solution, values = found
    plan = _plan(costs, solution) if solution.stages or not known.plan else known.plan
    assert blocks.weightless or evaluate(problem, plan).feasible
    return _judge(problem, plan, known, values)


def _stopped(minimiser: Minimiser, reason: str) -> IdealAnswer:
    """Return the bound, and perhaps a plan, of a search that was stopped."""
    search = minimiser.search
    if search is None or minimiser.problem.objective[0] != "bottleneck":
        return IdealAnswer(reason=reason)
    bound = search.refuted + 1
    if search.best is not None:
        plan = _plan(minimiser.costs, search.best)
        if evaluate(minimiser.problem, plan).feasible:
            return IdealAnswer(plan, bound=bound)
    return IdealAnswer(bound=bound, reason=reason)


def _interleave(search: InterleavedSearch, known: _Known) -> IdealAnswer:
    problem = search.units.problem
    try:
        found = search.minimise()
    except GaveUp as stopped:
        bound = None if search.refuted < 0 else search.refuted + 1
        return IdealAnswer(bound=bound, reason=str(stopped))
    if found is None:
        return IdealAnswer(is_refuted=True, reason="proven: no plan fits")
    return _judge(problem, found.plan, known, (found.value,))


def _judge(
    problem: PartitionProblem, plan: PartitionPlan, known: _Known, values: tuple[int, ...]
) -> IdealAnswer:
    """Compare the new plan, and the one known before, with the optimum of the relaxation."""
    best: Evaluation | None = None
    for candidate in [plan] if known.plan is None else [plan, known.plan]:
        evaluation = evaluate(problem, candidate)
        if not evaluation.feasible:
            continue
        if evaluation.objective == values:
            return IdealAnswer(candidate, values)
        assert values < evaluation.objective, (values, evaluation.objective)
        if best is None or evaluation.objective < best.objective:
            best, plan = evaluation, candidate
    if best is None:
        reason = "; ".join(evaluate(problem, plan).violations)
        return IdealAnswer(bound=values[0], reason=reason)
    return IdealAnswer(plan, bound=values[0])


class _Known:
    """The best plan of the heuristics, which run when first asked."""

    def __init__(self, units: Instance, clock: Clock, improve: Improve | None) -> None:
        self._units, self._clock, self._improve = units, clock, improve
        self._tried: set[bool] = set()
        self.plan: PartitionPlan | None = None
        self._bottleneck_ns: int | None = None

    def bottleneck_ns(self, *, thorough: bool = False) -> int | None:
        """Return the bottleneck of the plan, an upper bound for any relaxation."""
        if thorough not in self._tried:
            self._tried.add(thorough)
            plan = self._found(thorough)
            evaluation = None if plan is None else evaluate(self._units.problem, plan)
            if evaluation is not None and evaluation.feasible:
                value = evaluation.bottleneck_ns
                if self._bottleneck_ns is None or value < self._bottleneck_ns:
                    self.plan, self._bottleneck_ns = plan, value
        return self._bottleneck_ns

    def _found(self, thorough: bool) -> PartitionPlan | None:
        if not thorough:
            return contiguous_plan(self._units.problem, self._clock.slice(_CHAIN_LIMIT_S))
        if self._improve is None:
            return None
        starts = [] if self.plan is None else [self.plan]
        return self._improve(self._units, starts, self._clock.slice(self._clock.left_s / 2))


def _plan(costs: StageCosts, solution: Solution) -> PartitionPlan:
    return plan_of(costs.units, costs.kinds, costs.blocks, costs.ideals, solution.stages)


def plan_of(
    units: Instance,
    kinds: Sequence[DeviceKind],
    blocks: Blocks,
    ideals: Ideals,
    chain: Sequence[Stage],
) -> PartitionPlan:
    """Return the plan of a chain of stages between ideals."""
    free = [list(kind.names) for kind in kinds]
    order = [free[stage.kind].pop(0) for stage in chain]
    stage_of_block = [0] * blocks.count
    for position, stage in enumerate(chain):
        for block in ideals.between(stage.start, stage.end).nonzero()[0].tolist():
            stage_of_block[block] = position
    stages = blocks.stage_of_units(stage_of_block)
    return PartitionPlan(units.lift([order[stage] for stage in stages]), tuple(order))
