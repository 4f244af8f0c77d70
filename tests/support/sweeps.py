"""A sweep of one generated problem, and a job of it, as tests run them."""

import contextlib
from pathlib import Path

from experiments.comparison.records import CaseKey
from experiments.sweep.cases import CaseRequest
from experiments.sweep.packing import pack
from experiments.sweep.progress import SweepProgress
from experiments.sweep.running import Sweep
from experiments.sweep.settings import DeviceChoice, SweepSettings
from experiments.sweep.sources import read_model
from experiments.sweep.store import load_study, open_store
from experiments.sweep.versions import versions
from solver import Device, Operator, PartitionError, PartitionProblem
from solver.io.json_files import problem_digest, problem_to_json
from tests.support.sweep_worker import specs

GENERATED = read_model(
    {"generate": "layered", "operators": 8, "width": 2, "devices": 2, "name": "<script>"},
    "here",
    Path(),
)


CELLS = 16


PROBLEM = PartitionProblem((Operator("<script>", 3),), (Device("../../x"),))


REQUEST = CaseRequest(CaseKey("m", "d", ("bottleneck",), "inference"), DeviceChoice("d", "own"))


def settings(*planners, models=(GENERATED,), **changes):
    return SweepSettings(models, planners=planners, **changes)


def sweep(path, settings, runner, **options):
    known = {**specs(*settings.planners), **options.pop("specs", {})}
    with open_store(path) as store, SweepProgress() as progress:
        return Sweep(settings, store, runner, progress, specs=known, **options).run()


def answers(path):
    """What is stored: the process that answered, by cell."""
    if not path.exists() or not path.stat().st_size:
        return {}
    with contextlib.suppress(PartitionError):
        return {row.seed: row.words for row in load_study(path).rows}
    return {}


def job(planner, seconds=60, memory_bytes=None, **changes):
    return {
        "do": "plan",
        "versions": versions(),
        "limits": {"seconds": seconds, "memory_bytes": memory_bytes},
        "request": REQUEST.to_json(),
        "problem": pack(problem_to_json(PROBLEM)),
        "digest": problem_digest(PROBLEM),
        "source": None,
        "planner": planner,
        "without": [],
        "solve": {"time_limit_s": 5, "workers": 1, "seed": 3, "deterministic": False},
        **changes,
    }
