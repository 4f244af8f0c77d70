import dataclasses
import json

import pytest

from experiments.comparison.records import CaseKey
from experiments.problems.devices import DeviceSet
from experiments.sweep.cases import (
    CaseRequest,
    case_key,
    case_requests,
    cells_of,
    content_key,
    spelled_out,
)
from experiments.sweep.settings import DeviceChoice, SweepLimits, SweepSettings
from experiments.sweep.sources import ModelSource
from solver import Device, Interconnect, Link, Operator, PartitionProblem, Pipeline
from tests.support.sweep_worker import specs

ZOO = ModelSource("mlp", "zoo")
OWN = ModelSource(
    "saved.json",
    "file",
    text="{}",
    own=PartitionProblem(
        (Operator("a", 3),), (Device("x"),), objective=("latency",), memory_model="weights"
    ),
)
LINKED = {"devices": [{"memory": "1GiB"}], "interconnect": {"bandwidth": "1GB/s"}}
VERSIONS = {"python": "3.12"}


def choices(*written):
    return tuple(DeviceChoice(f"d{i}", each) for i, each in enumerate(written))


def keys(settings, source=ZOO):
    return [tuple(request.key) for request in case_requests(settings, source)]


def test_cases_are_the_product_in_the_order_of_the_settings():
    settings = SweepSettings(
        (ZOO,),
        devices=choices("1x1GiB", "2x1GiB"),
        objectives=(("bottleneck",), ("latency", "transfer")),
        memory_models=("inference", "training"),
    )
    assert keys(settings) == [
        ("mlp", devices, objective, memory_model)
        for devices in ("d0", "d1")
        for objective in (("bottleneck",), ("latency", "transfer"))
        for memory_model in ("inference", "training")
    ]


def test_what_is_left_out_is_the_models_own():
    assert keys(SweepSettings((ZOO,))) == [
        ("mlp", "equal", ("bottleneck",), "inference"),
        ("mlp", "unequal", ("bottleneck",), "inference"),
        ("mlp", "roomy", ("bottleneck",), "inference"),
    ]
    assert keys(SweepSettings((OWN,)), OWN) == [("saved.json", "own", ("latency",), "weights")]
    assert keys(SweepSettings((ZOO,), schedule="1f1b"))[0][2] == ("step",)


def test_what_runs_again_is_asked_of_training_alone():
    models = ("inference", "training")
    settings = SweepSettings((ZOO,), choices("1x1GiB"), memory_models=models, recompute="auto")
    asked = {r.key.memory_model: r.recompute for r in case_requests(settings, ZOO)}
    assert asked == {"inference": None, "training": "auto"}


def test_own_devices_are_for_models_that_bring_them():
    settings = SweepSettings((ZOO, OWN), devices=(DeviceChoice("own", "own"), *choices("1x1GiB")))
    assert [key[1] for key in keys(settings)] == ["d0"]
    assert [key[1] for key in keys(settings, OWN)] == ["own", "d0"]


def test_links_are_for_devices_that_say_nothing_of_theirs():
    devices = choices("1x1GiB", LINKED)
    settings = SweepSettings((ZOO,), devices=devices, links=("1GB/s", "unlimited"))
    assert [(request.key.device_set, request.link) for request in case_requests(settings, ZOO)] == [
        ("d0, 1GB/s", "1GB/s"),
        ("d0, unlimited", "unlimited"),
        ("d1", None),
    ]
    alone = SweepSettings((ZOO,), devices=devices, links=("1GB/s",))
    assert [key[1] for key in keys(alone)] == ["d0", "d1"]


def test_a_request_survives_its_way_to_a_worker():
    for request in case_requests(
        SweepSettings(
            (ZOO,),
            devices=choices("1x1GiB", LINKED),
            links=("1GB/s", "2GB/s"),
            chunks=2,
            max_devices=3,
            schedule="gpipe",
            microbatches=4,
            memory_models=("training",),
            recompute="auto",
        ),
        ZOO,
    ):
        again = CaseRequest.from_json(json.loads(json.dumps(request.to_json())))
        assert again == request
        assert isinstance(again.key, CaseKey)


