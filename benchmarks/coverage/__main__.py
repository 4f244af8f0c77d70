"""Table of models that can be captured, exported and split.

    python -m benchmarks.coverage [--only PATTERN] [--json FILE] [--time-limit S]
        [--memory-limit GIB] [--list]

Nothing is downloaded. Published models are on the meta device; small ones have random weights, and
their stages are compared with the model.
"""

import argparse
import fnmatch
import json
import os
import re
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path

from benchmarks.coverage.measure import configurations, isolated_row
from experiments.processes.environment import releases
from fx_bridge.presentation.tables import table_lines
from solver.model.quantities import MISSING, counted, format_bytes, format_seconds
from solver.model.text import printable

PACKAGES = (
    *("fxpartition", "torch", "transformers", "diffusers"),
    *("peft", "torchao", "torch_geometric"),
)
INSTALLED = re.compile(r"[^\s']*/(?:site|dist)-packages/")
EXPORTED = ("", "split", "run")
"""Steps of a row that was captured and exported."""


def cells(row):
    def known(value, words=str):
        return MISSING if value is None else words(value)

    splits = MISSING
    if row.stages:
        splits = "yes" if row.ran else "yes, not run"
    elif row.step == "split":
        splits = "no"
    return {
        "model": row.model,
        "weights": known(row.weights_bytes, format_bytes),
        "captured by": row.how or "not captured",
        "nodes": known(row.nodes),
        "operators": known(row.operators),
        "made up": MISSING if row.export_s is None else str(len(row.made_up)),
        "capture": format_seconds(row.capture_s),
        "export": format_seconds(row.export_s),
        "splits": splits,
        "equal": {True: "yes", False: "no", None: MISSING}[row.equal],
        "gradients": {True: "yes", False: "no", None: MISSING}[row.gradients_equal],
        "peak memory": known(row.peak_memory_bytes, format_bytes),
    }


def table(rows):
    """Return the rows as one table, in sections by family."""
    lines, starts, family = [], [], None
    header = tuple(cells(rows[0])) if rows else ("model",)
    for row in rows:
        if row.family != family:
            family = row.family
            starts.append(len(lines))
            lines.append((family, *[""] * (len(header) - 1)))
        lines.append(tuple(cells(row).values()))
    words = ("captured by", "splits", "equal", "gradients")
    return table_lines(header, lines, text=words, rules=starts)


def remarks(rows):
    """Return one line for each note and failure, then the totals."""
    lines = []
    for row in rows:
        made_up = ", ".join(row.made_up[:3]) + (", ..." if len(row.made_up) > 3 else "")
        for text in (
            row.note,
            row.reason and f"{row.step or 'run'}: {row.reason}",
            made_up and f"needs values of tensors to run, so sized as captured: {made_up}",
        ):
            if text:
                shown = textwrap.shorten(INSTALLED.sub("", text), 400, placeholder=" ...")
                lines.append(printable(f"{row.model}: {shown}"))
    exported = [row for row in rows if row.step in EXPORTED]
    lines.append(
        f"{len(exported)} of {counted(len(rows), 'model')} captured and exported; "
        f"{sum(not row.made_up for row in exported)} with no operator made up, "
        f"{sum(row.stages > 0 for row in exported)} split in stages."
    )
    compared = [row.equal for row in rows if row.equal is not None]
    trained = [row.gradients_equal for row in rows if row.gradients_equal is not None]
    if compared:
        lines.append(
            f"{sum(compared)} of {counted(len(compared), 'model')} with weights compute the same; "
            f"{sum(trained)} of {counted(len(trained), 'model')} give the same gradients."
        )
    versions = ", ".join(f"{name} {version}" for name, version in releases(*PACKAGES).items())
    return [*lines, f"Seconds of processor time; {versions}."]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="names or families: 'llama*'")
    parser.add_argument("--json", type=Path, help="file of the rows, as they come")
    parser.add_argument("--time-limit", type=float, default=600.0, help="seconds for each model")
    parser.add_argument("--memory-limit", type=float, default=12.0, help="GiB for each model")
    parser.add_argument("--list", action="store_true", help="only list the models")
    asked = parser.parse_args()
    # With more threads processor time would depend on the machine's cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chosen = [
        each
        for each in configurations().values()
        for pattern in asked.only or ["*"]
        if fnmatch.fnmatch(each.name, pattern) or fnmatch.fnmatch(each.family, pattern)
    ]
    chosen = list(dict.fromkeys(chosen))
    if not chosen:
        sys.exit(f"no model has a name or family like {asked.only}; --list names all")
    if asked.list:
        for each in chosen:
            print(f"{each.name:24}{each.family:18}{each.package or ''}".rstrip())
        return
    rows = []
    try:
        for each in chosen:
            limits = asked.time_limit, int(asked.memory_limit * 2**30)
            rows.append(isolated_row(each.name, each.family, *limits))
            print(f"{len(rows)} of {len(chosen)}: {each.name}", file=sys.stderr)
            if asked.json is not None:
                document = {"environment": releases(*PACKAGES), "rows": [*map(asdict, rows)]}
                asked.json.write_text(json.dumps(document, indent=1) + "\n")
    finally:
        print("\n".join([*table(rows), *remarks(rows)]))


if __name__ == "__main__":
    main()
