"""The bound from ideals of a skeleton, against brute force and the exact solvers."""

import random

import pytest
from oracle import brute_force
from random_problems import random_problem, to_instance

from solver import (
    Device,
    Interconnect,
    Link,
    Operator,
    PartitionProblem,
    SolveLimits,
    SolveStatus,
    Weight,
    evaluate,
    solve,
)
from solver.bounds import StageWindows
from solver.linear_bounds import least_times_ns
from solver.reduce import condense
from solver.skeleton import MOST_WIDE_NETS, Skeleton
from solver.skeleton_bound import SkeletonBound

LINK = Interconnect(default=Link(bandwidth_bytes_per_s=10**9, latency_ns=0))


def decoder(seed, layers, devices=3):
    """A chain of layers that read wide values by units of their own, as masks and encodings are."""
    rng = random.Random(seed)
    classes = ("fast", "slow")[: rng.choice((1, 1, 2))]
    memory = rng.random() < 0.5

    def operator(name, most_ns, *reads):
        latency = {kind: rng.randint(0, most_ns) for kind in classes}
        return Operator(
            name,
            latency if len(classes) == 2 else latency["fast"],
            reads,
            value_bytes=1,
            transfer_ns=rng.randint(0, 8),
            weights=(f"w.{name}",) if memory else (),
        )

    operators = [operator("mask", 2)]
    if rng.random() < 0.5:
        operators.append(operator("bias", 3))
    wide = [op.name for op in operators]
    split = rng.randint(1, max(1, layers - 3))
    for layer in range(layers):
        before = (f"layer{layer - 1}",) if layer else ()
        if layer < split:
            head = tuple(name for name in wide if rng.random() < 0.9)
        else:
            head = (f"layer{split - 1}",)
        feeders: tuple[str, ...] = ()
        if rng.random() < 0.8 and head:
            operators.append(operator(f"feed{layer}", 3, *head))
            feeders = (f"feed{layer}",)
            if rng.random() < 0.3:
                operators.append(operator(f"copy{layer}", 2, *feeders))
                feeders = (f"copy{layer}",)
        elif rng.random() < 0.5:
            feeders = head[:1]
        operators.append(operator(f"layer{layer}", 12, *dict.fromkeys((*before, *feeders))))
    sizes = {op.weights[0]: Weight(rng.randint(0, 9)) for op in operators if op.weights}
    total = sum(weight.size_bytes for weight in sizes.values())
    return PartitionProblem(
        operators=operators,
        devices=[
            Device(
                f"d{i}",
                max(1, total * rng.choice((4, 5, 7)) // 10) if memory else None,
                rng.choice(classes),
            )
            for i in range(devices)
        ],
        weights=sizes,
        interconnect=LINK,
        memory_model="weights",
    )


def everywhere(units, slots):
    return StageWindows((0,) * len(units), (slots - 1,) * len(units))


def bound_of(problem, ceiling_ns, more=MOST_WIDE_NETS):
    units = condense(problem)
    slots = len(problem.devices)
    skeleton = Skeleton.of(units, least_times_ns(units), slots, more)
    return SkeletonBound(units, skeleton, slots, ceiling_ns, everywhere(units, slots))


def assert_true(problem, plan, optimum_ns):
    """Check bound and windows against a plan with the least bottleneck."""
    for more in (0, MOST_WIDE_NETS):
        for ceiling_ns in (optimum_ns, 2 * optimum_ns + 1):
            bound = bound_of(problem, ceiling_ns, more)
            assert bound.least_bottleneck_ns(0) <= optimum_ns
            windows = bound.windows(optimum_ns)
            units = condense(problem)
            stages = list(plan.stages)
            idle = len(problem.devices) - len(stages)
            for unit, members in enumerate(units.members):
                device = plan.assignment[problem.operators[members[0]].name]
                position = idle + [stage.device for stage in stages].index(device)
                assert windows.first[unit] <= position <= windows.last[unit]


@pytest.mark.parametrize("seed", range(40))
def test_bound_is_no_more_than_brute_force(seed):
    problem = decoder(seed, layers=3)
    best = brute_force(to_instance(problem))
    if best is None:
        return
    ((optimum_ns,), *_) = best
    plan = solve(problem).plan
    assert plan is not None
    assert evaluate(problem, plan).bottleneck_ns == optimum_ns
    assert_true(problem, plan, optimum_ns)


@pytest.mark.parametrize("seed", range(200))
def test_bound_of_longer_graphs_is_no_more_than_the_optimum(seed):
    problem = decoder(seed, layers=4 + seed % 6, devices=2 + seed % 3)
    result = solve(problem, limits=SolveLimits(workers=1))
    if result.status is SolveStatus.OPTIMAL:
        assert_true(problem, result.plan, result.evaluation.bottleneck_ns)
    else:
        assert result.status is SolveStatus.INFEASIBLE


@pytest.mark.parametrize("seed", range(60))
def test_bound_of_any_graph_is_no_more_than_the_optimum(seed):
    problem = random_problem(seed, objective=("bottleneck",))
    if not SkeletonBound.applies(condense(problem)):
        return
    result = solve(problem, limits=SolveLimits(workers=1))
    if result.status is SolveStatus.OPTIMAL:
        assert_true(problem, result.plan, result.evaluation.bottleneck_ns)
