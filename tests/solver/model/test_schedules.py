"""Tables of actions against torch's own schedules."""

import itertools
from types import SimpleNamespace

import pytest
from torch.distributed.pipelining import schedules as torch_schedules

from solver.model.schedules import Action, action_tables
from solver.model.training import in_flight
from tests.support.refusals import refused

FORWARD = torch_schedules._ComputationType.FORWARD
FULL_BACKWARD = torch_schedules._ComputationType.FULL_BACKWARD
KINDS = {FORWARD: "forward", FULL_BACKWARD: "backward"}


def translated(actions):
    """The computing actions among those of torch."""
    return tuple(
        Action(action.stage_index, action.microbatch_index, KINDS[action.computation_type])
        for action in actions
        if action is not None and action.computation_type in KINDS
    )


class RecordingStage:
    """A stage that computes nothing and writes down what it was asked to."""

    def __init__(self, index):
        self.stage_index = index
        self.actions = []

    def forward_one_chunk(self, microbatch, *_args, **_kwargs):
        self.actions.append(Action(self.stage_index, microbatch, "forward"))

    def backward_one_chunk(self, microbatch, **_kwargs):
        self.actions.append(Action(self.stage_index, microbatch, "backward"))

    def __getattr__(self, name):
        if name.startswith("get_"):
            return lambda _microbatch: []
        return lambda *_args: None


def played(kind, microbatches, devices):
    """What the ranks of a schedule with one stage each really run, not what they list."""
    tables = []
    for rank in range(devices):
        stage = RecordingStage(rank)
        schedule = object.__new__(kind)
        schedule.__dict__.update(
            _stage=stage,
            _num_stages=devices,
            _n_microbatches=microbatches,
            scale_grads=False,
            _check_inputs=lambda *_args: ([()] * 99, [{}] * 99),
            _initialize_stage=lambda *_args: None,
            _maybe_compute_loss=lambda *_args: None,
            _maybe_get_loss=lambda *_args: None,
            _update_losses=lambda *_args: None,
        )
        schedule._step_microbatches()
        tables.append(tuple(stage.actions))
    return tuple(tables)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("gpipe", torch_schedules.ScheduleGPipe), ("1f1b", torch_schedules.Schedule1F1B)],
)
def test_schedules_with_one_chunk_run_as_in_torch(name, kind):
    for devices, microbatches in itertools.product(range(1, 7), range(1, 14)):
        tables = action_tables(name, microbatches, devices=devices)
        assert tables == played(kind, microbatches, devices)
        if microbatches < devices:
            continue
        schedule = object.__new__(kind)
        schedule._num_stages, schedule._n_microbatches = devices, microbatches
        listed = schedule._get_pipeline_order()
        for rank, table in enumerate(tables):
            # The last rank's list of 1F1B counts its forward passes from 1; it runs them from 0.
            expected = translated(listed[rank])
            assert [action.kind for action in table] == [action.kind for action in expected]
            if name == "gpipe" or rank < devices - 1:
                assert table == expected


def test_looped_bfs_runs_as_in_torch():
    for devices, chunks, microbatches in itertools.product(range(1, 6), range(2, 5), range(1, 10)):
        schedule = object.__new__(torch_schedules.ScheduleLoopedBFS)
        schedule.pp_group_size, schedule._n_microbatches = devices, microbatches
        schedule._stages = [None] * chunks
        tables = action_tables("gpipe", microbatches, devices=devices, chunks=chunks)
        for rank, table in enumerate(tables):
            assert table == translated(schedule._calculate_single_rank_operations(rank))


def interleaved(devices, chunks, microbatches):
    """The tables of ScheduleInterleaved1F1B; None where it refuses."""
    rounds = max(1, microbatches // devices)
    if microbatches % rounds:
        return None
    schedule = object.__new__(torch_schedules.ScheduleInterleaved1F1B)
    schedule.pp_group_size, schedule.n_local_stages = devices, chunks
    schedule._n_microbatches = microbatches
    schedule.microbatches_per_round = microbatches // rounds
    return [schedule._calculate_single_rank_operations(rank) for rank in range(devices)]


def test_interleaved_1f1b_runs_as_in_torch():
    seen = 0
    for devices, chunks, microbatches in itertools.product(range(1, 6), range(2, 5), range(1, 18)):
        listed = interleaved(devices, chunks, microbatches)
        if listed is None:
            continue
        tables = action_tables("1f1b", microbatches, devices=devices, chunks=chunks)
        assert tables == tuple(translated(table) for table in listed)
        seen += 1
    assert seen > 150


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_torch_finds_an_order_of_sends_and_receives_for_every_table(name):
    """Also for the numbers of microbatches that torch itself refuses: no rank waits for ever."""
    for devices, chunks, microbatches in itertools.product(range(1, 5), range(1, 4), range(1, 14)):
        tables = action_tables(name, microbatches, devices=devices, chunks=chunks)
        back = {kind: computation for computation, kind in KINDS.items()}
        actions = {
            rank: [
                torch_schedules._Action(action.position, back[action.kind], action.microbatch)
                for action in table
            ]
            for rank, table in enumerate(tables)
        }
        lowered = torch_schedules._add_send_recv(
            actions, lambda stage, devices=devices: stage % devices, devices * chunks
        )
        assert [translated(lowered[rank]) for rank in range(devices)] == list(tables)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_every_action_once_and_as_many_in_flight_as_memory_counts(name):
    """Also more than are in flight, where torch refuses a number of microbatches."""
    for devices, chunks, microbatches in itertools.product(range(1, 5), range(1, 4), range(1, 14)):
        tables = action_tables(name, microbatches, devices=devices, chunks=chunks)
        for rank, table in enumerate(tables):
            positions = range(rank, devices * chunks, devices)
            wanted = itertools.product(positions, range(microbatches), ("forward", "backward"))
            assert sorted(table) == sorted(Action(*action) for action in wanted)
            for chunk, position in enumerate(positions):
                signs = [
                    1 if action.kind == "forward" else -1
                    for action in table
                    if action.position == position
                ]
                most = max(itertools.accumulate(signs))
                behind = {"followers": devices - 1 - rank, "later_chunks": chunks - 1 - chunk}
                counted = in_flight(name, microbatches, chunks=chunks, devices=devices, **behind)
                assert most <= counted
                if chunks == 1 or microbatches % max(1, microbatches // devices) == 0:
                    assert most == counted


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_inference_keeps_the_order_of_the_forward_actions(name):
    for devices, chunks, microbatches in itertools.product(range(1, 4), range(1, 4), range(1, 8)):
        settings = {"devices": devices, "chunks": chunks}
        both = action_tables(name, microbatches, **settings)
        found = action_tables(name, microbatches, **settings, backward=False)
        assert found == tuple(tuple(a for a in table if a.kind == "forward") for table in both)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schedule": "zb"}, "schedule is 'zb'; write one of gpipe, 1f1b"),
        ({"microbatches": 0}, "microbatches is 0; write at least 1"),
        ({"devices": -1}, "devices is -1"),
        ({"chunks": 1.5}, "chunks is 1.5"),
    ],
)
def test_wrong_settings_are_named(change, says):
    settings = SimpleNamespace(schedule="1f1b", microbatches=2, devices=2, chunks=1)
    settings.__dict__.update(change)
    with refused(says):
        action_tables(
            settings.schedule,
            settings.microbatches,
            devices=settings.devices,
            chunks=settings.chunks,
        )
