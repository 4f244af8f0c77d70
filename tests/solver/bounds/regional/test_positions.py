"""Bounds that know transfers, against brute force."""

import random

import pytest

from solver import (
    Device,
    Interconnect,
    Link,
    Operator,
    PartitionProblem,
    SolveLimits,
    Weight,
    solve,
)
from solver.bounds.averages import least_average_ns, least_value
from solver.bounds.regional.positions import PositionBound
from solver.presolve.device_kinds import usable_devices
from solver.presolve.instance import condense
from tests.support.graphs import chain
from tests.support.oracle import brute_force
from tests.support.random_problems import to_instance


def bound_of(problem, name="bottleneck"):
    units = condense(problem)
    position = None
    if name == "bottleneck" and PositionBound.applies(units):
        position = PositionBound(units, usable_devices(units))
    return least_value(units, name, position)


def chain_of_blocks(rng, *, charging="peer_to_peer", memory=False):
    """Blocks of parallel operators between single ones, as layers of a model are."""
    operators, last = [], None
    for block in range(rng.randint(1, 2)):
        first = f"first{block}"
        operators.append(Operator(first, rng.randint(0, 5), (last,) if last else ()))
        middle = []
        for branch in range(rng.randint(1, 3)):
            reads = rng.sample(middle, rng.randint(0, min(1, len(middle))))
            if not reads or rng.random() < 0.5:
                reads.append(first)
            middle.append(f"middle{block}.{branch}")
            operators.append(Operator(middle[-1], rng.randint(0, 9), tuple(reads)))
        last = f"last{block}"
        reads = [*middle, *([first] if rng.random() < 0.5 else [])]
        operators.append(Operator(last, rng.randint(0, 5), tuple(reads)))
    names = [op.name for op in operators]
    weights = {f"w{name}": Weight(rng.randint(0, 9)) for name in names} if memory else {}
    total = sum(weight.size_bytes for weight in weights.values())
    capacity = max(1, total * rng.choice((4, 5, 7)) // 10) if memory else None
    return PartitionProblem(
        operators=[
            Operator(
                op.name,
                op.latency_ns,
                op.reads,
                value_bytes=rng.randint(0, 6),
                weights=(f"w{op.name}",) if memory else (),
            )
            for op in operators
        ],
        devices=[Device(f"d{i}", capacity) for i in range(rng.choice((2, 3)))],
        weights=weights,
        memory_model="weights",
        interconnect=Interconnect(Link(10**9, rng.randint(0, 2)), charging=charging),
    )


@pytest.mark.parametrize("charging", ["peer_to_peer", "host_staged"])
@pytest.mark.parametrize("memory", [False, True])
def test_the_position_bound_is_true_of_blocks_and_sees_their_transfers(charging, memory):
    better = exact = compared = 0
    for seed in range(75):
        problem = chain_of_blocks(random.Random(seed), charging=charging, memory=memory)
        best = brute_force(to_instance(problem))
        if best is None:
            continue
        units = condense(problem)
        average = least_average_ns(units)
        bound = bound_of(problem)
        assert average <= bound <= best[0][0], seed
        compared += 1
        better += bound > average
        exact += bound == best[0][0]
    assert compared >= 45
    assert better >= compared // 5
    assert exact >= compared // 5


def test_what_skips_a_stage_and_what_is_returned_cross_every_border():
    problem = PartitionProblem(
        operators=(
            Operator("a", 10, value_bytes=3, is_output=True),
            Operator("b", 10, ("a",), value_bytes=1),
            Operator("c", 10, ("b",), value_bytes=1),
            Operator("d", 10, ("a", "c")),
        ),
        devices=tuple(Device(name) for name in "pqrs"),
        interconnect=Interconnect(Link(10**9, 0), charging="relayed"),
        memory_model="weights",
    )
    # Four stages: 3 bytes cross the first border, 4 bytes each of the others; c pays for two.
    # Two stages of two operators take 20 + 4.
    assert bound_of(problem) == 18
    assert solve(problem, SolveLimits(workers=1)).objective == 18


@pytest.mark.parametrize(("room", "bound"), [(None, 23), (11, 38)])
def test_a_chain_pays_for_the_cheapest_cut_that_memory_lets_it_have(room, bound):
    problem = chain(
        latency_ns=10,
        value_bytes=[8, 3, 8, 0],
        weight_bytes=[6, 6, 1, 1],
        devices=(Device("d0", room), Device("d1", room)),
        memory_model="weights",
    )
    assert bound_of(problem) == bound


def test_a_constant_on_the_side_hides_no_transfer():
    problem = PartitionProblem(
        operators=(
            Operator("a", 10, value_bytes=8),
            Operator("b", 10, ("a",), value_bytes=3),
            Operator("mask", 0, value_bytes=1),
            Operator("c", 10, ("b", "mask"), value_bytes=8),
            Operator("d", 10, ("c", "mask")),
        ),
        devices=(Device("d0"), Device("d1")),
        interconnect=Interconnect(Link(10**9, 0)),
        memory_model="weights",
    )
    assert bound_of(problem) == 23


def test_a_problem_without_work_or_edges_has_a_bound():
    problem = PartitionProblem(
        operators=(Operator("a"), Operator("b")), devices=(Device("d0"), Device("d1"))
    )
    assert bound_of(problem) == 0
