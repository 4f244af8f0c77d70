"""Tests of reports: what they say, how they are written, what they escape."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from experiments import report
from experiments.devices import parse_devices
from experiments.records import (
    Case,
    CaseKey,
    ModelRecord,
    PlannerRow,
    Study,
)
from experiments.report import escape_markdown, prepare_folder, to_json, to_markdown, write_report
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


def test_a_folder_without_a_name_is_refused() -> None:
    for name, says in (("", "--out is empty"), ("x\0y", "cannot create the folder")):
        with pytest.raises(PartitionError, match=says):
            prepare_folder(name)
