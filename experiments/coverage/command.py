"""Table of models that can be captured, exported and split, a row per model.

Run it as ``python -m experiments.coverage``. Nothing is downloaded. Published models are on the
meta device; small ones have random weights, and their stages are compared with the model. Every
model has its own process with limits of time and memory.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Annotated, Final

import typer

from experiments.console.command_line import run_script
from experiments.console.output import check_writable, print_lines
from experiments.console.progress import ProgressLine
from experiments.coverage.worker import CoverageRow, WorkerLimits, run_isolated
from experiments.processes.environment import releases
from experiments.zoo.builders import Configuration
from experiments.zoo.configurations import CONFIGURATIONS
from fx_bridge.presentation.tables import table_lines
from solver import PartitionError
from solver.io.files import write_text_atomically
from solver.model.checks import did_you_mean
from solver.model.quantities import MISSING, counted, format_bytes, format_seconds

SCHEMA: Final = "fxpartition.coverage"
SCHEMA_VERSION: Final = 1
_LONGEST: Final = 400
_INSTALLED: Final = re.compile(r"[^\s']*/(?:site|dist)-packages/")

_PACKAGES: Final = (
    "fxpartition",
    "torch",
    "transformers",
    "diffusers",
    "peft",
    "torchao",
    "torch_geometric",
)
_COLUMNS: Final = (
    "model",
    "weights",
    "captured by",
    "nodes",
    "operators",
    "made up",
    "capture",
    "export",
    "splits",
    "equal",
    "gradients",
    "peak memory",
)


def select(patterns: Sequence[str]) -> list[Configuration]:
    """Return the configurations whose name or family matches; all without patterns.

    Parameters
    ----------
    patterns : sequence of str
        Patterns of ``fnmatch``, such as ``llama*``.

    Raises
    ------
    PartitionError
        If a pattern matches nothing.
    """
    # Loads torch.
    from experiments.zoo.small.configurations import SMALL_CONFIGURATIONS

    known = {**CONFIGURATIONS, **SMALL_CONFIGURATIONS}
    found: dict[str, Configuration] = {}
    for pattern in patterns or ("*",):
        fitting = {
            name: each
            for name, each in known.items()
            if fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(each.family, pattern)
        }
        if not fitting:
            names = [*known, *{each.family for each in known.values()}]
            hint = did_you_mean(pattern, names, "--list names all")
            raise PartitionError(f"no model has the name or family {pattern!r}; {hint}")
        found |= fitting
    return [each for name, each in known.items() if name in found]


def coverage_table(rows: Iterable[CoverageRow]) -> list[str]:
    """Return the rows as one table, in sections by family; `remarks` has the reasons."""
    lines: list[tuple[str, ...]] = []
    starts: list[int] = []
    family = ""
    for row in rows:
        if row.family != family:
            starts.append(len(lines))
            lines.append((row.family, *[""] * (len(_COLUMNS) - 1)))
            family = row.family
        lines.append(_cells(row))
    words = ("captured by", "splits", "equal", "gradients")
    return table_lines(_COLUMNS, lines, text=words, rules=starts)


def _cells(row: CoverageRow) -> tuple[str, ...]:
    splits = MISSING
    if row.stages:
        splits = "yes" if row.ran else "yes, not run"
    elif row.split_reason:
        splits = "no"
    return (
        row.model,
        format_bytes(row.weights_bytes) if row.export_s is not None else MISSING,
        row.how or "not captured",
        str(row.nodes or MISSING),
        str(row.operators or MISSING),
        str(len(row.made_up)) if row.export_s is not None else MISSING,
        format_seconds(row.capture_s),
        format_seconds(row.export_s),
        splits,
        *({True: "yes", False: "no", None: MISSING}[x] for x in (row.equal, row.gradients_equal)),
        MISSING if row.peak_memory_bytes is None else format_bytes(row.peak_memory_bytes),
    )


def remarks(rows: Sequence[CoverageRow]) -> list[str]:
    """Return one line for each note and failure, then the totals."""
    lines = [
        f"{row.model}: {textwrap.shorten(_INSTALLED.sub('', text), _LONGEST, placeholder=' ...')}"
        for row in rows
        for text in (row.note, row.reason, row.split_reason, _made_up(row))
        if text
    ]
    exported = [row for row in rows if not row.reason]
    sized = sum(not row.made_up for row in exported)
    split = sum(row.stages > 0 for row in exported)
    lines.append(
        f"{len(exported)} of {counted(len(rows), 'model')} captured and exported; "
        f"{sized} with no operator made up, {split} split in stages."
    )
    compared = [row for row in rows if row.equal is not None]
    if compared:
        equal = sum(row.equal is True for row in compared)
        trained = [row for row in compared if row.gradients_equal is not None]
        gradients = sum(row.gradients_equal is True for row in trained)
        lines.append(
            f"{equal} of {counted(len(compared), 'model')} with weights compute the same; "
            f"{gradients} of {counted(len(trained), 'model')} give the same gradients."
        )
    return lines


def _made_up(row: CoverageRow) -> str:
    if not row.made_up:
        return ""
    names = ", ".join(row.made_up[:3]) + (", ..." if len(row.made_up) > 3 else "")
    return f"needs values of tensors to run, so sized as captured: {names}"


def to_json(rows: Iterable[CoverageRow]) -> str:
    """Return rows as JSON with a schema version."""
    document = {
        "schema": SCHEMA,
        "version": SCHEMA_VERSION,
        "environment": releases(*_PACKAGES),
        "rows": [asdict(row) for row in rows],
    }
    return json.dumps(document, indent=1) + "\n"


def run(
    configurations: Sequence[Configuration],
    limits: WorkerLimits,
    rows: list[CoverageRow],
    json_file: str | None = None,
    progress: ProgressLine | None = None,
) -> None:
    """Measure models; add and save each row at once."""
    progress = progress or ProgressLine(quiet=True)
    for index, configuration in enumerate(configurations, 1):
        progress.step(f"{configuration.name} ({index} of {len(configurations)})")
        row = run_isolated(configuration, limits)
        rows.append(row)
        if json_file is not None:
            write_text_atomically(json_file, to_json(rows))
        outcome = row.reason or row.split_reason or f"captured by {row.how}, exported, split"
        progress.done(f"{row.model}: {outcome}")


def command(
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="PATTERN", help="Names or families, such as 'llama*'; repeatable."
        ),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Rows as JSON, as they come.")
    ] = None,
    time_limit: Annotated[
        float, typer.Option("--time-limit", min=1, help="Seconds for each model.")
    ] = 600,
    memory_limit: Annotated[
        float, typer.Option("--memory-limit", min=1, help="GiB of address space for each model.")
    ] = 12,
    list_only: Annotated[bool, typer.Option("--list", help="Only list the models.")] = False,
) -> None:
    """Capture, export and split published models on the meta device; print a table."""
    configurations = select(only or ())
    if list_only:
        for each in configurations:
            print(f"{each.name:24}{each.family:18}{each.package or ''}".rstrip())
        return
    check_writable(json_file)
    limits = WorkerLimits(time_limit, int(memory_limit * 2**30))
    rows: list[CoverageRow] = []
    try:
        with ProgressLine() as progress:
            run(configurations, limits, rows, json_file, progress)
    finally:
        versions = ", ".join(f"{name} {version}" for name, version in releases(*_PACKAGES).items())
        seconds = f"Seconds of processor time; {versions}."
        print_lines([*coverage_table(rows), *remarks(rows), seconds])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`, or that of the process."""
    # With more threads processor time would depend on the machine's cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return run_script("python -m experiments.coverage", command, argv)
