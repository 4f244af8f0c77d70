"""Tests of reports: what they say, how they are written, what they escape."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from experiments import report
from experiments.devices import parse_devices
from experiments.records import (
    Case,
    CaseKey,
    EquivalenceRow,
    ModelRecord,
    PlannerRow,
    Study,
)
from experiments.report import escape_markdown, prepare_folder, to_json, to_markdown, write_report
from experiments.summary import headline
from experiments.tables import study_table
from solver import (
    Device,
    Operator,
    PartitionError,
    PartitionProblem,
    SolveLimits,
    solve,
)
from solver.quantities import format_bytes, format_gap, format_ns, format_value


def row(
    planner: str,
    value: int | None,
    *,
    model: str = "m",
    device_set: str = "equal",
    bound: int | None = None,
    status: str | None = None,
    reason: str = "",
) -> PlannerRow:
    feasible = value is not None
    if status is None:
        status = "optimal" if feasible and bound == value else "feasible"
    return PlannerRow(
        case=CaseKey(model, device_set, ("bottleneck",), "inference"),
        planner=planner,
        status=status if feasible or status != "feasible" else "unknown",
        objective=None if value is None else (value,),
        bound=None if bound is None else (bound,),
        gap=None if value is None or bound is None else (value - bound) / max(value, 1),
        bottleneck_ns=value,
        transfer_bytes=7 if feasible else None,
        peak_memory_permille=500 if feasible else None,
        devices_used=2 if feasible else None,
        wall_time_s=1.0,
        feasible=feasible,
        reason=reason,
    )


def study(*rows: PlannerRow, **changes: object) -> Study:
    models = dict.fromkeys(each.case.model for each in rows)
    return dataclasses.replace(
        Study(
            models=tuple(ModelRecord(model=model, captured_by="export") for model in models),
            cases=tuple(Case(key) for key in dict.fromkeys(each.case for each in rows)),
            rows=rows,
            checks=(),
            limits=SolveLimits(time_limit_s=20, workers=2),
            environment=(("torch", "2.13.0"),),
            wall_time_s=12.0,
            peak_rss_bytes=10**9,
        ),
        **changes,
    )


def said(found: Study) -> str:
    return "\n".join(headline(found))


def test_the_headline_says_how_much_better_and_where_it_buys_nothing() -> None:
    found = study(
        row("greedy", 200),
        row("chain", 100),
        row("auto", 100, bound=100),
        row("greedy", None, device_set="unequal", reason="too big"),
        row("chain", 125, device_set="unequal"),
        row("auto", 100, bound=100, device_set="unequal"),
    )
    text = said(found)
    assert "proves its plan optimal in 2 of 2 cases (median 1.00 s)" in text
    assert "greedy finds a feasible plan in 1 of 2 cases" in text
    assert "Only the exact solver has a plan, and greedy has none, in m on unequal" in text
    assert "better than greedy in 1 of 1 of these, by 50.0 % in the median" in text
    assert "better than chain in 1 of 2 of these, by 20.0 % in the median" in text
    assert "It buys nothing over chain in 1: m on equal devices; there the proof" in text
    assert "WORSE" not in text


def test_the_headline_hides_nothing() -> None:
    found = study(
        row("chain", 100),
        row("auto", 110, bound=55),
        row("chain", 10, model="n"),
        row("auto", None, model="n", status="infeasible"),
        row("auto", None, model="o", reason="ran out of time"),
    )
    unequal = EquivalenceRow(found.cases[0].key, "auto", False, 0.5)
    broken = ModelRecord(model="p", reason="no such luck")
    text = said(dataclasses.replace(found, models=(*found.models, broken), checks=(unequal,)))
    assert "WORSE than chain in m on equal devices" in text
    assert "m (equal): gap 50.00 %" in text
    assert "o (equal): ran out of time" in text
    assert "no plan exists in n on equal devices" in text
    assert "0 of 1 split models compute what the model computes" in text
    assert "NOT EQUAL: m on equal devices, split by auto: largest error 0.5" in text
    assert "p could not be compared: no such luck" in text


def test_an_objective_of_zero_is_no_division() -> None:
    text = said(study(row("chain", 0), row("auto", 0, bound=0)))
    assert "buys nothing over chain in 1" in text


def test_markdown_has_a_table_for_every_model_and_a_reason_for_every_failure() -> None:
    found = study(
        row("greedy", None, reason="device 'cuda:0' needs 5 bytes"),
        dataclasses.replace(row("auto", 12_345_678, bound=12_345_678), answered_by="ideal-dp"),
    )
    devices = parse_devices("2x24GB,unlimited").devices
    problem = PartitionProblem((Operator("a", 3),), devices)
    found = dataclasses.replace(found, cases=(Case(found.cases[0].key, problem),))
    page = to_markdown(found)
    assert "## m\n" in page
    assert "| equal | auto (ideal-dp) | optimal | 12.35 ms |" in page
    assert "greedy, equal devices: device 'cuda:0' needs 5 bytes" in page
    assert "cuda:0 24 GB, cuda:1 24 GB, cuda:2 unlimited" in page
    assert "## How to read this" in page
    assert "| torch | 2.13.0 |" in page
    assert "without weights: planned, not run" in page


def test_names_cannot_break_a_markdown_table() -> None:
    assert escape_markdown("a|b\n*c*_d_") == r"a\|b \*c\*\_d\_"
    page = to_markdown(study(row("auto", 1, bound=1, device_set="2x80GB | <b>")))
    line = next(line for line in page.splitlines() if "2x80GB" in line and line[0] == "|")
    assert line.replace(r"\|", "").count("|") == 13


def test_names_are_not_markup_on_the_terminal() -> None:
    name = "my[bold]model[/bold][/]"
    found = study(row("greedy", 2, model=name), row("auto", 1, bound=1, model=name))
    broken = ModelRecord(model="[/oops]", reason="[red]reason[/wrong]")
    stream = io.StringIO()
    console = Console(file=stream, width=250)
    console.print(study_table(dataclasses.replace(found, models=(*found.models, broken))))
    assert name in stream.getvalue()
    assert "[/oops]" in stream.getvalue()
    assert "[red]reason[/wrong]" in stream.getvalue()


def small_problem() -> PartitionProblem:
    operators = (
        Operator("a", 3, weights=()),
        Operator("b", 5, reads=("a",), value_bytes=2, storage_bytes=2),
    )
    return PartitionProblem(operators, (Device("x", 100), Device("[y]")))


def test_json_holds_everything_but_the_graph() -> None:
    key = CaseKey("m", "equal", ("bottleneck",), "inference")
    problem = small_problem()
    result = solve(problem, SolveLimits(workers=1), solver="cp-sat")
    found = study(PlannerRow.from_result(key, "auto", result))
    found = dataclasses.replace(found, cases=(Case(key, problem),))
    data = json.loads(json.dumps(to_json(found)))
    assert data["schema"] == "fxpartition.study"
    assert data["version"] == 1
    assert data["environment"] == [["torch", "2.13.0"]]
    assert data["limits"] == {"time_limit_s": 20, "workers": 2, "seed": 0, "deterministic": False}
    (entry,) = data["rows"]
    assert (entry["planner"], entry["answered_by"]) == ("auto", "cp-sat")
    assert entry["case"] == data["cases"][0]["key"]
    assert entry["case"]["objective"] == ["bottleneck"]
    assert entry["status"] == "optimal"
    assert entry["objective"] == entry["bound"] == [5]
    assert set(entry["plan"]["assignment"]) == {"a", "b"}
    (case,) = data["cases"]
    assert [device["name"] for device in case["problem"]["devices"]] == ["x", "[y]"]
    assert "graph" not in case["problem"]


def test_the_folder_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "report"
    paths = write_report(study(row("auto", 1, bound=1)), folder)
    assert [path.name for path in paths] == ["results.json", "report.md"]
    assert sorted(path.name for path in folder.iterdir()) == ["report.md", "results.json"]


def test_a_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "report"
    path.write_text("mine")
    with pytest.raises(PartitionError, match="is a file; give --out a folder"):
        prepare_folder(path)
    with pytest.raises(PartitionError, match="cannot create the folder"):
        prepare_folder(path / "below")
    assert path.read_text() == "mine"


def test_a_report_stays_whole_when_the_new_one_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(study(row("auto", 1, bound=1)), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def fail(*_: object) -> str:
        raise MemoryError

    monkeypatch.setattr(report, "to_markdown", fail)
    with pytest.raises(MemoryError):
        write_report(study(row("auto", 2, bound=2)), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_report_stays_whole_when_the_disk_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(study(row("auto", 1, bound=1)), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(PartitionError, match="No space left on device"):
        write_report(study(row("auto", 2, bound=2)), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_ns(None), "-"),
        (format_ns(999), "999 ns"),
        (format_ns(12_345_678), "12.35 ms"),
        (format_bytes(None), "unlimited"),
        (format_bytes(141_107_412_992), "141.1 GB"),
        (format_bytes(0), "0 B"),
        (format_gap(None), "-"),
        (format_gap(0.0), "0 %"),
        (format_gap(0.00001), "< 0.01 %"),
        (format_gap(0.5), "50.00 %"),
        (format_value("peak_memory", 985), "98.5 %"),
        (format_value("devices", 3), "3"),
        (format_value("transfer", 2000), "2 kB"),
        (format_value("latency", None), "-"),
    ],
)
def test_numbers_as_people_read_them(text: str, expected: str) -> None:
    assert text == expected


@pytest.mark.parametrize("width", [80, 110, 160])
def test_the_table_fits_the_terminal(width: int) -> None:
    exact = row("auto", 12_345_678, bound=12_345_678, model="llama3-70b", device_set="unequal")
    found = study(
        row("greedy", None, model="llama3-70b", device_set="unequal", reason="too big"),
        dataclasses.replace(exact, answered_by="ideal-dp"),
    )
    stream = io.StringIO()
    Console(file=stream, width=width).print(study_table(found, width))
    lines = stream.getvalue().splitlines()
    assert any("llama3-70b" in line and "breaks" not in line for line in lines)
    done = next(line for line in lines if "auto" in line)
    for cell in ("unequal", "optimal", "12.35 ms", "0 %", "1.00 s"):
        assert cell in done, done
    # A narrow terminal folds it between the words.
    method = "(ideal-dp)" if width == 80 else "auto (ideal-dp)"
    assert method in stream.getvalue()


def test_hostile_names_change_neither_page_nor_table() -> None:
    name = "\x1b[31m[bold]a|b\n<script>&lt;../../x\udcff"
    page = to_markdown(study(row("greedy", 5, model=name, device_set=name)))
    page.encode()
    assert all(char == "\n" or char.isprintable() for char in page)
    assert "\n<script" not in page
    assert "\\<script\\>\\&lt;" in page
    tables = [line for line in page.splitlines() if "script" in line and line.startswith("|")]
    assert tables
    assert all(line.replace("\\|", "").count("|") == 13 for line in tables)
    shown = io.StringIO()
    made = study_table(study(row("greedy", 5, model=name, device_set=name)))
    Console(file=shown, width=300).print(made)
    assert "\\x1b[31m[bold]a|b\\n<script>" in shown.getvalue()
    assert "\x1b" not in shown.getvalue()


def test_a_folder_without_a_name_is_refused() -> None:
    for name, says in (("", "--out is empty"), ("x\0y", "cannot create the folder")):
        with pytest.raises(PartitionError, match=says):
            prepare_folder(name)
