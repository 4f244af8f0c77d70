"""Plans between cheap borders, against brute force and the exact solvers."""

import random
from functools import partial

import pytest

from solver import (
    Device,
    Interconnect,
    Link,
    Operator,
    PartitionProblem,
    SolveLimits,
    SolveStatus,
    evaluate,
    solve,
)
from solver.dp.ideal_program import solve_ideals
from solver.heuristics import cheap_borders
from solver.heuristics.cheap_borders import cheap_groups, plan_at_cheap_borders
from solver.heuristics.local_search import better_plan
from solver.model.clock import UNLIMITED
from solver.presolve.instance import condense
from solver.stages.ideals import list_ideals
from tests.support.oracle import brute_force
from tests.support.problem_counts import some
from tests.support.random_problems import random_problem, to_instance

LINK = Interconnect(default=Link(bandwidth_bytes_per_s=10**9, latency_ns=0))
LIMITS = SolveLimits(workers=1)
PROGRAM = partial(solve_ideals, improve=better_plan)


def towers(seed, layers, devices=3):
    """Two towers of layers, dear to cut within and cheap between, that meet at their ends."""
    rng = random.Random(seed)
    operators = []
    for tower in ("left", "right"):
        for layer in range(layers):
            before = (f"{tower}{layer - 1}",) if layer else ()
            operators.append(
                Operator(f"{tower}_in{layer}", rng.randint(5, 20), before, transfer_ns=50)
            )
            operators.append(
                Operator(
                    f"{tower}{layer}", rng.randint(5, 20), (f"{tower}_in{layer}",), transfer_ns=1
                )
            )
    ends = (f"left{layers - 1}", f"right{layers - 1}")
    operators.append(Operator("join", 3, ends))
    return PartitionProblem(
        operators=operators,
        devices=[Device(f"d{i}") for i in range(devices)],
        interconnect=LINK,
    )


@pytest.mark.parametrize("seed", range(10))
def test_towers_are_cut_as_well_as_can_be(seed):
    problem = towers(seed, layers=4)
    plan = plan_at_cheap_borders(condense(problem), UNLIMITED, PROGRAM)
    assert plan is not None
    best = solve(problem, limits=LIMITS)
    assert best.status is SolveStatus.OPTIMAL
    assert evaluate(problem, plan).objective == best.evaluation.objective


@pytest.mark.parametrize("seed", some(67, of=200))
def test_plans_are_feasible_and_no_better_than_brute_force(seed, monkeypatch):
    monkeypatch.setattr(cheap_borders, "_MOST_ON_PATH", 1.0)
    monkeypatch.setattr(cheap_borders, "_MOST_IDEALS", 8)
    problem = random_problem(seed, objective=("bottleneck",))
    plan = plan_at_cheap_borders(condense(problem), UNLIMITED, PROGRAM)
    if plan is None:
        return
    evaluation = evaluate(problem, plan)
    assert evaluation.feasible
    best = brute_force(to_instance(problem))
    assert best is not None
    assert evaluation.objective >= tuple(best[0])


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_without_cycle_and_have_few_ideals(seed, monkeypatch):
    monkeypatch.setattr(cheap_borders, "_MOST_IDEALS", 30)
    units = condense(towers(seed, layers=10))
    groups = cheap_groups(units)
    assert sorted(unit for group in groups for unit in group) == list(range(len(units)))
    assert 1 < len(groups) < len(units)
    number = {unit: place for place, group in enumerate(groups) for unit in group}
    edges = {(number[source], number[target]) for source, target in units.edges}
    assert all(source <= target for source, target in edges)
    proper = sorted((source, target) for source, target in edges if source != target)
    assert list_ideals(len(groups), proper, 30) is not None
    # Nothing is cut where much crosses.
    names = [units.problem.operators[members[0]].name for members in units.members]
    for tower in ("left", "right"):
        for layer in range(10):
            first, second = names.index(f"{tower}_in{layer}"), names.index(f"{tower}{layer}")
            assert number[first] == number[second]


def test_a_chain_is_left_to_others():
    chain = [Operator(f"op{i}", 5, (f"op{i - 1}",) if i else (), transfer_ns=1) for i in range(9)]
    problem = PartitionProblem(operators=chain, devices=[Device("a"), Device("b")])
    assert plan_at_cheap_borders(condense(problem), UNLIMITED, PROGRAM) is None
