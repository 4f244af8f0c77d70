"""What a worker makes of a job."""

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
