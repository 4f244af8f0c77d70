"""Branch and bound over device orders: a model of each, in turns."""

from __future__ import annotations

import math
from functools import partial

from solver.bounds.pipeline_step import load_of_step_ns
from solver.bounds.windows import StageWindows
from solver.cp.cut_rows import narrowed
from solver.cp.formulation import CpSatFormulation
from solver.cp.hinted_model import OutOfTime
from solver.cp.model_size import link_terms
from solver.cp.run import Answer, Question, run_model
from solver.cp.stage_model import StageModel
from solver.model.clock import Clock
from solver.model.plan import PartitionPlan
from solver.search.branches import Branch
from solver.search.state import SearchState

_MODEL_S_PER_PLACE = 6e-5
"""Time that a model takes to be made, for each position that a unit may have, and each that there
is."""
_MODEL_S_PER_TERM = 7.5e-6
"""And for each term of the times on links."""
_MOST_TERMS = 600_000
"""With more of them, a few seconds, a model of all orders knows no more than the average load."""
_TIMED = frozenset({"bottleneck", "latency", "step"})
"""Objectives that ask for times on links."""
_RESTART_GAIN_PERMILLE = 10
"""A better incumbent by this much is worth new stage windows and a new presolve."""


class BranchSearch:
    """Searches the branches of one objective, whichever it is asked for."""

    def __init__(self, state: SearchState) -> None:
        self._state = state
        self.times = state.times
        self._presolved = state.presolved
        self._stage_bounds = state.stage_bounds
        self._limits = state.limits
        self._windows_s = 0.0
        self.branches = state.begin_branches()

    def search_all(self, clock: Clock) -> None:
        """Search the open branches, each for a slice of time that grows from turn to turn.

        The bound over all orders is that of the order about which least is known, so the branch
        with the shortest slice has its turn. Once most single orders are closed, all time goes to
        the others.
        """
        times, branches = self.times, self.branches
        first_s = times.first_s + times.first_s_per_unit * len(self._presolved.units)
        while not (branches.are_closed or clock.is_over):
            waiting = branches.pending
            if branches.orders_close:
                waiting = [branch for branch in waiting if branch.order is not None]
            if not waiting:
                return
            branch = min(waiting, key=lambda branch: branch.turns)
            # A turn that has begun goes on beyond the end of this step: presolve takes its time.
            own = self._state.clock.slice(first_s * times.growth**branch.turns)
            if len(waiting) == 1 and clock.left_s > own.left_s:
                own = clock
            before = branches.best
            self.search(branch, own)
            # A run that a better plan ends early goes on with the windows of that plan. Others
            # end early too: presolve gives up when it sees that its time will not do.
            branch.turns += own.is_over or branches.best == before
            branches.close_covered()

    def search(self, branch: Branch, clock: Clock) -> None:
        """Look for a plan of `branch` that is better than the incumbent."""
        best = self.branches.best
        if best is not None and branch.bound >= best:
            branch.closed = True
            return
        if best is not None and clock.wall_left_s < self._windows_s:
            branch.spent |= self._state.clock.wall_left_s < self._windows_s
            return
        started_s = clock.elapsed_s
        windows, largest_load_ns = self._windows(branch, best)
        self._windows_s = clock.elapsed_s - started_s
        if windows.empty:
            branch.closed = True
            return
        if not self._is_affordable(branch, windows, clock):
            branch.spent |= not self._is_affordable(branch, windows, self._state.clock)
            return
        try:
            formulation = self._formulation(branch, windows, largest_load_ns)
            question = self._question(branch, formulation)
        except OutOfTime:
            return
        report = None
        if self._limits.on_progress is not None:
            report = partial(self._report, branch)
        answer = run_model(question, self._limits, clock, report)
        self._conclude(branch, question, answer)

    def _formulation(
        self, branch: Branch, windows: StageWindows, largest_load_ns: int | None
    ) -> CpSatFormulation:
        stages = StageModel(
            self._presolved.units,
            windows,
            branch.slots,
            chunks=branch.chunks,
            order=branch.order,
            use_all=self._uses_all(branch),
            all_rounds=self._presolved.has_steps,
            # A slice of it may be shorter than the making, again and again.
            clock=self._state.clock,
        )
        return CpSatFormulation(stages, largest_load_ns)

    def _windows(self, branch: Branch, ceiling: int | None) -> tuple[StageWindows, int | None]:
        """Return the stage windows of plans that are at least as good as the incumbent."""
        problem = self._presolved.problem
        limits = dict(self._state.earlier)
        if ceiling is not None:
            limits[self._state.objective] = ceiling
        largest_load_ns = limits.get("bottleneck")
        if "step" in limits and not problem.interconnect.overlap:
            load_ns = load_of_step_ns(problem, limits["step"])
            largest_load_ns = load_ns if largest_load_ns is None else min(largest_load_ns, load_ns)
        windows = self._stage_bounds.windows(
            branch.slots, largest_load_ns, self._presolved.devices(branch.order), branch.chunks
        )
        positions = branch.slots * branch.chunks
        return narrowed(self._presolved.units, windows, positions), largest_load_ns

    def _is_affordable(self, branch: Branch, windows: StageWindows, clock: Clock) -> bool:
        """Return True if a model can be made and searched in the time left, and is worth it.

        Its worth is the same in every deterministic run: the time left then depends on no clock.
        """
        if self.branches.best is not None and self._presolved.is_large:
            model_s = _MODEL_S_PER_PLACE * windows.places * branch.slots * branch.chunks
            if model_s >= self.times.making * clock.wall_left_s:
                return False
        names = (*self._state.earlier, self._state.objective)
        if not _TIMED.intersection(names) or clock.left_s == math.inf:
            return True
        terms = link_terms(
            self._presolved.units,
            windows,
            branch.slots,
            branch.chunks,
            decides_order=branch.order is None,
        )
        if branch.order is not None or self.branches.best is None:
            # It knows more than the average load, or may find the first plan.
            return terms * _MODEL_S_PER_TERM <= self.times.terms_of_use * clock.left_s
        return terms <= _MOST_TERMS and terms * _MODEL_S_PER_TERM <= self.times.terms * clock.left_s

    def _uses_all(self, branch: Branch) -> bool:
        """Return True if the branch has only plans with a device in every slot.

        Needed where the number of used devices matters, and its consequences are no constants of
        the position: alignment to the right fixes it only with one chunk of equal devices.
        """
        restated = self._presolved
        is_ordered = branch.order is not None and len(restated.kinds) > 1
        return restated.counts_devices or (restated.units.depends_on_count and is_ordered)

    def _question(self, branch: Branch, formulation: CpSatFormulation) -> Question:
        """Add limits on the objectives, and the incumbent as a hint where it is a solution."""
        best, stages = self.branches.best, formulation.stages
        for earlier, value in self._state.earlier.items():
            stages.add_row(formulation.objective(earlier).expression <= value)
        target = formulation.objective(self._state.objective)
        stages.model.minimize(target.expression)
        choice = None
        if self._state.plan is not None:
            # The incumbent's own branch keeps it as a solution: a full hint is worth more there.
            choice = stages.choice_of(self._state.plan)
        if choice is not None:
            stages.set_hint(choice)
        elif best is not None:
            stages.add_row(target.expression <= best - 1)
        restart_at = None
        # When a run stops after a solution depends on the clock.
        if not self._limits.deterministic:
            # At the bound it is the best one.
            restart_at = branch.bound
            if self._state.objective == "bottleneck" and best:
                restart_at = max(restart_at, best * (1000 - _RESTART_GAIN_PERMILLE) // 1000)
        is_exact = "step" not in (*self._state.earlier, self._state.objective)
        is_exact = is_exact or formulation.step.is_exact
        return Question(
            stages,
            best,
            is_hinted=choice is not None,
            restart_at=restart_at,
            judge=None if is_exact else self._judge,
        )

    def _judge(self, plan: PartitionPlan) -> int:
        self._state.offer_plan(plan)
        assert self.branches.best is not None
        return self.branches.best

    def _report(self, branch: Branch, best: int | None, bound: int) -> None:
        """Tell the caller of the bound over all branches while a model is searched."""
        self._state.report(best, self.branches.least(branch, bound))

    def _conclude(self, branch: Branch, question: Question, answer: Answer) -> None:
        """Record the bound of an answer for its branch, and offer its plan."""
        if answer.bound is None:
            branch.closed = True
            return
        branch.bound = max(branch.bound, answer.bound)
        if answer.plan is None:
            return
        evaluation = self._state.offer_plan(answer.plan)
        if question.judge is not None:
            branch.spent = answer.is_optimal
            return
        name = self._state.objective
        value = evaluation.value(name)
        assert answer.value is not None
        assert value <= answer.value, (name, value, answer.value)
        if answer.is_optimal:
            assert value == branch.bound, (
                f"the model proves {name} = {branch.bound}, but the evaluator says {value}"
            )
            branch.closed = True
