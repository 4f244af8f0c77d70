"""What ranks do in a step: parts of the evaluator's own timeline, in turn and without gaps."""

import itertools
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fx_bridge.presentation.spans import Span, spans
from solver.evaluation.evaluate import evaluate
from solver.evaluation.step import PipelineStep
from solver.evaluation.timeline import PipelineTimes
from tests.support.random_problems import random_plan, random_problem

SEEDS = st.integers(0, 100_000)


def step_of(seed, relayed, overlap=None):
    problem = random_problem(seed, draw_chunks=seed % 2 == 0, relayed=relayed, steps=True)
    plan = random_plan(problem, seed, draw_chunks=seed % 2 == 0)
    return evaluate(problem, plan).step


def test_a_rank_receives_before_it_computes_and_sends_afterwards():
    times = PipelineTimes((10, 10), (20, 20), {(0, 1): (3, 4)})
    step = PipelineStep(times, "1f1b", 1, devices=2, backward=True)
    assert spans(step) == (
        Span(0, "compute", "forward", 0, None, 0, 0, 10),
        Span(0, "send", "forward", 0, 1, 0, 10, 13),
        Span(1, "receive", "forward", 1, 0, 0, 13, 16),
        Span(1, "compute", "forward", 1, None, 0, 16, 26),
        Span(1, "compute", "backward", 1, None, 0, 26, 46),
        Span(1, "send", "backward", 1, 0, 0, 46, 50),
        Span(0, "receive", "backward", 0, 1, 0, 50, 54),
        Span(0, "compute", "backward", 0, None, 0, 54, 74),
    )


@pytest.mark.parametrize("overlap", [False, True])
def test_transfers_through_the_host_have_no_position_at_the_other_end(overlap):
    staged_ns = {0: (0, 5, 0, 0), 1: (6, 0, 0, 0)}
    times = PipelineTimes((10, 10), (0, 0), {(0, 1): (0, 0)}, staged_ns, overlap)
    step = PipelineStep(times, "gpipe", 1, devices=2, backward=False)
    assert [tuple(span) for span in spans(step) if span.kind != "compute"] == [
        (0, "send", "forward", 0, None, 0, 10, 15),
        (1, "receive", "forward", 1, None, 0, 15, 21),
    ]


@given(SEEDS, st.booleans())
def test_spans_are_the_actions_of_the_timeline(seed, relayed):
    step = step_of(seed, relayed)
    timeline, found = step.timeline(), spans(step)
    assert max(span.end_ns for span in found) == timeline.step_ns
    own = defaultdict(list)
    for span in found:
        if span.kind == "compute" or not step.times.overlap:
            own[span.position, span.microbatch, span.step].append(span)
    for row in timeline.events:
        for event in row:
            parts = own.pop((event.position, event.microbatch, event.kind))
            assert (parts[0].start_ns, parts[-1].end_ns) == (event.start_ns, event.end_ns)
            assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(parts))
            assert [part.kind for part in parts].count("compute") == 1
    assert not own


@given(SEEDS, st.booleans())
def test_nothing_does_two_things_at_once(seed, relayed):
    step = step_of(seed, relayed)
    lanes = defaultdict(list)
    for span in spans(step):
        other = None if span.other is None else span.other % step.devices
        lanes[span.rank, span.kind, other if step.times.overlap else 0].append(span)
        if not step.times.overlap:
            lanes[span.rank, "all", 0].append(span)
    for row in lanes.values():
        row.sort(key=lambda span: (span.start_ns, span.end_ns))
        assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(row))


def test_overlapping_transfers_are_seen_at_both_ends_at_once():
    times = PipelineTimes((10, 10), (0, 0), {(0, 1): (3, 0)}, overlap=True)
    step = PipelineStep(times, "gpipe", 2, devices=2, backward=False)
    moved = [span for span in spans(step) if span.kind != "compute"]
    assert moved == [
        Span(0, "send", "forward", 0, 1, 0, 10, 13),
        Span(1, "receive", "forward", 1, 0, 0, 10, 13),
        Span(0, "send", "forward", 0, 1, 1, 20, 23),
        Span(1, "receive", "forward", 1, 0, 1, 20, 23),
    ]
