"""The exact solver: runs the CP-SAT model and answers with a plan, a bound and a status."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from solver.border_rows import add_border_ideals
from solver.bounds import StageBounds, StageWindows
from solver.budget import Budget
from solver.chain import solve_chain
from solver.closure_lp import closure_bound_ns
from solver.cut_rows import narrowed
from solver.cuts import is_hand_made
from solver.direct import direct
from solver.dominance import simplify
from solver.evaluate import evaluate
from solver.formulation import CpSatFormulation
from solver.greedy import solve_greedy
from solver.hardware import Device
from solver.identical_blocks import identical_blocks
from solver.linear_bounds import PositionBound
from solver.local_search import first_incumbents
from solver.neighbourhoods import improve_by_neighbourhoods
from solver.plan import PartitionPlan
from solver.problem import ObjectiveName, PartitionProblem
from solver.reduce import condense, device_orders, interchangeable_kinds
from solver.relaxed_bounds import least_value
from solver.result import Progress, SolveLimits, SolveResult, SolveStatus
from solver.skeleton_bound import SkeletonBound
from solver.stage_model import StageModel

_NAME = "cp-sat"
_MOST_ORDERS = 120
"""Device orders to search one by one; beyond that, the order is part of one model."""
_FIRST_SLICE_S = 2.0
_SLICE_S_PER_UNIT = 0.001
"""Time of each branch in the first round of searches: presolve grows with the model."""
_SLICE_GROWTH = 4
_LOCAL_SEARCH_SHARE = 0.12
"""Of the time left, at most this much goes into the first incumbent."""
_NEIGHBOURHOODS_FROM = 300
"""Units from which exact sub-solves are worth more than the whole model at once."""
_IDEALS_SHARE = 0.25
"""Of the time left, at most this much goes into listing stages between ideals."""
_NEAR_PERMILLE = 10
"""An incumbent so near its bound is good enough to start with."""
_MODEL_S_PER_PLACE = 2.5e-4
"""Time that a model takes to be made, for each position that a unit may have."""
_WAY_PERMYRIAD = (5, 20, 80, 320)
"""How far above the bound on borders its own plans are looked for, until they keep to that."""
_PROGRAM_SHARE = 0.2
"""Of the time left, at most this much goes into the linear programs of a branch."""
_WITHOUT_HOST_SHARE = 0.4
"""Of the time left, at most this much goes into plans without a host."""
_TRIAL_STEP = 400
"""The first limit to try is above the bound by this part of it, the next by twice as much."""
_TRIAL_SHARE = 0.2
"""Of the time left, at most this much goes into one of them."""
_FEW_MOVES_PER_UNIT = 100
"""Moves of local search on smaller graphs, which the model often solves at once."""
_NEIGHBOURHOODS_S = 6.0
_NEIGHBOURHOODS = 40
"""Most seconds, or sub-solves of a deterministic run, that improve the first incumbent."""
_SUBSOLVERS = ("no_lp", "max_lp", "default_lp", "reduced_costs", "quick_restart_no_lp")
"""Complete searches of CP-SAT, the one that proves most of these models first."""
_TURNS = 3
"""Searches that take turns in a deterministic run."""
_RESTART_GAIN_PERMILLE = 10
"""A better incumbent by this much is worth new stage windows and a new presolve."""


def solve_cp_sat(
    problem: PartitionProblem, limits: SolveLimits, *, known: SolveResult | None = None
) -> SolveResult:
    """Solve `problem` exactly, or return the best plan and bound at the time limit.

    The best baseline (chain, greedy) is the first incumbent and a full hint; objectives are
    minimised one after the other, each with the earlier ones held at their values.

    Parameters
    ----------
    problem : PartitionProblem
    limits : SolveLimits
    known : SolveResult, optional
        Another solver's answer, whose plan and bounds are taken over.

    Returns
    -------
    SolveResult
        Never worse than the baselines. The plan and its objective are the evaluator's.
    """
    return _Search(problem, limits, known).run()


@dataclass(slots=True)
class _Branch:
    """One device order (or all of that many devices, None), with what is known of it.

    `bound` is a proven lower bound of the objective under way among the plans of this order
    that are better than the incumbent; a closed branch has none that is better. `relaxed` says
    that linear programs have been asked. A spent branch is open, but its model, which only
    bounds the objective, has nothing more to say.
    """

    order: tuple[int, ...] | None
    slots: int
    chunks: int
    bound: int
    closed: bool = False
    relaxed: bool = False
    spent: bool = False


class _Search:
    """One run of the exact solver."""

    def __init__(
        self, problem: PartitionProblem, limits: SolveLimits, known: SolveResult | None = None
    ) -> None:
        self.problem = problem
        self.limits = limits
        self.known = known
        self.budget = Budget(limits)
        self.incumbent: PartitionPlan | None = None
        self.incumbent_values: tuple[int, ...] | None = None
        self.proven: list[int] = []
        self.branches: list[_Branch] = []
        self.no_plan = False
        self.least_ns: int | None = None

    def run(self) -> SolveResult:
        self.simplified = simplify(condense(self.problem))
        self.units = self.simplified.units
        if any(allowed is not None and not allowed for allowed in self.units.allowed_devices):
            return self._result(
                SolveStatus.INFEASIBLE,
                "operators on a cycle between colocation groups are pinned to different devices",
            )
        self.identical = identical_blocks(self.units)
        self.stage_bounds = StageBounds(self.identical.ordered())
        self.kinds = interchangeable_kinds(self.units)
        self.chunks = self.problem.chunks_per_device
        if not self._has_steps:
            # Empty rounds cost and hold nothing.
            self.chunks = min(self.chunks, len(self.units))
        self._find_incumbent()
        for name in self.problem.objective:
            if not self._minimise(name):
                break
        return self._answer()

    def _answer(self) -> SolveResult:
        if len(self.proven) == len(self.problem.objective) and self.incumbent_values is not None:
            if tuple(self.proven) == self.incumbent_values:
                return self._result(SolveStatus.OPTIMAL)
            return self._result(SolveStatus.FEASIBLE)
        if self.incumbent is not None:
            return self._result(SolveStatus.FEASIBLE)
        if self.no_plan:
            return self._result(SolveStatus.INFEASIBLE, "proven: no plan fits")
        return self._result(SolveStatus.UNKNOWN, "the time limit ran out before a plan was found")

    def _find_incumbent(self) -> None:
        """Offer plans of bounds and baselines, and what local search makes of them."""
        starts: list[PartitionPlan] = []
        if self.known is not None and self.known.status is SolveStatus.FEASIBLE:
            assert self.known.plan is not None
            starts.append(self.simplified.repair(self.known.plan))
            self._offer(starts[-1])
        name = self.problem.objective[0]
        target = self._least(name, self._slots())
        if name == "bottleneck":
            starts += self._offer_ways(target)
        starts += self._offer_baselines()
        near = target * (1000 + _NEAR_PERMILLE) // 1000
        if self.incumbent_values is not None and self.incumbent_values[0] <= near:
            # The model closes so small a gap sooner than a search that proves nothing.
            return
        units = len(self.units)
        plan = first_incumbents(
            self.units,
            starts,
            seed=self.limits.seed,
            max_iterations=_FEW_MOVES_PER_UNIT * units if units < _NEIGHBOURHOODS_FROM else None,
            target=target,
            deadline_s=self.budget.deadline_s(_LOCAL_SEARCH_SHARE),
        )
        before = self.incumbent_values
        if plan is not None:
            self._offer(plan)
        if self.incumbent is None or len(self.units) < _NEIGHBOURHOODS_FROM:
            return
        self._look_at_ideals(name)
        assert self.incumbent_values is not None
        # Where moves gain next to nothing, sub-solves seldom gain more.
        small = 0 if before is None else before[0] * (1000 - _NEAR_PERMILLE) // 1000
        if before is None or self.incumbent_values[0] <= small:
            self._offer(self._improve(self.incumbent, target))

    def _offer_baselines(self) -> list[PartitionPlan]:
        """Offer what the baselines find, and plans without a host; return them."""
        found: list[PartitionPlan] = []
        for baseline in (solve_chain, solve_greedy):
            limits = replace(self.limits, time_limit_s=self.budget.wall_remaining_s)
            result = baseline(self.problem, limits)
            if result.plan is not None and result.objective_values is not None:
                # Only such plans are hints for the model of the simplified problem.
                found.append(self.simplified.repair(result.plan))
                self._offer(found[-1])
        plan = self._plan_without_host()
        if plan is not None:
            found.append(self.simplified.repair(plan))
            self._offer(found[-1])
        return found

    def _offer_ways(self, least_ns: int) -> list[PartitionPlan]:
        """Offer the plans behind the bound on borders (:mod:`solver.border_bound`); return them."""
        borders = self.stage_bounds.borders
        found: list[PartitionPlan] = []
        for permyriad in _WAY_PERMYRIAD:
            limit_ns = least_ns + least_ns * permyriad // 10_000
            if borders is None or (
                self.incumbent_values is not None and self.incumbent_values[0] <= limit_ns
            ):
                break
            plan = borders.plan(limit_ns)
            if plan is not None and evaluate(self.problem, plan).feasible:
                found.append(self.simplified.repair(plan))
                self._offer(found[-1])
        return found

    def _look_at_ideals(self, name: ObjectiveName) -> None:
        """Take over the bound and the windows of :class:`SkeletonBound`, where they apply."""
        slots = self._slots()
        if name != "bottleneck" or slots < 2 or not SkeletonBound.applies(self.units):
            return
        if len(self.kinds) > 1 and device_orders(
            self.kinds, slots, every_length=False, most=_MOST_ORDERS
        ):
            # Linear programs of single orders say more, and ask for windows of each.
            return
        assert self.incumbent_values is not None
        ceiling = self.incumbent_values[0]
        least = self._least(name, slots)
        order = self.problem.devices[:slots] if len(self.kinds) == 1 else None
        windows = self.stage_bounds.windows(slots, ceiling, order)
        if windows.empty:
            return
        end_s = None if self.limits.deterministic else self.budget.deadline_s(_IDEALS_SHARE)
        bound = SkeletonBound.of(
            self.units, slots, ceiling, windows, math.inf if end_s is None else end_s
        )
        if bound is not None:
            self.stage_bounds.narrow_by(bound)
            self.least_ns = max(least, min(bound.least_bottleneck_ns(least), ceiling))

    def _plan_without_host(self) -> PartitionPlan | None:
        """Return a plan that leaves out a host, which the best plan often does.

        Transfers to a host cost it nothing. So fewer units can be merged than for the other
        devices alone, and every order of devices with it is harder to search.
        """
        problem = self.problem
        others = tuple(device for device in problem.devices if not device.is_host)
        if (
            problem.interconnect.charging != "host_staged"
            or not 0 < len(others) < len(problem.devices)
            or problem.objective[0] != "bottleneck"
            or len(self.units) < _NEIGHBOURHOODS_FROM
            or any(allowed is not None for allowed in self.units.allowed_devices)
            # Fewer devices may be too few stages.
            or is_hand_made(problem)
        ):
            return None
        # A bound of these plans is none of all plans, so nobody hears of it.
        limits = replace(self.limits, on_progress=None)
        if self.budget.remaining_s is not None:
            share_s = _WITHOUT_HOST_SHARE * self.budget.remaining_s
            limits = replace(limits, time_limit_s=share_s)
        gone = {device.name for device in problem.devices if device.is_host}
        links = problem.interconnect.links.items()
        interconnect = replace(
            problem.interconnect, links={k: v for k, v in links if gone.isdisjoint(k)}
        )
        without = problem.replace(devices=others, interconnect=interconnect)
        search = _Search(without, limits)
        plan = search.run().plan
        self.budget.add(search.budget)
        return plan

    def _improve(self, plan: PartitionPlan, target: int) -> PartitionPlan:
        """Return what sub-solves around the borders of stages make of `plan`."""
        if self.limits.deterministic:
            return improve_by_neighbourhoods(
                self.units, plan, max_solves=_NEIGHBOURHOODS, seed=self.limits.seed, target=target
            )
        time_s = _NEIGHBOURHOODS_S
        if self.budget.remaining_s is not None:
            time_s = min(time_s, _LOCAL_SEARCH_SHARE * self.budget.remaining_s)
        return improve_by_neighbourhoods(
            self.units,
            plan,
            deadline_s=time.perf_counter() + time_s,
            workers=self.limits.worker_count,
            seed=self.limits.seed,
            target=target,
        )

    def _offer(self, plan: PartitionPlan) -> None:
        """Take `plan` for the incumbent if it is better."""
        evaluation = evaluate(self.problem, plan)
        assert evaluation.feasible, evaluation.violations
        values = evaluation.objective
        if self.incumbent_values is None or values < self.incumbent_values:
            # Only such plans are hints: windows and rows leave out those that differ by exchanges.
            self.incumbent, self.incumbent_values = self.identical.canonical(plan), values

    # -- one objective --------------------------------------------------------------------

    def _minimise(self, name: ObjectiveName) -> bool:
        """Minimise one objective under the proven values of the earlier ones.

        Returns whether the optimum is proven. Branches are searched in rounds with growing
        slices of time, so that each gets a bound before any of them takes all the time.
        """
        self.branches = self._branches(name)
        slice_s = _FIRST_SLICE_S + _SLICE_S_PER_UNIT * len(self.units)
        if name == "bottleneck" and len(self.branches) == 1:
            self._raise_bound(self.branches[0], name)
        pending = self.branches
        while pending and not self.budget.is_used_up:
            for branch in pending:
                if not (branch.closed or branch.spent):
                    self._search(branch, name, None if len(pending) == 1 else slice_s)
                    self._close_covered()
                if self.budget.is_used_up:
                    break
            self._close_covered()
            pending = [branch for branch in pending if not (branch.closed or branch.spent)]
            slice_s *= _SLICE_GROWTH
        is_solved = all(branch.closed for branch in self.branches)
        self.no_plan = self.incumbent_values is None and is_solved
        if not self.no_plan:
            self.proven.append(self.least())
        return self.incumbent_values is not None and is_solved

    def _close_covered(self) -> None:
        """Close all branches once the free order, or every single order, has nothing better."""
        if self.incumbent_values is not None:
            for branch in self.branches:
                if branch.spent and branch.bound >= self.incumbent_values[len(self.proven)]:
                    branch.closed = True
        if any(all(branch.closed for branch in cover) for cover in self._covers()):
            for branch in self.branches:
                branch.closed = True

    def _covers(self) -> list[list[_Branch]]:
        """Return the sets of branches of which each covers all plans."""
        free = [branch for branch in self.branches if branch.order is None]
        single = [branch for branch in self.branches if branch.order is not None]
        return [cover for cover in (free, single) if cover]

    def least(self) -> int:
        """Return a lower bound of the objective under way over all plans."""
        values = self.incumbent_values
        known = [] if values is None else [values[len(self.proven)]]
        return max(
            min([branch.bound for branch in cover if not branch.closed] + known)
            for cover in self._covers()
        )

    def _slots(self) -> int:
        """Return how many devices can be of use."""
        slots = min(len(self.problem.devices), len(self.units))
        most = self.problem.max_devices
        return slots if most is None else min(slots, most)

    def _least(self, name: ObjectiveName, slots: int) -> int:
        """Return a lower bound of an objective that needs no search of this solver's."""
        least = 0
        if name == "bottleneck":
            if self.least_ns is None:
                self.least_ns = self.stage_bounds.least_bottleneck_ns(slots)
            least = self.least_ns
        if name == "step":
            least = least_value(direct(self.units), "step", None)
            if not self.problem.interconnect.overlap:
                bottleneck_ns = self._least("bottleneck", slots)
                least = max(least, self.problem.microbatches * bottleneck_ns)
        if name == "devices":
            least = self.stage_bounds.least_devices()
        if name == self.problem.objective[0] and self.known is not None:
            least = max(least, *(self.known.objective_bounds or (0,))[:1])
        return least

    def _branches(self, name: ObjectiveName) -> list[_Branch]:
        slots = self._slots()
        least = self._least(name, slots)
        # Where the number of used devices matters and no alignment hides it, one branch each.
        counts = [slots]
        if self._depends_on_count and (self.chunks > 1 or self._has_steps):
            counts = list(range(slots, 0, -1))
        # The number of rounds is part of a schedule.
        rounds = range(self.chunks, 0, -1) if self._has_steps else [self.chunks]
        if len(self.kinds) == 1:
            return [_Branch((0,) * c, c, r, least) for r in rounds for c in counts]
        free = [_Branch(None, c, r, least) for r in rounds for c in counts]
        orders = device_orders(
            self.kinds, slots, every_length=self._depends_on_count, most=_MOST_ORDERS
        )
        if orders is None:
            return free
        branches = [_Branch(order, len(order), r, least) for r in rounds for order in orders]
        if self.incumbent is not None:
            kind_of = {d.name: k for k, entry in enumerate(self.kinds) for d in entry.devices}
            stages = [kind_of[device] for device in self.incumbent.device_order]
            # The incumbent's own order first: its neighbourhood is where better plans are.
            branches.sort(key=lambda branch: not _is_subsequence(stages, branch.order or ()))
        # With one prevailing kind the relaxation of the free order averages little.
        prevails = max(len(entry.devices) for entry in self.kinds) * 2 > len(self.problem.devices)
        return [*free, *branches] if prevails else [*branches, *free]

    def _raise_bound(self, branch: _Branch, name: ObjectiveName) -> None:
        """Search below limits near the bound, which leave few ideals, until one takes too long.

        Then look for the best plan with these ideals, which often is better than the incumbent.
        """
        share_s = None
        step = branch.bound // _TRIAL_STEP + 1
        while not (branch.closed or self.budget.is_used_up):
            limit = branch.bound + step
            step *= 2
            values = self.incumbent_values
            if values is None or limit >= values[len(self.proven)]:
                return
            if self.stage_bounds.border_ideals(branch.slots, limit, self._devices(branch)) is None:
                return
            if self.budget.remaining_s is not None:
                share_s = _TRIAL_SHARE * self.budget.remaining_s
            self._search(branch, name, share_s, within=limit)
            if branch.bound <= limit:
                if not branch.closed:
                    self._search(branch, name, share_s, within=limit, beyond=True)
                return

    def _search(
        self,
        branch: _Branch,
        name: ObjectiveName,
        slice_s: float | None,
        *,
        within: int | None = None,
        beyond: bool = False,
    ) -> None:
        """Look for a plan of `branch` that is better than the incumbent.

        With a limit, only where plans `within` it are; `beyond` it too, if they are there.
        """
        level = len(self.proven)
        ceiling: int | None = None
        if self.incumbent_values is not None:
            ceiling = self.incumbent_values[level]
            if branch.bound >= ceiling:
                branch.closed = True
                return
        best = ceiling
        if within is not None:
            ceiling = within
        # The incumbent's own branch keeps it as a solution: a full hint is worth more there.
        windows, largest_load_ns = self._windows(branch, name, ceiling)
        if windows.empty:
            self._refute(branch, within)
            return
        if within is None:
            if name == "bottleneck" and self._is_refuted(branch, ceiling):
                branch.closed = True
                return
            if not self._has_time_for(windows):
                branch.spent = True
                return
        formulation = CpSatFormulation(
            self.units,
            windows,
            branch.slots,
            chunks=branch.chunks,
            largest_load_ns=best if beyond else largest_load_ns,
            order=branch.order,
            use_all=self._uses_all(branch),
            all_rounds=self._has_steps,
            identical=self.identical,
        )
        ideals = self.stage_bounds.border_ideals(
            branch.slots, largest_load_ns, self._devices(branch), branch.chunks
        )
        if ideals is not None:
            add_border_ideals(formulation.stages, ideals)
        model = formulation.stages.model
        for earlier, value in zip(self.problem.objective, self.proven, strict=False):
            model.add(formulation.objective(earlier).expression <= value)
        target = formulation.objective(name)
        model.minimize(target.expression)
        choice = None
        if self.incumbent is not None and within is None:
            choice = formulation.stages.choice_of(self.incumbent)
        if choice is not None:
            formulation.stages.set_hint(choice)
        elif within is not None and not beyond:
            model.add(target.expression <= within)
        elif best is not None:
            model.add(target.expression <= best - 1)
        hinted = None if choice is None else best
        self._run_solver(formulation, branch, name, slice_s, hinted, within)

    @staticmethod
    def _refute(branch: _Branch, within: int | None) -> None:
        """Note that a branch has no plan that is looked for."""
        if within is None:
            branch.closed = True
        else:
            branch.bound = max(branch.bound, within + 1)

    def _devices(self, branch: _Branch) -> list[Device] | None:
        """Return the device of each slot of a branch, if it has an order."""
        return None if branch.order is None else [self.kinds[k].device for k in branch.order]

    def _has_time_for(self, windows: StageWindows) -> bool:
        """Whether the model can be made within the time that is left."""
        left_s = None if self.limits.deterministic else self.budget.remaining_s
        places = sum(windows.last) - sum(windows.first) + len(windows.first)
        return (
            left_s is None
            or self.incumbent is None
            or len(self.units) < _NEIGHBOURHOODS_FROM
            or _MODEL_S_PER_PLACE * places < left_s
        )

    def _is_refuted(self, branch: _Branch, ceiling: int | None) -> bool:
        """Whether linear programs prove that a branch has no better bottleneck; asked once."""
        if branch.relaxed or branch.order is None or ceiling is None or branch.chunks > 1:
            return False
        if len(self.units) < _NEIGHBOURHOODS_FROM or not PositionBound.applies(self.units):
            return False
        branch.relaxed = True
        left_s = None if self.limits.deterministic else self.budget.remaining_s
        branch.bound = closure_bound_ns(
            self.stage_bounds,
            self.units,
            [self.kinds[kind].device for kind in branch.order],
            at_least=branch.bound,
            ceiling_ns=ceiling,
            time_limit_s=None if left_s is None else _PROGRAM_SHARE * left_s,
        )
        return branch.bound >= ceiling

    @property
    def _depends_on_count(self) -> bool:
        """Whether what a stage holds or passes on depends on how many devices are used."""
        relayed = self.problem.interconnect.charging == "relayed"
        return relayed or self._has_steps or self.problem.memory_depends_on_followers

    @property
    def _has_steps(self) -> bool:
        """Whether plans run under a schedule, which all slots and rounds are part of."""
        return "step" in self.problem.objective

    def _uses_all(self, branch: _Branch) -> bool:
        """Whether the branch has only plans with a device in every slot.

        Needed where the number of used devices matters, and what depends on it is no constant of
        the position: alignment to the right fixes it only with one chunk of equal devices.
        """
        if not self._depends_on_count:
            return False
        if self._has_steps:
            return True
        return self.chunks > 1 or (branch.order is not None and len(self.kinds) > 1)

    def _windows(
        self, branch: _Branch, name: ObjectiveName, ceiling: int | None
    ) -> tuple[StageWindows, int | None]:
        """Return the stage windows of plans that are at least as good as the incumbent."""
        limits = dict(zip(self.problem.objective, self.proven, strict=False))
        if ceiling is not None:
            limits[name] = ceiling
        largest_load_ns = limits.get("bottleneck")
        if "step" in limits and not self.problem.interconnect.overlap:
            # Every microbatch takes a device as long as its load says.
            load_ns = limits["step"] // self.problem.microbatches
            largest_load_ns = load_ns if largest_load_ns is None else min(largest_load_ns, load_ns)
        windows = self.stage_bounds.windows(
            branch.slots, largest_load_ns, self._devices(branch), branch.chunks
        )
        positions = branch.slots * branch.chunks
        return narrowed(self.units, windows, positions), largest_load_ns

    def _run_solver(
        self,
        formulation: CpSatFormulation,
        branch: _Branch,
        name: ObjectiveName,
        slice_s: float | None,
        hinted: int | None,
        within: int | None,
    ) -> None:
        """Run CP-SAT on a model.

        `hinted` is the value of a solution that it certainly has. If there is a limit, the model
        has all plans `within` it, but may lack others that are better than the incumbent.
        """
        model = formulation.stages.model
        is_exact = self._is_exact(formulation)
        watcher = _Watcher(self, branch, name, None if is_exact else formulation.stages, within)
        known = branch.bound
        solver = self._solver(slice_s)
        if self.limits.on_progress is not None:
            solver.best_bound_callback = watcher.on_bound
        status = solver.solve(model, watcher)
        self.budget.charge(solver)
        if hinted is not None and _contradicts(solver, status, hinted):
            # Presolve has been wrong before (see docs/formulation.md); believe the search alone.
            # What the watcher was told meanwhile is worth no more than that answer.
            branch.bound = known
            solver = self._solver(slice_s)
            solver.parameters.cp_model_presolve = False
            status = solver.solve(model, watcher)
            self.budget.charge(solver)
            assert not _contradicts(solver, status, hinted), "CP-SAT denies a feasible plan"
        if status == cp_model.MODEL_INVALID:
            raise AssertionError(f"invalid CP-SAT model: {model.validate()}")
        if status == cp_model.INFEASIBLE:
            self._refute(branch, within)
            return
        # Bounds are integers, exact in floats up to 2**53.
        branch.bound = max(branch.bound, _bound(solver.best_objective_bound, within))
        if status == cp_model.UNKNOWN:
            return
        plan = formulation.stages.plan_of(solver.value)
        evaluation = evaluate(self.problem, plan)
        assert evaluation.feasible, evaluation.violations
        self._offer(plan)
        if not is_exact:
            branch.spent = status == cp_model.OPTIMAL
            return
        value = evaluation.value(name)
        assert value <= round(solver.objective_value), (name, value, solver.objective_value)
        if status == cp_model.OPTIMAL and (within is None or value <= within):
            assert value == branch.bound, (
                f"the model proves {name} = {branch.bound}, but the evaluator says {value}"
            )
            branch.closed = True

    def _is_exact(self, formulation: CpSatFormulation) -> bool:
        """Whether the values of a model are those of its plans, and not only bounds of them."""
        level = len(self.proven)
        return "step" not in self.problem.objective[: level + 1] or formulation.step.is_exact

    def _solver(self, slice_s: float | None) -> cp_model.CpSolver:
        solver = cp_model.CpSolver()
        parameters = solver.parameters
        workers = self.limits.worker_count
        if self.limits.deterministic:
            # Searches take turns in an order that depends on their number, so that is fixed.
            parameters.interleave_search = True
            workers = _TURNS
        parameters.num_workers = workers
        # The last worker alternates between neighbourhoods of the incumbent.
        parameters.subsolvers.extend(_SUBSOLVERS[: max(1, workers - 1)])
        # A search that hears of others' bounds loses its way more often than it gains by them.
        parameters.share_objective_bounds = self.limits.deterministic
        parameters.random_seed = self.limits.seed
        # Ctrl-C is the caller's.
        parameters.catch_sigint_signal = False
        # In 9.15 the inclusion passes of presolve make some feasible models infeasible.
        parameters.presolve_inclusion_work_limit = 0
        # Dual reductions peel chains one operator at a time, and a second round of presolve
        # finds little: without both, searches start sooner (docs/formulation.md, section 5).
        parameters.keep_all_feasible_solutions_in_presolve = True
        parameters.max_presolve_iterations = 1
        # The older propagation of linear rows is several times faster on these models.
        parameters.new_linear_propagation = False
        self.budget.limit(parameters, slice_s)
        return solver

    def _result(self, status: SolveStatus, reason: str = "") -> SolveResult:
        found = status in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE)
        plan = self.incumbent if found else None
        return SolveResult(
            solver=_NAME,
            status=status,
            plan=plan,
            evaluation=None if plan is None else evaluate(self.problem, plan),
            objective_bounds=tuple(self.proven) or None,
            wall_time_s=self.budget.elapsed_s,
            reason=reason,
        )


