"""A comparison as JSON for programs and as Markdown to keep."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from experiments.records import CaseKey, ModelRecord, Study
from experiments.reports.headline import headline
from experiments.reports.rows import answers_table
from solver import PartitionError, PartitionPlan, PartitionProblem, SolveLimits
from solver.quantities import MISSING, format_bytes, format_seconds, printable
from solver.serialization import (
    check_folder_writable,
    plan_to_json,
    problem_to_json,
    write_text_atomically,
)

SCHEMA: Final = "fxpartition.study"
SCHEMA_VERSION: Final = 1


def prepare_folder(path: str | os.PathLike[str]) -> Path:
    """Create a report's folder, or say in one line why it cannot be.

    Called before a long run, so that the run is not lost to a wrong path.
    """
    if not os.fspath(path):
        raise PartitionError("--out is empty; give --out a folder, such as report/")
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise PartitionError(f"{folder} is a file; give --out a folder") from None
    except OSError as error:
        raise PartitionError(f"cannot create the folder {folder}: {error.strerror}") from None
    except ValueError as error:  # a null character in the name
        raise PartitionError(f"cannot create the folder {folder}: {error}") from None
    check_folder_writable(folder)
    return folder


def write_report(study: Study, path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write ``results.json`` and ``report.md`` into the folder `path`.

    Both texts are complete before the first file is touched, and each file is replaced at once.

    Raises
    ------
    PartitionError
        If the folder cannot be made or written to; what was there is then as it was.
    """
    folder = prepare_folder(path)
    texts = {
        folder / "results.json": json.dumps(to_json(study), indent=1) + "\n",
        folder / "report.md": to_markdown(study),
    }
    for target, text in texts.items():
        write_text_atomically(target, text)
    results, report = texts
    return results, report


def to_json(study: Study) -> dict[str, Any]:
    """Return a study as plain data with a schema version."""
    return {"schema": SCHEMA, "version": SCHEMA_VERSION, **_plain(study)}


def _plain(value: object) -> Any:
    if isinstance(value, PartitionPlan):
        return plan_to_json(value)
    if isinstance(value, PartitionProblem):
        # The graph of a 70B model would be most of the file.
        return {key: part for key, part in problem_to_json(value).items() if key != "graph"}
    if isinstance(value, CaseKey):
        return _plain(value._asdict())
    if isinstance(value, SolveLimits):
        return {
            "time_limit_s": value.time_limit_s,
            "workers": value.worker_count,
            "seed": value.seed,
            "deterministic": value.deterministic,
        }
    if dataclasses.is_dataclass(value):
        return {
            entry.name: _plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {
            " -> ".join(key) if isinstance(key, tuple) else str(key): _plain(item)
            for key, item in value.items()
        }
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    return value


def escape_markdown(text: str) -> str:
    """Return `text` as it must stand in Markdown, table cells included, to read as it is."""
    return re.sub(r"([\\`*_{}\[\]<>&#|~])", r"\\\1", printable(" ".join(text.split())))


def _markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join(escape_markdown(cell) for cell in row)} |" for row in rows]
    return [*lines, ""]


def to_markdown(study: Study) -> str:
    """Return a study as one Markdown page."""
    limit_s = study.limits.time_limit_s
    unit = "deterministic seconds" if study.limits.deterministic else "s"
    lines = [
        "# How plans compare",
        "",
        *(f"* {escape_markdown(sentence)}" for sentence in headline(study)),
        "",
        ("No time limit" if limit_s is None else f"At most {limit_s:g} {unit} for each answer")
        + f", {study.limits.worker_count} workers, seed {study.limits.seed}.",
        "",
    ]
    for record in study.models:
        lines += _model_section(record, study)
    lines += _how_to_read()
    lines += ["## Where it ran", ""]
    lines += _markdown_table(("what", "version"), study.environment)
    rss = study.peak_rss_bytes
    lines.append(
        f"The whole run took {study.wall_time_s:.0f} s"
        + ("." if rss is None else f" and at most {format_bytes(rss)} of memory.")
    )
    return "\n".join(lines) + "\n"


def _model_section(record: ModelRecord, study: Study) -> list[str]:
    lines = [f"## {escape_markdown(record.model)}", ""]
    if record.reason:
        return [*lines, f"Could not be compared: {escape_markdown(record.reason)}.", ""]
    lines += [
        f"{escape_markdown(record.description)}. {record.operators:,} operators, "
        f"{record.edges:,} edges, {format_bytes(record.weight_bytes)} of weights, "
        f"{format_bytes(record.one_device_bytes)} on one device."
        + (
            f" Captured ({record.captured_by}) in {format_seconds(record.capture_s)}, "
            f"operator graph in {format_seconds(record.graph_s)}."
            if record.captured_by
            else ""
        ),
        "",
    ]
    cases = study.cases_of(record.model)
    for case in cases:
        if case.problem is not None:
            sizes = ", ".join(
                f"{device.name} {format_bytes(device.memory_bytes)}"
                for device in case.problem.devices
            )
            lines.append(
                f"* {escape_markdown(case.key.device_set)} devices: {escape_markdown(sizes)}"
            )
    lines.append("")
    rows = [row for case in cases for row in study.rows_of(case.key)]
    table = answers_table(rows).without(["model"])
    lines += _markdown_table(table.header, table.rows)
    for row in rows:
        if not row.feasible and row.reason:
            lines.append(
                "\\* "
                + escape_markdown(f"{row.label}, {row.case.device_set} devices: {row.reason}")
            )
            lines.append("")
    if checks := [check for check in study.checks if check.case.model == record.model]:
        lines += _markdown_table(
            ("devices", "split by", "computes the same", "largest error", "split", "check"),
            [
                (
                    check.case.device_set,
                    check.planner,
                    "yes" if check.equal else f"NO: {check.reason}",
                    MISSING if check.max_abs_error is None else f"{check.max_abs_error:g}",
                    format_seconds(check.split_s),
                    format_seconds(check.check_s),
                )
                for check in checks
            ],
        )
    elif not record.has_weights and record.captured_by:
        lines += ["On the meta device, without weights: planned, not run.", ""]
    return lines


def _how_to_read() -> list[str]:
    return [
        "## How to read this",
        "",
        "* Every plan, whoever found it, is costed by one evaluator; *objective* is its value.",
        "* *bound* is proven: no plan is better. *gap* is how far the plan may be from the best;",
        "  0 % with status optimal means that it is the best.",
        "* *greedy* grows partitions by size and knows no time; *chain* is the best contiguous cut",
        "  of the execution order, devices in any order, and the strongest classical baseline.",
        "* *auto* picks a method that covers all plans and names it in brackets: *ideal-dp*, a",
        "  program over ideals, where these are few; *coarse*, which solves a coarsened graph and",
        "  proves a bound for all plans, where operators are very many; else *cp-sat*, constraint",
        "  programming.",
        "* *vs greedy* and *vs chain*: the change of the objective; less is better.",
        "* *peak memory* is the fullest device, in percent of its capacity: weights, received",
        "  values and live activations.",
        "* Capacities of *equal* and *unequal* devices follow from the model: total capacity is a",
        "  fixed slack above what the model needs on one device, more only where no contiguous cut",
        "  fits in that (one large embedding, for instance).",
        "* Times of operators come from a roofline, not from a measurement, unless devices said",
        "  otherwise.",
        "",
    ]
