"""What every stage holds of weights, against what the evaluator says of plans."""

import random
from bisect import bisect_right
from dataclasses import replace

import numpy as np
import pytest

from solver import Device, Interconnect, PartitionPlan, Weight, evaluate
from solver.bounds.regional.held_weights import stage_weights
from solver.presolve.instance import condense
from tests.support.bounds import border_bound
from tests.support.graphs import chain, layers
from tests.support.oracle import brute_force
from tests.support.problem_counts import counts
from tests.support.random_problems import random_problem, to_instance


def tied_chain(*rooms, middle=4, **changes):
    """Five operators in a row, of which the first and the last read one weight of 3 bytes."""
    names = ["embed", "a", "b", "c", "head"]
    weights = {"tied": Weight(3), **{key: Weight(middle) for key in "abc"}}
    of = {name: {"weights": (name if name in weights else "tied",)} for name in names}
    devices = [Device(f"d{i}", room) for i, room in enumerate(rooms)]
    fields = {"devices": devices, "interconnect": Interconnect(), "memory_model": "weights"}
    fields |= {"weights": weights, **changes}
    return chain(names, latency_ns=10, value_bytes=1, of=of, **fields)


def test_a_weight_far_from_its_last_reader_counts_there_again():
    # Twelve bytes between both readers and the weight itself fit no device.
    units = condense(tied_chain(14, 14))
    assert stage_weights(units).tolist() == [3, 4, 4, 4, 3]
    assert units.first_weights.tolist() == [3, 4, 4, 4, 0]


@pytest.mark.parametrize(
    "problem",
    [
        tied_chain(14, 15),
        tied_chain(14, None),
        tied_chain(14, 14, chunks_per_device=2),
    ],
    ids=["one device has room for all", "unlimited memory", "two chunks"],
)
def test_it_counts_once_where_a_device_may_have_both_readers(problem):
    assert stage_weights(condense(problem)).tolist() == [3, 4, 4, 4, 0]


def test_the_bound_knows_that_both_ends_hold_a_tied_weight():
    # Without the second copy the head would go with two of the middle ones.
    problem = tied_chain(11, 8, 8)
    bound = border_bound(problem)
    assert bound.least_bottleneck_ns() == brute_force(to_instance(problem))[0][0] == 20
    tight = tied_chain(10, 8, 8)
    assert brute_force(to_instance(tight))[0][0] == border_bound(tight).least_bottleneck_ns()


def shared(seed):
    """A random problem some of whose weights have several readers, or layers with a tied one."""
    if seed % 2:
        return layers(seed)
    problem = random_problem(71_000 + seed, max_operators=6, objective=("bottleneck",))
    rng = random.Random(seed)
    weights = {f"w{i}": Weight(rng.randint(1, 9)) for i in range(5)}
    operators = [
        replace(op, weights=tuple(rng.sample(sorted(weights), rng.choice((0, 1, 1, 2)))))
        for op in problem.operators
    ]
    total = sum(weight.size_bytes for weight in weights.values())
    devices = [
        replace(device, memory_bytes=rng.randint(total // 2, total)) for device in problem.devices
    ]
    return problem.replace(
        operators=operators, weights=weights, devices=devices, memory_model="weights"
    )


@counts(100, 300, quick=100)
def test_no_stage_that_fits_holds_less(count):
    plans = counted_again = tight = 0
    for seed in range(count):
        problem = shared(seed)
        units = condense(problem)
        held = stage_weights(units)
        again = int((held - units.first_weights).sum())
        if not again:
            continue
        names = [device.name for device in problem.devices]
        rng = random.Random(seed)
        for _ in range(100):
            # Units are numbered in a topological order, so every cut of it is a plan.
            order = tuple(rng.sample(names, len(names)))
            cuts = sorted(rng.choices(range(len(units) + 1), k=len(names) - 1))
            choice = [order[bisect_right(cuts, unit)] for unit in range(len(units))]
            used = tuple(name for name in order if name in choice)
            evaluation = evaluate(problem, PartitionPlan(units.lift(choice), used))
            if not evaluation.feasible:
                continue
            plans += 1
            for usage in evaluation.usage:
                own = [unit for unit, name in enumerate(choice) if name == usage.device]
                least = int(held[np.array(own, dtype=np.intp)].sum())
                assert least <= usage.memory_bytes, (seed, choice)
                tight += least == usage.memory_bytes
        counted_again += 1
    assert counted_again >= count // 30
    assert plans >= count * 10 // 3
    assert tight >= count // 3
