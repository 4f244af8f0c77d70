"""The tables of the pages: their form, and what they say of answers made by hand."""

from dataclasses import replace

import pytest

from experiments.comparison.records import CaseKey, PlannerRow, Study
from experiments.console.progress import ProgressLine
from experiments.paper import bench as benches
from experiments.paper import llama, published, zoo
from experiments.paper.bench import Bench
from experiments.paper.tables import PaperTable
from experiments.planners.registry import PLANNERS
from experiments.workloads.catalogue import OPTIMA_MS
from experiments.zoo.models import ZOO
from solver import (
    Device,
    Operator,
    PartitionPlan,
    PartitionProblem,
    SolveLimits,
    SolveStatus,
    solve,
)

TABLE = PaperTable(("a | b", "clock"), (("<x>", "1"), ("y\x1b[0m|", "2")), frozenset({"clock"}))


def test_markdown_escapes_what_would_end_a_cell_or_become_html():
    text = TABLE.to_markdown()
    assert text.splitlines()[:3] == [
        r"| a \| b | clock |",
        "|---|---|",
        "| &lt;x&gt; | 1 |",
    ]
    assert "\x1b" not in text
    assert TABLE.differences(text) == []


def test_differences_name_row_and_column_but_for_the_clock():
    shown = TABLE.to_markdown()
    assert TABLE.differences(shown.replace("| 1 |", "| 3 |")) == []
    assert TABLE.differences(shown.replace("&lt;x", "&lt;z")) == [
        "row 1 (&lt;z&gt;), a | b: '&lt;z&gt;' is shown, '&lt;x&gt;' is found"
    ]
    assert TABLE.differences(shown.replace("clock", "time"))[0].startswith("its columns are")
    assert TABLE.differences("".join(shown.splitlines(True)[:3])) == [
        "1 rows are shown, 2 are found"
    ]
    assert TABLE.differences("some text") == ["there is no table; write one with --update"]


# -- limits -------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """Note the limits of every solve, and end searches for a proof without one."""
    limits = []

    def noted(problem, given, **named):
        limits.append(given.deterministic)
        found = solve(problem, SolveLimits(workers=1))
        return found if given.deterministic else replace(found, status=SolveStatus.FEASIBLE)

    monkeypatch.setattr(benches, "solve", noted)
    return limits


def tiny():
    operators = tuple(Operator(f"op{i}", 10 + i, (f"op{i - 1}",) if i else ()) for i in range(6))
    return PartitionProblem(operators, (Device("a"), Device("b")))


def test_what_is_not_proven_is_solved_again_by_work(asked):
    bench = Bench(ProgressLine(quiet=True))
    assert bench.solve(tiny(), "tiny").status is SolveStatus.OPTIMAL
    assert asked == [False, True]
    bench.solve(tiny(), "tiny", first=benches.ALONE, otherwise=None)
    assert asked == [False, True, False]


def test_a_proof_is_taken_as_it_is(monkeypatch):
    monkeypatch.setattr(benches, "WORK", None)
    result = Bench(ProgressLine(quiet=True)).solve(tiny(), "tiny")
    assert result.status is SolveStatus.OPTIMAL


def test_the_zoo_is_answered_by_every_planner_that_is_asked(monkeypatch):
    monkeypatch.setattr(benches, "DEFAULT_MODELS", ("mlp",))
    planners = ("greedy", "chain", "auto", "torchgpipe-time", "uniform-layers", "torch-size-based")
    bench = Bench(ProgressLine(quiet=True), planners)
    answered = bench.zoo()
    assert [case.key.device_set for case in answered.cases] == ["equal", "unequal", "roomy"]
    assert {case.key.memory_model for case in answered.cases} == {"inference"}
    for case in answered.cases:
        assert tuple(row.planner for row in answered.rows_of(case.key)) == planners
    assert bench.zoo() is answered
    assert len(answered.cases[0].problem.devices) == ZOO["mlp"].equal_devices
    table = zoo.zoo(bench)
    assert [row[0] for row in table.rows] == ["mlp", "mlp"]
    assert {row[6] for row in table.rows} == {"0, proven"}
    rows = {row[0]: row for row in zoo.planners(bench).rows}
    assert rows["torch-size-based"][8] == "1"  # fails
    assert float(rows["chain"][2]) >= 1
    monkeypatch.setattr(zoo, "DRAWN", (("mlp", "equal"),))
    drawn = zoo.figures(bench)
    assert set(drawn) >= {"mlp-equal-quotient.svg", "mlp-equal-devices.svg"}
    assert all(text.startswith("<svg") for text in drawn.values())
    assert zoo.figures(bench) == drawn


# -- cells --------------------------------------------------------------------------------------


