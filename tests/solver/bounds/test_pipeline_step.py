"""The bound of a step by its work, against all plans and at equal stages."""

import itertools
import random

import pytest

from solver import Device, Interconnect, Link, Operator, PartitionPlan, PartitionProblem, evaluate
from solver.bounds.pipeline_step import least_filled_step_ns
from solver.bounds.recomputed.chains import RecomputedChains
from solver.bounds.recomputed.stages import RecomputedStages
from solver.model.training import Backward
from solver.presolve.device_kinds import interchangeable_kinds, usable_devices
from solver.presolve.instance import condense
from solver.stages.recompute_chooser import RecomputeChooser
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


def on_classes(rng, most_ns):
    time_ns = rng.randint(0, most_ns)
    return {"f": time_ns, "s": time_ns * rng.randint(1, 3)}


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
                on_classes(rng, 9),
                tuple(sorted(reads)),
                value_bytes=rng.randint(0, 3),
                backward=Backward(latency_ns=on_classes(rng, 18), gradient_bytes=1),
            )
        )
    return pipeline(
        operators,
        [Device(f"d{at}", device_class=rng.choice("fs")) for at in range(rng.randint(1, 3))],
        schedule=rng.choice(["gpipe", "1f1b"]),
        microbatches=rng.randint(1, 7),
        memory_model=rng.choice(["training", "training", "inference"]),
        interconnect=Interconnect(
            default=Link(10**9),
            charging=rng.choice(["peer_to_peer", "relayed", "host_staged"]),
            overlap=rng.random() < 0.3,
        ),
    )


def short_of_memory(seed):
    """A chain, or one with branches, that devices often hold only if operators run again."""
    rng = random.Random(seed)
    operators = [
        Operator(
            f"o{at}",
            on_classes(rng, 9),
            (f"o{rng.choice([at - 1, 0])}",) * (at > 0),
            value_bytes=1,
            backward=Backward(
                latency_ns=on_classes(rng, 9),
                residual_bytes=rng.randint(5, 20),
                gradient_bytes=1,
                recomputable=rng.random() < 0.9,
                region=at,
            ),
        )
        for at in range(rng.randint(2, 3))
    ]
    classes = rng.choice(["f", "fs"])
    return pipeline(
        operators,
        [
            Device(f"d{at}", rng.randint(10, 70), device_class=rng.choice(classes))
            for at in range(rng.randint(2, 3))
        ],
        schedule=rng.choice(["gpipe", "1f1b"]),
        microbatches=rng.randint(2, 6),
        memory_model="training",
        recompute="auto",
    )


def steps_of(problem):
    """The steps of all plans."""
    names = [device.name for device in problem.devices]
    may = [op.name for op in problem.operators if op.backward.recomputable]
    for chosen in itertools.product(names, repeat=len(problem.operators)):
        assignment = {op.name: name for op, name in zip(problem.operators, chosen, strict=True)}
        for order in itertools.permutations(sorted({*chosen})):
            for again in itertools.product([False, True], repeat=len(may)):
                recomputed = frozenset(itertools.compress(may, again))
                plan = PartitionPlan(assignment, order, recomputed=recomputed)
                evaluation = evaluate(problem, plan)
                if evaluation.feasible:
                    yield evaluation.step_ns


def bound_of(problem):
    units = condense(problem)
    return least_filled_step_ns(units, usable_devices(units))


def bound_of_chains(problem, step_ns=None):
    """The bound by what stages take at least in their memory, below a step that is known."""
    units = condense(problem)
    limit_ns = None if step_ns is None else step_ns // problem.microbatches
    kinds, choices = interchangeable_kinds(units), RecomputeChooser(problem).choices
    stages = RecomputedStages.of(units, kinds, choices, limit_ns=limit_ns)
    return RecomputedChains(stages, is_step=True).least(step_ns)[0]


@counts(150, 2000)
def test_no_plan_takes_less(count):
    attained = 0
    for seed in range(count):
        problem = drawn(seed)
        least_ns = min(steps_of(problem))
        assert bound_of(problem) <= least_ns, seed
        attained += bound_of(problem) == least_ns
    assert attained > count // 10


@counts(100, 2000)
def test_no_plan_takes_less_with_what_must_run_again(count):
    compared = told = attained = 0
    for seed in range(count):
        problem = short_of_memory(seed)
        least_ns = min(steps_of(problem), default=None)
        if least_ns is None:
            continue
        bound_ns = bound_of_chains(problem)
        for known_ns in (least_ns, 2 * least_ns):
            assert max(bound_ns, bound_of_chains(problem, known_ns)) <= least_ns, seed
        compared += 1
        told += bound_ns > bound_of(problem)
        attained += bound_ns > 0.999 * least_ns
    assert told > compared // 2 > count // 10
    assert attained > compared // 10


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
