"""Values from beside the spine, against what every plan of small problems receives."""

import itertools

from solver import Device, Interconnect, Link, Operator, PartitionPlan, PartitionProblem, evaluate
from solver.bounds.borders.bound import BorderBound
from solver.bounds.borders.side_values import SideValue, side_values
from solver.bounds.regional.spine import spine_units
from solver.presolve.instance import condense
from tests.support.graphs import layers


def found_of(problem):
    units = condense(problem)
    kept = spine_units(units)
    return kept, side_values(units, kept)


def masked_chain(count, **mask):
    """A chain in which every operator but the first reads a mask through a view of its own."""
    operators = [Operator("mask", 0, value_bytes=5), Operator("op0", 10, value_bytes=1)]
    for i in range(1, count):
        operators.append(Operator(f"view{i}", 0, ("mask",), **{"value_bytes": 6, **mask}))
        operators.append(Operator(f"op{i}", 10, (f"op{i - 1}", f"view{i}"), value_bytes=1))
    return PartitionProblem(
        operators=operators,
        devices=tuple(Device(f"d{i}") for i in range(3)),
        interconnect=Interconnect(Link(10**9, 0)),
    )


def test_views_of_one_value_are_paid_for_once():
    kept, values = found_of(masked_chain(4))
    assert [kept[value.first] for value in values] == [3]
    assert values == (SideValue(1, (2, 3), 5, 5),)


def test_a_bound_counts_what_the_second_reader_receives():
    problem = masked_chain(4).replace(devices=(Device("p"), Device("q")))
    units = condense(problem)
    # One byte of the chain crosses, and the mask: 20 + 1 + 5, both sent and received.
    assert BorderBound(units, 2).least_bottleneck_ns() == 26


def test_every_stage_with_a_reader_receives_the_sum():
    checked = 0
    for seed in range(60):
        problem = layers(seed).replace(memory_model="weights")
        kind = problem.devices[0].device_class
        devices = [Device(name, device_class=kind) for name in "pqr"]
        problem = problem.replace(devices=devices)
        units = condense(problem)
        kept, values = found_of(problem)
        for first, second in itertools.combinations_with_replacement(range(1, len(units)), 2):
            # Stages that are intervals of the execution order.
            names = ["p" if u < first else "q" if u < second else "r" for u in range(len(units))]
            used = tuple(dict.fromkeys(sorted(names)))
            usage = evaluate(problem, PartitionPlan(units.lift(names), used)).usage
            for entry in usage:
                due_ns = sum(
                    value.time_ns
                    for value in values
                    if names[kept[value.first]] < entry.device
                    and any(names[kept[reader]] == entry.device for reader in value.readers)
                )
                assert entry.receive_ns >= due_ns, (seed, first, second)
                checked += due_ns > 0
    assert checked >= 20