def test_the_key_of_a_case_is_of_all_that_is_asked():
    request = case_requests(SweepSettings((ZOO,), devices=choices("1x1GiB")), ZOO)[0]
    found = {
        case_key(ZOO, request, VERSIONS),
        case_key(ModelSource("gpt2", "zoo"), request, VERSIONS),
        case_key(ZOO, request, {"python": "3.13"}),
        *(
            case_key(ZOO, dataclasses.replace(request, **change), VERSIONS)
            for change in (
                {"link": "1GB/s"},
                {"pipeline": Pipeline(chunks_per_device=2)},
                {"pipeline": Pipeline("1f1b")},
                {"recompute": "auto"},
                {"devices": DeviceChoice("d0", "2x1GiB")},
                {"key": request.key._replace(memory_model="training")},
            )
        ),
    }
    assert len(found) == 9
    assert case_key(ZOO, request, dict(VERSIONS)) in found


def cells(settings, digest="d", versions=VERSIONS, source=ZOO, **flags):
    planners = specs(*settings.planners, **flags)
    request = case_requests(settings, source)[0]
    return list(cells_of(settings, source, request, digest, planners, versions))


def test_a_planner_without_seeds_runs_once():
    settings = SweepSettings((ZOO,), planners=("a",), seeds=(1, 2))
    planners = {name: dataclasses.replace(spec, seeded=False) for name, spec in specs("a").items()}
    request = case_requests(settings, ZOO)[0]
    found = list(cells_of(settings, ZOO, request, "d", planners, VERSIONS))
    assert [cell.seed for cell in found] == [0]


def test_planners_that_prove_leave_out_steps():
    settings = SweepSettings((ZOO,), planners=("a",), seeds=(1, 2), without=((), ("x", "y")))
    found = cells(settings, proves=True)
    assert [(cell.without, cell.seed) for cell in found] == [
        ((), 1),
        ((), 2),
        (("x", "y"), 1),
        (("x", "y"), 2),
    ]
    assert len({cell.key for cell in found}) == 4
    assert [(cell.without, cell.seed) for cell in cells(settings)] == [((), 1), ((), 2)]
    alone = dataclasses.replace(settings, without=(("x",),))
    assert [cell.without for cell in cells(alone, proves=True)] == [("x",)] * 2
    assert [cell.without for cell in cells(alone)] == [()] * 2


@pytest.mark.parametrize(
    "limits",
    [
        SweepLimits(time_limit_s=1),
        SweepLimits(memory_limit=None),
        SweepLimits(workers=2),
        SweepLimits(deterministic=True),
        SweepLimits(kill_after_s=1000),
    ],
)
def test_the_key_of_a_cell_is_of_problem_limits_and_versions(limits):
    settings = SweepSettings((ZOO,), planners=("a",))
    key = cells(settings)[0].key
    assert cells(settings)[0].key == key
    assert cells(dataclasses.replace(settings, limits=limits))[0].key != key
    assert cells(settings, digest="e")[0].key != key
    assert cells(settings, versions={"python": "3.13"})[0].key != key


def test_only_planners_that_read_it_depend_on_the_model():
    settings = SweepSettings((ZOO, OWN), planners=("a",))
    other = ModelSource("gpt2", "zoo")
    assert cells(settings)[0].key == cells(settings, source=other)[0].key
    with_model = cells(settings, needs_model=True)[0]
    assert with_model.source is ZOO
    assert with_model.key != cells(settings, source=other, needs_model=True)[0].key
    assert with_model.key != cells(settings)[0].key


def test_keys_have_all_that_reprs_leave_out():
    many = [Device(f"cuda:{index}", 1 << 30) for index in range(30)]
    links = {(a.name, b.name): Link(10**9) for a in many for b in many if a is not b}
    slower = links | {("cuda:0", "cuda:1"): Link(10**8)}
    asked = [
        DeviceSet(tuple(many), Interconnect(links=links)),
        DeviceSet(tuple(many), Interconnect(links=slower)),
        DeviceSet((*many[:-1], Device("cuda:29", 1)), Interconnect(links=links)),
    ]
    assert len({repr(each) for each in asked}) < len(asked)
    assert len({content_key(spelled_out(each)) for each in asked}) == len(asked)
    again = DeviceSet(tuple(many), Interconnect(links=dict(reversed(links.items()))))
    assert content_key(spelled_out(again)) == content_key(spelled_out(asked[0]))
