"""Microbatches in flight against torch's own schedules; fields of backward passes."""

import pytest
from torch.distributed.pipelining import schedules

from solver.model.training import Backward, in_flight, most_in_flight
from tests.support.refusals import refused


def held_at_most(actions):
    """By stage, the most forward steps without their backward steps."""
    held, most = {}, {}
    for action in actions:
        if action is None:
            continue
        forward = action.computation_type == schedules._ComputationType.FORWARD
        stage = action.stage_index
        held[stage] = held.get(stage, 0) + (1 if forward else -1)
        most[stage] = max(most.get(stage, 0), held[stage])
    return most


def interleaved(devices, chunks, microbatches, rank):
    """The steps of one rank, as ScheduleInterleaved1F1B lists them; None if it refuses."""
    rounds = max(1, microbatches // devices)
    if microbatches % rounds:
        return None
    schedule = object.__new__(schedules.ScheduleInterleaved1F1B)
    schedule.pp_group_size, schedule.n_local_stages = devices, chunks
    schedule._n_microbatches, schedule.microbatches_per_round = microbatches, microbatches // rounds
    return schedule._calculate_single_rank_operations(rank)


def test_interleaved_1f1b_is_what_torch_does():
    seen = 0
    for devices in range(1, 6):
        for chunks in range(2, 5):
            for microbatches in range(1, 18):
                for rank in range(devices):
                    actions = interleaved(devices, chunks, microbatches, rank)
                    if actions is None:
                        continue
                    seen += 1
                    found = [
                        in_flight(
                            "1f1b",
                            microbatches,
                            chunks=chunks,
                            devices=devices,
                            followers=devices - 1 - rank,
                            later_chunks=chunks - 1 - chunk,
                        )
                        for chunk in range(chunks)
                    ]
                    most = held_at_most(actions)
                    assert found == [most[c * devices + rank] for c in range(chunks)]
    assert seen > 400


def test_plans_of_fewer_rounds_than_allowed_are_counted_too():
    """Tests that no schedule of torch with any number of rounds holds more than is counted."""
    for devices, microbatches in ((1, 6), (3, 9), (4, 8), (5, 20)):
        for rounds in range(2, 5):
            for rank in range(devices):
                most = held_at_most(interleaved(devices, rounds, microbatches, rank))
                for chunk in range(rounds):
                    counted = [
                        most_in_flight(
                            "1f1b",
                            microbatches,
                            chunks=allowed,
                            devices=devices,
                            followers=devices - 1 - rank,
                            later_chunks=rounds - 1 - chunk,
                        )
                        for allowed in range(rounds, 6)
                    ]
                    assert most[chunk * devices + rank] <= counted[0]
                    assert counted == sorted(counted)
    one = {"devices": 5, "followers": 0, "later_chunks": 1}
    assert in_flight("1f1b", 20, chunks=2, **one) == 6 > in_flight("1f1b", 20, chunks=3, **one)


@pytest.mark.parametrize(
    ("name", "kind"), [("gpipe", schedules.ScheduleGPipe), ("1f1b", schedules.Schedule1F1B)]
)
def test_schedules_with_one_chunk_are_what_torch_does(name, kind):
    for devices in range(1, 6):
        for microbatches in range(devices, 12):
            schedule = object.__new__(kind)
            schedule._num_stages, schedule._n_microbatches = devices, microbatches
            for rank, actions in schedule._get_pipeline_order().items():
                assert held_at_most(actions)[rank] == in_flight(
                    name, microbatches, chunks=1, devices=devices, followers=devices - 1 - rank
                )


def test_fewer_microbatches_than_devices_are_all_in_flight():
    assert in_flight("1f1b", 2, chunks=1, devices=5, followers=4) == 2
    assert in_flight("gpipe", 2, chunks=3, devices=5, followers=0) == 2


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
