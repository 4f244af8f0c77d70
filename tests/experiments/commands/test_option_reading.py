"""Options as values, and what is refused of them."""

import pytest

from experiments.commands.option_reading import (
    read_limits,
    read_pins,
    read_planners,
    read_request,
    read_solvers,
    read_without,
)
from experiments.commands.options import LimitOptions, ProblemOptions
from experiments.problems.recompute_request import RULES as REQUESTED_RULES
from experiments.problems.recompute_request import RecomputeRequest
from experiments.problems.request import ProblemRequest
from fx_bridge import Placement, Training
from fx_bridge.costs.recompute import RULES
from solver import Device, Interconnect, Link, PartitionError, Pipeline, SolveLimits, step_names
from tests.support.refusals import refused


def test_options_left_out_leave_everything_open():
    assert read_request(ProblemOptions()) == ProblemRequest()
    assert read_limits(LimitOptions()) == SolveLimits(60.0, None, 0, False)


def test_every_option_is_read():
    options = ProblemOptions(
        devices=["2x1KB"],
        link="3GB/s,7us",
        objective="devices, transfer",
        memory_model="training",
        chunks=2,
        max_devices=1,
        keep_whole=["a", "b+c"],
        for_="vllm",
        pin=["x=0", "y=cuda:0,cuda:1"],
        cut_after=["z"],
        schedule="gpipe",
        microbatches=3,
        optimizer="sgd",
        tied_weights="sum",
        recompute=["layers", "a=never", "b.*=always", "c=never"],
        regions=["b.*"],
        communication_scale=2.5,
        no_host=True,
        device_memory="2KiB",
        no_replicas=True,
    )
    request = read_request(options)
    assert request.devices.devices == (Device("cuda:0", 1000), Device("cuda:1", 1000))
    assert request == ProblemRequest(
        devices=request.devices,
        interconnect=Interconnect(default=Link(3 * 10**9, 7000)),
        objective=("devices", "transfer"),
        memory_model="training",
        training=Training("sgd", tied_weights="sum"),
        recompute=RecomputeRequest("layers", ("b.*",), ("a", "c"), ("b.*",)),
        pipeline=Pipeline("gpipe", microbatches=3, chunks_per_device=2, max_devices=1),
        placement=Placement(
            pins={"x": 0, "y": ("cuda:0", "cuda:1")}, cut_after=["z"], keep_whole=["a", "b+c"]
        ),
        engine="vllm",
        communication_scale=2.5,
        with_host=False,
        with_replicas=False,
        device_memory_bytes=2048,
    )
    limits = LimitOptions(time_limit=2.5, workers=3, seed=4, deterministic=True)
    assert read_limits(limits) == SolveLimits(2.5, 3, 4, True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"devices": ["1GB", "2GB"]}, "--devices is given 2 times; a plan is for one set"),
        ({"profile": ""}, "--profile is empty; write a name such as gpt2.profile.json"),
        ({"profile": "no.json"}, "cannot read no.json"),
        ({"pin": ["a"]}, "--pin 'a': write a module or operator, '='"),
        ({"recompute": ["auto", "h"]}, "--recompute is 'auto' and 'h'; write one rule, or modules"),
        ({"recompute": ["auto,h"]}, "--recompute is 'auto,h'; write one rule, or each module by"),
        ({"recompute": [" "]}, "--recompute ' ' names nothing; write one of none, auto, layers, a"),
        ({"recompute": ["=always"]}, "--recompute '=always' names nothing; write one of none, aut"),
        ({"regions": [""]}, "--regions is empty; write a module, such as h.0"),
        ({"recompute": ["h=maybe"]}, "--recompute is 'h=maybe'; write MODULE=always or MODULE=nev"),
        ({"launch": ""}, "--launch '': '' is not a time; write eager or graph or"),
        ({"launch": "34"}, "--launch '34': '34' is not a time; write eager or graph or"),
    ],
)
def test_options_that_say_nothing_are_refused(options, says):
    with refused(says):
        read_request(ProblemOptions(**options))


@pytest.mark.parametrize(("text", "launch"), [("graph", "graph"), ("34us", 34_000), (None, None)])
def test_launches_are_kinds_or_times(text, launch):
    assert read_request(ProblemOptions(launch=text)).launch == launch


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"time_limit": 0}, "--time-limit is 0; write a positive number of seconds, such as 60"),
        ({"time_limit": -1.5}, "--time-limit is -1.5; "),
        ({"time_limit": float("nan")}, "--time-limit is nan; "),
        ({"time_limit": float("inf")}, "--time-limit is inf; "),
        ({"workers": 0}, "--workers is 0; write a whole number of at least 1"),
        ({"seed": -1}, "--seed is -1; write a whole number of at least 0"),
    ],
)
def test_limits_that_end_nothing_are_refused(options, says):
    with refused(says):
        read_limits(LimitOptions(**options))


def test_names_may_be_repeated_or_have_commas():
    default = ("greedy", "auto")
    assert read_solvers(None, default) == read_solvers([], default) == default
    assert read_solvers(["chain, auto", "chain"], default) == ("chain", "auto")
    assert read_planners(["pipedream,chain", "pipedream"]) == ("pipedream", "chain")
    assert read_planners(None) == ()
    for read in (lambda: read_solvers(["chain,"], default), lambda: read_planners(["chian"])):
        with pytest.raises(PartitionError, match="is unknown; "):
            read()


def test_rules_of_recomputation_and_modules():
    assert REQUESTED_RULES == RULES
    assert RecomputeRequest.read(["h.0", "h.2"]) == RecomputeRequest(("h.0", "h.2"))
    assert RecomputeRequest.read(["h.0=always"]) == RecomputeRequest("auto", ("h.0",))
    assert RecomputeRequest.read([]) == RecomputeRequest()


def test_pins():
    # A module's name may have an equals sign, a device's may not.
    assert read_pins(["a=b=gpu", "c=2"]) == {"a=b": ("gpu",), "c": 2}
    with pytest.raises(PartitionError, match="--pin 'a' is given twice; give it once"):
        read_pins(["a=1", "a=2"])
    with pytest.raises(PartitionError, match=r"^--pin 'a': a stage of 4,301 digits is none"):
        read_pins(["a=" + "1" * 4301])


def test_steps_are_read_and_refused():
    names = step_names()[:2]
    assert read_without(None) == ()
    assert read_without([",".join(names), names[0]]) == tuple(sorted(names))
    with refused(starts="--without: step 'nothing' is unknown; "):
        read_without(["nothing"])
