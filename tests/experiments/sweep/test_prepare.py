from pathlib import Path

import pytest

from experiments.problems.devices import parse_devices
from experiments.problems.recompute_request import RecomputeRequest
from experiments.problems.request import ProblemRequest, read_problem
from experiments.sweep.cases import case_requests
from experiments.sweep.prepare import PreparedModel
from experiments.sweep.settings import DeviceChoice, SweepSettings
from experiments.sweep.sources import ModelSource, read_model
from solver import Device, Interconnect, Link, PartitionError, Pipeline
from solver.io.json_files import problem_digest

MLP = ModelSource("mlp", "zoo")
FAST = {
    "devices": [{"count": 2, "memory": "1MiB", "flops_per_s": 1e12}],
    "interconnect": {"bandwidth": "1GB/s"},
}
FAST["devices"][0]["memory_bandwidth_bytes_per_s"] = 1e11


@pytest.fixture(scope="module")
def mlp():
    return PreparedModel(MLP)


def requests(source, *devices, **settings):
    choices = tuple(DeviceChoice(str(i), each) for i, each in enumerate(devices))
    return case_requests(SweepSettings((source,), devices=choices, **settings), source)


def problems(model, *devices, **settings):
    return [model.problem(each) for each in requests(model.source, *devices, **settings)]


@pytest.mark.parametrize(
    ("memory_model", "recompute", "schedule", "microbatches"),
    [
        ("weights", "none", None, None),
        ("inference", "none", "gpipe", 3),
        ("training", "auto", "1f1b", 4),
    ],
)
def test_a_problem_is_the_one_that_plan_makes(mlp, memory_model, recompute, schedule, microbatches):
    ours = problems(
        mlp,
        "2x1MiB@t4",
        links=("5GB/s,1us",),
        objectives=(("latency", "transfer"),),
        memory_models=(memory_model,),
        chunks=2,
        max_devices=1,
        recompute=recompute,
        schedule=schedule,
        microbatches=microbatches,
    )
    asked = ProblemRequest(
        devices=parse_devices("2x1MiB@t4"),
        interconnect=Interconnect(Link(5_000_000_000, 1000)),
        objective=("latency", "transfer"),
        memory_model=memory_model,
        recompute=RecomputeRequest(recompute),
        pipeline=Pipeline(schedule, microbatches, chunks_per_device=2, max_devices=1),
    )
    _, theirs = read_problem("mlp", asked, lambda _: None)
    assert ours == [theirs]


def test_a_problem_does_not_depend_on_the_other_devices_of_a_sweep(mlp):
    alone = problems(PreparedModel(MLP), "1x1MiB")
    beside = problems(mlp, "2x1MiB@a10,1x2MiB@t4", FAST, "1x1MiB")
    assert problem_digest(alone[0]) == problem_digest(beside[-1])
    assert beside[1].interconnect.default == Link(1_000_000_000)
    assert len({problem_digest(problem) for problem in beside}) == 3


def test_a_problem_is_made_again_from_its_own_devices(mlp):
    for request in requests(MLP, "equal", FAST, memory_models=("inference", "training")):
        problem = mlp.problem(request)
        given = request.devices.read()
        from experiments.problems.devices import DeviceSet

        specs = () if given is None else given.specs
        again = DeviceSet(problem.devices, problem.interconnect, specs)
        assert problem_digest(PreparedModel(MLP).problem_on(again, request)) == (
            problem_digest(problem)
        )


def test_a_generated_graph_keeps_its_devices_or_takes_others():
    asked = {"generate": "layered", "operators": 20, "width": 4, "devices": 3}
    source = read_model(asked, "here", Path())
    model = PreparedModel(source)
    own, equal, two = problems(model, "own", "equal", "2x1TiB", objectives=(("latency",),))
    assert own == source.own.replace(objective=("latency",))
    assert len(equal.devices) == 4
    assert [device.name for device in two.devices] == ["cuda:0", "cuda:1"]
    assert two.operators == own.operators


def test_links_between_devices_that_are_gone_are_refused():
    asked = {"generate": "layered", "operators": 20, "width": 4, "devices": 5, "unequal": True}
    model = PreparedModel(read_model(asked, "here", Path()))
    with pytest.raises(PartitionError, match="it has links between its own devices"):
        problems(model, {"devices": [{"memory": "1TiB", "class": "a100-80gb"}]})


def test_records_say_what_was_measured(mlp):
    (request,) = requests(MLP, "2x1MiB")
    record = mlp.record(mlp.problem(request))
    assert (record.model, record.operators, record.edges) == ("mlp", 9, 9)
    assert record.has_weights
    assert record.captured_by == "export"
    assert record.one_device_bytes > record.weight_bytes > 0
    source = read_model({"generate": "nasnet", "operators": 50}, "here", Path())
    generated = PreparedModel(source)
    (request,) = requests(source, "own")
    record = generated.record(generated.problem(request))
    assert record.description == "generated graph"
    assert record.operators == len(source.own.operators)
    assert Device("gpu:0", source.own.devices[0].memory_bytes) in source.own.devices
