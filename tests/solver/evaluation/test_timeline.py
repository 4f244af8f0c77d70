"""Times of pipelines against a discrete-event simulation and against formulas."""

import itertools
import random

import pytest

from solver import PartitionError
from solver.evaluation.timeline import PipelineTimes, timeline
from solver.model.schedules import Action, action_tables
from tests.support.pipeline_simulator import pipeline_tables, simulate_step
from tests.support.random_pipelines import random_settings, random_times


def simulate(tables, forward, backward, *hops, overlap=False):
    arcs = {(p, p + 1): times for p, times in enumerate(zip(*hops, strict=True))}
    if not hops:
        arcs = {(p, p + 1): (0, 0) for p in range(len(forward) - 1)}
    return timeline(tables, PipelineTimes(tuple(forward), tuple(backward), arcs, overlap=overlap))


def plain(tables):
    return [[(a.position, a.microbatch, a.kind == "backward") for a in table] for table in tables]


@pytest.mark.parametrize("seed", range(6))
def test_any_arcs_take_as_long_as_in_a_discrete_event_simulation(seed):
    rng = random.Random(100 + seed)
    for _ in range(60):
        chosen = random_settings(rng)
        tables = action_tables(**chosen)
        devices, count = chosen["devices"], chosen["devices"] * chosen["chunks"]
        # Both list the actions independently.
        assert plain(tables) == pipeline_tables(*chosen.values())
        pairs = [*itertools.pairwise(range(count))]
        if rng.random() < 0.7:
            pairs = [arc for arc in itertools.combinations(range(count), 2) if rng.random() < 0.4]
        compute = [random_times(rng, count) for _ in range(2)]
        is_staged, overlap = rng.random() < 0.5, rng.random() < 0.5
        away = [(s, t) for s, t in pairs if (t - s) % devices]
        arcs = dict.fromkeys(pairs, (0, 0))
        staged = {}
        if is_staged:
            staged = {p: random_times(rng, 4) for p in range(count)}
            ends = {step: {p: [0, 0] for p in range(count)} for step in (False, True)}
            for s, t in away:
                ends[False][s][1] = ends[True][t][1] = ends[False][t][0] = ends[True][s][0] = 1
            for p, (read, write, read_back, write_back) in staged.items():
                staged[p] = (
                    read * ends[False][p][0],
                    write * ends[False][p][1],
                    read_back * ends[True][p][0],
                    write_back * ends[True][p][1],
                )
        else:
            arcs |= {arc: random_times(rng, 2) for arc in away}
        found = timeline(tables, PipelineTimes(*compute, arcs, staged, overlap))
        messages = {(s, t, False): there for (s, t), (there, _) in arcs.items()}
        messages |= {(t, s, True): back for (s, t), (_, back) in arcs.items()}
        expected = simulate_step(
            plain(tables),
            {(p, k): compute[k][p] for p in range(count) for k in range(2)},
            messages,
            {(p, k): staged[p][2 * k : 2 * k + 2] for p in staged for k in range(2)} or None,
            overlap,
        )
        assert found.step_ns == expected


def test_events_are_the_tables_with_times_that_fit_each_other():
    rng = random.Random(1)
    for _ in range(100):
        chosen = random_settings(rng)
        tables = action_tables(**chosen)
        count = chosen["devices"] * chosen["chunks"]
        forward, backward = random_times(rng, count), random_times(rng, count)
        found = simulate(tables, forward, backward)
        ends = {}
        for table, row in zip(tables, found.events, strict=True):
            assert tuple(Action(*event[:3]) for event in row) == table
            for earlier, later in itertools.pairwise(row):
                assert earlier.end_ns <= later.start_ns
            for event in row:
                took = (forward if event.kind == "forward" else backward)[event.position]
                assert event.end_ns - event.start_ns == took
                ends[event[:3]] = event.end_ns
        for row in found.events:
            for position, microbatch, kind, start_ns, _ in row:
                before = position + (-1 if kind == "forward" else 1)
                assert start_ns >= ends.get((before, microbatch, kind), 0)
        assert found.step_ns == max(ends.values())
        for rank, row in enumerate(found.events):
            work_ns = sum(event.end_ns - event.start_ns for event in row)
            assert found.busy_ns[rank] == work_ns
            assert found.idle_ns[rank] == found.step_ns - work_ns


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_equal_stages_have_the_bubble_of_the_literature(name):
    """(P - 1) / (V m) of the ideal time: Narayanan et al., SC 2021, section 2.2."""
    for devices, chunks, groups in itertools.product(range(1, 5), range(1, 4), range(1, 4)):
        microbatches = groups * devices
        tables = action_tables(name, microbatches, devices=devices, chunks=chunks)
        count = devices * chunks
        found = simulate(tables, [10] * count, [20] * count)
        ideal_ns = 30 * chunks * microbatches
        assert found.step_ns == ideal_ns + 30 * (devices - 1)
        assert found.idle_ns == (30 * (devices - 1),) * devices


def test_tables_that_wait_for_each_other_are_refused():
    tables = action_tables("gpipe", 2, devices=2)
    with pytest.raises(PartitionError, match="rank 0 waits for ever to begin 0B1"):
        simulate((tables[0], tables[1][:-1]), [1, 1], [0, 0])
