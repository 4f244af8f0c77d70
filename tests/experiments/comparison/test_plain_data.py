import json

import pytest

from experiments.comparison.plain_data import plain, read_row
from experiments.comparison.records import CaseKey, PlannerRow, SearchPoint
from solver import PartitionError, PartitionPlan
from solver.evaluation.result import StepRecord

CASE = CaseKey("<script>", "../../x", ("bottleneck", "transfer"), "inference")
ROW = PlannerRow(
    case=CASE,
    planner="a'; DROP TABLE cells; --",
    status="optimal",
    seed=3,
    without=("borders", "prices"),
    objective=(12, 5),
    bound=(12,),
    gap=0.0,
    bottleneck_ns=12,
    latency_ns=20,
    transfer_bytes=5,
    peak_memory_permille=900,
    devices_used=2,
    wall_time_s=0.25,
    peak_rss_bytes=10**9,
    feasible=True,
    answered_by="cp-sat",
    words="line one\nline two",
    spilled_bytes=7,
    trace=(SearchPoint(0.1, "bottleneck", None, 3), SearchPoint(0.2, "bottleneck", 12, 12)),
    log=(
        StepRecord("greedy", 1, 0.0, 0.125, "bottleneck", None, 15, 0, 3),
        StepRecord("branching", 2, 0.125, 0.5, "bottleneck", 15, 12, 3, 12),
    ),
    plan=PartitionPlan({"a": "x", "b": "y"}, ("x", "y"), {"b": 1}),
)
FAILED = PlannerRow(CASE, "auto", "timed out", reason="no answer after 3 s")


@pytest.mark.parametrize("row", [ROW, FAILED])
def test_a_row_survives_json(row):
    again = read_row(json.loads(json.dumps(plain(row))), CASE, "x")
    assert again == row
    # None of these counts in comparisons of rows.
    assert (again.trace, again.log, again.plan) == (row.trace, row.log, row.plan)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"seed": "3"}, "x: seed is '3'"),
        ({"gap": "none"}, "x: gap is 'none'; write a number"),
        ({"more": 1}, "x: 'more' is unknown"),
        ({"trace": [{"elapsed_s": 1}]}, r"x: trace\[0\]: "),
        ({"log": [{"step": 1}]}, r"x: log\[0\]: round is missing"),
        ({"without": "prices"}, "x: without is not a list"),
        ({"plan": {"schema": "other"}}, "schema is 'other'"),
        ({"objective": [-1]}, r"x: objective\[0\] is -1"),
    ],
)
def test_a_row_that_is_made_up_is_refused(change, says):
    with pytest.raises(PartitionError, match=says):
        read_row({**plain(ROW), **change}, CASE, "x")
