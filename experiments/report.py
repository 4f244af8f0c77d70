"""A comparison as JSON for programs and as Markdown to keep."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from experiments.records import Comparison, ModelRecord, PlannerRow
from experiments.summary import HEADER, cases_of, headline, planner_sentences, row_cells
from solver import DeviceUsage, PartitionError, PartitionPlan, SolveLimits
from solver.quantities import MISSING, format_bytes, format_ns, format_seconds, printable
from solver.serialization import check_folder_writable, plan_to_json, write_text_atomically

SCHEMA: Final = "fxpartition.comparison"
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


def write_report(comparison: Comparison, path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write ``results.json`` and ``report.md`` into the folder `path`.

    Both texts are complete before the first file is touched, and each file is replaced at once.

    Raises
    ------
    PartitionError
        If the folder cannot be made or written to; what was there is then as it was.
    """
    folder = prepare_folder(path)
    texts = {
        folder / "results.json": json.dumps(to_json(comparison), indent=1) + "\n",
        folder / "report.md": to_markdown(comparison),
    }
    for target, text in texts.items():
        write_text_atomically(target, text)
    results, report = texts
    return results, report


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as plain data with a schema version."""
    return {"schema": SCHEMA, "version": SCHEMA_VERSION, **_plain(comparison)}


def _plain(value: object) -> Any:
    if isinstance(value, PartitionPlan):
        return plan_to_json(value)
    if isinstance(value, DeviceUsage):
        # The timeline and the operators of a 70B model would be most of the file.
        left_out = ("timeline_bytes", "operators")
        return {
            **{
                entry.name: getattr(value, entry.name)
                for entry in dataclasses.fields(value)
                if entry.name not in left_out
            },
            "operators": len(value.operators),
        }
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


def to_markdown(comparison: Comparison) -> str:
    """Return a comparison as one Markdown page."""
    settings = comparison.settings
    limit_s = settings.limits.time_limit_s
    unit = "deterministic seconds" if settings.limits.deterministic else "s"
    link = settings.interconnect.default
    bandwidth = link.bandwidth_bytes_per_s
    lines = [
        "# How plans compare",
        "",
        *(f"* {escape_markdown(sentence)}" for sentence in headline(comparison)),
        "",
        f"Objective {escape_markdown(', '.join(settings.objective))}, minimised; memory model "
        f"{settings.memory_model}; "
        + "".join(f"{words}; " for words in settings.stage_limits)
        + ("no time limit" if limit_s is None else f"at most {limit_s:g} {unit} for each solve")
        + f", {settings.limits.worker_count} workers, seed {settings.limits.seed}. "
        f"Links unless said otherwise: "
        + ("unlimited" if bandwidth is None else f"{format_bytes(bandwidth)}/s")
        + f" and {format_ns(link.latency_ns)} per transfer.",
        "",
    ]
    if any(record.planners for record in comparison.models):
        lines += _planner_section(comparison.models)
    for record in comparison.models:
        lines += _model_section(record, comparison)
    lines += _how_to_read()
    lines += ["## Where it ran", ""]
    lines += _markdown_table(("what", "version"), comparison.environment)
    rss = comparison.peak_rss_bytes
    lines.append(
        f"The whole run took {comparison.wall_time_s:.0f} s"
        + ("." if rss is None else f" and at most {format_bytes(rss)} of memory.")
    )
    return "\n".join(lines) + "\n"


def _model_section(record: ModelRecord, comparison: Comparison) -> list[str]:
    lines = [f"## {escape_markdown(record.model)}", ""]
    if record.reason:
        return [*lines, f"Could not be compared: {escape_markdown(record.reason)}.", ""]
    objective = comparison.settings.objective[0]
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
    for named in record.device_sets:
        sizes = ", ".join(
            f"{device.name} {format_bytes(device.memory_bytes)}" for device in named.devices.devices
        )
        lines.append(f"* {escape_markdown(named.name)} devices: {escape_markdown(sizes)}")
    lines.append("")
    cases = cases_of(comparison)
    lines += _markdown_table(
        HEADER, [row_cells(row, cases[row.model, row.device_set], objective) for row in record.rows]
    )
    for row in record.rows:
        if not row.feasible and row.reason:
            lines.append(
                f"\\* {escape_markdown(row.label)}, {escape_markdown(row.device_set)} devices: "
                f"{escape_markdown(row.reason)}"
            )
            lines.append("")
    if record.equivalence:
        lines += _markdown_table(
            ("devices", "split by", "computes the same", "largest error", "split", "check"),
            [
                (
                    check.device_set,
                    check.solver,
                    "yes" if check.equal else f"NO: {check.reason}",
                    MISSING if check.max_abs_error is None else f"{check.max_abs_error:g}",
                    format_seconds(check.split_s),
                    format_seconds(check.check_s),
                )
                for check in record.equivalence
            ],
        )
    elif not record.has_weights and record.captured_by:
        lines += ["On the meta device, without weights: planned, not run.", ""]
    return lines


def _planner_section(models: Iterable[ModelRecord]) -> list[str]:
    lines = ["## Other planners on the same devices", ""]
    lines += [
        "Weights only, as these planners count them; what a planner does not place goes to disk.",
        "",
    ]
    for record in models:
        if not record.planners:
            continue
        lines += [f"### {escape_markdown(record.model)}", ""]
        lines += _markdown_table(
            (
                "devices",
                "planner",
                "on each device",
                "to disk",
                "devices used",
                "bottleneck",
                "proven",
                "time",
            ),
            [_planner_cells(row) for row in record.planners],
        )
        lines += [f"* {escape_markdown(sentence)}" for sentence in planner_sentences(record)]
        lines += ["", "In the planners' own words:", ""]
        lines += [
            f"* {escape_markdown(row.devices)}, {escape_markdown(row.planner)}: "
            f"{escape_markdown(row.words)}"
            for row in record.planners
            if row.words
        ]
        lines.append("")
    return lines


def _planner_cells(row: PlannerRow) -> tuple[str, ...]:
    if row.placed_bytes is None:
        return (
            row.devices,
            row.planner,
            row.reason,
            *[MISSING] * 4,
            format_seconds(row.wall_time_s),
        )
    return (
        row.devices,
        row.planner,
        " + ".join(format_bytes(size) for size in row.placed_bytes),
        format_bytes(row.spilled_bytes),
        str(row.devices_used),
        format_ns(row.bottleneck_ns),
        "yes" if row.proven else MISSING,
        format_seconds(row.wall_time_s),
    )


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
