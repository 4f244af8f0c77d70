"""Predicted and measured times and memory of plans that run as pipelines of two processes.

    python benchmarks/bench_prediction.py [MODEL ...] [--inference | --training] [--json FILE]

For each model of ``prediction_models.py``, for forward passes alone and for training: measure its
operators, make the plans of greedy, chain and auto for two devices of unequal memory, run them
in turn, and print what was predicted beside what was measured. All of it takes less
than five minutes on an idle machine with two cores; other work on it shows in the times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import prediction_models

from experiments.pipelines.group import PipelineGroup
from experiments.pipelines.plan_runs import RunSettings, run_plans
from experiments.pipelines.prediction import in_order, is_slower
from experiments.pipelines.profiling import measure_profile
from experiments.pipelines.tables import plan_lines, row_json
from experiments.problems.request import ProblemRequest
from experiments.zoo.models import captured_model
from solver import Pipeline
from solver.io.files import write_text_atomically
from solver.model.quantities import counted

MODELS = ("gpt2", "bert", "vit", "resnet", "mixer", "experts", "unequal")
MICROBATCHES = 4
SHARES = (3, 2)


def settings_of(training, steps):
    return RunSettings(
        ProblemRequest(
            memory_model="training" if training else "inference",
            pipeline=Pipeline("1f1b" if training else "gpipe", MICROBATCHES),
        ),
        shares=SHARES,
        steps=steps,
    )


def rows_of(names, modes, steps, say):
    """Yield the rows of every model, and say what each took."""
    with PipelineGroup(2, time_limit_s=1800) as group:
        for name in names:
            model = f"prediction_models:{name}"
            captured = captured_model(model)
            for training in modes:
                began_s = time.perf_counter()
                what = f"{name} {'training' if training else 'inference'}"
                profile = measure_profile(model, group, training=training, processes=2, repeats=5)
                rows = run_plans(
                    model,
                    captured,
                    profile,
                    settings_of(training, steps),
                    group,
                    done=say,
                    label=what,
                )
                yield rows
                say(f"{what}: {time.perf_counter() - began_s:.1f} s")


def accuracy(rows):
    """Return lines on the accuracy of the predictions of `rows`.

    Errors are medians of absolute ones, over plans and over ranks of plans. Two plans are in order
    if the one that is predicted to be faster is measured to be faster, or they are measured to be
    equal within noise: the medians differ by less than the larger spread.
    """
    models = {row.model: [r for r in rows if r.model == row.model] for row in rows}
    distinct = [row for row in rows if row.same_as is None]
    errors = [abs(row.time_error) for row in distinct]
    memory = [abs(error) for row in distinct for error in row.memory_errors]
    unordered = [name for name, own in models.items() if not in_order(own)]
    slower = [name for name, own in models.items() if is_slower(own[-1], own[0])]
    ordered, count = len(models) - len(unordered), counted(len(models), "model")
    lines = [f"plans measured in the predicted order: {ordered} of {count}"]
    for name, found in (("time of a step", errors), ("peak memory of a rank", memory)):
        if found:
            lines.append(f"median absolute error of the {name}: {statistics.median(found):.1%}")
    if unordered:
        lines.append(f"not in order: {', '.join(unordered)}")
    if slower:
        lines.append(f"the last plan is slower than the first: {', '.join(slower)}")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--inference", action="store_true", help="forward passes alone")
    parser.add_argument("--training", action="store_true", help="training alone")
    parser.add_argument("--steps", type=int, default=7, help="timed steps of each plan")
    parser.add_argument("--json", metavar="FILE", help="every measured step as JSON")
    given = parser.parse_args()
    unknown = [name for name in given.models if not hasattr(prediction_models, name)]
    if unknown:
        parser.error(f"there is no model {unknown[0]}; the models are {', '.join(MODELS)}")
    modes = [mode for mode, asked in ((False, given.inference), (True, given.training)) if asked]

    def say(text):
        print(text, file=sys.stderr, flush=True)

    rows = []
    for found in rows_of(given.models or MODELS, modes or (False, True), given.steps, say):
        rows += found
    print("\n".join(plan_lines(rows)))
    for line in accuracy(rows):
        print(line)
    if given.json:
        write_text_atomically(given.json, json.dumps([row_json(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
