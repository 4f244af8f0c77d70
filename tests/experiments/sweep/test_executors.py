import json
import os
import signal
import sys
import threading
from concurrent.futures import wait

import psutil
import pytest

from experiments.sweep.executors import cluster_runner, local_runner
from experiments.sweep.progress import SweepProgress
from experiments.sweep.running import Sweep
from experiments.sweep.store import load_study, open_store
from solver import PartitionError
from tests.support.sweep_worker import specs
from tests.support.sweeps import answers, job, settings, sweep


def test_local_jobs_run_at_the_same_time_in_processes_of_their_own():
    with local_runner(2, "tests.support.sweep_worker") as runner:
        assert runner.width() == 4
        runner.check()
        futures = [runner.submit(json.dumps(job("slow"))) for _ in range(4)]
        wait(futures, timeout=60)
        rows = [json.loads(future.result())["row"] for future in futures]
        workers = {int(row["words"]) for row in rows}
        assert len(workers) == 2
        assert os.getpid() not in workers
    assert not any(map(psutil.pid_exists, workers))


def test_a_cluster_needs_distributed(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(PartitionError, match=r'pip install "fxpartition\[cluster\]"'),
        cluster_runner("tcp://localhost:8786"),
    ):
        pass


# -- a real cluster -----------------------------------------------------------------------------


@pytest.fixture
def cluster():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("tcp://127.0.0.1:9", "no Dask scheduler answers at 'tcp://127.0.0.1:9': "),
        ("tcp://a b:8786", "no Dask scheduler answers at"),
        ("localhost:8786", "'localhost:8786' is not the address of a Dask scheduler"),
        ("http://localhost:8786", "is not the address"),
        ("tcp://localhost", "is not the address"),
        ("tcp://localhost:port", "is not the address"),
        ("tcp://[", "is not the address"),
        ("", "'' is not the address"),
    ],
)
def test_an_address_where_no_scheduler_is_is_one_line(address, says):
    pytest.importorskip("distributed")
    with pytest.raises(PartitionError) as caught, cluster_runner(address):
        pass
    message = str(caught.value)
    assert says in message
    assert "--cluster tcp://host:8786" in message
    assert "\n" not in message


def test_a_scheduler_without_workers_is_one_line():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None) as empty,
        pytest.raises(PartitionError, match="has no workers; start some: dask worker tcp://"),
        cluster_runner(empty.scheduler_address),
    ):
        pass


def test_a_cluster_answers_every_cell_once_though_a_worker_is_killed(cluster, tmp_path):
    path = tmp_path / "results.sqlite"
    asked = settings("slow", seeds=tuple(range(12)))
    killed = []

    class Killing(SweepProgress):
        def done(self, row):
            super().done(row)
            if self._done == 3:
                # The worker whose process answered, that process, and the cell it is at now.
                planner = psutil.Process(int(row.words))
                killed.extend([planner.parent(), planner])
                os.kill(killed[0].pid, signal.SIGKILL)

    with (
        open_store(path) as store,
        cluster_runner(cluster.scheduler_address, "tests.support.sweep_worker") as runner,
    ):
        found = Sweep(asked, store, runner, Killing(), specs=specs("slow")).run()
    assert (found.cells, found.done, found.failed) == (12, 12, 0)
    rows = load_study(path).rows
    assert sorted(row.seed for row in rows) == list(range(12))
    assert {row.status for row in rows} == {"unknown"}
    # Planners ran in processes of the cluster's workers, which end with them.
    assert killed[0].pid != os.getpid()
    assert not psutil.wait_procs(killed, timeout=30)[1]
    assert len({row.words for row in rows}) >= 2


@pytest.mark.nightly
def test_a_scheduler_that_goes_away_is_one_line_and_what_was_done_is_kept(cluster, tmp_path):
    path = tmp_path / "results.sqlite"
    asked = settings("slow", seeds=tuple(range(30)))

    class Closing(SweepProgress):
        def done(self, row):
            super().done(row)
            if self._done == 2:
                threading.Thread(target=cluster.close).start()

    with (
        open_store(path) as store,
        cluster_runner(cluster.scheduler_address, "tests.support.sweep_worker") as runner,
        pytest.raises(PartitionError, match=r"^the Dask scheduler at .* is gone"),
    ):
        Sweep(asked, store, runner, Closing(), specs=specs("slow")).run()
    assert 2 <= len(answers(path)) < 30
    with local_runner(2, "tests.support.sweep_worker") as runner:
        assert sweep(path, asked, runner).cells == 30
