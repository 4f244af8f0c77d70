"""State of a search, which judges the findings of its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, wraps
from typing import Final, TypeVar, cast

from solver.bounds.windows import StageBounds
from solver.evaluation.evaluate import Evaluation, evaluate
from solver.evaluation.result import SolveResult, SolveStatus, StepRecord
from solver.model.clock import Clock
from solver.model.limits import Progress, SolveLimits
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import ObjectiveName
from solver.model.recomputation import with_required
from solver.presolve.dominance import Simplified
from solver.presolve.instance import Instance, condense
from solver.presolve.presolved import Presolved
from solver.search.branches import Branches, SearchTimes
from solver.search.findings import (
    BoundFound,
    Finding,
    Infeasible,
    NothingFound,
    OptimumFound,
    PlanFound,
    UnitsMerged,
)

SubSearch = Callable[[PartitionProblem, SolveLimits, Clock], SolveResult]
"""The exact search of a smaller problem, on a slice of this one's clock."""

_Kept = TypeVar("_Kept")

_NO_PLAN_IN_TIME: Final = "the time limit ran out before a plan was found"


class SearchState:
    """The incumbent, the bounds, the windows, and the branches over device orders.

    Steps read it and yield findings; :meth:`offer` alone changes its plans and bounds.

    The clock is that of the whole search, `solver` the name under which it reports progress;
    `sub_search` solves smaller problems for steps that need it.
    """

    def __init__(
        self,
        problem: PartitionProblem,
        limits: SolveLimits,
        clock: Clock,
        solver: str,
        *,
        times: SearchTimes,
        sub_search: SubSearch,
    ) -> None:
        self.problem = problem
        self.limits = limits
        self.clock = clock
        self.times = times
        self.sub_search = sub_search
        # Of the objective under way.
        self.round = 1
        # The incumbent, its values by the evaluator, and all feasible plans that steps offered.
        self.plan: PartitionPlan | None = None
        self.values: tuple[int, ...] | None = None
        self.plans: list[PartitionPlan] = []
        # The optimal values of the objectives that are closed.
        self.proven: list[int] = []
        # None until branch and bound of the objective under way begins.
        self.branches: Branches | None = None
        # True if the graph is small enough for exact steps; decided once.
        self.searches_exactly: bool | None = None
        self.log: list[StepRecord] = []
        self._simplified: Simplified | None = None
        self._kept: dict[object, object] = {}
        self._solver = solver
        self._bound: int | None = None
        self._contradiction: str | None = None
        self._reason = ""
        self._unfit: PartitionPlan | None = None
        self._proof: tuple[int, ...] | None = None

    # -- the presolved problem -------------------------------------------------------------

    @cached_property
    def units(self) -> Instance:
        """The operators that share a device, as units."""
        return condense(self.problem)

    @cached_property
    def presolved(self) -> Presolved:
        """The problem as exact steps search it: with the findings of presolve."""
        return Presolved.of(self.simplified)

    @property
    def simplified(self) -> Simplified:
        """The units, without dominated choices once these are known."""
        if self._simplified is None:
            self._simplified = Simplified.unchanged(self.units)
        return self._simplified

    @cached_property
    def stage_bounds(self) -> StageBounds:
        """Windows of all units."""
        return StageBounds(self.presolved.units)

    # -- the objective under way -----------------------------------------------------------

    @property
    def objective(self) -> ObjectiveName:
        """The objective under way."""
        return self.problem.objective[len(self.proven)]

    @property
    def earlier(self) -> Mapping[ObjectiveName, int]:
        """The proven values of the earlier objectives, in order."""
        return dict(zip(self.problem.objective, self.proven, strict=False))

    @property
    def is_first(self) -> bool:
        """True if the first objective is under way."""
        return not self.proven

    @property
    def best(self) -> int | None:
        """The incumbent's value in the objective under way; None without a plan."""
        return None if self.values is None else self.values[len(self.proven)]

    @property
    def bound(self) -> int:
        """A proven lower bound of the objective under way."""
        known = 0 if self._bound is None else self._bound
        if self.branches is None or (self.best is None and self.branches.are_closed):
            return known
        return max(known, self.branches.least())

    @property
    def is_closed(self) -> bool:
        """True if no plan is better in the objective under way, or none exists."""
        if self._contradiction is not None or self._proof is not None:
            return True
        if self.branches is not None and self.branches.are_closed:
            return True
        if self.best is None or not self._bound_is_known:
            return False
        return self.best <= self.bound

    @property
    def ends_here(self) -> bool:
        """True if nothing is left to be found: all objectives are closed, or no plan exists."""
        return self._contradiction is not None or len(self.proven) == len(self.problem.objective)

    def has_gap(self, permille: int) -> bool:
        """Return whether the incumbent is more than this above the bound; True without a plan."""
        return self.best is None or self.best > self.bound * (1000 + permille) // 1000

    def begin_branches(self) -> Branches:
        """Return the branches of the objective under way."""
        if self.branches is None:
            self.branches = Branches(self.presolved, self.plan, self.bound)
            self.branches.take(self.best)
        return self.branches

    def next_objective(self) -> bool:
        """Go on to the next objective; return False if this one is open, or was the last."""
        if self.values is None or self._contradiction is not None or not self.is_closed:
            return False
        if self._proof is not None:
            self.proven = list(self._proof)
            return False
        assert self.best is not None
        self.proven.append(self.best)
        self._bound = self.branches = None
        self._kept.clear()
        return len(self.proven) < len(self.problem.objective)

    # -- what steps find -------------------------------------------------------------------

    def offer(self, finding: Finding) -> None:
        """Judge a finding, and keep any improvement."""
        before = self.best, self.bound
        match finding:
            case PlanFound(plan):
                self.offer_plan(plan)
            case BoundFound(value):
                self._bound = value if self._bound is None else max(self._bound, value)
                if self.branches is not None:
                    self.branches.raise_to(value)
            case UnitsMerged(simplified):
                assert "presolved" not in self.__dict__
                self._simplified = simplified
                self._restate_plans()
            case OptimumFound(values):
                assert values == self.values, (values, self.values)
                self._proof = values
                self._bound = values[0]
            case Infeasible(reason):
                assert self.values is None, reason
                self._contradiction = reason
            case NothingFound(reason):
                self._reason = reason
        assert self.best is None or self.bound <= self.best, (self.bound, self.best)
        if (self.best, self.bound) != before:
            self.report()

    def offer_plan(self, plan: PartitionPlan) -> Evaluation:
        """Take a feasible plan for the incumbent if it is better; return its value."""
        plan = with_required(self.problem, plan)
        evaluation = evaluate(self.problem, plan)
        if not evaluation.feasible:
            self._unfit = self._unfit or plan
            self._reason = self._reason or "; ".join(evaluation.violations)
            return evaluation
        restated = self._restated(plan)
        if restated != plan:
            plan, evaluation = restated, evaluate(self.problem, restated)
            assert evaluation.feasible, evaluation.violations
        self.plans.append(plan)
        if self.values is None or evaluation.objective < self.values:
            self.plan, self.values = plan, evaluation.objective
            if self.branches is not None:
                self.branches.take(self.best)
        return evaluation

    def _restated(self, plan: PartitionPlan) -> PartitionPlan:
        """Return a plan that is no worse, and that windows and rows do not leave out.

        They leave out plans that differ by dominated choices.
        """
        return plan if self._simplified is None else self._simplified.repair(plan)

    def _restate_plans(self) -> None:
        """Offer all plans again, because later findings require it."""
        plans, self.plans = self.plans, []
        self.plan = self.values = None
        for plan in plans:
            self.offer_plan(plan)

    def kept(self, make: Callable[[SearchState], _Kept]) -> _Kept:
        """Return `make` of this state, cached until the objective changes."""
        if make not in self._kept:
            self._kept[make] = make(self)
        return cast(_Kept, self._kept[make])

    @property
    def workers(self) -> int:
        """Threads of sub-solves; one where their number must not change the findings."""
        return 1 if self.limits.deterministic else self.limits.worker_count

    @property
    def seed(self) -> int:
        """The seed of this round."""
        return self.limits.seed + self.round - 1

    def report(self, best: int | None = None, bound: int | None = None) -> None:
        """Tell the caller of the incumbent, and of the bound over all plans."""
        tell = self.limits.on_progress
        if tell is not None:
            known = [value for value in (best, self.best) if value is not None]
            is_bounded = bound is not None or self._bound_is_known
            least = max(bound or 0, self.bound) if is_bounded else None
            name, seconds = self.objective, self.clock.elapsed_s
            tell(Progress(self._solver, name, min(known, default=None), least, seconds))

    def still_gains(self, step: str) -> bool:
        """Return whether the last run of a step found a better plan, or there was none."""
        for record in reversed(self.log):
            if record.step == step:
                return record.incumbent_after != record.incumbent_before
        return True

    def is_proven_by(self, step: str) -> bool:
        """Return whether a step has closed the search."""
        return bool(self.log) and self.log[-1].step == step and self.ends_here

    # -- the answer ------------------------------------------------------------------------

    def result(self, solver: str) -> SolveResult:
        """Return the state as the result of `solver`."""
        proven = list(self.proven)
        if len(proven) < len(self.problem.objective) and self._bound_is_known:
            proven.append(self.bound)
        bounds = tuple(proven) or None
        seconds, log = self.clock.elapsed_s, tuple(self.log)
        if self._contradiction is not None:
            status, reason = SolveStatus.INFEASIBLE, self._contradiction
            return SolveResult(solver, status, None, None, None, seconds, reason, log)
        if self.plan is None:
            # What a heuristic alone says of itself is the answer.
            is_alone = len(log) == 1
            plan = self._unfit if is_alone else None
            evaluation = None if plan is None else evaluate(self.problem, plan)
            reason = self._reason
            if not reason or (self.clock.is_over and not is_alone):
                reason = _NO_PLAN_IN_TIME
            status = SolveStatus.UNKNOWN
            return SolveResult(solver, status, plan, evaluation, bounds, seconds, reason, log)
        status = SolveStatus.OPTIMAL if bounds == self.values else SolveStatus.FEASIBLE
        evaluation = evaluate(self.problem, self.plan)
        return SolveResult(solver, status, self.plan, evaluation, bounds, seconds, "", log)

    @property
    def _bound_is_known(self) -> bool:
        return self._bound is not None or self.branches is not None


def kept(make: Callable[[SearchState], _Kept]) -> Callable[[SearchState], _Kept]:
    """Let a function be asked once for each state, as long as an objective lasts."""
    return wraps(make)(lambda state: state.kept(make))