PLAN = PartitionPlan({"a": "x", "b": "y"}, ("x", "y"))
AGAIN = PartitionPlan({"a": "x", "b": "y", "c": "x"}, ("x", "y"), {"c": 1})


def answer(planner, value, status="feasible", device_set="equal", **named):
    key = CaseKey("model", device_set, ("bottleneck",), "inference")
    feasible = value is not None and status in ("feasible", "optimal")
    objective = None if value is None else (value,)
    return PlannerRow(key, planner, status, objective=objective, feasible=feasible, **named)


def test_planners_are_counted_against_the_optimum():
    bench = Bench(ProgressLine(quiet=True))
    sets = {"equal": (100, 200), "unequal": (100, 100), "other": (100, None)}
    rows = [
        row
        for name, (best, value) in sets.items()
        for row in (
            answer("auto", best, "optimal", name, gap=0.0, wall_time_s=2.0),
            answer("peer", value, "spills" if value is None else "feasible", name),
        )
    ]
    bench._zoo = Study((), (), tuple(rows), (), SolveLimits(), (), 0.0)
    table = zoo.planners(bench)
    [row] = table.rows
    assert row[:9] == (
        "peer",
        "2 of 3",
        "1.414",
        "2.000 (model, equal)",
        "1",
        "1",
        "0",
        "1",
        "0",
    )
    assert table.clock_columns == {"median time"}


def test_the_peers_of_llama_are_planners():
    assert set(llama._PEERS.values()) < set(PLANNERS)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (answer("p", None, "spills", spilled_bytes=20_930_000_000), "20.93 GB to disk"),
        (answer("p", 5, devices_used=2, plan=PLAN), "fits on 2"),
        (answer("p", 5, devices_used=2, plan=AGAIN), "fits on 2, 2 passes"),
        (answer("p", None, "failed", reason="ImportError: no"), "ImportError: no"),
    ],
)
def test_what_a_peer_answers_is_said_in_a_cell(row, text):
    assert llama._peer_text(row) == text


def test_our_answers_say_what_is_proven():
    result = solve(tiny(), SolveLimits(workers=1))
    assert llama._fastest_text(result) == "42 ns, proven"
    fewest = solve(tiny().replace(objective="devices"), SolveLimits(workers=1))
    assert llama._fewest_text(fewest) == "1, proven"
    assert llama._fewest_text(replace(fewest, status=SolveStatus.FEASIBLE)) == "1"
    assert published.optimum_text(result) == "0.000042"
    still_open = replace(result, status=SolveStatus.FEASIBLE, objective_bounds=(30,))
    assert published.optimum_text(still_open) == "0.000042 (gap 28.57 %)"


def test_published_optima_are_compared_with_those_of_the_authors(monkeypatch):
    monkeypatch.setattr(published, "OPTIMA_MS", {"layer.bert24_inference": 17.78990625})
    table = published.published(Bench(ProgressLine(quiet=True)))
    [row] = table.rows
    assert row[:3] == ("bert24 inference, layers", "32", "17.789906")
    assert (row[4], row[5], row[7]) == ("ideal-dp", "20.591125", "ideal-dp")
    assert table.clock_columns == {
        "seconds",
        "by",
        "x 1000: seconds",
        "x 1000: by",
    }
    monkeypatch.setattr(published, "OPTIMA_MS", {"layer.bert24_inference": 17.7})
    table = published.published(Bench(ProgressLine(quiet=True)))
    assert table.rows[0][2] == "17.789906, published 17.700000"


def test_every_workload_has_the_seconds_of_the_authors():
    assert set(published._AUTHORS_S) == set(OPTIMA_MS)


def test_several_stages_are_compared_with_one(monkeypatch):
    monkeypatch.setattr(published, "_INTERLEAVED", (("layer.bert24_training", 2),))
    table = published.interleaved(Bench(ProgressLine(quiet=True)))
    [row] = table.rows
    assert row[:4] == ("bert24 training, layers", "41.745812", "2", "39.869726")


def test_graphs_are_generated_as_the_benchmarks_have_them(monkeypatch):
    monkeypatch.setattr(published, "_NASNET_SEEDS", 0)
    monkeypatch.setattr(published, "_HUGE_OPERATORS", 400)
    solved = []

    class Noted(Bench):
        def solve(self, problem, name, **named):
            solved.append((name, len(problem.operators), len(problem.devices)))
            return solve(tiny(), SolveLimits(workers=1))

    bench = Noted(ProgressLine(quiet=True))
    assert [row[0] for row in published.nasnet(bench).rows] == [
        "NASNet mobile",
        "NASNet mobile, no host",
    ]
    assert solved[:2] == [("NASNet mobile", 921, 7), ("NASNet mobile, no host", 921, 6)]
    [row] = published.huge(bench).rows
    assert row[0] == "mixture of experts" and solved[2][2] == 32
