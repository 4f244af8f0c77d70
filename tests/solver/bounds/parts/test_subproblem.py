"""Parts of the graph, whose best plans are bounds, against brute force on whole and part."""

import random

from solver import Backward, Device, Operator, PartitionProblem, SolveLimits, evaluate, solve
from solver.bounds.parts.subproblem import has_parts, part_of
from solver.model.plan import PartitionPlan
from tests.support.oracle import brute_force
from tests.support.random_problems import random_problem, to_instance

LIMITS = SolveLimits(workers=1, time_limit_s=60)


def problems(seeds):
    """Random problems that have plans and parts, with the best value of each."""
    for seed in seeds:
        problem = random_problem(seed).replace(objective=("bottleneck",))
        best = brute_force(to_instance(problem)) if has_parts(problem) else None
        if best is not None:
            yield seed, problem, int(best[0][0])


def restricted(problem, plan, part):
    """What a plan of a problem leaves of its stages in a part."""
    names = {op.name for op in part.operators}
    assignment = {name: own for name, own in plan.assignment.items() if name in names}
    order = tuple(name for name in plan.device_order if name in assignment.values())
    return PartitionPlan(assignment, order)


def test_plans_are_plans_of_every_part():
    compared = 0
    for seed in range(300):
        problem = random_problem(seed).replace(objective=("bottleneck",))
        if not has_parts(problem):
            continue
        result = solve(problem, LIMITS, solver="chain")
        if result.plan is None:
            continue
        rng = random.Random(seed)
        names = [op.name for op in problem.operators]
        for _ in range(4):
            part = part_of(problem, set(rng.sample(names, rng.randint(1, len(names)))))
            found = evaluate(part, restricted(problem, result.plan, part))
            assert found.feasible, seed
            assert found.objective <= result.evaluation.objective, seed
            memory = {entry.device: entry.memory_bytes for entry in result.evaluation.usage}
            assert all(entry.memory_bytes <= memory[entry.device] for entry in found.usage), seed
            compared += 1
    assert compared > 200


def test_the_best_plan_of_a_part_is_no_worse():
    compared = better = 0
    for seed, problem, best in problems(range(150)):
        rng = random.Random(seed)
        names = [op.name for op in problem.operators]
        part = part_of(problem, set(rng.sample(names, rng.randint(1, len(names)))))
        found = brute_force(to_instance(part))
        assert found is not None, seed
        assert found[0][0] <= best, seed
        compared += 1
        better += found[0][0] < best
    assert compared > 40
    assert better > 10


def test_gradients_of_what_is_left_out_do_not_matter_outside_training():
    operators = (
        Operator("a", 5, value_bytes=1),
        Operator("sum", 7, ("a",), backward=Backward(3, 4, passes_to="a")),
        Operator("b", 50, ("sum",)),
    )
    problem = PartitionProblem(operators, devices=(Device("p"), Device("q")))
    assert has_parts(problem)
    part = part_of(problem, {"sum", "b"})
    assert [op.name for op in part.operators] == ["sum", "b"]
    assert solve(part, LIMITS, solver="coarse").objective == 50
