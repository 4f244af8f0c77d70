"""Problems as they are asked for, of models and of files."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.problems.devices import DeviceSet, parse_devices
from experiments.problems.recompute_request import RecomputeRequest
from experiments.problems.request import (
    ProblemRequest,
    parse_objective,
    read_problem,
    read_saved_problem,
)
from experiments.zoo.building import CaptureRequest
from fx_bridge import Placement, Training
from solver import (
    PCIE,
    Device,
    Interconnect,
    Link,
    Operator,
    PartitionError,
    PartitionProblem,
    Pipeline,
    save_problem,
)
from tests.support.refusals import refused

LINK = Interconnect(default=Link(10**9, 5))
TWO = parse_devices("2x400KiB")


def ignore(_):
    pass


@pytest.fixture
def saved(tmp_path):
    def save(**settings):
        operators = (Operator("a", 10), Operator("b", 20, reads=("a",)))
        path = tmp_path / "problem.json"
        save_problem(PartitionProblem(operators, (Device("x"), Device("y")), **settings), path)
        return path

    return save


def test_objectives_are_named_with_commas_between_them():
    assert parse_objective("latency, devices", "here") == ("latency", "devices")
    with pytest.raises(PartitionError, match=r"^here: 'speed' is unknown; write one or more of"):
        parse_objective("latency,speed", "here")
    with pytest.raises(PartitionError, match=r"^here 'latency,latency' names latency twice; name"):
        parse_objective("latency,latency", "here")


def test_a_file_keeps_what_is_left_open(saved):
    own = {"objective": ("latency",), "memory_model": "weights", "interconnect": LINK}
    path = saved(chunks_per_device=2, max_devices=1, **own)
    problem = read_saved_problem(path, ProblemRequest())
    assert (problem.objective, problem.memory_model) == (("latency",), "weights")
    assert (problem.chunks_per_device, problem.max_devices) == (2, 1)
    assert problem.interconnect == LINK
    _, through = read_problem(str(path), ProblemRequest(), ignore)
    assert through == problem
    moved = read_saved_problem(path, ProblemRequest(devices=TWO, pipeline=Pipeline(max_devices=2)))
    assert moved.devices == TWO.devices
    assert (moved.interconnect, moved.max_devices) == (LINK, 2)


def test_a_schedule_relays_and_asks_for_the_step(saved):
    path = saved(interconnect=LINK)
    request = ProblemRequest(pipeline=Pipeline("gpipe", microbatches=3))
    problem = read_saved_problem(path, request)
    assert (problem.objective, problem.schedule, problem.microbatches) == (("step",), "gpipe", 3)
    assert problem.interconnect == replace(LINK, charging="relayed")
    problem = read_saved_problem(path, replace(request, objective=("bottleneck",)))
    assert problem.objective == ("bottleneck",)


def test_devices_come_with_links_and_options_go_before_both(saved):
    ring = DeviceSet(TWO.devices, Interconnect(links={("cuda:0", "cuda:1"): Link(7)}))
    path = saved()
    assert read_saved_problem(path, ProblemRequest(devices=ring)).interconnect == ring.interconnect
    asked = ProblemRequest(devices=ring, interconnect=LINK)
    assert read_saved_problem(path, asked).interconnect == LINK
    linked = saved(interconnect=Interconnect(links={("x", "y"): Link(7)}))
    assert read_saved_problem(linked, asked).interconnect == LINK
    with pytest.raises(PartitionError, match=r"links between its own devices; .* give a link"):
        read_saved_problem(linked, ProblemRequest(devices=TWO))


def test_a_model_has_the_settings_of_its_request():
    captured, problem = read_problem("mlp", ProblemRequest(devices=TWO), ignore)
    assert captured is not None
    assert (problem.objective, problem.memory_model) == (("bottleneck",), "inference")
    assert (problem.interconnect, problem.devices) == (PCIE, TWO.devices)
    request = ProblemRequest(
        devices=TWO,
        interconnect=LINK,
        memory_model="training",
        training=Training("sgd"),
        pipeline=Pipeline(microbatches=2),
        placement=Placement(pins={"8": 1}, cut_after=["4"], keep_whole=["0+2"]),
    )
    steps = []
    _, problem = read_problem("mlp", request, steps.append)
    assert steps == ["mlp: building", "mlp: capturing", "mlp: operator graph"]
    assert (problem.interconnect, problem.microbatches) == (LINK, 2)
    assert problem.stage_pins["linear_4"] == 1
    assert problem.cuts == ("linear_2",)
    assert any({"linear", "linear_1"} <= set(unit) for unit in problem.units)
    _, heavier = read_problem("mlp", replace(request, training=Training("adam")), ignore)
    state = [sum(w.training_bytes for w in p.weights.values()) for p in (problem, heavier)]
    assert state[0] < state[1]


def test_modules_of_a_model_run_again_as_they_are_asked_to():
    request = ProblemRequest(
        devices=TWO,
        memory_model="training",
        recompute=RecomputeRequest(("*",), never=("2",), regions=("4",)),
    )
    _, problem = read_problem("mlp", request, ignore)
    assert problem.recompute == "layers"
    must = {op.name for op in problem.operators if op.backward.must_recompute}
    # What comes before the region, itself, and what follows it.
    assert must and {op.backward.region for op in problem.operators} == {0, 1, 2}
    everything = replace(request, recompute=RecomputeRequest("all"))
    _, problem = read_problem("mlp", everything, ignore)
    assert must < {op.name for op in problem.operators if op.backward.must_recompute}


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (ProblemRequest(), "--devices is missing; write for example 4x24GiB"),
        (ProblemRequest(devices=TWO, training=Training("sgd")), "write --memory-model training"),
        (ProblemRequest(devices=TWO, attention="maths"), "--attention is 'maths'; write one or"),
        (ProblemRequest(devices=TWO, launch="graph", profile=object()), "--profile has measured t"),
        (
            ProblemRequest(devices=TWO, recompute=RecomputeRequest("layers")),
            "--recompute says what runs again in training, and the memory model is inference; ",
        ),
        (
            ProblemRequest(devices=TWO, recompute=RecomputeRequest(regions=("h",))),
            "--regions says what runs again in training, and the memory model is inference; ",
        ),
        (
            ProblemRequest(
                devices=TWO, memory_model="training", recompute=RecomputeRequest("all", ("h",))
            ),
            "always is given with rule 'all'",
        ),
        (ProblemRequest(devices=TWO, with_host=False), "--no-host are for published workloads"),
        (ProblemRequest(devices=TWO, communication_scale=1.0), "are for published workloads"),
        (ProblemRequest(devices=TWO, pipeline=Pipeline(microbatches=2)), "--microbatches changes"),
    ],
)
def test_what_makes_no_sense_for_a_model_is_refused(request_, says):
    with refused(says):
        read_problem("mlp", request_, ignore)


@pytest.mark.parametrize(("tied_weights", "together"), [("colocate", True), ("sum", False)])
def test_readers_of_a_tied_weight_are_apart_where_its_gradients_are_summed(tied_weights, together):
    training = Training(tied_weights=tied_weights)
    request = ProblemRequest(devices=TWO, memory_model="training", training=training)
    _, problem = read_problem("tests.support.pipeline_cases:tied", request, ignore)
    units = [unit for unit in problem.units if {"embedding", "linear_2"} & {*unit}]
    assert (len(units) == 1) == together


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (ProblemRequest(placement=Placement(keep_whole=["a"])), "which knows no modules; --keep-w"),
        (
            ProblemRequest(training=Training("sgd")),
            "which has its weights and their state; --optimizer or --tied-weights needs a model",
        ),
        (ProblemRequest(capture=CaptureRequest(check=True)), "which is not captured; --check need"),
        (ProblemRequest(attention="math"), "which has its costs; --attention needs a model"),
        (ProblemRequest(launch=0), "which has its times; --launch needs a model"),
        (
            ProblemRequest(memory_model="training", recompute=RecomputeRequest(("h.0",))),
            "--recompute names modules, and a saved problem knows none; write one of none, auto",
        ),
        (
            ProblemRequest(memory_model="training", recompute=RecomputeRequest(regions=("h",))),
            "--regions names modules, and a saved problem knows none; leave it out, its regions",
        ),
        (ProblemRequest(profile=object()), "which has its times; --profile needs a model"),
        (ProblemRequest(with_host=False), "--no-host are for published workloads"),
        (ProblemRequest(pipeline=Pipeline(microbatches=2)), "--microbatches changes nothing here;"),
        (ProblemRequest(placement=Placement({"c": 0})), "pin 'c': there is no such module or oper"),
    ],
)
def test_what_makes_no_sense_for_a_file_is_refused(saved, request_, says):
    with refused(says):
        read_saved_problem(saved(), request_)


def test_published_workloads_are_files_too():
    request = ProblemRequest(with_host=False, communication_scale=2.0)
    _, problem = read_problem("published:layer.gnmt_inference", request, ignore)
    assert not any(device.is_host for device in problem.devices)
    path = Path("published:layer.gnmt_inference")
    assert read_saved_problem(path, ProblemRequest()) != problem
    with pytest.raises(PartitionError, match=r"workload 'layer\.gnmt' is unknown; did you mean"):
        read_problem("published:layer.gnmt", request, ignore)


def test_a_link_changes_how_fast_transfers_are_and_not_who_pays_for_them(saved):
    staged = Interconnect(Link(10**6), {("x", "y"): Link(1)}, charging="host_staged", overlap=True)
    problem = read_saved_problem(saved(interconnect=staged), ProblemRequest(interconnect=LINK))
    assert problem.interconnect == replace(staged, default=LINK.default, links={})
    workload = Path("published:layer.gnmt_inference")
    with pytest.raises(PartitionError, match=r"--link changes nothing here; every operator says"):
        read_saved_problem(workload, ProblemRequest(interconnect=LINK))


def test_a_goal_of_times_needs_a_time(tmp_path):
    operators = (Operator("a", value_bytes=4, storage_bytes=4), Operator("b", reads=("a",)))
    path = tmp_path / "graph.json"
    save_problem(PartitionProblem(operators, (Device("x"), Device("y"))), path)
    timed = [None, ("latency",), ("step", "transfer")]
    for goal in timed:
        with pytest.raises(PartitionError, match=r"no operator has a time.*give `latency_ns`"):
            read_saved_problem(path, ProblemRequest(objective=goal))
    for goal in (("transfer",), ("devices", "bottleneck"), ("peak_memory",)):
        assert read_saved_problem(path, ProblemRequest(objective=goal)).objective == goal
    one = (operators[0], replace(operators[1], latency_ns={"default": 3}))
    save_problem(PartitionProblem(one, (Device("x"),)), path)
    for goal in timed:
        read_saved_problem(path, ProblemRequest(objective=goal))
