"""Steps in the CP-SAT model against brute force and against the evaluator."""

from ortools.sat.python import cp_model

from solver.cp import step_rows
from solver.cp.formulation import CpSatFormulation
from solver.evaluation.evaluate import evaluate
from solver.evaluation.result import SolveStatus
from solver.model.limits import SolveLimits
from solver.presolve.instance import condense
from solver.search.solve import solve
from tests.support.bounds import complete_bounds
from tests.support.oracle import brute_force
from tests.support.random_problems import random_plan, random_problem, to_instance

LIMITS = SolveLimits(workers=1, time_limit_s=None)


def drawn(seed, *, relayed, draw_chunks):
    return random_problem(
        seed,
        max_operators=5 if draw_chunks else 6,
        relayed=relayed,
        draw_chunks=draw_chunks,
        steps=True,
    )


def test_where_the_model_only_bounds_the_step_its_bound_is_true(monkeypatch):
    monkeypatch.setattr(step_rows, "MOST_JOBS", 0)
    proven = open_ = 0
    # Of 1F1B, of which no formula is known, with several microbatches.
    for seed in (3, 26, 30, 31, 41, 64, 88, 141):
        problem = drawn(seed, relayed=seed % 2 == 0, draw_chunks=False)
        answer = brute_force(to_instance(problem))
        result = solve(problem, LIMITS, solver="cp-sat")
        if answer is None:
            assert result.status is SolveStatus.INFEASIBLE, seed
            continue
        best = answer[0]
        if result.status is SolveStatus.OPTIMAL:
            assert result.objective_values == best, seed
            proven += 1
        else:
            assert result.status is SolveStatus.FEASIBLE, seed
            assert result.objective_bounds[0] <= best[0] <= result.objective_values[0], seed
            open_ += 1
    assert proven
    assert open_


def test_a_models_value_of_a_plan_is_the_evaluators():
    seen = 0
    for seed in range(80):
        draw_chunks, relayed = seed % 3 == 0, seed % 2 == 0
        problem = drawn(seed, relayed=relayed, draw_chunks=draw_chunks)
        problem = problem.replace(objective="step")
        units = condense(problem)
        plan = random_plan(problem, seed, draw_chunks=draw_chunks)
        found = evaluate(problem, plan)
        if not found.feasible:
            continue
        slots, chunks = len(plan.device_order), 1 + plan.stages[-1].chunk
        windows = complete_bounds(units).windows(slots, None, None, chunks)
        formulation = CpSatFormulation(
            units, windows, slots, chunks=chunks, use_all=True, all_rounds=True
        )
        stages = formulation.stages
        target = formulation.objective("step")
        stages.model.minimize(target.expression)
        choice = stages.choice_of(plan)
        assert choice is not None
        for index, value in stages.hint(choice).items():
            stages.model.add(stages.model.get_int_var_from_proto_index(index) == value)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        assert solver.solve(stages.model) == cp_model.OPTIMAL, seed
        assert round(solver.objective_value) == found.step_ns, seed
        seen += 1
    assert seen >= 15
