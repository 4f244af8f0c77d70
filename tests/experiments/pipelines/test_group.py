"""Tests of processes that are refused before one is started."""

import pytest

from experiments.cli import main
from experiments.pipelines import group as pipeline_group
from experiments.pipelines.group import PipelineGroup
from solver import MiB, PartitionError


@pytest.fixture(autouse=True)
def _no_process_is_started(monkeypatch):
    def start(*_, **__):
        raise AssertionError("a process is started")

    monkeypatch.setattr("experiments.processes.workers.WorkerProcess", start)


def test_processes_that_cannot_fit_are_refused(monkeypatch, capsys, refuses):
    monkeypatch.setattr(pipeline_group, "available_memory_bytes", lambda: 1000 * MiB)
    assert main(["profile", "mlp", "--processes", "1000"]) == 2
    assert capsys.readouterr().err == (
        "error: 1,000 processes need at least 209.7 GB of memory, without any model, but only "
        "1.049 GB is available here; start at most 5\n"
    )
    refuses(["run", "mlp", "--devices", "6x1GiB"], "6 processes need at least 1.258 GB")


@pytest.mark.parametrize(("room_bytes", "fits"), [(400 * MiB, True), (1, False)])
def test_as_many_as_fit_are_started(monkeypatch, room_bytes, fits):
    monkeypatch.setattr(pipeline_group, "available_memory_bytes", lambda: room_bytes)
    error, words = (AssertionError, "is started") if fits else (PartitionError, "2 are the least")
    with pytest.raises(error, match=words), PipelineGroup(2):
        pass
