import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from experiments.comparison.records import PlannerRow
from experiments.sweep.limited import WorkerPool
from experiments.sweep.settings import DeviceChoice
from experiments.sweep.sources import ModelSource, read_model
from experiments.sweep.store import load_study
from experiments.sweep.worker import JobHandler
from solver import PartitionError
from tests.support.sweep_worker import plan, specs
from tests.support.sweeps import CELLS, answers, settings, sweep


class InProcess:
    """A pool whose jobs run in this process, as JSON; keeps the jobs."""

    width = 2

    def __init__(self, threads, answer, spoil):
        self._threads = threads
        self._handler = JobHandler(answer)
        self._spoil = spoil
        self.jobs = []

    def submit(self, job):
        return self._threads.submit(self.run, json.dumps(job))

    def run(self, text):
        job = json.loads(text)
        self.jobs.append(job)
        try:
            answered = self._handler(job)
        except ValueError as error:
            answered = {"error": str(error), "is_input": False}
        return json.loads(json.dumps(self._spoil(answered)))


@contextlib.contextmanager
def in_process(answer=plan, spoil=lambda answer: answer):
    with ThreadPoolExecutor(1) as threads:
        pool = InProcess(threads, answer, spoil)
        yield pool, pool.jobs


@pytest.fixture
def path(tmp_path):
    return tmp_path / "results.sqlite"


def test_every_cell_is_done_once_and_a_second_run_does_nothing(path):
    asked = settings("greedy", "auto", seeds=(0, 1), objectives=(("bottleneck",), ("latency",)))
    with in_process() as (runner, jobs):
        first = sweep(path, asked, runner)
        assert (first.cases, first.cells, first.present, first.done) == (2, 8, 0, 8)
        assert first.failed == 0
        assert sum(first.by_status.values()) == 8
        assert [job["do"] for job in jobs] == ["prepare", *["plan"] * 8]
        second = sweep(path, asked, runner)
    assert (second.cells, second.present, second.done) == (8, 8, 0)
    assert second.by_status == first.by_status
    assert len(jobs) == 9
    study = load_study(path)
    assert [(row.case.objective, row.planner, row.seed) for row in study.rows] == [
        (objective, planner, seed)
        for objective in (("bottleneck",), ("latency",))
        for planner in ("greedy", "auto")
        for seed in (0, 1)
    ]


def test_cases_of_equal_problems_share_their_cells(path):
    same = (DeviceChoice("one", "2x1GiB"), DeviceChoice("other", "1GiB,1GiB"))
    with in_process() as (runner, _):
        found = sweep(path, settings("greedy", devices=same), runner)
    assert (found.cases, found.cells, found.done) == (2, 1, 1)
    study = load_study(path)
    assert study.cases[0].digest == study.cases[1].digest
    assert [row.case.device_set for row in study.rows] == ["one", "other"]


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        ({"error": "ValueError: no"}, "failed", "ValueError: no"),
        (
            {"ended": {"status": "timed out", "reason": "no answer", "wall_time_s": 1.5}},
            "timed out",
            "no answer",
        ),
    ],
)
def test_what_fails_is_kept_and_done_again_where_asked(path, answer, status, reason):
    asked = settings("greedy")
    with in_process() as (runner, _):
        # Once without a cell: the problem is not what fails.
        sweep(path, settings("chain"), runner)
    with in_process(spoil=lambda _: answer) as (runner, jobs):
        found = sweep(path, asked, runner)
        assert (found.done, found.failed, found.by_status) == (1, 1, {status: 1})
        assert sweep(path, asked, runner).done == 0
        assert len(jobs) == 1
    row = load_study(path).rows[0]
    assert (row.status, row.reason, row.plan) == (status, reason, None)
    with in_process() as (runner, _):
        again = sweep(path, asked, runner, retry_failed=True)
    assert (again.done, again.failed, again.by_status) == (1, 0, {"unknown": 1})
    with in_process() as (runner, jobs):
        assert sweep(path, asked, runner, retry_failed=True).done == 0
        assert not jobs


def test_a_planner_that_answers_nothing_is_an_answer(path):
    def nothing(key, task, planner, limits):
        return PlannerRow(key, planner, "infeasible", reason="no plan exists")

    with in_process(nothing) as (runner, _):
        found = sweep(path, settings("greedy"), runner)
        assert found.failed == 0
        assert sweep(path, settings("greedy"), runner, retry_failed=True).done == 0


