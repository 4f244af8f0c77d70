"""What the exact solver does beside finding the optimum: modes, hints, limits, progress."""

import pytest
from ortools.sat.python import cp_model

from solver import SolveLimits, evaluate, solve
from solver.cp import run as model_run
from solver.cp.formulation import CpSatFormulation
from solver.cp.stage_model import StageModel
from solver.presolve import presolved
from solver.presolve.instance import condense
from solver.search import rounds
from tests.support.answers import check_proven, check_true
from tests.support.bounds import complete_bounds
from tests.support.oracle import brute_force
from tests.support.problem_counts import counts, some
from tests.support.random_problems import random_plan, random_problem, to_instance

LIMITS = SolveLimits(workers=1, time_limit_s=60)


def optimum(problem):
    best = brute_force(to_instance(problem))
    return None if best is None else tuple(best[0])


@pytest.mark.parametrize("block", some(2, of=5))
def test_the_free_device_order_alone_equals_brute_force(block, monkeypatch):
    """Tests the one model that decides the order, which single orders otherwise overtake."""
    monkeypatch.setattr(presolved, "_MOST_ORDERS", 0)
    for seed in range(40 * block, 40 * (block + 1)):
        problem = random_problem(seed)
        check_proven(solve(problem, LIMITS), brute_force(to_instance(problem)), seed)


@pytest.mark.parametrize("relayed", [False, True])
@pytest.mark.parametrize("draw_chunks", [False, True])
@pytest.mark.parametrize("steps", [False, True])
def test_a_plan_is_a_full_hint_of_the_same_value(steps, draw_chunks, relayed):
    """Tests that fixing every variable to its hint is feasible, and costs what the plan costs."""
    hinted = 0
    settings = {"steps": steps, "draw_chunks": draw_chunks, "relayed": relayed}
    for seed in range(110):
        problem = random_problem(seed, max_operators=6, **settings)
        plan = random_plan(problem, seed, draw_chunks=draw_chunks)
        found = evaluate(problem, plan)
        if not found.feasible:
            continue
        units = condense(problem)
        slots, chunks = len(plan.device_order), 1 + plan.stages[-1].chunk
        windows = complete_bounds(units).windows(slots, chunks=chunks)
        made = StageModel(units, windows, slots, chunks=chunks, use_all=True, all_rounds=True)
        model = CpSatFormulation(made)
        target = model.objective(problem.objective[0])
        model.stages.model.minimize(target.expression)
        choice = model.stages.choice_of(plan)
        assert choice is not None, seed
        model.stages.set_hint(choice)
        run = cp_model.CpSolver()
        run.parameters.num_workers = 1
        run.parameters.fix_variables_to_their_hinted_value = True
        assert run.solve(model.stages.model) == cp_model.OPTIMAL, seed
        assert round(run.objective_value) == found.objective[0], seed
        hinted += 1
    # Few plans of several chunks are feasible.
    assert hinted > (4 if draw_chunks else 8)


def test_without_time_the_answer_is_honest():
    for seed in range(60):
        problem = random_problem(seed)
        result = solve(problem, SolveLimits(workers=1, time_limit_s=1e-6))
        check_true(result, brute_force(to_instance(problem)), seed)


def test_progress_never_gets_worse_and_its_bound_is_true():
    heard = 0
    for seed in range(40):
        problem = random_problem(seed).replace(objective=("bottleneck",))
        best = optimum(problem)
        seen = []
        solve(problem, SolveLimits(workers=1, time_limit_s=60, on_progress=seen.append))
        if best is None:
            continue
        heard += len(seen)
        assert all(p.bound is None or p.bound <= best[0] for p in seen), seed
        assert all(p.incumbent is None or p.incumbent >= best[0] for p in seen), seed
    assert heard > 0


def test_an_answer_that_denies_a_known_plan_is_not_believed(monkeypatch):
    """Tests that the search is made again without presolve, and its answer taken."""
    asked = []
    contradicts = model_run._contradicts

    def deny_once(run, status, hinted):
        asked.append(run.parameters.cp_model_presolve)
        return run.parameters.cp_model_presolve or contradicts(run, status, hinted)

    monkeypatch.setattr(model_run, "_contradicts", deny_once)
    for seed in range(30):
        problem = random_problem(seed)
        assert solve(problem, LIMITS).objective_values == optimum(problem), seed
    assert False in asked


@counts(80, 200)
def test_plans_without_a_host_are_looked_at_first(count, monkeypatch):
    monkeypatch.setattr(presolved, "_LARGE_FROM", 1)
    looked = []
    search = rounds.search

    def counted(problem, *others):
        looked.append(any(device.is_host for device in problem.devices))
        return search(problem, *others)

    monkeypatch.setattr(rounds, "search", counted)
    compared = 0
    for seed in range(count):
        problem = random_problem(90_000 + seed, max_operators=6, objective=("bottleneck",))
        hosts = sum(device.is_host for device in problem.devices)
        if problem.interconnect.charging != "host_staged" or not 0 < hosts < len(problem.devices):
            continue
        best = brute_force(to_instance(problem))
        told = []
        limits = SolveLimits(time_limit_s=None, workers=1, on_progress=told.append)
        result = solve(problem, limits, solver="cp-sat")
        assert result.objective_values == (None if best is None else best[0]), seed
        # What holds of the plans without the host alone is told to nobody.
        for progress in told if best is not None else ():
            assert progress.bound is None or progress.bound <= best[0][0], seed
        compared += 1
    # With a host first, and then without, for what the first one asked for.
    assert compared > count // 10
    assert looked.count(False) > compared // 3
    assert looked.count(True) == compared
