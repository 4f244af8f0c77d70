"""Boundaries between stages, solved exactly while the others stay."""

from solver import Device, Interconnect, Link, Operator, PartitionPlan, PartitionProblem
from solver.evaluation.evaluate import evaluate
from solver.heuristics.neighbourhoods.stage_boundaries import improve_by_neighbourhoods
from solver.model.limits import SolveLimits
from solver.presolve.instance import condense
from solver.search.solve import solve
from tests.support.random_problems import random_problem


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


def test_other_problems_keep_their_plan():
    for seed in range(40):
        problem = random_problem(seed, objective=("transfer",))
        start = solve(problem, SolveLimits(), solver="greedy")
        if start.plan is not None:
            assert improve_by_neighbourhoods(condense(problem), start.plan) is start.plan
