"""Published, generated and captured instances against what there is to reach.

    python benchmarks/bench_workloads.py [--group NAME] [--only PATTERN] [--time-limit S]
        [--workers N] [--solver NAME] [--json FILE] [--list]

One line per instance: status, objective, bound, gap, seconds of the search (OR-Tools is loaded
before), CPU seconds, peak memory of the process, the value expected, and objective / expected.
Every row runs in a fresh process, so that none profits from what another left in memory.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from targets import GROUPS, Context, Row, describe, rows, same_value

from solver import PartitionError, SolveLimits, solve
from solver.io.files import write_text_atomically

COLUMNS = (
    ("instance", 52),
    ("ops", 7),
    ("devices", 7),
    ("status", 10),
    ("solver", 9),
    ("objective ms", 13),
    ("bound ms", 13),
    ("gap %", 7),
    ("s", 7),
    ("cpu s", 7),
    ("MB", 6),
    ("expected", 11),
    ("ratio", 8),
    ("target", 18),
    ("met", 4),
)


def run_row(row: Row, context: Context, options: argparse.Namespace) -> dict[str, object]:
    """Solve one row in this process."""
    start_s = time.process_time()
    problem = row.build(context)
    built_s = time.process_time() - start_s
    import ortools.sat.python.cp_model  # noqa: F401

    limit_s = row.limit_s if options.time_limit is None else options.time_limit
    limits = SolveLimits(limit_s, options.workers)
    chosen = {} if options.solver is None else {"solver": options.solver}
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    result = solve(problem, limits, **chosen)
    seconds, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    return {
        "operators": len(problem.operators),
        "devices": len(problem.devices),
        "status": result.status.value,
        "solver": result.solver,
        "objective": result.objective,
        "objective_bound": result.objective_bound,
        "gap": result.gap,
        "reason": result.reason,
        "seconds": seconds,
        "cpu_s": cpu_s,
        "build_cpu_s": built_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def judged(row: Row, answer: dict[str, object]) -> dict[str, object]:
    """Return an answer with what was expected and whether it met the target."""
    objective, gap = answer.get("objective"), answer.get("gap")
    met = gap is not None and 100 * gap <= row.gap_percent
    if row.within_s is not None:
        met = met and answer["seconds"] <= row.within_s
    ratio = None
    if row.expected_ms is not None and objective is not None:
        ratio = objective / 1e6 / row.expected_ms
        met = met and same_value(objective, row.expected_ms)
    return {
        "group": row.group,
        "name": row.name,
        **answer,
        "expected_ms": row.expected_ms,
        "ratio": ratio,
        "target": describe(row),
        "met": bool(met),
    }


def line(cells: list[str]) -> str:
    """Return cells in columns; the first left, the others right."""
    parts = [cells[0].ljust(COLUMNS[0][1])]
    parts += [cell.rjust(width) for cell, (_, width) in zip(cells[1:], COLUMNS[1:], strict=True)]
    return " ".join(parts)


def number(value: object, form: str) -> str:
    return "-" if value is None else format(value, form)


def shown(record: dict[str, object]) -> str:
    """Return the line of a record."""
    if "error" in record:
        return f"{str(record['name']).ljust(COLUMNS[0][1])} {record['error']}"
    milliseconds = [
        None if record[key] is None else record[key] / 1e6
        for key in ("objective", "objective_bound")
    ]
    gap = None if record["gap"] is None else 100 * record["gap"]
    return line(
        [
            str(record["name"]),
            str(record["operators"]),
            str(record["devices"]),
            str(record["status"]),
            str(record["solver"]),
            number(milliseconds[0], ".6f"),
            number(milliseconds[1], ".6f"),
            number(gap, ".2f"),
            number(record["seconds"], ".2f"),
            number(record["cpu_s"], ".2f"),
            str(record["peak_mb"]),
            number(record["expected_ms"], ".5f"),
            number(record["ratio"], ".6f"),
            str(record["target"]),
            "yes" if record["met"] else "no",
        ]
    )


def in_fresh_process(row: Row, captured: Path, argv: list[str]) -> dict[str, object]:
    """Run one row in a process of its own and return its record."""
    words = [sys.executable, __file__, *argv, "--row", row.name, "--captured", str(captured)]
    done = subprocess.run(words, capture_output=True, text=True)
    last = (done.stdout.splitlines() or [""])[-1]
    if done.returncode or not last.startswith("{"):
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return {"group": row.group, "name": row.name, "error": lines[-1], "met": False}
    return judged(row, json.loads(last))


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--group", action="append", choices=GROUPS, help="may be repeated")
    parser.add_argument("--only", metavar="PATTERN", help="part of a name, or a pattern with *")
    parser.add_argument("--time-limit", type=float, help="seconds, instead of each row's own")
    parser.add_argument("--workers", type=int, help="search threads")
    parser.add_argument("--solver", help="a registered solver, instead of the default")
    parser.add_argument("--json", type=Path, help="file for all records, rewritten after each")
    parser.add_argument("--list", action="store_true", help="only list the rows")
    parser.add_argument("--captured", type=Path, help="folder that keeps captured zoo models")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def selected(options: argparse.Namespace) -> list[Row]:
    """Return the rows that the options ask for."""
    found = [row for row in rows() if options.group is None or row.group in options.group]
    if options.only is None:
        return found
    pattern = options.only if "*" in options.only else f"*{options.only}*"
    return [row for row in found if fnmatch.fnmatch(row.name, pattern)]


def main(argv: list[str]) -> int:
    """Run the rows asked for; 0 if all met their targets."""
    options = parse(argv)
    if options.row is not None:
        row = next(row for row in rows() if row.name == options.row)
        try:
            answer = run_row(row, Context(options.captured), options)
        except PartitionError as error:
            sys.exit(str(error))
        print(json.dumps(answer))
        return 0
    chosen = selected(options)
    if options.list:
        for row in chosen:
            print(f"{row.group:12} {row.name:60} {describe(row)}")
        return 0
    records: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        captured = options.captured or Path(folder)
        captured.mkdir(parents=True, exist_ok=True)
        print(line([name for name, _ in COLUMNS]), flush=True)
        for row in chosen:
            records.append(in_fresh_process(row, captured, argv))
            print(shown(records[-1]), flush=True)
            if options.json is not None:
                write_text_atomically(options.json, json.dumps(records, indent=1) + "\n")
    for group in GROUPS:
        of_group = [record for record in records if record["group"] == group]
        if of_group:
            met = sum(bool(record["met"]) for record in of_group)
            seconds = sum(record.get("seconds", 0) for record in of_group)
            print(f"{group}: {met} of {len(of_group)} met, {seconds:.1f} s in all")
    return 0 if all(record["met"] for record in records) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
