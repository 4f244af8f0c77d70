"""The least bottleneck of chains of ideals, against all chains."""

import functools

import numpy as np
import pytest

import solver.dp.bottleneck
from solver import Device
from solver.dp.bottleneck import BottleneckSearch
from solver.dp.sweep import GaveUp
from solver.model.training import in_flight
from tests.support.graphs import chain
from tests.support.ideal_cases import costs_of, stage_costs, stages_of
from tests.support.oracle import brute_force
from tests.support.problem_counts import counts
from tests.support.random_problems import to_instance


def capacity_of(costs):
    return [
        np.inf if kind.device.memory_bytes is None else float(kind.device.memory_bytes)
        for kind in costs.kinds
    ]


def followed(problem, behind):
    """Microbatches in flight in a stage with so many behind it."""
    return in_flight(
        problem.schedule, problem.microbatches, chunks=1, devices=behind + 1, followers=behind
    )


def least_bottleneck(costs, sets):
    """The least bottleneck by recursion over all chains; None if there is none."""
    capacity = capacity_of(costs)
    ends = {}
    for start, end in stages_of(costs):
        ends.setdefault(start, []).append(end)

    @functools.cache
    def load_ns(kind, start, end, behind):
        pair = np.array([start]), np.array([end])
        may = costs.allowed(kind, *pair)
        held = costs.held.exact(start, end, followed(costs.problem, behind))
        if (may is not None and not may.all()) or held > capacity[kind]:
            return np.inf
        return float(costs.load_ns(kind, *pair)[0, 0])

    @functools.cache
    def best(ideal, counts):
        if ideal == len(costs.ideals) - 1:
            return np.inf if any(counts) else 0.0
        found = np.inf
        for kind, count in enumerate(counts):
            if count:
                rest = (*counts[:kind], count - 1, *counts[kind + 1 :])
                for end in ends[ideal]:
                    stage_ns = load_ns(kind, ideal, end, sum(rest))
                    if stage_ns < found:
                        found = min(found, max(stage_ns, best(end, rest)))
        return found

    value = min(best(0, tuple(counts)) for counts in sets.counts.tolist())
    return None if value == np.inf else value


def search_of(costs, sets, known=None, spend=lambda pairs: None):
    def incumbent(*, thorough=False):
        return known

    return BottleneckSearch(costs, sets, capacity_of(costs), incumbent, spend)


def is_plan(costs, solution):
    """Whether stages follow each other from nothing to everything, below the value."""
    place = 0
    for behind, stage in zip(reversed(range(len(solution.stages))), solution.stages, strict=True):
        pair = np.array([stage.start]), np.array([stage.end])
        held = costs.held.exact(stage.start, stage.end, followed(costs.problem, behind))
        if (
            stage.start != place
            or costs.load_ns(stage.kind, *pair)[0, 0] > solution.values["bottleneck"]
            or held > capacity_of(costs)[stage.kind]
        ):
            return False
        place = stage.end
    used = [stage.kind for stage in solution.stages]
    enough = all(used.count(k) <= len(kind.devices) for k, kind in enumerate(costs.kinds))
    return place == len(costs.ideals) - 1 and enough


@pytest.mark.parametrize("known", [False, True])
@counts(80, 120, quick=80)
def test_it_equals_all_chains(count, known):
    solved = raised = stages = 0
    for seed in range(count):
        costs, sets = stage_costs(seed, max_operators=6)
        expected = least_bottleneck(costs, sets)
        optimum = brute_force(to_instance(costs.problem))
        search = search_of(costs, sets, optimum[0][0] if known and optimum else None)
        found = search.minimise()
        if expected is None:
            assert found is None, seed
            assert optimum is None
            continue
        value = found.values["bottleneck"]
        assert search.refuted == value - 1, seed
        # The incumbent's are not known, and needed only if it is not the best plan.
        assert is_plan(costs, found) if found.stages else known and value == optimum[0][0], seed
        stages += len(found.stages)
        # More sends than the stages say may be counted, never too many.
        assert expected <= value <= optimum[0][0], seed
        raised += value > expected
        solved += value == optimum[0][0]
    assert solved > count // 2
    assert raised
    assert stages


@pytest.mark.parametrize("most", [3, 10, 30])
@counts(20, 60, quick=20)
def test_long_lists(count, monkeypatch, most):
    """Tests that lower ceilings shorten lists, and that without any that does a bound is left."""
    monkeypatch.setattr(solver.dp.bottleneck, "_MOST_STAGES", most)
    solved = stopped = 0
    for seed in range(count):
        costs, sets = stage_costs(seed, max_operators=6)
        expected = least_bottleneck(costs, sets)
        search = search_of(costs, sets)
        try:
            found = search.minimise()
        except GaveUp as reason:
            assert f"more than {most} stages" in str(reason)
            assert expected is None or search.refuted < expected
            stopped += 1
        else:
            if expected is None:
                assert found is None
            else:
                optimum = brute_force(to_instance(costs.problem))[0][0]
                assert expected <= found.values["bottleneck"] <= optimum, seed
            solved += 1
    assert solved > count // 12
    assert stopped > count // 12 or most == 30


def test_it_stops_with_what_it_has():
    """Tests every effort: the bound never passes the optimum, the plan is never better."""
    costs, sets = stage_costs(47, max_operators=8)
    expected = least_bottleneck(costs, sets)
    bounds, plans = [], 0
    for effort in range(0, 100_000, 29):
        left = effort

        def spend(pairs):
            nonlocal left
            left -= pairs
            if left < 0:
                raise GaveUp("enough")

        search = search_of(costs, sets, spend=spend)
        try:
            search.minimise()
        except GaveUp:
            bounds.append(search.refuted + 1)
            if search.best is not None:
                assert search.best.values["bottleneck"] >= expected
                assert is_plan(costs, search.best)
                plans += 1
        else:
            break
    assert search.best.values["bottleneck"] == expected
    assert bounds == sorted(bounds)
    assert bounds[-1] <= expected
    assert plans > 3


def value_at_the_end():
    """The costs of a graph whose last value no device holds besides the operators beside it."""
    names = [*(f"step{i}" for i in range(80)), "head", "last"]
    times, sizes = [10] * 80 + [500, 500], [1] * 80 + [300, 0]
    devices = [Device(f"d{i}") for i in range(6)]
    return costs_of(chain(names, latency_ns=times, value_bytes=sizes, devices=devices))


def test_what_the_end_of_the_graph_rules_out_lists_few_stages(monkeypatch):
    monkeypatch.setattr(solver.dp.bottleneck, "_FEW_STAGES", 500)
    costs, sets = value_at_the_end()
    looked_at = []
    search = search_of(costs, sets, 801, looked_at.append)
    found = search.minimise()
    assert found.values == {"bottleneck": 801}
    assert search.refuted == 800
    few = sum(looked_at)
    looked_at.clear()
    # What is better than a worse incumbent has to be found, among many stages.
    found = search_of(costs, sets, 1000, looked_at.append).minimise()
    assert found.values == {"bottleneck": 801}
    assert is_plan(costs, found)
    assert few < sum(looked_at)


def test_a_plan_one_better_than_the_incumbent_is_found_where_few_stages_decide_nothing(
    monkeypatch,
):
    monkeypatch.setattr(solver.dp.bottleneck, "_FEW_STAGES", 0)
    costs, sets = value_at_the_end()
    search = search_of(costs, sets, 802)
    found = search.minimise()
    assert found.values == {"bottleneck": 801}
    assert search.refuted == 800
    assert is_plan(costs, found)
