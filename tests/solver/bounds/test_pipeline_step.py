"""The bound of a step by its work, against all plans and at equal stages."""

import itertools
import random
from dataclasses import replace

import pytest

from solver import Device, Operator, PartitionPlan, PartitionProblem, evaluate
from solver.bounds.averages import usable_devices
from solver.bounds.pipeline_step import least_filled_step_ns
from solver.model.training import Backward
from solver.presolve.instance import condense
from tests.support.problem_counts import counts


def equal(count):
    return [Device(f"d{at}") for at in range(count)]


def pipeline(operators, devices, **settings):
    return PartitionProblem(
        operators=operators,
        devices=tuple(devices),
        objective=("step",),
        **settings,
    )


def drawn(seed):
    """A random graph: a chain with branches beside it, or any other."""
    rng = random.Random(seed)
    operators = []
    for at in range(rng.randint(2, 5)):
        earlier = [op.name for op in operators]
        reads = set(rng.sample(earlier, min(len(earlier), rng.randint(0, 2))))
        if earlier and rng.random() < 0.6:
            reads.add(earlier[-1])
        operators.append(
            Operator(
                f"o{at}",
                {"f": (time_ns := rng.randint(0, 9)), "s": time_ns * rng.randint(1, 3)},
                tuple(sorted(reads)),
                value_bytes=rng.randint(0, 3),
                backward=Backward(
                    latency_ns={"f": (time_ns := rng.randint(0, 18)), "s": 2 * time_ns}
                ),
            )
        )
    return pipeline(
        operators,
        [Device(f"d{at}", device_class=rng.choice("fs")) for at in range(rng.randint(1, 3))],
        schedule=rng.choice(["gpipe", "1f1b"]),
        microbatches=rng.randint(1, 7),
        memory_model=rng.choice(["training", "training", "inference"]),
    )


def steps_of(problem):
    """The steps of all plans."""
    names = [device.name for device in problem.devices]
    for chosen in itertools.product(names, repeat=len(problem.operators)):
        assignment = {op.name: name for op, name in zip(problem.operators, chosen, strict=True)}
        for order in itertools.permutations(sorted({*chosen})):
            evaluation = evaluate(problem, PartitionPlan(assignment, order))
            if evaluation.feasible:
                yield evaluation.step_ns


def bound_of(problem):
    units = condense(problem)
    return least_filled_step_ns(units, usable_devices(units))


@counts(150, 2000)
def test_no_plan_takes_less(count):
    attained = 0
    for seed in range(count):
        problem = drawn(seed)
        least_ns = min(steps_of(problem))
        assert bound_of(problem) <= least_ns, seed
        attained += bound_of(problem) == least_ns
    assert attained > count // 10


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("microbatches", [1, 4, 9])
def test_equal_stages_attain_it(schedule, devices, microbatches):
    operators = [
        Operator(f"o{at}", 5, (f"o{at - 1}",) * (at > 0), backward=Backward(latency_ns=10))
        for at in range(devices)
    ]
    problem = pipeline(
        operators,
        equal(devices),
        schedule=schedule,
        microbatches=microbatches,
        memory_model="training",
    )
    assert bound_of(problem) == min(steps_of(problem)) == 15 * (microbatches + devices - 1)


def test_work_beside_the_path_may_be_done_meanwhile():
    """Two branches of equal time: a device for each waits for neither."""
    ends = Operator("a", 1), Operator("d", 1, ("b", "c"))
    branches = [Operator(name, 60, ("a",)) for name in "bc"]
    problem = pipeline([ends[0], *branches, ends[1]], equal(2), schedule="gpipe", microbatches=3)
    least_ns = min(steps_of(problem))
    assert bound_of(problem) <= least_ns
    alone = problem.replace(
        operators=[replace(ends[0]), branches[0], replace(ends[1], reads=("b",))]
    )
    assert bound_of(problem) >= bound_of(alone) > 62
