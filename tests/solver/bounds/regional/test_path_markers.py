"""Bounds from a path, against brute force."""

import itertools
from collections import Counter
from collections.abc import Mapping

from solver import Device, Interconnect, Link, Operator, PartitionPlan, PartitionProblem, evaluate
from solver.bounds.averages import least_average_ns
from solver.bounds.regional.path_markers import PathBound
from solver.bounds.regional.positions import PositionBound
from solver.presolve.device_kinds import usable_devices
from solver.presolve.instance import condense
from tests.support.graphs import streams
from tests.support.oracle import brute_force
from tests.support.random_problems import to_instance


def test_the_bound_is_true_of_streams_and_sees_their_transfers():
    seen = Counter()
    for seed in range(200):
        problem = streams(seed)
        best = brute_force(to_instance(problem))
        if best is None:
            continue
        units = condense(problem)
        average = least_average_ns(units)
        bound = PathBound(units, usable_devices(units)).least_bottleneck_ns(average)
        assert average <= bound <= best[0][0], seed
        seen["compared"] += 1
        seen["above the average"] += bound > average
        seen["optimal"] += bound == best[0][0]
        seen["above the other bound"] += bound > PositionBound(
            units, usable_devices(units)
        ).least_bottleneck_ns(average)
    assert seen["compared"] >= 150
    assert seen["above the average"] >= 120
    assert seen["optimal"] >= 30
    assert seen["above the other bound"] >= 80


def test_no_plan_gets_farther_than_the_rooms():
    """Tests every plan of every device order: the work of its first and of its last stages."""
    binding = 0
    for seed in range(500, 530):
        problem = streams(seed, layers=3)
        units = condense(problem)
        bound = PathBound(units, len(problem.devices))
        names = [op.name for op in problem.operators]
        work = {op.name: min(_latencies(op)) for op in problem.operators}
        edges = [(read, op.name) for op in problem.operators for read in op.reads]
        for order in itertools.permutations(problem.devices):
            plans = []
            for stages in itertools.product(range(len(order)), repeat=len(names)):
                stage_of = dict(zip(names, stages, strict=True))
                if any(stage_of[read] > stage_of[reader] for read, reader in edges):
                    continue
                assignment = {name: order[stage].name for name, stage in stage_of.items()}
                used = {order[stage].name for stage in stages}
                plan = PartitionPlan(assignment, tuple(d.name for d in order if d.name in used))
                found = evaluate(problem, plan)
                if found.feasible:
                    done = [
                        sum(work[name] for name in names if stage_of[name] <= stage)
                        for stage in range(len(order))
                    ]
                    plans.append((found.objective[0], done))
            total = sum(work.values())
            for limit_ns in sorted({value for value, _ in plans})[:3]:
                good = [done for value, done in plans if value <= limit_ns]
                rooms = bound.most_work_ns(limit_ns, len(order), order)
                back = bound.most_work_from_end_ns(limit_ns, len(order), order)
                for stage, room in enumerate(rooms):
                    most = max(done[stage] for done in good)
                    assert most <= room, (seed, order, limit_ns)
                    binding += 0 < most == room < total
                for count, room in enumerate(back[:-1], start=1):
                    most = max(total - done[len(order) - 1 - count] for done in good)
                    assert most <= room, (seed, order, limit_ns)
                    binding += 0 < most == room < total
    assert binding > 50


def _latencies(op):
    return op.latency_ns.values() if isinstance(op.latency_ns, Mapping) else [op.latency_ns]


def test_two_chains_that_read_each_other_pay_for_both():
    """Two streams of five operators; a cut through the middle sends two values, others one more."""
    operators = []
    for step in range(5):
        for side in "ab":
            reads = (f"a{step - 1}", f"b{step - 1}") if step else ()
            operators.append(Operator(f"{side}{step}", 10, reads, value_bytes=2))
    problem = PartitionProblem(
        operators=operators,
        devices=[Device("d0"), Device("d1")],
        interconnect=Interconnect(Link(10**9, 0)),
        memory_model="weights",
    )
    units = condense(problem)
    best = brute_force(to_instance(problem))
    assert PositionBound(units, 2).least_bottleneck_ns(50) == 50
    assert 55 <= PathBound(units, 2).least_bottleneck_ns(50) <= best[0][0] == 56
