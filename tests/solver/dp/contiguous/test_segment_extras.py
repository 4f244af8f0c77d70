"""What running operators again adds to segments, as far as what they send decides it."""

import numpy as np

from solver import Device, Operator, PartitionProblem, evaluate
from solver.dp.contiguous.segment_extras import SegmentExtras
from solver.dp.contiguous.segments import SegmentTables
from solver.model.plan import PartitionPlan
from solver.model.training import Backward
from solver.presolve.instance import condense
from solver.stages.recompute_chooser import RecomputeChooser


def operator(name, reads, region, kept_bytes=0, saves=()):
    backward = Backward(kept_bytes=kept_bytes, region=region, recomputable=True, saves=saves)
    return Operator(name, 1, value_bytes=10, storage_bytes=10, reads=reads, backward=backward)


def test_what_is_sent_is_there_once_if_what_reads_it_runs_again():
    # Nothing keeps a value of `a`, which `d` reads on another stage.
    problem = PartitionProblem(
        [
            operator("a", (), 0),
            operator("b", ("a",), 0, 10, ("b",)),
            operator("c", ("b",), 0, 10, ("b", "c")),
            operator("d", ("a", "c"), 1),
        ],
        [Device("x", 1000), Device("y", 1000)],
        memory_model="training",
        recompute="auto",
        microbatches=8,
    )
    units, chooser = condense(problem), RecomputeChooser(problem)
    tables = SegmentTables.of(units, np.arange(5), 4, [], [])
    extras = SegmentExtras(problem, tables, chooser.choices)
    anchored = next(iter(extras._by_class.values()))._anchored_bytes
    # From the start to each end: `b` has to be there with `c`, which saves it, and `d` elsewhere.
    found = {(end - 4 + at, end): int(anchored[end, at]) for end in range(5) for at in range(4)}
    assert {pair for pair, size in found.items() if pair[0] >= 0 and size} == {(0, 3)}
    plan = PartitionPlan({"a": "x", "b": "x", "c": "x", "d": "y"}, ("x", "y"))
    without = evaluate(problem, plan).usage[0].memory_bytes
    again = PartitionPlan(plan.assignment, ("x", "y"), recomputed=frozenset({"b"}))
    saved = without - evaluate(problem, again).usage[0].memory_bytes
    # Two microbatches are in flight: `b` is dropped, and `a` an anchor.
    assert found[0, 3] == 7 * 10
    assert saved == found[0, 3]
