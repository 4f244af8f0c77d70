import os
import subprocess
import sys

import pytest

import solver.heuristics.greedy
from solver.evaluation.evaluate import evaluate
from solver.evaluation.result import SolveStatus
from solver.model.devices import Device
from solver.model.limits import SolveLimits
from solver.model.problem_fields import ColocationGroup
from solver.model.training import Backward
from solver.search.solve import solve
from tests.support.answers import check_true
from tests.support.graphs import chain, weighted_chain
from tests.support.oracle import brute_force
from tests.support.paths import ROOT
from tests.support.problem_counts import counts
from tests.support.random_problems import random_problem, to_instance


def greedy(problem):
    return solve(problem, SolveLimits(), solver="greedy")


def placed(problem):
    return "".join(greedy(problem).plan.assignment[op.name][-1] for op in problem.operators)


def test_storages_are_freed_after_their_last_reader():
    problem = chain(20, value_bytes=5, devices=(Device("d0", 10), Device("d1", 10)))
    assert placed(problem) == "0" * 20  # 100 bytes in all, never more than 10 live


def test_small_partitions_of_neighbouring_levels_are_combined():
    # Grown: {a b} = 5, {c} = 6, {d} = 4 by 6, since c is too large to join either; {a b} and {d}
    # are at most one level apart because d reads b and not c.
    result = greedy(weighted_chain([2, 3, 8, 4], [10, 10, 10], of={"d": {"reads": ("b",)}}))
    assert result.status is SolveStatus.FEASIBLE
    assert result.evaluation.devices_used == 2
    assert result.plan.assignment["d"] == result.plan.assignment["a"]


def test_a_merge_that_would_spoil_the_mapping_is_not_made():
    # Grown: {a} on the largest, then {b} and {c}. b and c together would fit only the largest
    # device, which a needs for itself.
    apart = {name: {"reads": ()} for name in "bc"}
    result = greedy(weighted_chain([18, 8, 8], [20, 10, 10], of=apart))
    assert result.status is SolveStatus.FEASIBLE
    assert result.plan.assignment["a"] == "gpu0"
    assert result.evaluation.devices_used == 3


def test_pins_are_kept_by_moving_partitions_among_devices():
    result = greedy(weighted_chain([5, 5], [5, 5], of={"b": {"allowed_devices": {"gpu0"}}}))
    assert result.status is SolveStatus.FEASIBLE
    assert dict(result.plan.assignment) == {"a": "gpu1", "b": "gpu0"}


def test_units_and_what_lies_between_their_operators_stay_whole():
    problem = weighted_chain(
        [3, 3, 3, 3], [9, 9], colocation=(ColocationGroup(("b", "d"), "a test"),)
    )
    result = greedy(problem)
    assert result.status is SolveStatus.FEASIBLE
    where = result.plan.assignment
    assert where["b"] == where["c"] == where["d"] != where["a"]


@pytest.mark.parametrize("capacities", [[4, 4], [3, 2], [1, 1]])
def test_what_fits_nowhere_is_placed_and_reported(capacities):
    problem = weighted_chain([5, 5, 5], capacities)
    result = greedy(problem)
    assert result.status is SolveStatus.UNKNOWN
    assert set(result.plan.assignment) == {"a", "b", "c"}
    assert "too few" in result.reason
    assert result.objective_values is None
    assert result.objective_bounds is None


def test_training_counts_microbatches_in_flight():
    of = {name: {"backward": Backward(residual_bytes=size)} for name, size in (("a", 3), ("b", 4))}
    settings = {"memory_model": "training", "schedule": "gpipe", "microbatches": 2}
    problem = chain(
        "ab", value_bytes=0, of=of, devices=(Device("d0", 12), Device("d1", 12)), **settings
    )
    assert placed(problem) in ("01", "10")  # 14 bytes on one device
    assert placed(problem.replace(schedule="1f1b")) == "00"  # one stage has one in flight


@counts(170, 500, quick=80)
def test_random_answers_are_total_judged_and_never_better_than_the_optimum(count):
    feasible = solvable = 0
    for seed in range(count):
        problem = random_problem(seed)
        best = brute_force(to_instance(problem))
        result = greedy(problem)
        assert result.evaluation == evaluate(problem, result.plan)
        assert not any("must share" in text for text in result.evaluation.violations)
        check_true(result, best, seed)
        solvable += best is not None
        feasible += result.status is SolveStatus.FEASIBLE
        assert result.status is SolveStatus.FEASIBLE or result.reason
    # A baseline that never fits would be no baseline.
    assert feasible >= 0.9 * solvable


