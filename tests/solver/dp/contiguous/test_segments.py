"""Segments of an order, costed one start after the other, against the same stages as ideals."""

from dataclasses import replace

import numpy as np

from solver.dp.contiguous.segments import SegmentRows
from solver.presolve.device_kinds import interchangeable_kinds
from solver.presolve.instance import condense
from solver.stages.blocks import Blocks
from solver.stages.costs import StageCosts
from tests.support.random_problems import random_problem


def costs_of_prefixes(units):
    """The stages between the beginnings of an order, a unit as a block."""
    count = len(units)
    blocks = Blocks(count, tuple(range(count)), units.edges, (), frozenset())
    masks = [(1 << size) - 1 for size in range(count + 1)]
    return StageCosts(units, interchangeable_kinds(units), blocks, masks)


def test_segments_hold_and_receive_what_stages_do():
    models, relayed, compared = set(), 0, 0
    for seed in range(150):
        problem = random_problem(seed, max_operators=9)
        if any(op.is_backward for op in problem.operators):
            continue
        charging = problem.interconnect.charging if seed % 3 else "relayed"
        problem = problem.replace(
            chunks_per_device=1,
            objective=("transfer",),
            interconnect=replace(problem.interconnect, charging=charging),
        )
        units = condense(problem)
        if [index for members in units.members for index in members] != list(
            range(len(problem.operators))
        ):
            # Of units that run between each other only bounds of the peak are known.
            continue
        costs, rows = costs_of_prefixes(units), SegmentRows(units, [])
        # Ideals of no work more than their subsets keep their order.
        prefixes = costs.ideals.member.sum(axis=0).tolist()
        assert prefixes == list(range(len(units) + 1))
        ends = np.cumsum([0, *map(len, units.members)])
        starts = {int(place): unit for unit, place in enumerate(ends[:-1])}
        while rows.start:
            rows.step()
            if rows.start not in starts:
                continue
            unit = starts[rows.start]
            row = rows.row(rows.length)
            at = ends[unit + 1 :] - rows.start - 1
            later = np.arange(unit + 1, len(units) + 1)
            pairs = np.full(len(later), unit), later
            held = row.weights_bytes + row.received_bytes + row.live_bytes + row.waiting_bytes
            parts = costs.held.parts(*pairs, paired=True)
            assert held[at].tolist() == (parts.always + costs.held.peaks(*pairs)).tolist(), seed
            assert row.saved_bytes[at].tolist() == costs.held.saved(*pairs).tolist(), seed
            received = costs.transfer_bytes.at(*pairs)
            assert row.received_values_bytes[at].tolist() == received.tolist(), seed
            compared += len(later)
        models.add(problem.memory_model)
        relayed += units.transfers.hops
    assert models == {"weights", "inference", "training"}
    assert relayed > 5
    assert compared > 1_000
