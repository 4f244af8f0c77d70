"""What each part of the exact search is worth: CPU seconds to the proof with one part left out.

    python benchmarks/bench_ablation.py [--time-limit S] [--workers N]
        [--only PART] [--columns INSTANCE ...]

Every cell runs in a fresh process. A cell with ">" was not proven within the time limit; then the
gap follows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import solver.branching.first_plans as first_plans
import solver.branching.model_run as model_run
import solver.branching.restated as restated
import solver.cp_sat as cp_sat
import solver.ideal_dp as ideal_dp
from experiments.problems.generators import GeneratorSettings, generate
from experiments.problems.workloads import load_workload
from solver import Device, PartitionProblem, SolveLimits, SolveStatus
from solver.auto import solve_auto
from solver.bounding.linear_bounds import PositionBound
from solver.budget import Budget
from solver.hardware import Charging
from solver.ideals.repeated_chains import RepeatedChains
from solver.modelling.load_rows import LoadRows
from solver.reduce import UnitGraph
from solver.reducing.dominance import Simplified
from solver.reducing.identical_blocks import IdenticalBlocks


def _nothing() -> None:
    pass


def _interval_rows() -> None:
    LoadRows.bottleneck = property(lambda self: self.stages.largest_of(self.loads))  # type: ignore[assignment,method-assign]


def _old_propagation() -> None:
    original = model_run._solver

    def changed(limits: SolveLimits, budget: Budget, slice_s: float | None) -> object:
        solver = original(limits, budget, slice_s)
        solver.parameters.new_linear_propagation = True
        return solver

    model_run._solver = changed


def _dominance() -> None:
    def unchanged(units: UnitGraph) -> Simplified:
        return Simplified(units, units, (), tuple(range(len(units))))

    cp_sat.simplify = unchanged


def _identical_blocks() -> None:
    restated.identical_blocks = lambda units: IdenticalBlocks(units, ())
    ideal_dp.repeated_chains = lambda units, blocks: RepeatedChains()


def _positions() -> None:
    PositionBound.applies = staticmethod(lambda units: False)  # type: ignore[method-assign]


def _local_search() -> None:
    first_plans.first_incumbents = lambda *arguments, **named: None  # type: ignore[assignment]


def _sub_solves() -> None:
    restated._LARGE_FROM = sys.maxsize


PARTS: dict[str, Callable[[], None]] = {
    "everything": _nothing,
    "rows over intervals of slots": _interval_rows,
    "older linear propagation": _old_propagation,
    "dominance": _dominance,
    "identical blocks": _identical_blocks,
    "position bound and its windows": _positions,
    "local search": _local_search,
    "sub-solves": _sub_solves,
}


INSTANCES: dict[str, Callable[[], PartitionProblem]] = {
    "inceptionv3 x 1000": lambda: load_workload(
        "published:layer.inceptionv3_inference", communication_scale=1000
    ),
    "bert_l-12 x 1000": lambda: load_workload(
        "published:operator.bert_l-12_inference", communication_scale=1000
    ),
    "nasnetamobile, no host": lambda: load_workload("published:nasnetamobile", with_host=False),
    "gnmt training, no host, V = 3": lambda: load_workload(
        "published:layer.gnmt_training", with_host=False
    ).replace(chunks_per_device=3),
    "experts": lambda: _experts("peer_to_peer"),
    "experts, auto": lambda: _experts("relayed"),
}


def _experts(charging: Charging) -> PartitionProblem:
    """Two layers of twelve experts on seven devices without limits on memory."""
    graph = generate("balanced-experts", GeneratorSettings(operators=127, experts=12))
    return graph.problem(
        [Device(f"d{i}") for i in range(7)],
        interconnect=replace(graph.interconnect, charging=charging),
    )


def run_cell(options: argparse.Namespace) -> dict[str, object]:
    """Solve one instance without one part in this process."""
    PARTS[options.part]()
    problem = INSTANCES[options.instance]()
    started_s = time.process_time()
    # What the other exact program would answer is measured where it is the one chosen.
    search = solve_auto if options.instance.endswith(", auto") else cp_sat.solve_cp_sat
    result = search(problem, SolveLimits(options.time_limit, options.workers))
    return {
        "cpu_s": time.process_time() - started_s,
        "proven": result.status is SolveStatus.OPTIMAL,
        "gap": result.gap,
    }


def _cell_text(cell: dict[str, object]) -> str:
    text = f"{cell['cpu_s']:.1f}"
    gap = cell["gap"]
    if cell["proven"]:
        return text
    return f"> {text} (no plan)" if gap is None else f"> {text} ({gap:.1%})"


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--only", choices=PARTS, help="leave out this part alone")
    parser.add_argument("--columns", nargs="+", choices=INSTANCES, default=list(INSTANCES))
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--instance", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is not None:
        print(json.dumps(run_cell(options)))
        return
    names = options.columns
    print("| without | " + " | ".join(names) + " |", flush=True)
    print("|---" * (len(names) + 1) + "|", flush=True)
    for part in PARTS if options.only is None else ("everything", options.only):
        cells = []
        for name in names:
            command = [sys.executable, __file__, "--part", part, "--instance", name]
            command += ["--time-limit", str(options.time_limit), "--workers", str(options.workers)]
            run = subprocess.run(command, capture_output=True, text=True, check=True)
            cells.append(_cell_text(json.loads(run.stdout)))
        label = "(everything on)" if part == "everything" else part
        print(f"| {label} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
