"""The bound of a step by its work, at equal stages."""

import pytest

from solver import Device, Operator, PartitionProblem
from solver.bounds.pipeline_step import least_filled_step_ns
from solver.model.training import Backward
from solver.presolve.device_kinds import usable_devices
from solver.presolve.instance import condense
from tests.support.oracle import brute_force
from tests.support.random_problems import to_instance


def bound_of(problem):
    units = condense(problem)
    return least_filled_step_ns(units, usable_devices(units))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("devices", [1, 2, 3])
@pytest.mark.parametrize("microbatches", [1, 4, 9])
def test_equal_stages_attain_it(schedule, devices, microbatches):
    operators = [
        Operator(f"o{at}", 5, (f"o{at - 1}",) * (at > 0), backward=Backward(latency_ns=10))
        for at in range(devices)
    ]
    problem = PartitionProblem(
        operators,
        [Device(f"d{at}") for at in range(devices)],
        schedule=schedule,
        microbatches=microbatches,
        memory_model="training",
        objective=("step",),
    )
    best = brute_force(to_instance(problem))
    assert bound_of(problem) == best[0][0] == 15 * (microbatches + devices - 1)
