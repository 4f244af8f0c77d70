"""Traces against the fields that the Trace Event Format asks for, and against the step."""

import itertools
import json
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fx_bridge.presentation.details import plan_details
from fx_bridge.presentation.trace import pipeline_trace
from tests.support.random_problems import random_plan, random_problem
from tests.support.report_plans import PLANS, details

# "Trace Event Format", Google: metadata, complete and counter events.
REQUIRED = {
    "M": {"name": str, "ph": str, "pid": int, "tid": int, "args": dict},
    "X": {
        "name": str,
        "cat": str,
        "ph": str,
        "ts": (int, float),
        "dur": (int, float),
        "pid": int,
        "tid": int,
        "args": dict,
    },
    "C": {"name": str, "ph": str, "ts": (int, float), "pid": int, "tid": int, "args": dict},
}
METADATA = {
    "process_name": ("name", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def of_kind(trace, phase):
    return [event for event in trace["traceEvents"] if event["ph"] == phase]


def names(trace, what):
    """Names by process, or by process and thread."""
    return {
        (event["pid"], event["tid"]) if what == "thread_name" else event["pid"]: event["args"][
            "name"
        ]
        for event in of_kind(trace, "M")
        if event["name"] == what
    }


def check_format(trace):
    trace = json.loads(json.dumps(trace, allow_nan=False))
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        fields = REQUIRED[event["ph"]]
        assert event.keys() == fields.keys()
        assert all(isinstance(event[name], kind) for name, kind in fields.items())
        assert event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0
    for event in of_kind(trace, "M"):
        field, kind = METADATA[event["name"]]
        assert isinstance(event["args"][field], kind)
    for event in of_kind(trace, "C"):
        assert all(isinstance(value, (int, float)) for value in event["args"].values())
    threads = names(trace, "thread_name")
    assert {(event["pid"], event["tid"]) for event in of_kind(trace, "X")} == threads.keys()
    assert {pid for pid, _ in threads} <= names(trace, "process_name").keys()


def check_threads(trace):
    """Nothing runs twice at once in a thread; times are whole nanoseconds."""
    threads = defaultdict(list)
    for event in of_kind(trace, "X"):
        start_ns = round(event["ts"] * 1000)
        threads[event["pid"], event["tid"]].append(
            (start_ns, start_ns + round(event["dur"] * 1000))
        )
    for spans in threads.values():
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(sorted(spans)))
    return max(end for spans in threads.values() for _, end in spans)


@pytest.mark.parametrize("name", PLANS)
def test_traces_have_the_format_and_end_with_the_step(name):
    shown = details(name)
    trace = pipeline_trace(shown)
    check_format(trace)
    assert check_threads(trace) == shown.pipeline.shown_ns
    if shown.pipeline.shown_microbatches == shown.pipeline.microbatches:
        assert check_threads(trace) == shown.pipeline.step_ns


@given(st.integers(0, 100_000), st.booleans())
def test_traces_of_random_plans(seed, relayed):
    problem = random_problem(seed, draw_chunks=True, relayed=relayed)
    shown = plan_details(problem, random_plan(problem, seed, draw_chunks=True))
    trace = pipeline_trace(shown)
    check_format(trace)
    assert check_threads(trace) == shown.pipeline.shown_ns
    peaks = {entry.device: entry.memory_bytes for entry in shown.devices}
    processes, highest = names(trace, "process_name"), defaultdict(int)
    for event in of_kind(trace, "C"):
        device = processes[event["pid"]]
        highest[device] = max(highest[device], sum(event["args"].values()))
    assert all(peaks[device] == most for device, most in highest.items())


def test_transfers_say_how_many_bytes_they_move():
    shown = details("training")
    by_ends = {(entry.source, entry.target): entry for entry in shown.pipeline.transfers}
    moved = [event for event in of_kind(pipeline_trace(shown), "X") if "bytes" in event["args"]]
    for event in moved:
        rank, backward = event["pid"], event["args"]["pass"] == "backward"
        # Neighbours pass values up and gradients down.
        up = event["cat"].startswith("send") != backward
        travel = by_ends[(rank, rank + 1) if up else (rank - 1, rank)]
        size_bytes = travel.gradient_bytes if backward else travel.value_bytes
        assert event["args"]["bytes"] == size_bytes > 0
    # 8 microbatches over 3 borders, both ways, at both ends.
    assert len(moved) == 8 * 3 * 2 * 2


def test_a_plan_in_turn_is_one_process():
    trace = pipeline_trace(details("cyclic"))
    assert names(trace, "process_name") == {0: "all in turn"}
    assert of_kind(trace, "C") == []
