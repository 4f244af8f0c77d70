"""Boundaries between stages, solved exactly while the others stay."""

from experiments.problems.generators import GeneratorSettings, generate_problem
from solver import Device, Interconnect, Link, Operator, PartitionPlan, PartitionProblem
from solver.evaluation.evaluate import evaluate
from solver.heuristics.neighbourhoods.stage_boundaries import improve_by_neighbourhoods
from solver.model.limits import SolveLimits
from solver.presolve.units import condense
from solver.search.solve import solve
from tests.support.random_problems import hand_made_problem, random_problem


def test_it_is_never_worse_and_finds_optima_of_small_problems():
    started = improved = 0
    for seed in range(150):
        problem = random_problem(40_000 + seed, max_operators=6, objective=("bottleneck",))
        start = solve(problem, SolveLimits(), solver="greedy")
        if start.objective is None:
            continue
        plan = improve_by_neighbourhoods(condense(problem), start.plan, max_solves=4)
        found = evaluate(problem, plan)
        assert found.feasible, seed
        assert found.objective <= start.objective_values, seed
        started += 1
        improved += found.objective < start.objective_values
    assert started >= 60
    assert improved >= 5


def test_cuts_and_pinned_stages_are_kept():
    started = improved = 0
    for seed in range(150):
        problem = hand_made_problem(seed, max_operators=6, objective=("bottleneck",))
        start = solve(problem, SolveLimits(), solver="chain")
        if start.objective is None:
            continue
        plan = improve_by_neighbourhoods(condense(problem), start.plan, max_solves=4)
        found = evaluate(problem, plan)
        assert found.feasible, (seed, found.violations)
        assert found.objective <= start.objective_values, seed
        started += 1
        improved += found.objective < start.objective_values
    assert started >= 60
    assert improved >= 3


def test_it_moves_a_boundary_to_its_optimum():
    names = [f"op{i}" for i in range(12)]
    problem = PartitionProblem(
        operators=[
            Operator(name, 10, (names[i - 1],) if i else (), value_bytes=1)
            for i, name in enumerate(names)
        ],
        devices=(Device("d0"), Device("d1"), Device("d2")),
        interconnect=Interconnect(Link(10**9, 0)),
        memory_model="weights",
    )
    where = ["d0"] * 9 + ["d1"] * 2 + ["d2"]
    plan = PartitionPlan.from_assignment(problem, dict(zip(names, where, strict=True)))
    found = improve_by_neighbourhoods(condense(problem), plan)
    assert evaluate(problem, found).bottleneck_ns == 42


def test_it_is_the_same_every_time():
    problem = generate_problem("layered", GeneratorSettings(operators=120, width=4), 4)
    units = condense(problem)
    start = solve(problem, SolveLimits(), solver="greedy").plan
    plans = [improve_by_neighbourhoods(units, start, max_solves=3) for _ in range(2)]
    assert plans[0] == plans[1]
    assert evaluate(problem, plans[0]).objective <= evaluate(problem, start).objective


def test_other_problems_keep_their_plan():
    for seed in range(40):
        problem = random_problem(seed, objective=("transfer",))
        start = solve(problem, SolveLimits(), solver="greedy")
        if start.plan is not None:
            assert improve_by_neighbourhoods(condense(problem), start.plan) is start.plan
