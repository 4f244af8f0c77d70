"""A worker of sweeps for tests, with planners that misbehave."""

import os
import signal
import sys
import time

from experiments.comparison.planner_row import plan_row
from experiments.comparison.records import PlannerRow
from experiments.planners.task import PlannerSpec
from experiments.processes.workers import serve
from experiments.sweep.worker import JobHandler

_KEPT = []


def plan(key, task, planner, limits):
    """Do what the name of the planner says."""
    match planner.partition("-")[0]:
        case "sleep":
            time.sleep(60)
        case "allocate":
            held = []
            while True:
                held.append(b"x" * 50_000_000)
                time.sleep(0.01)
        case "keep":
            _KEPT.append(b"x" * 300_000_000)
        case "spike":
            spike = b"x" * 300_000_000
            time.sleep(0.5)
            del spike
            time.sleep(60)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            sys.stderr.write("last <words>")
            sys.stderr.flush()
            os._exit(7)
        case "raise":
            raise ValueError("a planner\nthat raises")
        case "slow":
            time.sleep(0.2)
            return PlannerRow(key, planner, "unknown", seed=limits.seed, words=str(os.getpid()))
    return plan_row(key, task, planner, limits)


def _no_plan(task, limits):
    raise AssertionError("it is the worker that plans")


def specs(*names, **flags):
    """Return what a sweep is told of planners with these names."""
    return {
        name: PlannerSpec(name, "for tests", "tests", _no_plan, seeded=True, **flags)
        for name in names
    }


if __name__ == "__main__":
    serve(JobHandler(plan))
