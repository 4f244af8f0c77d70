"""What the longest device passes on."""

import random

from solver import Device, Interconnect, Operator, PartitionPlan, PartitionProblem, evaluate
from solver.heuristics.rotations import best_rotation, can_rotate
from solver.heuristics.trimming import trimmed
from solver.presolve.instance import condense
from tests.support.random_problems import random_problem


def test_parts_move_as_a_whole():
    """The mask is cheap, but costs to be cut, and its last unit as much to receive as to send."""
    operators = [
        Operator("mask0", 2, value_bytes=1, transfer_ns=9),
        Operator("mask1", 2, ["mask0"], value_bytes=1, transfer_ns=1),
        Operator("layer0", 20, ["mask1"], value_bytes=1, transfer_ns=1),
        Operator("layer1", 10, ["layer0", "mask1"], value_bytes=1, transfer_ns=1),
        Operator("head", 2, ["layer1"]),
    ]
    problem = PartitionProblem(
        operators,
        [Device("d0"), Device("d1")],
        interconnect=Interconnect(charging="host_staged"),
        chunks_per_device=2,
    )
    places = {"mask0": "d0", "mask1": "d0", "layer0": "d0", "layer1": "d1", "head": "d1"}
    plan = PartitionPlan(places, ("d0", "d1"))
    better = trimmed(condense(problem), plan)
    assert evaluate(problem, plan).bottleneck_ns == 26
    assert evaluate(problem, better).bottleneck_ns == 26 - 2 * 2
    assert better.assignment == {**places, "mask0": "d1", "mask1": "d1"}


def test_trimmed_plans_are_no_worse():
    compared = better = 0
    for seed in range(80):
        problem = random_problem(seed, max_operators=12, objective=("bottleneck",))
        devices = [Device(d.name, None, d.device_class) for d in problem.devices]
        problem = problem.replace(
            devices=devices,
            chunks_per_device=random.Random(seed).randint(2, 3),
            max_devices=None,
        )
        units = condense(problem)
        plan = best_rotation(units) if can_rotate(units) and len(units) > 1 else None
        if plan is None:
            continue
        before, after = (evaluate(problem, each) for each in (plan, trimmed(units, plan)))
        assert after.feasible, seed
        assert after.objective <= before.objective, seed
        compared += 1
        better += after.objective < before.objective
    assert compared > 20
    assert better > 0
