import os
import signal
import subprocess
import sys
import time

import pytest

from experiments.processes.workers import WorkerGroup, WorkerProcess, exit_words
from solver import PartitionError
from tests.support.torchrun import is_running


@pytest.fixture
def workers():
    with WorkerGroup("tests.support.echo_worker", 2, time_limit_s=60, threads=3) as group:
        yield group


def wait_until_gone(pids):
    for _ in range(600):
        if not any(map(is_running, pids)):
            return True
        time.sleep(0.1)
    return False


def test_every_worker_answers_again_and_again_and_none_is_left(workers):
    for turn in range(2):
        jobs = [{"do": "echo", "word": f"{turn} {rank}"} for rank in range(2)]
        answers = workers.ask(jobs)
        assert [answer["said"] for answer in answers] == [f"{turn} 0", f"{turn} 1"]
        assert {answer["threads"] for answer in answers} == {"3"}
    pids = [answer["pid"] for answer in answers]
    assert len(set(pids)) == 2
    assert all(map(is_running, pids))
    workers.__exit__(None, None, None)
    assert not any(map(is_running, pids))


def test_a_package_of_the_current_folder_takes_no_worker_s_place(tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    with WorkerGroup("tests.support.echo_worker", 1, time_limit_s=60) as group:
        (answer,) = group.ask([{"do": "echo", "word": "found"}])
    assert answer["said"] == "found"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("refuse", "^the input is wrong; write another$"),
        (
            "fail",
            r"process 1 of 2 \(tests\.support\.echo_worker\) failed: ValueError: something broke$",
        ),
        ("die", "process 1 of 2 .* ended with signal SIGKILL"),
        ("exit", "process 1 of 2 .* ended with exit code 7: last words"),
    ],
)
def test_what_goes_wrong_in_a_worker_is_said_while_others_still_work(workers, what, message):
    started_s = time.monotonic()
    with pytest.raises(PartitionError, match=message):
        workers.ask([{"do": "sleep"}, {"do": what}])
    assert time.monotonic() - started_s < 30


def test_a_worker_that_is_late_is_named():
    with WorkerGroup("tests.support.echo_worker", 2, time_limit_s=0.5) as group:
        with pytest.raises(PartitionError, match=r"no answer after 0.5 s; give more time"):
            group.ask([{"do": "sleep"}, {"do": "sleep"}])
        pids = [process.pid for process in group._processes]
    assert not any(map(is_running, pids))


def processes_of_killed(code, later_s=0.0, **variables):
    """Kill a process once it has printed a line: the ids of processes, which are returned."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        time.sleep(later_s)
        parent.send_signal(signal.SIGKILL)
    return pids


def test_workers_and_what_they_started_end_when_their_parent_is_killed():
    code = """
import sys, time
from experiments.processes.workers import WorkerGroup
with WorkerGroup("tests.support.echo_worker", 2, time_limit_s=60) as group:
    answers = group.ask([{"do": "echo", "word": ""}] * 2)
    answers += group.ask([{"do": "spawn"}] * 2)
    for process in group._processes:
        process.send({"do": "sleep"})
    print(*(answer["pid"] for answer in answers), flush=True)
    time.sleep(60)
"""
    pids = processes_of_killed(code)
    assert len(pids) == 4
    assert wait_until_gone(pids)


@pytest.mark.parametrize("later_s", [0.0, pytest.param(1.0, marks=pytest.mark.deep)])
def test_a_group_that_is_killed_while_it_starts_leaves_no_process_and_no_file(tmp_path, later_s):
    code = """
import time
from experiments.pipelines.group import PipelineGroup
from experiments.processes.workers import WorkerGroup
entered = WorkerGroup.__enter__
def enter(group):
    entered(group)
    print(*(process.pid for process in group._processes), flush=True)
    return group
WorkerGroup.__enter__ = enter
with PipelineGroup(2):
    time.sleep(60)
"""
    pids = processes_of_killed(code, later_s, TMPDIR=str(tmp_path))
    assert len(pids) == 2
    assert wait_until_gone(pids)
    assert not list(tmp_path.glob("fxpartition*"))


def test_last_words_are_those_of_the_last_job():
    process = WorkerProcess("tests.support.echo_worker")
    try:
        process.send({"do": "fail"})  # leaves a traceback
        assert process.answer(60)["error"].startswith("ValueError")
        process.send({"do": "die"})
        assert process.answer(60) is None
        assert exit_words(process.exit_code()) == "signal SIGKILL"
        assert process.last_words() == ""
    finally:
        process.kill()
        process.close()
