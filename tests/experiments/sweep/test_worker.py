"""What a worker makes of a job."""

from experiments.sweep.versions import versions
from experiments.sweep.worker import JobHandler
from solver import step_names
from tests.support.sweeps import job


def test_steps_that_a_job_leaves_out_reach_the_search():
    name = step_names()[0]
    row = JobHandler()(job("auto", without=[name]))["row"]
    assert row["status"] == "optimal"
    assert list(row["without"]) == [name]
    assert name not in [step["step"] for step in row["log"]]
    assert list(JobHandler()(job("chain", without=[name]))["row"]["without"]) == []


def test_a_worker_of_other_versions_refuses():
    refused = JobHandler()(job("greedy", versions={**versions(), "torch": "1.0"}))["refused"]
    assert refused == "libraries or sources changed during the sweep; run it again"
