"""Tests of units made of the operators of a partitioning problem."""

import pytest

from solver import Device, Operator, PartitionError, PartitionProblem, Weight
from solver.offload.model import Unit
from solver.offload.units import units_of

GROUPS = {"first": ("a", "b"), "second": ("c",)}


@pytest.fixture
def problem():
    operators = (
        Operator("a", {"gpu": 2, "cpu": 20}, weights=("w",)),
        Operator("b", 3, ("a",), weights=("w", "keys")),
        Operator("c", {"gpu": 4, "cpu": 40}, ("b",), weights=("v", "w")),
    )
    weights = {"w": Weight(10), "v": Weight(7), "keys": Weight(5)}
    devices = (Device("d", 100, "gpu"),)
    return PartitionProblem(operators, devices, weights=weights)


def test_times_and_bytes_are_those_of_the_operators(problem):
    assert units_of(problem, GROUPS, "cpu", caches={"keys"}) == (
        Unit("first", 10, 5, {"gpu": 5}, 23),
        Unit("second", 17, 0, {"gpu": 4}, 40),
    )
    first, second = units_of(problem, GROUPS, None, written=["keys", "v"])
    assert (first.weight_bytes, first.cache_bytes, first.host_ns) == (15, 0, None)
    assert first.modes == second.modes == ("resident",)


@pytest.mark.parametrize(
    ("groups", "settings", "says"),
    [
        ({"g": ("a", "b")}, {}, "operator 'c' is in no group; add it to one"),
        ({"g": ("a", "b", "c"), "h": ("a",)}, {}, "two groups name operator 'a'; put it in one"),
        ({"g": ("a", "x")}, {}, "group 'g' names 'x', which is unknown; write names of its"),
        ({"g": "abc"}, {}, "group 'g' is 'abc'; write a list of names"),
        ({"g": ("c",), "h": ("a", "b")}, {}, "operator 'c' of group 'g' reads 'b' of 'h', which"),
        (GROUPS, {"caches": ["key"]}, "caches names 'key', which is no weight; did you mean keys"),
        (GROUPS, {"written": "w"}, "written is 'w'; write a list of names"),
        (GROUPS, {"host_class": "tpu"}, "operator 'a': latency_ns lacks class 'tpu' of the host"),
    ],
)
def test_wrong_groups_are_refused_in_one_line(problem, groups, settings, says):
    with pytest.raises(PartitionError, match=says) as error:
        units_of(problem, groups, **{"host_class": "cpu", **settings})
    assert "\n" not in str(error.value)
