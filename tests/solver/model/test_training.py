"""Microbatches in flight in chunks that are not used; fields of backward passes."""

import itertools

import pytest

from solver.model.schedules import action_tables
from solver.model.training import Backward, in_flight, most_in_flight
from tests.support.refusals import refused


def most_held(table, position):
    own = (1 if a.kind == "forward" else -1 for a in table if a.position == position)
    return max(itertools.accumulate(own))


def test_plans_of_fewer_rounds_than_allowed_are_counted_too():
    pairs = (1, 6), (3, 9), (4, 8), (5, 20)
    for (devices, microbatches), rounds in itertools.product(pairs, range(2, 5)):
        tables = action_tables("1f1b", microbatches, devices=devices, chunks=rounds)
        for (rank, table), chunk in itertools.product(enumerate(tables), range(rounds)):
            behind = {"followers": devices - 1 - rank, "later_chunks": rounds - 1 - chunk}
            counted = [
                most_in_flight("1f1b", microbatches, chunks=allowed, devices=devices, **behind)
                for allowed in range(rounds, 6)
            ]
            assert most_held(table, chunk * devices + rank) <= counted[0]
            assert counted == sorted(counted)
    one = {"devices": 5, "followers": 0, "later_chunks": 1}
    assert in_flight("1f1b", 20, chunks=2, **one) == 6 > in_flight("1f1b", 20, chunks=3, **one)


def test_what_is_saved_is_kept_and_made():
    assert Backward(kept_bytes=3, residual_bytes=4).saved_bytes == 7
    assert Backward({"a": 5}).latency_on("a") == Backward(5).latency_on("b") == 5


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"latency_ns": -1}, "latency_ns is -1"),
        ({"latency_ns": {"a": 0.5}}, "latency_ns['a'] is 0.5"),
        ({"gradient_bytes": "9"}, "gradient_bytes is '9'"),
        ({"workspace_bytes": -2}, "workspace_bytes is -2"),
        ({"passes_to": ""}, "passes_to is ''"),
        ({"slices": ("a", "")}, "an entry of slices is ''"),
    ],
)
def test_wrong_fields_are_named(fields, says):
    with refused(says):
        Backward(**fields)
