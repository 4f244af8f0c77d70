"""What each part of the exact search is worth: the proof, or the gap, with one part left out.

    python benchmarks/bench_ablation.py [--only PART ...] [--columns ROW ...] [--time-limit S]
        [--workers N] [--captured FOLDER]

Columns are rows of ``bench_workloads.py`` (``--list`` there names them). Every cell runs in a fresh
process: CPU seconds where the optimum is proven, else the gap, with the bound and the plan in
milliseconds.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from targets import Context, rows

import solver.bounds.parts.decomposition as decomposition
import solver.bounds.windows as stage_bounds
import solver.cp.run as model_run
import solver.dp.ideal_program as ideal_dp
import solver.dp.repeated_chains as repeated_chains
import solver.heuristics.local_search as local_search
import solver.presolve.presolved as restated
import solver.search.branch_search as branch_search
import solver.search.exact as cp_sat
import solver.search.first_plans as first_plans
import solver.search.rounds as branch_rounds
from solver import SolveLimits, SolveStatus, solve
from solver.bounds.borders.bound import BorderBound
from solver.bounds.objectives import ObjectiveBounds
from solver.bounds.positions import PositionBound
from solver.bounds.state_space.bound import SkeletonBound
from solver.cp.load_rows import LoadRows
from solver.dp.bottleneck import BottleneckSearch
from solver.dp.repeated_chains import RepeatedChains
from solver.model.clock import Clock
from solver.presolve.dominance import Simplified
from solver.presolve.symmetry import IdenticalBlocks
from solver.presolve.units import UnitGraph
from solver.search.limit_refutation import LimitRefutation
from solver.search.order_neighbours import OrderGuesses
from solver.search.slow_annealing import SlowMoves

COLUMNS = (
    "layer.inceptionv3_inference x1000",
    "operator.bert_l-12_inference x1000",
    "nasnetamobile no host",
    "layer.gnmt_training V=3",
    "balanced-experts:127 on 7 equal",
    "layered:1000x20 slack=15% on 8",
)


def _nothing() -> None:
    pass


def _without(owner: object, name: str, stand_in: object) -> Callable[[], None]:
    """Return what puts `stand_in` in the place of a function or a constant."""
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} has no {name}")
    return lambda: setattr(owner, name, stand_in)


def _never(*_: object, **__: object) -> bool:
    return False


def _none(*_: object, **__: object) -> None:
    return None


def _old_propagation() -> None:
    original = model_run._solver

    def changed(limits: SolveLimits, clock: Clock) -> object:
        solver = original(limits, clock)
        solver.parameters.new_linear_propagation = True
        return solver

    model_run._solver = changed


def _identical_blocks() -> None:
    restated.identical_blocks = lambda units: IdenticalBlocks(units, ())
    repeated_chains.repeated_chains = lambda units, blocks: RepeatedChains()


def _unchanged(units: UnitGraph) -> Simplified:
    return Simplified(units, units, (), tuple(range(len(units))))


PARTS: dict[str, Callable[[], None]] = {
    "nothing": _nothing,
    "dominance": _without(cp_sat, "simplify", _unchanged),
    "identical blocks": _identical_blocks,
    "ideals": _without(ideal_dp, "can_win", _never),
    "ceilings by bisection": _without(BottleneckSearch, "_find_with_few_stages", _never),
    "position bound and its windows": _without(PositionBound, "applies", staticmethod(_never)),
    "markers on a path": _without(stage_bounds, "_LARGE_REGION", math.inf),
    "borders that exist": _without(BorderBound, "applies", staticmethod(_never)),
    "parts that share time": _without(decomposition, "applies", _never),
    "parts around a load": _without(ObjectiveBounds, "look_around", _none),
    "prices": _without(ObjectiveBounds, "price_devices", _none),
    "ideals of a skeleton": _without(SkeletonBound, "applies", staticmethod(_never)),
    "linear programs": _without(
        branch_search, "closure_bound_ns", lambda *_, at_least, **__: at_least
    ),
    "semidefinite program": _without(branch_search, "applies", _never),
    "orders refuted first": _without(cp_sat, "refute_orders", _none),
    "guesses of orders": _without(OrderGuesses, "next", _none),
    "limits near the bound": _without(branch_rounds, "_raise_bound", _none),
    "limits refuted order by order": _without(LimitRefutation, "applies", property(_never)),
    "local search": _without(first_plans, "first_incumbents", _none),
    "cuts of several orders": _without(first_plans, "search_orders", _none),
    "sub-solves": _without(first_plans, "improve_by_neighbourhoods", lambda units, plan, **_: plan),
    "all borders at once": _without(first_plans, "improve_borders", lambda units, plan, **_: plan),
    "slow annealing": _without(SlowMoves, "search", _none),
    "compiled moves": _without(local_search, "pays_off", _never),
    "rows over intervals of slots": _without(
        LoadRows, "bottleneck", property(lambda rows: rows.stages.largest_of(rows.loads))
    ),
    "older linear propagation": _old_propagation,
}


def run_cell(options: argparse.Namespace) -> dict[str, object]:
    """Solve one instance without one part in this process."""
    PARTS[options.part]()
    row = next(row for row in rows() if row.name == options.row)
    problem = row.build(Context(options.captured))
    started_s = time.process_time()
    result = solve(problem, SolveLimits(options.time_limit, options.workers))
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, metavar="PART", nargs="+", help="leave out these")
    parser.add_argument("--columns", nargs="+", choices=names, metavar="ROW", default=COLUMNS)
    parser.add_argument("--time-limit", type=float, default=30.0)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--captured", type=Path, help="folder that keeps captured models")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is not None:
        print(json.dumps(run_cell(options)))
        return
    print("| without | " + " | ".join(options.columns) + " |", flush=True)
    print("|---" * (len(options.columns) + 1) + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        captured = options.captured or Path(folder)
        for part in options.only or PARTS:
            print(f"| {part} |", end="", flush=True)
            for name in options.columns:
                words = [sys.executable, __file__, "--part", part, "--row", name]
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
