"""What each step of the search is worth: the proof, or the gap, with one step left out.

    python benchmarks/bench_ablation.py [--only STEP ...] [--columns ROW ...] [--time-limit S]
        [--workers N] [--captured FOLDER]

Columns are rows of ``bench_workloads.py`` (``--list`` there names them). Every cell runs in a fresh
process: CPU seconds where the optimum is proven, else the gap, with the bound and the plan in
milliseconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from targets import Context, rows

from solver import SolveLimits, SolveStatus, solve, step_names

NOTHING = "nothing"
COLUMNS = (
    "layer.inceptionv3_inference x1000",
    "operator.bert_l-12_inference x1000",
    "nasnetamobile no host",
    "layer.gnmt_training V=3",
    "balanced-experts:127 on 7 equal",
    "layered:1000x20 slack=15% on 8",
)


def run_cell(options: argparse.Namespace) -> dict[str, object]:
    """Solve one instance without one step in this process."""
    without = () if options.step == NOTHING else (options.step,)
    row = next(row for row in rows() if row.name == options.row)
    problem = row.build(Context(options.captured))
    started_s = time.process_time()
    result = solve(problem, SolveLimits(options.time_limit, options.workers), without=without)
    return {
        "cpu_s": time.process_time() - started_s,
        "proven": result.status is SolveStatus.OPTIMAL,
        "gap": result.gap,
        "objective": result.objective,
        "bound": result.objective_bound,
    }


def _cell_text(cell: dict[str, float]) -> str:
    if cell["proven"]:
        return f"{cell['cpu_s']:.1f} s"
    if cell["gap"] is None:
        return "no plan"
    return f"{cell['gap']:.1%} ({cell['bound'] / 1e6:.5g} to {cell['objective'] / 1e6:.5g})"


def main() -> None:
    """Print the table as Markdown."""
    names = [row.name for row in rows()]
    steps = (NOTHING, *step_names())
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=steps, metavar="STEP", nargs="+", help="leave out these")
    parser.add_argument("--columns", nargs="+", choices=names, metavar="ROW", default=COLUMNS)
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--captured", type=Path, help="folder that keeps captured models")
    parser.add_argument("--step", choices=steps, help=argparse.SUPPRESS)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step is not None:
        print(json.dumps(run_cell(options)))
        return
    print("| without | " + " | ".join(options.columns) + " |", flush=True)
    print("|---" * (len(options.columns) + 1) + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        captured = options.captured or Path(folder)
        captured.mkdir(parents=True, exist_ok=True)
        for step in options.only or steps:
            print(f"| {step} |", end="", flush=True)
            for name in options.columns:
                words = [sys.executable, __file__, "--step", step, "--row", name]
                words += ["--time-limit", str(options.time_limit), "--captured", str(captured)]
                if options.workers is not None:
                    words += ["--workers", str(options.workers)]
                run = subprocess.run(words, capture_output=True, text=True, check=True)
                print(
                    f" {_cell_text(json.loads(run.stdout.splitlines()[-1]))} |", end="", flush=True
                )
            print(flush=True)


if __name__ == "__main__":
    main()
