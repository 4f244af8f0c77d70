"""What is kept of a graph, and what is known of the rest."""

import pytest

from solver import Device, Operator, PartitionProblem
from solver.bounds.state_space.skeleton_choice import MOST_WIDE_NETS, choose_skeleton
from solver.presolve.instance import condense
from solver.stages.ideals import list_ideals
from tests.support.graphs import LINK


def masked_chain(layers):
    """A mask that every layer adds by a unit of its own: 2 ** layers ideals and more."""
    operators = [Operator("mask", 1, transfer_ns=5)]
    for layer in range(layers):
        before = (f"layer{layer - 1}",) if layer else ()
        operators.append(Operator(f"add{layer}", 2, ("mask",), transfer_ns=7))
        operators.append(Operator(f"layer{layer}", 100, (*before, f"add{layer}"), transfer_ns=3))
    devices = [Device("d0"), Device("d1"), Device("d2")]
    return PartitionProblem(operators=operators, devices=devices, interconnect=LINK)


def skeleton_of(problem, more=MOST_WIDE_NETS):
    units = condense(problem)
    return units, choose_skeleton(units, len(problem.devices), more)


def test_masks_leave_the_ideals_of_a_chain():
    units, skeleton = skeleton_of(masked_chain(20))
    names = [units.problem.operators[units.members[unit][0]].name for unit in skeleton.units]
    assert [name for name in names if name.startswith("layer")] == [f"layer{i}" for i in range(20)]
    assert len(skeleton.ideals) < 50
    (net,) = skeleton.wide
    assert names[net.producer] == "mask"
    assert net.time_ns == 5
    (feeders,) = skeleton.feeders
    assert feeders.inputs == (0,)
    left_out = {f"layer{i}" for i in range(20) if f"add{i}" not in names}
    assert {names[reader] for reader in feeders.readers} == left_out
    assert len(left_out) >= 18
    assert set(feeders.work_ns) == {2}
    assert set(feeders.remote_ns) == {7}


@pytest.mark.parametrize("seed", range(30))
def test_ideals_are_those_of_what_is_kept(seed, decoder):
    problem = decoder(seed, layers=6)
    units, skeleton = skeleton_of(problem, more=seed % 4)
    before = [set() for _ in range(len(units))]
    for source, target in sorted(units.edges, key=lambda edge: edge[1]):
        before[target] |= before[source] | {source}
    kept = skeleton.units
    # All pairs in order, not only the arcs that the skeleton has.
    edges = [
        (source, target)
        for target, unit in enumerate(kept)
        for source, other in enumerate(kept)
        if other in before[unit]
    ]
    assert set(skeleton.ideals) == set(list_ideals(len(kept), edges, 10**6))


def test_no_skeleton_of_a_wide_layer():
    between = [Operator(f"op{i}", 10, ("first",), transfer_ns=1) for i in range(20)]
    last = Operator("last", 400, tuple(op.name for op in between))
    problem = PartitionProblem(
        operators=[Operator("first", 400, transfer_ns=1), *between, last],
        devices=[Device("d0"), Device("d1")],
        interconnect=LINK,
    )
    _, skeleton = skeleton_of(problem)
    assert skeleton is None


def test_what_a_reader_needs_of_a_wide_value_is_a_chain_of_it():
    """Projections by weights that are cut first, as those of attention over an encoder are."""
    operators = [Operator("encoder", 50, transfer_ns=9)]
    for layer in range(6):
        before = f"layer{layer - 1}" if layer else "encoder"
        operators += [
            Operator(f"weights{layer}", 0, transfer_ns=1),
            Operator(f"project{layer}", 2, ("encoder", f"weights{layer}"), transfer_ns=20),
            Operator(f"key{layer}", 1, (f"project{layer}",), transfer_ns=7),
            Operator(f"value{layer}", 1, (f"project{layer}",), transfer_ns=6),
            Operator(f"layer{layer}", 100, (before, f"key{layer}", f"value{layer}"), transfer_ns=3),
        ]
    devices = [Device("d0"), Device("d1"), Device("d2")]
    problem = PartitionProblem(operators=operators, devices=devices, interconnect=LINK)
    units, skeleton = skeleton_of(problem)
    names = [problem.operators[units.members[unit][0]].name for unit in skeleton.units]
    (feeders,) = (group for group in skeleton.feeders if group.readers)
    assert [names[skeleton.wide[net].producer] for net in feeders.inputs] == ["encoder"]
    for reader, work_ns, remote_ns in zip(
        feeders.readers, feeders.work_ns, feeders.remote_ns, strict=True
    ):
        assert names[reader].startswith("layer")
        # Project, key and value here, or the two received.
        assert (work_ns, remote_ns) == (4, 13)
    assert len(feeders.readers) >= 4
