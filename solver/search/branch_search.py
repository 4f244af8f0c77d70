"""Looks for better plans in one branch."""

from __future__ import annotations

import math
from functools import partial

from solver.bounds.linear import MOST_PROGRAMS, closure_bound_ns
from solver.bounds.objectives import ObjectiveBounds
from solver.bounds.positions import PositionBound
from solver.bounds.semidefinite.program import applies, semidefinite_bound_ns
from solver.bounds.windows import BorderIdeals, StageBounds, StageWindows
from solver.cp.border_rows import add_border_ideals
from solver.cp.cut_rows import narrowed
from solver.cp.formulation import CpSatFormulation
from solver.cp.model_size import link_terms
from solver.cp.run import Answer, Question, run_model
from solver.model.clock import UNLIMITED, Clock
from solver.model.limits import Progress, SolveLimits
from solver.model.plan import PartitionPlan
from solver.presolve.presolved import RestatedProblem
from solver.search.branches import Branch, Branches

NAME = "cp-sat"
"""The exact solver's, in answers and progress."""
_MODEL_SHARE = 0.5
"""Of the time left, at most this much goes into making a model of a large problem."""
_MODEL_S_PER_PLACE = 6e-5
"""Time that a model takes to be made, for each position that a unit may have, and each that there
is."""
_MODEL_S_PER_TERM = 7.5e-6
"""And for each term of the times on links."""
_MOST_TERMS = 600_000
"""With more of them, a few seconds, a model of all orders knows no more than the average load."""
_TERMS_SHARE = 0.15
"""Of the time left, at most this much goes into them."""
_TERMS_SHARE_OF_USE = 0.5
"""The same of a model of one order, and as long as no plan is known."""
_PROGRAM_SHARE = 0.2
"""Of the time left, at most this much goes into the linear programs of a branch."""
_PARTITIONS_SHARE = 0.6
"""Of the time left, at most this much goes into the semidefinite program."""
_PARTITIONS_GAIN_PERMILLE = 10
"""Where it says so much more than was known, linear programs say less."""
_PARTITIONS_GAP_PERMILLE = 20
"""From this gap on; models close smaller ones."""
_WIDE_POSITIONS = 4
"""Models of units with more open positions than this, on average, find next to nothing."""
_TIMED = frozenset({"bottleneck", "latency", "step"})
"""Objectives that ask for times on links."""
_RESTART_GAIN_PERMILLE = 10
"""A better incumbent by this much is worth new stage windows and a new presolve."""


def wall_share(clock: Clock, share: float) -> Clock:
    """Return a part of what is left on the wall's clock; no limit where work is counted."""
    return UNLIMITED if clock.is_deterministic else clock.slice(share * clock.left_s)


