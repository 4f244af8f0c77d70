"""Objective, bound and status of many problems, to compare before and after a change.

    python benchmarks/golden.py OUT.jsonl [--groups [GROUP ...]] [--only PATTERN] [--random N]
        [--kinds KIND ...] [--time-limit S] [--without STEP ...] [--captured FOLDER]
    python benchmarks/golden.py --compare BEFORE.jsonl AFTER.jsonl

Rows are those of ``targets.py``, ``bench_offload.py`` and ``bench_serving.py``, and N random
problems of each kind. Limits are deterministic. A row that is in the file is not solved again.
Leave out the steps that find good plans (``--without "recomputed cuts" branches``) to see what is
proven from a bad plan on. ``--compare`` prints rows that are worse, and exits with 1 if any is.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

from targets import GROUPS, Context, rows

from solver import SolveLimits, SolveStatus, solve, step_names
from solver.evaluation.result import MAXIMISED
from solver.offload.instance import OffloadInstance
from solver.offload.plan import plan_offload
from solver.serving.solve import solve_job
from tests.support.random_jobs import random_job
from tests.support.random_problems import random_problem, recomputed_problem, relayed_problem

DEFAULT_GROUPS = ("published", "interleaved", "nasnet", "recomputed", "offload", "serving")
PROVEN = (SolveStatus.OPTIMAL.value, SolveStatus.INFEASIBLE.value)
ROUNDING = 1e-9
SERVED = ("request", "token", "throughput", "context")
Answer = Callable[[SolveLimits, list[str]], Any]


def _solved(problem) -> Answer:
    return lambda limits, without: solve(problem, limits, without=without)


def _offloaded(instance) -> Answer:
    return lambda limits, _: plan_offload(instance, limits)


def _streamed(seed: int) -> Answer:
    job = random_job(seed, devices=1 + seed % 2, host=True).replace(objective="token")
    return _offloaded(OffloadInstance.of(job))


def _serving(seed: int) -> Answer:
    job = random_job(seed).replace(objective=SERVED[seed % len(SERVED)])
    return lambda limits, without: solve_job(job, limits, without=without)


def _planned(name: str, devices: str) -> Answer:
    from bench_serving import model_of, planned

    return lambda limits, _: planned(model_of(name), devices, limits).solved


KINDS: dict[str, Callable[[int], Answer]] = {
    "plain": lambda seed: _solved(random_problem(seed, draw_chunks=seed % 3 == 0)),
    "step": lambda seed: _solved(random_problem(seed, steps=True)),
    "relayed": lambda seed: _solved(relayed_problem(seed, limited=seed % 2 == 0)),
    "recomputed": lambda seed: _solved(
        recomputed_problem(seed, relayed=seed % 3 == 0, is_restricted=seed % 5 > 2)
    ),
    "offload": _streamed,
    "serving": _serving,
}


def cases(
    options: argparse.Namespace, captured: Path
) -> Iterator[tuple[str, Callable[[], Answer]]]:
    """Yield the names of rows, each with a function that prepares its answer."""
    for row in rows():
        if row.group in options.groups:
            yield f"{row.group}: {row.name}", lambda row=row: _solved(row.build(Context(captured)))
    if "offload" in options.groups:
        from bench_offload import ROWS, chain_of

        for row in ROWS:
            name, build = f"offload: {', '.join(map(str, row))}", partial(chain_of, *row)
            yield name, lambda build=build: _offloaded(build().instance)
    if "serving" in options.groups:
        from bench_serving import ROWS as SERVING_ROWS

        for row in SERVING_ROWS:
            yield f"serving: {', '.join(row)}", partial(_planned, *row)
    for kind in options.kinds:
        for seed in range(options.random):
            yield f"random {kind}: {seed}", partial(KINDS[kind], seed)


def record(name: str, answer: Answer, limits: SolveLimits, without: list[str]) -> dict[str, Any]:
    """Return the line of a row; amounts are text, as some are fractions."""
    start_s = time.process_time()
    result = answer(limits, without)
    amounts = (result.objective, result.objective_bound)
    value, bound = (None if amount is None else str(amount) for amount in amounts)
    names = () if result.evaluation is None else result.evaluation.objective_names
    return {
        "row": name,
        "status": result.status.value,
        "objective": value,
        "bound": bound,
        "is_maximised": not MAXIMISED.isdisjoint(names[:1]),
        "cpu_s": round(time.process_time() - start_s, 3),
    }


def read(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a file by name."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return {row["row"]: row for row in map(json.loads, lines)}


def worse(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return the first respect in which an answer is worse, or nothing."""
    if before["status"] in PROVEN and after["status"] != before["status"]:
        return "status"
    sign = -1 if before["is_maximised"] else 1
    for name, direction in (("objective", sign), ("bound", -sign)):
        old, new = (None if row[name] is None else Fraction(row[name]) for row in (before, after))
        if old is not None and (new is None or direction * (new - old) > ROUNDING * abs(old)):
            # An infeasible problem needs no bound.
            return "" if after["status"] == SolveStatus.INFEASIBLE.value else name
    return ""


def compare(first: Path, second: Path) -> int:
    """Print the rows of the first file that are worse in the second; return 1 if any is."""
    before, after = read(first), read(second)
    reasons = {name: worse(row, after[name]) for name, row in before.items() if name in after}
    for name, reason in reasons.items():
        if reason:
            print(f"{reason}: {before[name]} -> {after[name]}")
    count = sum(map(bool, reasons.values()))
    old_s, new_s = (sum(rows[name]["cpu_s"] for name in reasons) for rows in (before, after))
    print(f"{count} worse, {len(before) - len(reasons)} missing; {old_s:.1f} s, now {new_s:.1f} s")
    return int(count > 0 or len(reasons) < len(before))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", help="JSON lines, a row each; continued")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("BEFORE", "AFTER"))
    parser.add_argument("--groups", choices=(*GROUPS, "offload", "serving"), nargs="*")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="rows with such a name")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="problems of each kind")
    parser.add_argument("--kinds", choices=KINDS, nargs="+", default=list(KINDS))
    parser.add_argument("--time-limit", type=float, default=30.0, help="in units of work")
    parser.add_argument("--without", choices=step_names(), nargs="+", default=[])
    parser.add_argument("--captured", type=Path, help="folder that keeps captured models")
    parser.set_defaults(groups=DEFAULT_GROUPS)
    options = parser.parse_args()
    if options.compare is not None:
        return compare(*options.compare)
    if options.out is None:
        parser.error("name a file for the rows, or two to --compare")
    known, limits = read(options.out), SolveLimits(options.time_limit, 1, deterministic=True)
    with tempfile.TemporaryDirectory() as folder, options.out.open("a") as file:
        for name, make in cases(options, options.captured or Path(folder)):
            if name not in known and fnmatch.fnmatch(name, options.only):
                row = record(name, make(), limits, options.without)
                print(json.dumps(row), file=file, flush=True)
                print(f"{name}: {row['status']} {row['objective']}, {row['cpu_s']} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
