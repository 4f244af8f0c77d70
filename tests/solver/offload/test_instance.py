"""The numbers of a job with a host, counted by hand."""

import pytest

from solver import (
    Device,
    Interconnect,
    Link,
    Operator,
    PartitionError,
    PartitionProblem,
    SolveLimits,
    SolveStatus,
    Weight,
)
from solver.model.devices import STAGING_HOST
from solver.model.job import Host, Job
from solver.offload.evaluate import evaluate_offload
from solver.offload.instance import OffloadInstance
from solver.offload.units import Unit
from solver.serving.solve import solve_job

SLOW, FAST = Link(10**8), Link(10**10)
UNITS = {"first": ("a", "b"), "second": ("c",)}
ALL = ("resident", "streamed", "host")


def problem(scale=1, **settings):
    """Three operators, of which the first two read one weight, and a cache."""
    operators = (
        Operator("a", {"gpu": 2 * scale, "cpu": 20}, value_bytes=10, weights=("w",)),
        Operator("b", 3, ("a",), value_bytes=1000, weights=("w", "keys")),
        Operator("c", {"gpu": 4, "cpu": 40}, ("b",), weights=("v", "w")),
    )
    weights = {"w": Weight(10), "v": Weight(7), "keys": Weight(5)}
    settings = {"devices": (Device("d", 100, "gpu"),), "memory_model": "weights", **settings}
    return PartitionProblem(operators, weights=weights, **settings)


def job(*, interconnect=None, devices=1, **settings):
    """A prompt that takes twice as long in its first operator, and a token."""
    given = {"devices": tuple(Device(f"d{at}", 100, "gpu") for at in range(devices))}
    given["interconnect"] = interconnect or Interconnect()
    phases = {"prompt": problem(2, **given), "token": problem(**given)}
    return Job(
        phases,
        "token",
        {"prompt": 1},
        **{
            "generate": 3,
            "cache_bytes_per_token": {"keys": 1},
            "cache_limits": {"keys": 8},
            "host": Host(None, "cpu"),
            "units": UNITS,
            "padding_bytes": {"v": 6, "keys": 9},
            **settings,
        },
    )


def test_times_and_bytes_are_those_of_the_operators():
    made = OffloadInstance.of(job())
    assert made.units == (
        Unit("first", 10, 5, 0, ALL, ((7,), (5,)), (23, 23), ((1, 8),), ("a", "b")),
        Unit("second", 17, 0, 6, ALL, ((4,), (4,)), (40, 40), (), ("c",)),
    )
    assert (made.phases, made.counts) == (("prompt", "token"), (1, 3))
    assert OffloadInstance.of(job(objective="token")).counts == (0, 1)
    assert OffloadInstance.of(job(objective="token")).rounds == [(1, 1)]


@pytest.mark.parametrize("device_class", [None, "tpu"])
def test_a_host_without_times_runs_nothing(device_class):
    made = OffloadInstance.of(job(host=Host(8, device_class)))
    assert made.host_bytes == 8
    assert {unit.modes for unit in made.units} == {("resident", "streamed")}


def test_hops_take_the_links_that_are_given():
    to_host = {(STAGING_HOST, f"d{at}"): FAST for at in range(2)}
    back = {(f"d{at}", STAGING_HOST): FAST for at in range(2)}
    between = {("d0", "d1"): FAST, ("d1", "d0"): SLOW}
    made = OffloadInstance.of(
        job(interconnect=Interconnect(SLOW, to_host | back | between), devices=2)
    )
    assert made.links == (FAST, FAST)
    # What "b" sends is the most that crosses.
    assert made.stage_hop_ns == (((0, 100), (10_000, 0)),) * 2
    assert made.host_hop_ns == (100, 100)
    slow_back = to_host | back | between | {("d1", STAGING_HOST): SLOW}
    made = OffloadInstance.of(job(interconnect=Interconnect(SLOW, slow_back), devices=2))
    assert made.host_hop_ns == (10_000, 10_000)
    assert OffloadInstance.of(job(interconnect=Interconnect(SLOW))).stage_hop_ns == (((0,),),) * 2


def test_pins_hold_for_units():
    made = OffloadInstance.of(job(devices=2, pins={"b": ("d1", "host"), "c": ("host",)}))
    assert [unit.devices for unit in made.units] == [(1,), ()]
    assert [unit.modes for unit in made.units] == [ALL, ("host",)]
    found = solve_job(job(devices=2, pins={"b": ("d1",), "c": ("host",)}))
    assert found.status is SolveStatus.OPTIMAL
    assert found.plan.assignment["a"] == found.plan.assignment["b"] == "d1"
    assert dict(found.plan.assignment) == {"a": "d1", "b": "d1", "c": "host"}
    assert evaluate_offload(made, made.plan((0, 0), ("resident", "resident"))).violations == (
        "unit 'first' is on 'd0', and is pinned to d1",
        "unit 'second' cannot be resident: it is pinned to the host",
    )


def test_a_job_with_a_host_is_solved_like_any_other():
    found = solve_job(job(), SolveLimits(2.0, deterministic=True))
    assert found.status is SolveStatus.OPTIMAL
    # Everything fits: a prompt of 11 ns and three tokens of 9 ns.
    assert found.objective == 11 + 3 * 9
    assert found.evaluation.times_ns == {"prompt": 11, "token": 9}
    with pytest.raises(PartitionError, match="solver 'chain' has no steps for a host; write one"):
        solve_job(job(), solver="chain")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"units": {"g": ("a", "b")}}, "operator 'c' is in no unit; add it to one"),
        ({"units": {"g": ("a", "b", "c"), "h": ("a",)}}, "two units name operator 'a'; put it in"),
        ({"units": {"g": ("a", "x")}}, "unit 'g' names 'x', which is unknown; write names of its"),
        ({"units": {"g": "abc"}}, "unit 'g' is 'abc'; write a list of names"),
        (
            {"units": {"g": ("c",), "h": ("a", "b")}},
            "operator 'c' of unit 'g' reads 'b' of 'h', which",
        ),
        ({"pins": {"a": ("d0",), "b": ("host",)}}, "unit 'first' is pinned to d0, and its operat"),
        ({"pins": {"a": ("host",)}, "host": Host()}, "pinned to the host, which has no time for"),
        ({"pins": {"a": "d0"}}, "pin 'a' is 'd0'; write a list of names"),
        ({"interconnect": Interconnect(overlap=True)}, "leave overlap of the interconnect out"),
        ({"interconnect": Interconnect(charging="host_staged")}, "leave charging of the"),
        ({"generate": 10**14}, "times add up to more than"),
        ({"host": 5}, "host is 5; write Host"),
    ],
)
def test_jobs_that_make_no_instance_are_refused_in_one_line(settings, says):
    with pytest.raises(PartitionError, match=says) as error:
        OffloadInstance.of(job(**settings))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("memory", "says"),
    [("5", "host: memory '5' has no unit"), (0, "host: memory_bytes is 0; write a positive")],
)
def test_memory_of_a_host_is_checked(memory, says):
    with pytest.raises(PartitionError, match=says):
        Host(memory)
