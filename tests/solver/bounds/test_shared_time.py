"""The bound from time and memory of unequal devices, against brute force."""

from solver import Device, Operator, PartitionProblem, Weight
from solver.bounds.averages import least_average_ns
from solver.bounds.shared_time import least_shared_ns
from solver.presolve.instance import condense
from tests.support.graphs import unequal_chain
from tests.support.oracle import brute_force
from tests.support.problem_counts import counts
from tests.support.random_problems import to_instance


@counts(150, 600)
def test_no_plan_is_below_it(count):
    compared = beyond_average = 0
    for seed in range(count):
        problem = unequal_chain(seed)
        units = condense(problem)
        bound = least_shared_ns(units)
        best = brute_force(to_instance(problem))
        if best is not None:
            assert bound <= best[0][0], seed
            compared += 1
            beyond_average += bound > least_average_ns(units)
    assert compared > count // 2
    assert beyond_average > count // 8


def two_devices(fast_bytes, slow_bytes):
    """Ten operators of 10 bytes each, a fast device and one four times as slow."""
    names = [f"op{i}" for i in range(10)]
    return condense(
        PartitionProblem(
            [Operator(n, {"fast": 1000, "slow": 4000}, weights=(n,)) for n in names],
            devices=[Device("a", fast_bytes, "fast"), Device("b", slow_bytes, "slow")],
            weights={n: Weight(10) for n in names},
            memory_model="weights",
        )
    )


def test_what_a_fast_device_has_no_room_for_goes_to_a_slow_one():
    # With room enough the fast one does four fifths of the work, with room for half of it half.
    assert least_shared_ns(two_devices(100, 100)) == 8000
    assert least_shared_ns(two_devices(50, 100)) == 20_000
    assert least_shared_ns(two_devices(None, None)) == 8000
    # Nothing fits, which others say.
    assert least_shared_ns(two_devices(40, 40)) <= 8000
