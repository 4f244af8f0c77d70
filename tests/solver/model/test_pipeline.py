"""What a pipeline asks of a problem."""

import pytest

from solver import Device, Interconnect, Link, Operator, PartitionError, PartitionProblem, Pipeline


def test_what_is_left_open_is_left_to_the_problem():
    plain = Interconnect(Link(10**9))
    assert Pipeline().settings(None, plain) == {"interconnect": plain}
    assert Pipeline(max_devices=1).settings("latency", plain) == {
        "interconnect": plain,
        "objective": "latency",
        "max_devices": 1,
    }


def test_a_schedule_relays_and_asks_for_the_step():
    plain = Interconnect(Link(10**9), {("a", "b"): Link(7)}, overlap=True)
    settings = Pipeline("gpipe", microbatches=3, chunks_per_device=2).settings(None, plain)
    devices = (Device("a"), Device("b"))
    problem = PartitionProblem((Operator("x", 3),), devices, **settings)
    assert problem.objective == ("step",)
    assert (problem.schedule, problem.microbatches, problem.chunks_per_device) == ("gpipe", 3, 2)
    assert problem.interconnect == Interconnect(
        Link(10**9), {("a", "b"): Link(7)}, "relayed", overlap=True
    )
    asked = Pipeline("1f1b").settings(["transfer", "step"], plain)
    assert asked["objective"] == ["transfer", "step"]


def test_a_pipeline_is_not_staged_through_a_host():
    staged = Interconnect(charging="host_staged")
    assert Pipeline().settings(None, staged) == {"interconnect": staged}
    with pytest.raises(PartitionError, match="pass from stage to stage, not through a host"):
        Pipeline("1f1b").settings(None, staged)
