"""Steps of whole models by the fitted rates of this machine, beside measured ones.

    python benchmarks/bench_calibration.py [MODEL ...] [--training]

Rates are fitted to operators of common shapes, of which none is of these models.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))

import prediction_models

from fx_bridge import capture
from fx_bridge.costs.backward import backward_costs
from fx_bridge.costs.calibration import calibrate
from fx_bridge.costs.latency import roofline_latency_ns
from fx_bridge.costs.timing import measure_operators

MODELS = {
    name: make
    for name, make in vars(prediction_models).items()
    if inspect.isfunction(make) and not name.startswith("_")
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="MODEL", default=list(MODELS))
    parser.add_argument("--training", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    spec = calibrate("here")
    print(spec)
    errors = []
    for name in options.models:
        made = MODELS[name]()
        captured = capture(made[0], made[1], made[2] if len(made) > 2 else {})
        times = measure_operators(captured, training=options.training).calibrated()
        predicted = roofline_latency_ns(captured, {"here": spec})
        found = [(sum(times.forward_ns.values()), sum(t["here"] for t in predicted.values()))]
        if options.training:
            passes = backward_costs(captured).values()
            found.append(
                (sum(times.backward_ns.values()), sum(cost.latency_ns(spec) for cost in passes))
            )
        measured, expected = (sum(column) for column in zip(*found, strict=True))
        errors.append(abs(expected / measured - 1))
        shown = ", ".join(f"{m / 1e6:.1f} ms measured, {e / 1e6:.1f} fitted" for m, e in found)
        print(f"{name:10} {expected / measured - 1:+7.1%}  {shown}")
    print(f"median error {statistics.median(errors):.1%}, largest {max(errors):.1%}")


if __name__ == "__main__":
    main()