def test_a_case_without_a_problem_has_a_reason_and_no_cells(path):
    workload = read_model({"file": "published:layer.gnmt_inference"}, "here", Path())
    devices = (DeviceChoice("own", "own"), DeviceChoice("two", "2x1GiB"))
    asked = settings("greedy", models=(workload,), devices=devices)
    with in_process() as (runner, jobs):
        found = sweep(path, asked, runner)
        assert (found.cases, found.cells, found.done) == (2, 1, 1)
        case = "published:layer.gnmt_inference on two devices, bottleneck, weights"
        assert list(found.reasons) == [case]
        assert "no entry for device class 'default'" in next(iter(found.reasons.values()))
        sweep(path, asked, runner)
        assert [job["do"] for job in jobs] == ["prepare", "plan"]
        sweep(path, asked, runner, retry_failed=True)
        assert [job["do"] for job in jobs] == ["prepare", "plan", "prepare"]
        assert [case["key"][1] for case in jobs[-1]["cases"]] == ["two"]
    study = load_study(path)
    assert study.cases[1].problem is None
    assert study.cases[1].reason == next(iter(found.reasons.values()))
    assert study.models[0].reason == ""


def test_code_is_prepared_again_since_it_may_have_changed(path, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_model.py").write_text(
        "import torch\nwidth = 8\n"
        "def make():\n    return torch.nn.Linear(4, width), (torch.zeros(1, 4),)\n"
    )
    model = ModelSource("own_model:make", "code")
    asked = settings("greedy", models=(model,), devices=(DeviceChoice("one", "1x1GiB"),))
    with in_process() as (runner, jobs):
        assert sweep(path, asked, runner).done == 1
    with in_process() as (runner, jobs):
        again = sweep(path, asked, runner)
        assert (again.present, again.done) == (1, 0)
        assert [job["do"] for job in jobs] == ["prepare"]
    import own_model

    own_model.width = 16
    with in_process() as (runner, jobs):
        changed = sweep(path, asked, runner)
        assert (changed.present, changed.done) == (0, 1)
    assert len(load_study(path).rows) == 1


def test_a_planner_that_reads_the_model_gets_it_and_checks_it(path):
    def read(key, task, planner, limits):
        loaded, captured = task.model(planner)
        words = f"{type(loaded.module).__name__}, {len(captured.operators)} operators"
        return PlannerRow(key, planner, "unknown", words=words)

    mlp = ModelSource("mlp", "zoo")
    asked = settings("peer", models=(mlp,))
    known = specs("peer", needs_model=True)

    with in_process(read) as (runner, jobs):
        from experiments.sweep import worker

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worker, "PLANNERS", known)
            found = sweep(path, asked, runner, specs=known)
            assert found.by_status == {"unknown": 3}
            plans = [job for job in jobs if job["do"] == "plan"]
            assert {row.words for row in load_study(path).rows} == {"Sequential, 9 operators"}
            assert plans[0]["limits"]["seconds"] == 75 + 600
            other = json.dumps({**plans[0], "digest": "0" * 64})
            answer = runner.run(other)
    assert "model 'mlp' makes another problem here" in answer["error"]


def test_answers_that_belong_to_other_versions_are_refused(path):
    with (
        in_process(spoil=lambda _: {"refused": "a worker has torch 1.0 instead of 2.0"}) as (
            runner,
            _,
        ),
        pytest.raises(PartitionError, match=r"^a worker has torch 1\.0 instead of 2\.0$"),
    ):
        sweep(path, settings("greedy"), runner)


def test_no_more_jobs_are_handed_out_than_the_runner_takes(path):
    with in_process() as (runner, _):
        handed, done = [], []
        submit = runner.submit

        def counting(job):
            handed.append(job)
            assert len(handed) - len(done) <= 2
            future = submit(job)
            future.add_done_callback(lambda _: done.append(job))
            return future

        runner.submit = counting
        sweep(path, settings("greedy", seeds=tuple(range(9))), runner)
    assert len(handed) == 10


# -- interruptions ------------------------------------------------------------------------------

SCRIPT = """
import sys
from experiments.sweep.limited import WorkerPool
from tests.support.sweep_worker import specs
from tests.support.sweeps import CELLS, settings, sweep
with WorkerPool(2, "tests.support.sweep_worker") as runner:
    sweep(sys.argv[1], settings("slow", seeds=tuple(range(CELLS))), runner)
"""


def start(path):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path)],
        start_new_session=True,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def wait_for(path, count, process):
    deadline_s = time.monotonic() + 120
    while len(answers(path)) < count:
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def finish(path):
    asked = settings("slow", seeds=tuple(range(CELLS)))
    with WorkerPool(2, "tests.support.sweep_worker") as runner:
        return sweep(path, asked, runner)


def test_a_sweep_that_was_killed_goes_on_and_has_lost_nothing(path):
    process = start(path)
    try:
        wait_for(path, 3, process)
        workers = psutil.Process(process.pid).children()
        with pytest.raises(PartitionError, match="another run is writing to"):
            finish(path)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert len(workers) == 2
    assert not alive
    before = answers(path)
    assert 3 <= len(before) < CELLS
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    found = finish(path)
    assert (found.cells, found.present, found.done) == (CELLS, len(before), CELLS - len(before))
    after = answers(path)
    assert set(after) == set(range(CELLS))
    assert before.items() <= after.items()
    assert [each.name for each in path.parent.iterdir()] == [path.name]
