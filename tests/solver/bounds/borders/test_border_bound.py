"""Bounds by borders that exist, against brute force."""

import pytest

from solver import Device, Interconnect, Operator, PartitionProblem, Weight
from solver.bounds.averages import least_average_ns
from solver.bounds.regional.path_markers import PathBound
from solver.bounds.regional.positions import PositionBound
from solver.bounds.regional.spine import spine
from solver.presolve.device_kinds import usable_devices
from solver.presolve.instance import condense
from tests.support.bounds import border_bound
from tests.support.graphs import layers
from tests.support.oracle import brute_force
from tests.support.problem_counts import counts
from tests.support.random_problems import to_instance


def older_bound(problem):
    """What is known without borders: averages, positions, and markers on a path."""
    units = condense(problem)
    slots = usable_devices(units)
    least = least_average_ns(units)
    for graph in (units, spine(units)):
        least = PositionBound(graph, slots).least_bottleneck_ns(least)
    return PathBound(units, slots).least_bottleneck_ns(least)


@pytest.mark.parametrize("charging", ["peer_to_peer", "host_staged", "relayed"])
@counts(34, 100)
def test_the_bound_is_true_of_layers_and_more_than_positions_tell(count, charging):
    compared = better = exact = 0
    for seed in range(count):
        problem = layers(seed, charging=charging)
        best = brute_force(to_instance(problem))
        if best is None:
            continue
        found = border_bound(problem).least_bottleneck_ns()
        assert found <= best[0][0], seed
        compared += 1
        better += found > older_bound(problem)
        exact += found == best[0][0]
    assert compared >= count * 3 // 5
    assert better >= count // 25
    assert exact >= compared // 8


def test_weights_come_in_lumps():
    # Two small devices have room for one and a half of the heavy operators each.
    operators = [Operator("join0", 0)]
    for i in range(6):
        operators.append(Operator(f"op{i}", 10, (f"join{i // 2}",), weights=(f"w{i}",)))
        if i % 2:
            operators.append(Operator(f"join{i // 2 + 1}", 0, (f"op{i - 1}", f"op{i}")))
    problem = PartitionProblem(
        operators=operators,
        devices=(Device("p", 6), Device("q", 6), Device("r", 24)),
        weights={f"w{i}": Weight(4) for i in range(6)},
        memory_model="weights",
    )
    assert older_bound(problem) == 20
    best = brute_force(to_instance(problem))
    assert border_bound(problem).least_bottleneck_ns() == best[0][0] == 40


def test_a_stage_holds_what_it_receives_and_what_is_live():
    # Weights alone would let one device have the last two operators.
    operators = [
        Operator("a", 20, weights=("wa",), value_bytes=3, storage_bytes=3),
        Operator("b", 10, ("a",), weights=("wb",), value_bytes=3, storage_bytes=3),
        Operator("c", 10, ("b",), weights=("wc",), value_bytes=1, storage_bytes=1),
    ]
    problem = PartitionProblem(
        operators=operators,
        devices=(Device("p", 11), Device("q", 11), Device("r", 11)),
        weights={"wa": Weight(8), "wb": Weight(4), "wc": Weight(4)},
        memory_model="inference",
    )
    best = brute_force(to_instance(problem))
    assert border_bound(problem).least_bottleneck_ns() == best[0][0] == 20
    tight = problem.replace(devices=(Device("p", 11), Device("q", 11)))
    assert brute_force(to_instance(tight)) is None
    relaxed = tight.replace(memory_model="weights")
    assert border_bound(relaxed).least_bottleneck_ns() == 20
    assert border_bound(tight).least_bottleneck_ns() > 20


def test_what_cannot_be_listed_has_no_bound():
    wide = [Operator("first", 1), *(Operator(f"op{i}", 1, ("first",)) for i in range(20))]
    wide.append(Operator("last", 1, tuple(op.name for op in wide[1:])))
    problem = PartitionProblem(operators=wide, devices=(Device("p"), Device("q")))
    bound = border_bound(problem)
    assert not bound.is_known
    assert bound.least_bottleneck_ns(7) == 7
    staged = problem.replace(
        operators=wide[:2],
        devices=(Device("p"), Device("q", is_host=True)),
        interconnect=Interconnect(charging="host_staged"),
    )
    assert not border_bound(staged).is_known
