"""What the options of run say of the plans that run."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from experiments.cli import main
from experiments.commands.option_reading import read_request
from experiments.commands.options import ProblemOptions
from experiments.commands.run import process_request
from experiments.pipelines.plan_runs import RunSettings, measured_problem
from experiments.problems.request import ProblemRequest
from experiments.zoo.models import captured_model
from fx_bridge import Placement
from solver import PartitionError, Pipeline

PIPELINE = {"schedule": "1f1b", "microbatches": 4}


def asked(**options):
    return process_request(read_request(ProblemOptions(**{**PIPELINE, **options})))


def test_options_left_out_are_those_of_the_runs():
    assert asked() == RunSettings().request


def test_links_of_a_device_file_are_kept_under_the_names_of_the_processes(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(
        '[[devices]]\nname = "left"\nmemory = "1KB"\n[[devices]]\nname = "right"\nmemory = "1KB"\n'
        '[[links]]\nsource = "left"\ntarget = "right"\nbandwidth = "1GB/s"\n'
    )
    found = asked(devices=[str(path)]).devices
    assert [device.name for device in found.devices] == ["cpu:0", "cpu:1"]
    assert set(found.interconnect.links) == {("cpu:0", "cpu:1")}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--memory-model", "weights"], "--memory-model is 'weights', but what processes hold"),
        (["--memory-model", "training", "--optimizer", "sgd"], "measure a step of adamw"),
        (["--optimizer", "adamw"], "write --memory-model training"),
        (["--no-host"], "mlp is a model; "),
        (["--solver", "pipedream"], "solver 'pipedream' is unknown"),
        (["--keep-whole", "nine"], "the model has no module 'nine'"),
        (["--pin", "8=cuda:0"], "there is no device 'cuda:0'; the devices are cpu:0, cpu:1"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_measured(capsys, options, says):
    assert main(["run", "mlp", *options]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)


def test_what_a_person_says_of_modules_is_checked_with_their_devices():
    captured = captured_model("mlp")
    measured_problem(captured, None, placed(Placement({"8": "cpu:1"}, ["2"])))
    cuts = Placement(cut_after=["2", "4"])
    with pytest.raises(PartitionError, match="need at least 3 stages"):
        measured_problem(captured, None, placed(cuts))
    measured_problem(captured, None, placed(cuts, chunks_per_device=2))


def placed(placement, **pipeline):
    stages = Pipeline("1f1b", microbatches=4, **pipeline)
    return RunSettings(ProblemRequest(pipeline=stages, placement=placement))


def test_processes_need_a_schedule_and_a_number_of_microbatches():
    for pipeline in (Pipeline(), Pipeline("gpipe"), Pipeline(microbatches=4)):
        with pytest.raises(PartitionError, match="write its schedule and microbatches"):
            RunSettings(ProblemRequest(pipeline=pipeline))


@pytest.mark.parametrize(("proven", "code"), [(True, 1), (False, 3)])
def test_without_a_plan_the_exit_code_says_whether_there_is_one(monkeypatch, capsys, proven, code):
    from experiments.pipelines import group as pipeline_group
    from experiments.pipelines import plan_runs, profiling

    def no_plan(*_):
        raise plan_runs.NoPlanError(proven, "no plan of mlp fits")

    monkeypatch.setattr(plan_runs, "run_plans", no_plan)
    group = nullcontext(SimpleNamespace(count=2))
    monkeypatch.setattr(pipeline_group, "PipelineGroup", lambda *_, **__: group)
    monkeypatch.setattr(profiling, "measure_profile", lambda *_, **__: None)
    assert main(["run", "mlp", "--devices", "2x100KiB"]) == code
    assert capsys.readouterr().err.splitlines()[-1] == "no plan of mlp fits"
