"""The exact solver: runs the CP-SAT model and answers with a plan, a bound and a status."""

from __future__ import annotations

import time
from dataclasses import replace

from ortools.sat.python import cp_model

from solver.bounds import stage_windows
from solver.chain import solve_chain
from solver.evaluate import evaluate
from solver.formulation import CpSatFormulation
from solver.greedy import solve_greedy
from solver.linear import LinearSum
from solver.plan import PartitionPlan
from solver.problem import ObjectiveName, PartitionProblem
from solver.reduce import condense
from solver.result import Progress, SolveLimits, SolveResult, SolveStatus

_NAME = "cp-sat"


def solve_cp_sat(problem: PartitionProblem, limits: SolveLimits) -> SolveResult:
    """Solve `problem` exactly, or return the best plan and bound at the time limit.

    The best baseline (chain, greedy) is the first incumbent and a full hint; objectives are
    minimised one after the other, each with the earlier ones held at their values.

    Parameters
    ----------
    problem : PartitionProblem
    limits : SolveLimits

    Returns
    -------
    SolveResult
        Never worse than the baselines. The plan and its objective are the evaluator's.
    """
    return _Search(problem, limits).run()


class _Search:
    """One run of the exact solver."""

    def __init__(self, problem: PartitionProblem, limits: SolveLimits) -> None:
        self.problem = problem
        self.limits = limits
        self.started_s = time.perf_counter()
        self.incumbent: PartitionPlan | None = None
        self.incumbent_values: tuple[int, ...] | None = None
        self.bounds: list[int] = []

    def run(self) -> SolveResult:
        units = condense(self.problem)
        if any(allowed is not None and not allowed for allowed in units.allowed_devices):
            return self._result(
                SolveStatus.INFEASIBLE,
                "operators on a cycle between colocation groups are pinned to different devices",
            )
        self._try_baselines()
        positions = min(len(self.problem.devices), len(units))
        largest_load_ns: int | None = None
        if self.incumbent_values is not None and self.problem.objective[0] == "bottleneck":
            largest_load_ns = self.incumbent_values[0]
        windows = stage_windows(units, positions, largest_load_ns)
        if windows.empty:
            # The incumbent, if there is one, lies within its own windows.
            assert self.incumbent is None
            return self._result(SolveStatus.INFEASIBLE, "the weights exceed the memory in all")
        formulation = CpSatFormulation(units, positions, windows, largest_load_ns)
        return self._minimise(formulation)

    def _try_baselines(self) -> None:
        for baseline in (solve_chain, solve_greedy):
            result = baseline(self.problem, replace(self.limits, time_limit_s=self._remaining_s()))
            if result.plan is not None and result.objective_values is not None:
                self._offer(result.plan, result.objective_values)

    def _offer(self, plan: PartitionPlan, values: tuple[int, ...]) -> None:
        if self.incumbent_values is None or values < self.incumbent_values:
            self.incumbent, self.incumbent_values = plan, values

    def _minimise(self, formulation: CpSatFormulation) -> SolveResult:
        for name in self.problem.objective:
            target = formulation.objective(name)
            status = self._run_solver(formulation, name, target)
            if status == cp_model.INFEASIBLE:
                # Later objectives start from a plan that satisfies the earlier ones.
                assert self.incumbent is None, "a feasible plan was found infeasible"
                return self._result(SolveStatus.INFEASIBLE, "proven: no plan fits")
            if status != cp_model.OPTIMAL:
                found = self.incumbent is not None
                return self._result(
                    SolveStatus.FEASIBLE if found else SolveStatus.UNKNOWN,
                    "" if found else "the time limit ran out before a plan was found",
                )
            index = len(self.bounds) - 1
            assert self.incumbent_values is not None
            assert self.incumbent_values[index] == self.bounds[index], (
                f"the model proves {name} = {self.bounds[index]}, "
                f"but the evaluator says {self.incumbent_values[index]}"
            )
            formulation.stages.model.add(target.expression <= self.bounds[index])
        return self._result(SolveStatus.OPTIMAL)

    def _run_solver(
        self, formulation: CpSatFormulation, name: ObjectiveName, target: LinearSum
    ) -> cp_model.CpSolverStatus:
        model = formulation.stages.model
        model.minimize(target.expression)
        if self.incumbent is not None:
            choice = formulation.stages.choice_of(self.incumbent)
            if choice is not None:
                formulation.stages.set_hint(choice)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = self.limits.worker_count
        solver.parameters.random_seed = self.limits.seed
        remaining_s = self._remaining_s()
        if remaining_s is not None:
            solver.parameters.max_time_in_seconds = remaining_s
        watcher = _Watcher(self, name)
        if self.limits.on_progress is not None:
            solver.best_bound_callback = watcher.on_bound
        status = solver.solve(model, watcher)
        if status == cp_model.MODEL_INVALID:
            raise AssertionError(f"invalid CP-SAT model: {model.validate()}")
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            plan = formulation.stages.plan_of(solver.value)
            evaluation = evaluate(self.problem, plan)
            assert evaluation.feasible, evaluation.violations
            assert evaluation.value(name) <= round(solver.objective_value), name
            self._offer(plan, evaluation.objective)
        if status != cp_model.INFEASIBLE:
            self._note_bound(solver.best_objective_bound)
        return status

    def _note_bound(self, bound: float) -> None:
        # Bounds are exact integers up to 2**53; the last rounding can only weaken them.
        value = max(0, round(bound))
        if self.incumbent_values is not None:
            value = min(value, self.incumbent_values[len(self.bounds)])
        self.bounds.append(value)

    def _remaining_s(self) -> float | None:
        if self.limits.time_limit_s is None:
            return None
        elapsed_s = time.perf_counter() - self.started_s
        # Even without time left, presolve proves small instances.
        return max(self.limits.time_limit_s - elapsed_s, 0.01)

    def _result(self, status: SolveStatus, reason: str = "") -> SolveResult:
        found = status in (SolveStatus.OPTIMAL, SolveStatus.FEASIBLE)
        plan = self.incumbent if found else None
        return SolveResult(
            solver=_NAME,
            status=status,
            plan=plan,
            evaluation=None if plan is None else evaluate(self.problem, plan),
            objective_bounds=tuple(self.bounds) or None,
            wall_time_s=time.perf_counter() - self.started_s,
            reason=reason,
        )


class _Watcher(cp_model.CpSolverSolutionCallback):
    """Tells the caller of every better incumbent and bound."""

    def __init__(self, search: _Search, name: ObjectiveName) -> None:
        super().__init__()
        self._search = search
        self._name = name
        self._incumbent: int | None = None
        self._bound: int | None = None

    def on_solution_callback(self) -> None:
        self._incumbent = round(self.objective_value)
        self._report()

    def on_bound(self, bound: float) -> None:
        self._bound = max(0, round(bound))
        self._report()

    def _report(self) -> None:
        on_progress = self._search.limits.on_progress
        if on_progress is not None:
            elapsed_s = time.perf_counter() - self._search.started_s
            on_progress(Progress(_NAME, self._name, self._incumbent, self._bound, elapsed_s))
