"""What it takes to plan with what runs again, beside the same problem in which nothing does.

    python benchmarks/bench_recomputation.py [--models NAME ...] [--time-limit S] [--json FILE]

Every model trains on equal devices that hold what the best plan without limits holds, and half as
much again, so that both problems have plans. Each is searched by one worker until it is proven, or
the limit. Times are those of the processor, not of the clock, the least of three searches: garbage
of the capture is collected during any of them. Compare ratios within one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from experiments.zoo.building import build_model, capture_model
from experiments.zoo.models import resolve_built
from fx_bridge import Training, to_digraph
from solver import (
    Device,
    Interconnect,
    PartitionProblem,
    SolveLimits,
    SolveResult,
    problem_from_digraph,
    solve,
)

MODELS = ("tiny-gpt2", "vit-b16", "resnet-50", "bert-base")
DEVICE_COUNTS = (2, 4)
ROOMS_PERCENT = (100, 150)
OBJECTIVES = ("bottleneck", "step")
MICROBATCHES = 8
SEARCHES = 3


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds, status and value without anything that runs again, and with what may."""

    name: str
    none_s: float
    none: str
    auto_s: float
    auto: str
    ratio: float


def timed(problem: PartitionProblem, limits: SolveLimits) -> tuple[float, SolveResult]:
    """Return what a search takes of the processor at least, and its answer."""
    seconds = []
    for _ in range(SEARCHES):
        start_s = time.process_time()
        result = solve(problem, limits)
        seconds.append(time.process_time() - start_s)
    return min(seconds), result


def described(result: SolveResult) -> str:
    """Return the status, and the value in microseconds."""
    value = "-" if result.objective is None else f"{result.objective / 1000:.1f} us"
    return f"{result.status.value} {value}"


def rows(models: list[str], limits: SolveLimits) -> Iterator[Row]:
    """Measure all rows, each as soon as it is asked for."""
    for model in models:
        captured = capture_model(build_model(resolve_built(model)))
        # Regions and what backward passes save are there in both.
        training = Training(recompute="auto", tied_weights="sum")
        graph = to_digraph(captured, training=training)
        for count in DEVICE_COUNTS:
            for objective in OBJECTIVES:
                problem = problem_from_digraph(
                    graph,
                    [Device(f"d{rank}") for rank in range(count)],
                    memory_model="training",
                    interconnect=Interconnect(charging="relayed"),
                    objective=objective,
                    schedule="1f1b",
                    microbatches=MICROBATCHES,
                )
                free = solve(problem.replace(recompute="none"), limits).evaluation
                assert free is not None, (model, count)
                most_bytes = max(usage.memory_bytes for usage in free.usage)
                for percent in ROOMS_PERCENT:
                    memory_bytes = most_bytes * percent // 100
                    devices = [Device(f"d{rank}", memory_bytes) for rank in range(count)]
                    name = f"{model}, {count} devices of {memory_bytes:,} B, {objective}"
                    yield measured(name, problem.replace(devices=devices), limits)


def measured(name: str, problem: PartitionProblem, limits: SolveLimits) -> Row:
    """Search a problem in both ways, one after the other."""
    none_s, none = timed(problem.replace(recompute="none"), limits)
    auto_s, auto = timed(problem.replace(recompute="auto"), limits)
    return Row(name, none_s, described(none), auto_s, described(auto), auto_s / none_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    # OR-Tools takes a second to load, whoever asks first.
    for row in rows(options.models, SolveLimits(options.time_limit, workers=1)):
        found.append(row)
        print(
            f"{row.name}: {row.none_s:.2f} s ({row.none}), {row.auto_s:.2f} s ({row.auto}), "
            f"{row.ratio:.2f}",
            flush=True,
        )
    ratios = [row.ratio for row in found]
    print(f"median {statistics.median(ratios):.2f}, most {max(ratios):.2f} of {len(ratios)} rows")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) for row in found], indent=1))


if __name__ == "__main__":
    main()