def _contradicts(solver: cp_model.CpSolver, status: cp_model.CpSolverStatus, hinted: int) -> bool:
    """Whether CP-SAT denies that a solution of value `hinted` exists."""
    if status == cp_model.INFEASIBLE:
        return True
    return status != cp_model.MODEL_INVALID and round(solver.best_objective_bound) > hinted


def _bound(bound: float, within: int | None) -> int:
    """Return what a bound says of all plans, if only those `within` a limit are all there."""
    if within is not None and bound > within:
        return within + 1
    return round(bound)


def _is_subsequence(stages: list[int], order: tuple[int, ...]) -> bool:
    remaining = iter(order)
    return all(kind in remaining for kind in stages)


class _Watcher(cp_model.CpSolverSolutionCallback):
    """Tells the caller of every better incumbent and of the bound over all branches."""

    def __init__(
        self,
        search: _Search,
        branch: _Branch,
        name: ObjectiveName,
        inexact: StageModel | None = None,
        within: int | None = None,
    ) -> None:
        super().__init__()
        self._within = within
        self._search = search
        self._branch = branch
        self._name = name
        # A model whose values only bound those of its plans, which are offered one by one.
        self._inexact = inexact
        values = search.incumbent_values
        self._incumbent = None if values is None else values[len(search.proven)]
        self._restart_at: int | None = None
        # When a run stops after a solution depends on the clock.
        if name == "bottleneck" and not search.limits.deterministic and self._incumbent is not None:
            self._restart_at = self._incumbent * (1000 - _RESTART_GAIN_PERMILLE) // 1000

    def on_solution_callback(self) -> None:
        if self._inexact is not None:
            self._search._offer(self._inexact.plan_of(self.value))
            values = self._search.incumbent_values
            assert values is not None
            found = values[len(self._search.proven)]
        else:
            found = round(self.objective_value)
        self._incumbent = found if self._incumbent is None else min(self._incumbent, found)
        self._report()
        if self._restart_at is not None and found <= self._restart_at:
            self.stop_search()

    def on_bound(self, bound: float) -> None:
        self._branch.bound = max(self._branch.bound, _bound(bound, self._within))
        self._report()

    def _report(self) -> None:
        on_progress = self._search.limits.on_progress
        if on_progress is not None:
            bound = self._search.least()
            elapsed_s = self._search.budget.elapsed_s
            on_progress(Progress(_NAME, self._name, self._incumbent, bound, elapsed_s))
