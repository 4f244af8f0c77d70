"""Sends of values with several readers, against the evaluator."""

import itertools
import random

import numpy as np
import pytest

from solver import Device, Interconnect, Link, Operator, PartitionProblem, SolveLimits, solve
from solver.dp.readers import Readers
from solver.dp.set_bits import SetBits
from solver.dp.stage_list import Families, StageLister
from solver.dp.sweep import Stage
from solver.evaluation.evaluate import evaluate
from solver.evaluation.result import SolveStatus
from solver.model.plan import PartitionPlan
from tests.support.ideal_cases import costs_of
from tests.support.oracle import brute_force
from tests.support.random_problems import to_instance


def problem_of(seed, *, overlap=False):
    """A chain with values that later operators read as well."""
    rng = random.Random(seed)
    operators = []
    for index in range(6):
        reads = {index - 1} if index else set()
        reads |= {rng.randrange(index) for _ in range(2) if index and rng.random() < 0.7}
        names = tuple(f"op{read}" for read in sorted(reads))
        operators.append(
            Operator(f"op{index}", rng.randint(1, 9), names, value_bytes=rng.randint(0, 6))
        )
    return PartitionProblem(
        tuple(operators),
        tuple(Device(f"d{i}") for i in range(4)),
        interconnect=Interconnect(Link(1_000_000_000), overlap=overlap),
    )


def chains(costs, place=0, left=4):
    """All plans, as borders between stages."""
    if place == len(costs.ideals) - 1:
        yield ()
    for end in range(len(costs.ideals)) if left and place != len(costs.ideals) - 1 else ():
        if (
            end != place
            and not (costs.ideals.member[:, place] & ~costs.ideals.member[:, end]).any()
        ):
            for rest in chains(costs, end, left - 1):
                yield (Stage(0, place, end), *rest)


def true_loads_ns(costs, stages):
    of_block = {
        int(block): place
        for place, stage in enumerate(stages)
        for block in np.flatnonzero(
            costs.ideals.member[:, stage.end] & ~costs.ideals.member[:, stage.start]
        )
    }
    of_unit = costs.blocks.stage_of_units([of_block[b] for b in range(costs.blocks.count)])
    order = tuple(f"d{place}" for place in range(len(stages)))
    plan = PartitionPlan(costs.units.lift([order[place] for place in of_unit]), order)
    loads = {usage.device: usage.load_ns for usage in evaluate(costs.problem, plan).usage}
    return [loads.get(name, 0) for name in order]


def loads_ns(costs, stages):
    return [
        int(costs.load_ns(0, np.array([stage.start]), np.array([stage.end]))[0, 0])
        for stage in stages
    ]


def list_of(costs, ceiling):
    bits = SetBits([4], 4)
    may = bits.pack(np.ones((5, len(costs.ideals)), dtype=np.bool_))
    families = Families(bits, len(costs.ideals), may)
    lister = StageLister(costs, [np.inf], (1, 1, 1, 1), lambda pairs: None)
    return lister.fill(families, ceiling, 100_000)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_missing_is_what_the_evaluator_adds(seed):
    costs, _ = costs_of(problem_of(seed))
    readers, some = Readers(costs), 0
    for stages in itertools.islice(chains(costs), 300):
        loads = loads_ns(costs, stages)
        for at, time_ns in readers.missing(stages, {}).values():
            loads[at] += time_ns
            some += 1
        assert loads == true_loads_ns(costs, stages)
    assert some > 5


@pytest.mark.parametrize("seed", range(6))
def test_raised_loads_are_no_more_than_true_ones(seed):
    """Tests all plans below several ceilings: none is lost, and no load exceeds the true one."""
    costs, _ = costs_of(problem_of(seed))
    readers = Readers(costs)
    plans = [(stages, true_loads_ns(costs, stages)) for stages in chains(costs)]
    values = sorted({max(loads) for _, loads in plans})
    changed = 0
    for ceiling in values[:: max(1, len(values) // 8)]:
        stages = list_of(costs, ceiling)
        while (raised := readers.raised(stages, range(len(readers)))) is not None:
            stages = raised.below(ceiling)
            changed += 1
        starts = np.repeat(stages.start, np.diff(stages.first))
        listed = {
            (int(start), int(end)): load_ns
            for start, end, load_ns in zip(starts, stages.end, stages.load_ns, strict=True)
        }
        below = [(plan, loads) for plan, loads in plans if max(loads) <= ceiling]
        assert below
        for plan, loads in below:
            known = [listed[stage.start, stage.end] for stage in plan]
            assert all(k <= load for k, load in zip(known, loads, strict=True))
            for at, time_ns in readers.missing(plan, stages.sends).values():
                known[at] += time_ns
            assert known == loads
    assert changed


def test_overlapping_sends_are_left_alone():
    assert len(Readers(costs_of(problem_of(1, overlap=True))[0])) == 0
    assert len(Readers(costs_of(problem_of(1))[0])) > 0


def test_a_value_that_each_stage_reads():
    """Tests that a proof is found which counting one send of the value would not give."""
    operators = [Operator("mask", 1, transfer_ns=5)]
    for layer in range(4):
        reads = ("mask", f"op{layer - 1}") if layer else ("mask",)
        operators.append(Operator(f"op{layer}", 20, reads, transfer_ns=1))
    problem = PartitionProblem(tuple(operators), tuple(Device(f"d{i}") for i in range(4)))
    result = solve(problem, SolveLimits(workers=1), solver="ideal-dp")
    assert result.status is SolveStatus.OPTIMAL
    assert result.objective_values == brute_force(to_instance(problem))[0]
