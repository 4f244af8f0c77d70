"""Cuts with a device order for many sets of devices, against all cuts and orders of small ones."""

import dataclasses
import itertools
from collections import Counter

import pytest

from solver import Device, Interconnect, Link
from solver.dp.contiguous import linked_kinds as kinds_module
from solver.dp.contiguous import solver as chain
from solver.dp.contiguous.cut_places import CutPlaces
from solver.dp.contiguous.farthest_cuts import farthest_cuts
from solver.dp.contiguous.limit_program import KindCosts, LimitProgram
from solver.dp.contiguous.linked_kinds import linked_kinds
from solver.dp.contiguous.segments import SegmentTables
from solver.dp.kernels import device_sets
from solver.dp.kernels.device_sets import are_few
from solver.evaluation.evaluate import evaluate
from solver.model.clock import Clock
from solver.presolve.device_kinds import DeviceSets
from solver.presolve.instance import condense
from tests.support import graphs
from tests.support.ideal_cases import cuts_of
from tests.support.problem_counts import counts
from tests.support.random_problems import random_problem


def least_ns(units):
    judged = (evaluate(units.problem, plan) for plan, _ in cuts_of(units))
    return min((entry.bottleneck_ns for entry in judged if entry.feasible), default=None)


def searched_ns(units, **settings):
    plan = farthest_cuts(units, **settings)
    if plan is None:
        return None
    evaluation = evaluate(units.problem, plan)
    assert evaluation.feasible, evaluation.violations
    return evaluation.bottleneck_ns


def problems(count, **replaced):
    for seed in range(count):
        problem = random_problem(seed, max_operators=7, objective=("bottleneck",), **replaced)
        units = condense(problem)
        if all(allowed is None or allowed for allowed in units.allowed_devices):
            yield seed, problem, units


def without_transfers(problem):
    """Return a problem whose costs only grow with a segment: weights, and no times of transfers."""
    operators = tuple(dataclasses.replace(op, transfer_ns=None) for op in problem.operators)
    return problem.replace(operators=operators, interconnect=Interconnect(), memory_model="weights")


@counts(34, 100, quick=34)
def test_it_finds_the_best_where_costs_only_grow_with_a_segment(count):
    """Then the farthest place is the best one; bisection leaves a part in 2,000."""
    compared = infeasible = pinned = 0
    for seed, problem, _ in problems(count):
        units = condense(without_transfers(problem))
        expected, found = least_ns(units), searched_ns(units)
        assert (found is None) == (expected is None), seed
        if expected is not None:
            assert expected <= found <= expected * (1 + 1 / 1000), seed
            compared += 1
            pinned += any(allowed is not None for allowed in units.allowed_devices)
        infeasible += expected is None
    assert compared > count * 3 // 5 and infeasible > count // 20 and pinned > count // 10


@pytest.mark.parametrize("relayed", [False, True])
@counts(30, 80)
def test_it_is_nearly_as_good_as_all_cuts_and_orders(count, relayed):
    """No better than the best of them, feasible wherever one is, and mostly the best."""
    ways = Counter()
    for seed, _, units in problems(count, relayed=relayed):
        expected, found = least_ns(units), searched_ns(units)
        assert (found is None) == (expected is None), seed
        if expected is not None:
            assert found >= expected, seed
            uniform = not units.problem.interconnect.links
            ways[uniform, found == expected] += 1
    assert ways[True, True] > count * 3 // 16 and ways[False, True] > count // 16
    assert ways[True, False] <= 0.1 * ways[True, True]
    assert ways[False, False] <= ways[False, True]


def test_tables_cost_what_the_evaluator_does():
    """Of plans whose stages all have the same links, and whose values have one reader stage."""
    compared = 0
    for seed, problem, units in problems(150):
        interconnect = problem.interconnect
        if interconnect.charging != "host_staged" or any(
            op.is_backward for op in problem.operators
        ):
            continue
        kinds = linked_kinds(units)
        costs = KindCosts(units, kinds)
        places = CutPlaces(units).spread(100)
        tables = SegmentTables.of(units, places, len(places) - 1, costs.send_ns, costs.receive_ns)
        sets = DeviceSets.of([len(kind.names) for kind in kinds], len(problem.devices))
        program = LimitProgram(costs, tables, sets)
        stages = program.stages(program.most_ns)
        if stages is None:
            continue
        evaluation = evaluate(problem, program.plan(stages))
        assert evaluation.feasible, seed
        assert max(program.stage_loads_ns(stages)) == evaluation.bottleneck_ns, seed
        starts = places[[stage.start for stage in stages]]
        assert program.located([stage.kind for stage in stages], starts) == stages
        compared += 1
    assert compared > 15