class BranchSearch:
    """Searches the branches of one objective, whichever it is asked for.

    Parameters
    ----------
    restated : RestatedProblem
    stage_bounds : StageBounds
        Of the units with identical blocks in order.
    branches : Branches
    limits : SolveLimits
    clock : Clock
    """

    def __init__(
        self,
        restated: RestatedProblem,
        stage_bounds: StageBounds,
        branches: Branches,
        limits: SolveLimits,
        clock: Clock,
    ) -> None:
        self._restated = restated
        self._stage_bounds = stage_bounds
        self._limits = limits
        self._clock = clock
        self._windows_s = 0.0
        self._partitioned = False
        self.branches = branches

    @property
    def unit_count(self) -> int:
        """How many units are searched."""
        return len(self._restated.units)

    def border_ideals(self, branch: Branch, limit_ns: int | None) -> BorderIdeals | None:
        """Return what plans of a branch within a limit can have before each border, if known."""
        devices = self._restated.devices(branch.order)
        return self._stage_bounds.border_ideals(branch.slots, limit_ns, devices, branch.chunks)

    def search(
        self,
        branch: Branch,
        slice_s: float | None,
        *,
        within: int | None = None,
        beyond: bool = False,
        is_probe: bool = False,
    ) -> None:
        """Look for a plan of `branch` that is better than the incumbent.

        Parameters
        ----------
        branch : Branch
        slice_s : float or None
            The most time for it.
        within : int, optional
            Only where plans within this limit are.
        beyond : bool
            Beyond the limit too, if plans are there.
        is_probe : bool
            By its model alone, without linear programs; not counted as a search of the branch.
        """
        best = self.branches.best
        if best is not None and branch.bound >= best:
            branch.closed = True
            return
        if best is not None and self._clock.wall_left_s < self._windows_s:
            branch.spent = within is None
            return
        ceiling = best if within is None else within
        started_s = self._clock.elapsed_s
        windows, largest_load_ns = self._windows(branch, ceiling)
        self._windows_s = self._clock.elapsed_s - started_s
        if windows.empty:
            _refute(branch, within)
            return
        if not is_probe and self._is_refuted(branch, within):
            return
        if not (self._has_time_for(branch, windows) and self._is_worth_making(branch, windows)):
            # All plans below a limit are only some of the branch's.
            branch.spent = within is None
            return
        formulation = CpSatFormulation(
            self._restated.units,
            windows,
            branch.slots,
            chunks=branch.chunks,
            largest_load_ns=best if beyond else largest_load_ns,
            order=branch.order,
            use_all=self._uses_all(branch),
            all_rounds=self._restated.has_steps,
            identical=self._restated.identical,
        )
        ideals = self.border_ideals(branch, largest_load_ns)
        if ideals is not None:
            add_border_ideals(formulation.stages, ideals)
        question = self._question(formulation, within, beyond=beyond)
        report = None
        if self._limits.on_progress is not None:
            report = partial(self._report, branch)
        clock = self._clock if slice_s is None else self._clock.slice(slice_s)
        answer = run_model(question, self._limits, clock, report)
        branch.searched |= not is_probe
        self._conclude(branch, question, answer)

    def _windows(self, branch: Branch, ceiling: int | None) -> tuple[StageWindows, int | None]:
        """Return the stage windows of plans that are at least as good as the incumbent."""
        problem = self._restated.problem
        limits = dict(self.branches.earlier)
        if ceiling is not None:
            limits[self.branches.objective] = ceiling
        largest_load_ns = limits.get("bottleneck")
        if "step" in limits and not problem.interconnect.overlap:
            # Every microbatch takes a device as long as its load says.
            load_ns = limits["step"] // problem.microbatches
            largest_load_ns = load_ns if largest_load_ns is None else min(largest_load_ns, load_ns)
        windows = self._stage_bounds.windows(
            branch.slots, largest_load_ns, self._restated.devices(branch.order), branch.chunks
        )
        positions = branch.slots * branch.chunks
        return narrowed(self._restated.units, windows, positions), largest_load_ns

    def has_windows(self, branch: Branch) -> bool:
        """Whether units have positions in plans of a branch that are better than the incumbent.

        Searches ask for plans that are as good, of which the incumbent may be one.
        """
        best = self.branches.best
        return best is None or not self._windows(branch, best - 1)[0].empty

    def is_refuted_by(self, bounds: ObjectiveBounds, branch: Branch) -> bool:
        """Whether parts of the graph say that the order of a branch has nothing better."""
        best, devices = self.branches.best, self._restated.devices(branch.order)
        if best is None or devices is None or self.branches.objective != "bottleneck":
            return False
        return bounds.refutes_order(devices, best - 1)

    def is_wide(self, branch: Branch) -> bool:
        """Whether so much is open that a model of a branch takes long to be made, and to search."""
        windows, _ = self._windows(branch, self.branches.best)
        return not windows.empty and windows.places > _WIDE_POSITIONS * len(windows.first)

    def can_relax(self, branch: Branch) -> bool:
        """Whether linear programs (:mod:`solver.bounds.linear`) say something of a branch."""
        return (
            self.branches.objective == "bottleneck"
            and self.branches.best is not None
            and branch.order is not None
            and branch.chunks == 1
            and self._restated.is_large
            and PositionBound.applies(self._restated.units)
        )

    def relax(self, branch: Branch, clock: Clock, programs: int = MOST_PROGRAMS) -> None:
        """Bound a branch by linear programs; they may close it.

        Parameters
        ----------
        branch : Branch
            One that `can_relax`.
        clock : Clock
        programs : int
            The most to solve; the first one says whether there is a better plan at all.
        """
        devices, best = self._restated.devices(branch.order), self.branches.best
        assert devices is not None and best is not None
        branch.bound = closure_bound_ns(
            self._stage_bounds,
            self._restated.units,
            devices,
            at_least=branch.bound,
            ceiling_ns=best,
            clock=clock,
            programs=programs,
        )
        branch.closed = branch.bound >= best
        branch.asked = True

    def bound_partitions(self) -> None:
        """Bound all branches by a semidefinite program, once, if the gap is wide.

        See :mod:`solver.bounds.semidefinite.program`. It regards all orders at once, and knows no
        speeds but the greatest.
        """
        branches, restated = self.branches, self._restated
        best, least = branches.best, branches.least()
        if (
            self._partitioned
            or branches.objective != "bottleneck"
            or best is None
            or best <= least * (1000 + _PARTITIONS_GAP_PERMILLE) // 1000
            or not restated.is_large
            or not applies(restated.units, restated.slots)
        ):
            return
        self._partitioned = True
        found = semidefinite_bound_ns(
            restated.units,
            restated.slots,
            at_least_ns=least,
            ceiling_ns=best,
            clock=self._clock.slice(_PARTITIONS_SHARE * self._clock.left_s),
        )
        for branch in branches.all:
            branch.bound = max(branch.bound, min(found, best))
            branch.relaxed |= found > least * (1000 + _PARTITIONS_GAIN_PERMILLE) // 1000

    def _is_refuted(self, branch: Branch, within: int | None) -> bool:
        """Whether linear programs prove that a branch has no better bottleneck; asked once."""
        if within is not None or branch.relaxed or not self.can_relax(branch):
            return False
        if branch.asked and not branch.searched:
            # The first program did not help, so the model has its turn.
            return False
        branch.relaxed = True
        self.relax(branch, wall_share(self._clock, _PROGRAM_SHARE))
        return branch.closed

    def _has_time_for(self, branch: Branch, windows: StageWindows) -> bool:
        """Whether the model can be made within the time that is left, and searched as long."""
        left_s = self._clock.wall_left_s
        positions = branch.slots * branch.chunks
        model_s = _MODEL_S_PER_PLACE * windows.places * positions
        return (
            self.branches.best is None
            or not self._restated.is_large
            or model_s < _MODEL_SHARE * left_s
        )

    def _is_worth_making(self, branch: Branch, windows: StageWindows) -> bool:
        """Whether the model of a branch is not too large for what it is worth.

        Says the same in every deterministic run, as what is left then depends on no clock.
        """
        left_s = self._clock.left_s
        names = (*self.branches.earlier, self.branches.objective)
        if left_s == math.inf or not _TIMED.intersection(names):
            return True
        terms = link_terms(
            self._restated.units,
            windows,
            branch.slots,
            branch.chunks,
            decides_order=branch.order is None,
        )
        if branch.order is not None or self.branches.best is None:
            # It knows more than the average load, or may find the first plan.
            return terms * _MODEL_S_PER_TERM <= _TERMS_SHARE_OF_USE * left_s
        return terms <= _MOST_TERMS and terms * _MODEL_S_PER_TERM <= _TERMS_SHARE * left_s

    def _uses_all(self, branch: Branch) -> bool:
        """Whether the branch has only plans with a device in every slot.

        Needed where the number of used devices matters, and what depends on it is no constant of
        the position: alignment to the right fixes it only with one chunk of equal devices.
        """
        restated = self._restated
        if not restated.depends_on_count:
            return False
        if restated.has_steps:
            return True
        return restated.chunks > 1 or (branch.order is not None and len(restated.kinds) > 1)

    def _question(
        self, formulation: CpSatFormulation, within: int | None, *, beyond: bool
    ) -> Question:
        """Add limits on the objectives, and the incumbent as a hint where it is a solution."""
        branches, best = self.branches, self.branches.best
        stages = formulation.stages
        for earlier, value in branches.earlier.items():
            stages.model.add(formulation.objective(earlier).expression <= value)
        target = formulation.objective(branches.objective)
        stages.model.minimize(target.expression)
        choice = None
        if branches.incumbent.plan is not None and within is None:
            # The incumbent's own branch keeps it as a solution: a full hint is worth more there.
            choice = stages.choice_of(branches.incumbent.plan)
        if choice is not None:
            stages.set_hint(choice)
        elif within is not None and not beyond:
            stages.model.add(target.expression <= within)
        elif best is not None:
            stages.model.add(target.expression <= best - 1)
        restart_at = None
        # When a run stops after a solution depends on the clock.
        if branches.objective == "bottleneck" and not self._limits.deterministic:
            restart_at = None if best is None else best * (1000 - _RESTART_GAIN_PERMILLE) // 1000
        is_exact = "step" not in (*branches.earlier, branches.objective)
        is_exact = is_exact or formulation.step.is_exact
        return Question(
            stages,
            best,
            is_hinted=choice is not None,
            within=within,
            restart_at=restart_at,
            judge=None if is_exact else self._judge,
        )

    def _judge(self, plan: PartitionPlan) -> int:
        self.branches.incumbent.offer(plan)
        assert self.branches.best is not None
        return self.branches.best

    def _report(self, branch: Branch, best: int | None, bound: int) -> None:
        """Tell the caller of the incumbent, and of the bound over all branches."""
        assert self._limits.on_progress is not None
        least = self.branches.least(branch, bound)
        elapsed_s = self._clock.elapsed_s
        self._limits.on_progress(Progress(NAME, self.branches.objective, best, least, elapsed_s))

    def _conclude(self, branch: Branch, question: Question, answer: Answer) -> None:
        """Note what an answer says of its branch, and offer its plan."""
        if answer.bound is None:
            _refute(branch, question.within)
            return
        branch.bound = max(branch.bound, answer.bound)
        if answer.plan is None:
            return
        evaluation = self.branches.incumbent.offer(answer.plan)
        if question.judge is not None:
            branch.spent = answer.is_optimal
            return
        name = self.branches.objective
        value = evaluation.value(name)
        assert answer.value is not None
        assert value <= answer.value, (name, value, answer.value)
        if answer.is_optimal and (question.within is None or value <= question.within):
            assert value == branch.bound, (
                f"the model proves {name} = {branch.bound}, but the evaluator says {value}"
            )
            branch.closed = True


def _refute(branch: Branch, within: int | None) -> None:
    """Note that a branch has no plan that is looked for."""
    if within is None:
        branch.closed = True
    else:
        branch.bound = max(branch.bound, within + 1)
