import pytest

from experiments.pipelines.group import PipelineGroup
from experiments.pipelines.plan_runs import (
    NoPlanError,
    RunSettings,
    is_same,
    measured_problem,
    run_plans,
)
from experiments.pipelines.profiling import measure_profile
from experiments.problems.devices import DeviceSet
from experiments.problems.request import ProblemRequest
from experiments.zoo.building import CaptureRequest
from experiments.zoo.models import captured_model
from solver import Device, PartitionError, PartitionPlan, Pipeline
from tests.support.profiles import made_profile

MODEL = "tests.support.run_models:chain"


def request(microbatches, devices="", *, training=False, memory_bytes=None):
    given = DeviceSet(tuple(Device(name, memory_bytes) for name in devices))
    return ProblemRequest(
        given if devices else None,
        memory_model="training" if training else None,
        pipeline=Pipeline("1f1b", microbatches=microbatches),
    )


def test_a_model_is_measured_planned_and_run(tmp_path):
    """Two real processes, forward and training; the figures must be there, and memory right."""
    captured = captured_model(MODEL)
    rows = []
    with PipelineGroup(2, time_limit_s=120) as group:
        for training in (False, True):
            profile = measure_profile(MODEL, group, training=training, processes=2, repeats=1)
            profile.check(captured)
            assert all(time_ns > 0 for time_ns in profile.forward_ns.values())
            assert any(profile.backward_ns.values()) == training
            settings = RunSettings(request(2, training=training), steps=2, slack_permille=1300)
            rows += run_plans(MODEL, captured, profile, settings, group)
    assert {row.name for row in rows} == {"greedy", "chain", "auto"}
    for row in rows:
        assert len(row.measured.steps_ns) == 2
        assert min(row.measured.steps_ns) > 0
        assert row.predicted.step_ns >= row.predicted.microbatch_ns > 0
        assert len(row.memory_errors) == len(row.devices)
        # Beside the model's own sizes: numbers of a few bytes that schedules make. In training a
        # value that is sent may be counted once too often.
        assert all(-0.001 < error < 0.06 for error in row.memory_errors)


@pytest.mark.deep
def test_every_process_captures_as_it_is_asked_for():
    model, asked = "tests.support.run_models:traced_apart", CaptureRequest(check=True)
    with PipelineGroup(2, time_limit_s=120, capture=asked) as group:
        profile = measure_profile(model, group, repeats=1)
    profile.check(captured_model(model, asked))
    with pytest.raises(PartitionError, match=r"another graph .* the same --constant and --check"):
        profile.check(captured_model(model))


def test_devices_are_derived_or_given():
    captured = captured_model(MODEL)
    profile = made_profile(captured)
    derived = measured_problem(captured, profile, RunSettings(shares=(3, 2, 1)))
    memory = [device.memory_bytes for device in derived.devices]
    assert [device.name for device in derived.devices] == ["cpu:0", "cpu:1", "cpu:2"]
    assert memory[0] == pytest.approx(3 * memory[2], rel=0.01)
    assert derived.interconnect.charging == "relayed"
    given = RunSettings(request(3, "ab", training=True))
    problem = measured_problem(captured, profile, given)
    assert (problem.memory_model, problem.microbatches) == ("training", 3)
    assert [device.name for device in problem.devices] == ["a", "b"]


def test_what_cannot_be_run_is_refused_before_it_runs():
    captured = captured_model(MODEL)
    profile = made_profile(captured)
    group = PipelineGroup(2)  # never started
    tight = request(4, "ab", memory_bytes=10)
    with pytest.raises(NoPlanError, match=r"no plan of .* fits; give devices with more") as caught:
        run_plans(MODEL, captured, profile, RunSettings(tight), group)
    assert caught.value.proven
    three = request(4, "abc")
    with pytest.raises(PartitionError, match="there are 3 devices, but 2 processes"):
        run_plans(MODEL, captured, profile, RunSettings(three), group)
    other = made_profile(captured, graph_digest="0")
    with pytest.raises(PartitionError, match="one of another graph"):
        run_plans(MODEL, captured, other, RunSettings(), group)


def test_plans_are_the_same_whatever_their_devices_are_called():
    plan = PartitionPlan({"a": "p", "b": "q"}, ("p", "q"))
    assert is_same(plan, PartitionPlan({"a": "r", "b": "p"}, ("r", "p")))
    assert not is_same(plan, PartitionPlan({"a": "p", "b": "p"}, ("p",)))
    assert not is_same(plan, PartitionPlan({"a": "p", "b": "q"}, ("q", "p")))


def test_plan_takes_a_profile(tmp_path, refuses, answer):
    captured = captured_model("mlp")
    names = [node.name for node in captured.operators]
    profile = made_profile(
        captured, model="mlp", forward_ns={name: 10**6 * (i + 1) for i, name in enumerate(names)}
    )
    path = str(tmp_path / "profile.json")
    profile.save(path)
    found = answer(["plan", "mlp", "--devices", "1MB,1MB", "--profile", path])
    total_ns = sum(device["compute_ns"] for device in found["devices"])
    assert total_ns == sum(profile.forward_ns.values())
    refuses(
        ["plan", "tiny-branches", "--devices", "1MB", "--profile", path],
        "one of another graph (mlp)",
    )
    made_profile(captured, training=False).save(path)
    arguments = ["--devices", "2MB,2MB", "--memory-model", "training", "--profile", path]
    refuses(["plan", "mlp", *arguments], "has no backward passes")