def nodes_of_two(count, operators=12, **settings):
    """A path of operators on devices in nodes of two, all of them different."""
    names = [f"d{i}" for i in range(count)]
    pairs = itertools.permutations(range(count), 2)
    links = {(names[i], names[j]): Link(10**9) for i, j in pairs if i // 2 == j // 2}
    settings = {"interconnect": Interconnect(Link(10**8), links), **settings}
    times = [20 + 7 * i % 5 for i in range(operators)]
    sizes = [1 + i % 3 for i in range(operators)]
    devices = tuple(map(Device, names))
    return graphs.chain(operators, latency_ns=times, value_bytes=sizes, devices=devices, **settings)


def test_neighbours_of_a_node_pay_for_their_own_links():
    units = condense(nodes_of_two(4, operators=8))
    kinds = linked_kinds(units)
    assert [kind.names for kind in kinds] == [("d0", "d1"), ("d2", "d3")]
    assert [kind.node for kind in kinds] == [0, 1]
    plan = farthest_cuts(units)
    order = [int(name[1]) // 2 for name in plan.device_order]
    assert order in ([0, 0, 1, 1], [1, 1, 0, 0])
    assert evaluate(units.problem, plan).bottleneck_ns == least_ns(units)


def test_links_that_are_not_those_of_nodes_are_taken_for_the_slowest(monkeypatch):
    problem = nodes_of_two(4)
    links = dict(problem.interconnect.links) | {("d1", "d2"): Link(5 * 10**8)}
    crooked = problem.replace(interconnect=Interconnect(Link(10**8), links))
    [kind] = linked_kinds(condense(crooked))
    assert kind.names == ("d0", "d1", "d2", "d3")
    assert {link.bandwidth_bytes_per_s for pair in kind.send[0] for link in pair} == {
        10**8,
        5 * 10**8,
        10**9,
    }
    # So are nodes of which there are too many.
    monkeypatch.setattr(kinds_module, "_MOST_SETS", 8)
    [kind] = linked_kinds(condense(problem))
    assert kind.send[0] == kind.send[1]
    monkeypatch.setattr(kinds_module, "_MOST_SETS", 4)
    assert linked_kinds(condense(problem)) is None
    assert farthest_cuts(condense(problem)) is None


def test_late_searches_end_with_their_first_plan(monkeypatch):
    units = condense(nodes_of_two(8))
    asked = []
    stages = LimitProgram.stages
    monkeypatch.setattr(
        LimitProgram, "stages", lambda self, limit: asked.append(limit) or stages(self, limit)
    )
    plan = farthest_cuts(units, clock=Clock(0.0))
    assert evaluate(units.problem, plan).feasible
    assert len(asked) == 1
    best = farthest_cuts(units)
    assert len(asked) > 5
    assert farthest_cuts(units) == best
    assert evaluate(units.problem, best).bottleneck_ns < evaluate(units.problem, plan).bottleneck_ns


def test_other_problems_are_left_alone():
    problem = nodes_of_two(4)
    others = [
        problem.replace(objective=("latency",)),
        problem.replace(chunks_per_device=2),
        problem.replace(cuts=("op3",)),
    ]
    assert all(farthest_cuts(condense(other)) is None for other in others)


@pytest.mark.parametrize("later", [(), ("transfer",)])
@counts(20, 60)
def test_chains_use_it_where_sets_are_many(count, monkeypatch, later):
    monkeypatch.setattr(device_sets, "_MOST_STATES", 0)
    better = 0
    for seed, problem, units in problems(count):
        problem = problem.replace(objective=("bottleneck", *later))
        assert not are_few(units)
        found = searched_ns(units)
        plan = chain.contiguous_plan(problem)
        cut = chain.best_cut(units)
        if found is None:
            continue
        reached = evaluate(problem, plan).objective[0]
        assert reached <= found, seed
        assert evaluate(problem, cut).bottleneck_ns == found, seed
        with monkeypatch.context() as patch:
            patch.setattr(chain, "farthest_cuts", lambda *args, **settings: None)
            orders_alone = chain.contiguous_plan(problem)
        if orders_alone is None:
            better += 1
        else:
            better += reached < evaluate(problem, orders_alone).objective[0]
    assert better > count // 30
