"""What each step of the search is worth: every row again without it.

    python benchmarks/bench_ablation.py CELLS.jsonl [--steps STEP ...] [--groups GROUP ...]
        [--rows ROW ...] [--seeds N ...] [--time-limit S] [--workers N] [--captured FOLDER]
    python benchmarks/bench_ablation.py CELLS.jsonl --table

Rows are those of ``bench_workloads.py`` (``--list`` there names them), of the published,
interleaved, NASNet and zoo groups unless others are named. Each row is solved with all
steps first, and then without each step that ran: a step that did not run changes nothing. Names
joined by ``+``, as in ``parts+borders``, are left out together. A cell is
a run in a fresh process and a line of ``CELLS.jsonl``; a cell that is in the file is not run again,
so an interrupted table goes on.

A step stays if without it a row fewer is proven, or if the gap grows by half a point on average
over the zoo's and the published rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from targets import GROUPS, Context, rows

from solver import SolveLimits, SolveStatus, solve, step_names

NOTHING = "nothing"
JOIN = "+"
JUDGED_GROUPS = ("published", "zoo")
"""Their gaps count; proofs count in all groups."""
LEAST_POINTS = 0.5

Cell = dict[str, object]
Key = tuple[str, str, int]
"""Step left out, row, seed."""


def solve_cell(options: argparse.Namespace) -> Cell:
    """Solve one instance without some steps in this process."""
    without = () if options.step == NOTHING else options.step.split(JOIN)
    row = next(row for row in rows() if row.name == options.row)
    problem = row.build(Context(options.captured))
    limits = SolveLimits(options.time_limit, options.workers, options.seed)
    result = solve(problem, limits, without=without)
    steps: dict[str, float] = defaultdict(float)
    for record in result.log:
        steps[record.step] += record.seconds
    return {
        "without": options.step,
        "row": row.name,
        "group": row.group,
        "seed": options.seed,
        "time_limit_s": options.time_limit,
        "workers": options.workers,
        "wall_s": round(result.wall_time_s, 2),
        "proven": result.status in (SolveStatus.OPTIMAL, SolveStatus.INFEASIBLE),
        "gap": result.gap,
        "objective": result.objective,
        "bound": result.objective_bound,
        "steps_s": {step: round(seconds, 3) for step, seconds in steps.items()},
    }


def steps_of(text: str) -> str:
    """Return names of steps as they are; an unknown one is an error of argparse."""
    unknown = set(text.split(JOIN)) - {NOTHING, *step_names()}
    if unknown:
        raise argparse.ArgumentTypeError(f"no step is called {min(unknown)!r}")
    return text


def read_cells(path: Path) -> dict[Key, Cell]:
    """Return the cells of a file; an interrupted last line is no cell."""
    found = {}
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            cell = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[cell["without"], cell["row"], cell["seed"]] = cell
    return found


def wanted_cells(options: argparse.Namespace, cells: dict[Key, Cell]) -> Iterator[Key]:
    """Yield what is missing: a row with all steps first, then without each step that ran."""
    chosen = [
        row.name
        for row in rows()
        if (row.name in options.rows if options.rows else row.group in options.groups)
    ]
    for seed in options.seeds:
        for row in chosen:
            if (NOTHING, row, seed) not in cells:
                yield NOTHING, row, seed
    for step in options.steps or step_names():
        for seed in options.seeds:
            for row in chosen:
                ran = cells[NOTHING, row, seed]["steps_s"]
                if not ran.keys().isdisjoint(step.split(JOIN)) and (step, row, seed) not in cells:
                    yield step, row, seed


def run_cell(options: argparse.Namespace, key: Key, captured: Path) -> Cell:
    """Solve one instance without one step in a fresh process."""
    step, row, seed = key
    words = [sys.executable, __file__, str(options.cells), "--step", step, "--row", row]
    words += ["--seed", str(seed), "--time-limit", str(options.time_limit)]
    words += ["--captured", str(captured)]
    if options.workers is not None:
        words += ["--workers", str(options.workers)]
    run = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def _gap(cell: Cell) -> float:
    """In percent; a run without a plan is wholly open."""
    if cell["proven"]:
        return 0.0
    return 100.0 if cell["gap"] is None else 100 * cell["gap"]


def table_lines(cells: dict[Key, Cell]) -> Iterator[str]:
    """Yield the table as Markdown; a row without a cell of a step is as with all steps."""
    whole = {key[1:]: cell for key, cell in cells.items() if key[0] == NOTHING}
    judged = [key for key, cell in whole.items() if cell["group"] in JUDGED_GROUPS]
    proven = sum(cell["proven"] for cell in whole.values())
    yield f"{len(whole)} runs with all steps, {proven} proven"
    yield ""
    yield "| without | runs | proofs lost | proofs gained | gap, points | most | where |"
    yield "|---|---|---|---|---|---|---|"
    for step in dict.fromkeys(key[0] for key in cells if key[0] != NOTHING):
        left_out = {key[1:]: cell for key, cell in cells.items() if key[0] == step}
        lost = [k for k in left_out if whole[k]["proven"] and not left_out[k]["proven"]]
        gained = [k for k in left_out if left_out[k]["proven"] and not whole[k]["proven"]]
        change = {key: _gap(left_out[key]) - _gap(whole[key]) for key in left_out}
        mean = sum(change[key] for key in judged if key in change) / max(len(judged), 1)
        most = max(change, key=lambda key: change[key])
        yield (
            f"| {step} | {len(left_out)} | {len(lost)} | {len(gained)} | {mean:+.2f} "
            f"| {change[most]:+.1f} | {most[0]} |"
        )
    yield ""
    seconds = [cell["wall_s"] for cell in cells.values()]
    yield f"{len(cells)} cells, median {statistics.median(seconds):.1f} s"


def main() -> None:
    """Run what is missing, and print the table."""
    names = [row.name for row in rows()]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cells", type=Path, help="JSON lines, a cell each; made or continued")
    parser.add_argument("--steps", type=steps_of, metavar="STEP", nargs="+", help="leave out these")
    parser.add_argument("--groups", choices=GROUPS, nargs="+", default=GROUPS[:4])
    parser.add_argument("--rows", choices=names, nargs="+", metavar="ROW", help="these rows alone")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], metavar="N")
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--captured", type=Path, help="folder that keeps captured models")
    parser.add_argument("--table", action="store_true", help="run nothing; print the table")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--row", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step is not None:
        print(json.dumps(solve_cell(options)))
        return
    cells = read_cells(options.cells)
    if not options.table:
        with tempfile.TemporaryDirectory() as folder:
            captured = options.captured or Path(folder)
            captured.mkdir(parents=True, exist_ok=True)
            for key in wanted_cells(options, cells):
                cell = run_cell(options, key, captured)
                cells[key] = cell
                with options.cells.open("a") as file:
                    file.write(json.dumps(cell) + "\n")
                print(*key, f"{cell['wall_s']:.1f} s", f"{_gap(cell):.2f} %", flush=True)
    print(*table_lines(cells), sep="\n")


if __name__ == "__main__":
    main()
