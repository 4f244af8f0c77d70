import os
import threading
import time

import psutil
import pytest

from experiments.sweep.limited import LimitedWorker, WorkerPool
from solver import MiB, PartitionError
from tests.support.sweeps import job


@pytest.fixture(scope="module")
def worker():
    worker = LimitedWorker("tests.support.sweep_worker", threading.Event())
    yield worker
    worker.stop()


def pid_of(worker):
    return worker._process.pid


def test_an_answer_is_a_row_and_the_process_goes_on(worker):
    first = worker.run(job("greedy"))["row"]
    assert first["status"] == "feasible"
    assert first["seed"] == 3
    assert first["plan"]["assignment"] == {"<script>": "../../x"}
    assert 10 * MiB < first["peak_rss_bytes"] < 10_000 * MiB
    pid = pid_of(worker)
    assert worker.run(job("auto"))["row"]["status"] == "optimal"
    assert pid_of(worker) == pid


@pytest.mark.parametrize(
    ("planner", "limits", "status", "reason"),
    [
        ("sleep", {"seconds": 0.3}, "timed out", "no answer after 0.3 s"),
        (
            "allocate",
            {"memory_bytes": 600 * MiB},
            "out of memory",
            "its process needs more than 0.5859 GiB",
        ),
        ("die", {}, "killed", "its process ended with signal SIGKILL"),
        ("exit", {}, "failed", "its process ended with exit code 7: last <words>"),
    ],
)
def test_what_ends_a_process_is_said_and_the_next_job_has_another(
    worker, planner, limits, status, reason
):
    worker.run(job("greedy"))
    pid = pid_of(worker)
    ended = worker.run(job(planner, **limits))["ended"]
    assert (ended["status"], ended["reason"]) == (status, reason)
    assert 0 <= ended["wall_time_s"] < 60
    if status == "out of memory":
        assert ended["peak_rss_bytes"] > 600 * MiB
    assert not psutil.pid_exists(pid)
    assert worker.run(job("greedy"))["row"]["status"] == "feasible"


def test_a_planner_that_raises_is_an_error_and_the_process_goes_on(worker):
    worker.run(job("greedy"))
    pid = pid_of(worker)
    assert worker.run(job("raise"))["error"] == "ValueError: a planner that raises"
    assert pid_of(worker) == pid


def test_a_process_that_has_built_a_model_takes_no_job_without_one(worker):
    worker.run(job("greedy"))
    pid = pid_of(worker)
    source = {"name": "mlp", "kind": "zoo", "settings": {}, "text": ""}
    assert "row" in worker.run(job("greedy", source=source))
    assert pid_of(worker) == pid
    worker.run(job("greedy"))
    assert pid_of(worker) != pid


def test_a_process_that_keeps_much_memory_is_replaced(worker):
    worker.run(job("greedy"))
    pid = pid_of(worker)
    assert "row" in worker.run(job("keep", memory_bytes=4000 * MiB))
    # Less than an eighth of what a cell may use stays.
    assert pid_of(worker) == pid
    assert "row" in worker.run(job("keep", memory_bytes=2000 * MiB))
    assert worker._process is None
    worker.run(job("greedy"))
    assert pid_of(worker) != pid


def test_the_peak_of_a_process_that_ended_is_its_largest_memory_not_its_last(worker):
    ended = worker.run(job("spike", seconds=3))["ended"]
    assert ended["status"] == "timed out"
    assert ended["peak_rss_bytes"] > 300_000_000


def test_a_worker_that_cannot_start_is_one_line():
    worker = LimitedWorker("no_such_module", threading.Event())
    with pytest.raises(PartitionError, match=r"no worker can be started: .*no_such_module"):
        worker.run(job("greedy"))


def test_jobs_of_a_pool_run_at_the_same_time_in_processes_of_their_own():
    with WorkerPool(2, "tests.support.sweep_worker") as pool:
        assert pool.width == 4
        futures = [pool.submit(job("slow")) for _ in range(4)]
        rows = [future.result(60)["row"] for future in futures]
    workers = {int(row["words"]) for row in rows}
    assert len(workers) == 2
    assert os.getpid() not in workers
    assert not any(map(psutil.pid_exists, workers))


def test_an_interrupted_pool_ends_its_jobs_and_processes():
    with WorkerPool(1, "tests.support.sweep_worker") as pool:
        assert "row" in pool.submit(job("greedy")).result(60)
        pid = pid_of(*pool._workers)
        running, waiting = pool.submit(job("sleep")), pool.submit(job("greedy"))
        while not running.running():
            time.sleep(0.01)
    assert running.result()["ended"]["status"] == "killed"
    assert waiting.cancelled()
    assert not psutil.pid_exists(pid)