@counts(140, 400)
def test_a_limit_on_devices_is_kept_where_pins_let_it(count):
    kept = feasible = solvable = 0
    for seed in range(count):
        problem = random_problem(seed, draw_chunks=True, chunks_per_device=1, max_operators=6)
        if problem.max_devices is None:
            continue
        best = brute_force(to_instance(problem))
        result = greedy(problem)
        assert result.plan is not None
        assert not result.plan.chunks
        within = len(result.plan.device_order) <= problem.max_devices
        kept += within
        feasible += result.status is SolveStatus.FEASIBLE
        solvable += best is not None
        if not within:
            assert result.status is SolveStatus.UNKNOWN
            assert any(op.allowed_devices is not None for op in problem.operators)
    assert kept > count // 2
    assert feasible >= 0.75 * solvable


def test_a_limit_on_devices_takes_the_largest_that_pins_allow():
    problem = weighted_chain([5, 5, 5], [10, 12, 9, 7])
    assert placed(problem.replace(max_devices=2)) == "001"
    pinned = weighted_chain([5, 5, 5], [10, 12, 9, 7], of={"c": {"allowed_devices": {"gpu2"}}})
    assert placed(pinned.replace(max_devices=2)) == "112"


def test_the_answer_depends_on_nothing_but_the_problem():
    script = (
        "from tests.support.random_problems import random_problem\n"
        "from solver.heuristics.greedy import greedy_plan\n"
        "for seed in range(60):\n"
        "    plan = greedy_plan(random_problem(seed))\n"
        "    print(list(plan.assignment.items()), plan.device_order)\n"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(answers) == 1
    assert answers.pop().count("\n") == 60


@pytest.mark.parametrize("capacity", [300, 30000])
def test_the_work_is_near_linear(capacity, monkeypatch):
    """Tests that sizing looks at each of 3,000 operators about log(n) times."""
    count = 3000
    looked_at = 0
    size = solver.heuristics.greedy.stage_memory_bytes

    def counting(problem, operators, in_flight=1):
        nonlocal looked_at
        looked_at += len(operators)
        return size(problem, operators, in_flight)

    monkeypatch.setattr(solver.heuristics.greedy, "stage_memory_bytes", counting)
    reads = {f"op{i}": {"reads": [f"op{i - 1}", f"op{i - 7}"]} for i in range(7, count)}
    devices = [Device(f"d{i}", capacity) for i in range(8)]
    problem = chain(count, latency_ns=0, value_bytes=8, weight_bytes=20, of=reads, devices=devices)
    result = greedy(problem)
    assert (result.status is SolveStatus.FEASIBLE) == (capacity == 30000)
    assert looked_at < 250 * count


def test_1f1b_keeps_fewer_microbatches_in_later_stages():
    saves = {"backward": Backward(residual_bytes=1)}
    devices, settings = (Device("d0", 4), Device("d1", 3)), {"schedule": "1f1b", "microbatches": 8}
    fields = {"devices": devices, "memory_model": "training", **settings}
    problem = chain("abcde", value_bytes=0, of=dict.fromkeys("abcde", saves), **fields)
    result = greedy(problem)
    assert result.status is SolveStatus.FEASIBLE  # 2 x 2 bytes, then 1 x 3 bytes
    assert placed(problem) == "00111"


def test_a_device_without_a_cycle_is_preferred_for_what_is_left():
    # {b} and {c} take d1 and d0. a would fit beside c, but a -> b -> c.
    result = greedy(weighted_chain([4, 8, 5], [10, 8]))
    assert result.status is SolveStatus.UNKNOWN
    assert "cycle" not in result.reason
    assert result.plan.assignment["a"] == result.plan.assignment["b"]


@pytest.mark.parametrize(
    ("weights", "rooms", "places"),
    [
        ([4, 3, 3], [9, 10, 9], ["111"]),
        ([4, 3, 3, 4], [7, 7], ["0011"]),
        ([5, 5, 5, 5], [5, 10, 5], ["1102", "1120"]),
        ([5, 5], [20, None], ["11"]),
    ],
)
def test_the_largest_device_is_filled_first_to_the_last_byte(weights, rooms, places):
    assert placed(weighted_chain(weights, rooms)) in places
