"""Dominance reductions against brute force, and repaired plans against the evaluator."""

import itertools
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from oracle import brute_force
from random_problems import random_problem, to_instance

from solver.dominance import simplify
from solver.evaluate import evaluate
from solver.plan import PartitionPlan
from solver.reduce import condense

BLOCK = 100
DEFAULT_BLOCKS = range(20)
NIGHTLY_BLOCKS = range(1_000, 1_200)


def small_problem(seed, most_plans):
    """A random problem with at most so many assignments of units to devices and chunks."""
    for attempt in itertools.count():
        draw = seed + 1_000_000 * attempt
        problem = random_problem(draw, min_operators=3, max_operators=6, draw_chunks=True)
        places = len(problem.devices) * problem.chunks_per_device
        if places ** len(problem.units) <= most_plans:
            return problem
    raise AssertionError("unreachable")


def reducible_problem(seed, most_plans=256):
    """A random problem with chains, fans, views, free and cheap operators and large values."""
    rng = random.Random(f"reducible {seed}")
    problem = small_problem(seed, most_plans)
    shape = rng.choice(("as it is", "chain", "fan"))
    names = {op.name for op in problem.operators}
    factor = rng.choice((1, 3, 10))
    operators = []
    for index, op in enumerate(problem.operators):
        reads = op.reads
        inner = [name for name in reads if name in names]
        if shape == "chain" and len(inner) > 1:
            inner = rng.sample(inner, rng.choice((1, 1, 2)))
        elif shape == "fan" and index > 1:
            # One value with several readers, and one reader of them all.
            last = index == len(problem.operators) - 1
            inner = [f"op{i}" for i in range(1, index)] if last else ["op0"]
        outer = tuple(name for name in reads if name not in names and rng.random() < 0.5)
        reads = (*inner, *outer)
        latency = op.latency_ns
        if rng.random() < 0.6:
            scale = rng.choice((0, 0, 1))
            if isinstance(latency, Mapping):
                latency = {name: min(2, time) * scale for name, time in latency.items()}
            else:
                latency = min(2, latency) * scale
        alias_of = op.alias_of if op.alias_of in reads else None
        if alias_of is None and inner and rng.random() < 0.4:
            alias_of = inner[0]
        value_bytes = op.value_bytes * rng.choice((1, factor))
        operators.append(
            replace(
                op,
                reads=reads,
                latency_ns=latency,
                alias_of=alias_of,
                storage_bytes=0 if alias_of is not None else op.storage_bytes,
                value_bytes=value_bytes,
                weights=op.weights if rng.random() < 0.3 else (),
                saves=op.saves if rng.random() < 0.3 else (),
                is_output=op.is_output and rng.random() < 0.7,
                is_backward=op.is_backward and rng.random() < 0.6,
            )
        )
    devices = problem.devices
    if rng.random() < 0.3:
        devices = tuple(replace(device, memory_bytes=None) for device in devices)
    return problem.replace(operators=tuple(operators), devices=devices)


def with_merges(problem, simplified):
    """The plain data of `problem` with the merged units as colocation groups."""
    instance = to_instance(problem)
    instance["colocation"] = [
        [problem.operators[index].name for index in members]
        for members in simplified.units.members
        if len(members) > 1
    ]
    return instance


def random_feasible_plan(problem, rng):
    """A feasible plan, or None if none was drawn."""
    units = condense(problem)
    names = [device.name for device in problem.devices]
    for _ in range(10):
        order = rng.sample(names, len(names))
        stages = [(c, name) for c in range(problem.chunks_per_device) for name in order]
        stages = sorted(rng.sample(range(len(stages)), rng.randint(1, len(stages))))
        places = [(c, name) for c in range(problem.chunks_per_device) for name in order]
        places = [places[index] for index in stages]
        at = {}
        for unit in range(len(units)):
            least = max((at[a] for a, b in units.edges if b == unit), default=0)
            allowed = units.allowed_devices[unit]
            fit = [
                index
                for index in range(least, len(places))
                if allowed is None or places[index][1] in allowed
            ]
            if not fit:
                break
            # Mostly close by, so that later units have some choice left.
            at[unit] = fit[min(int(rng.expovariate(1.5)), len(fit) - 1)]
        else:
            device_of = [places[at[unit]][1] for unit in range(len(units))]
            assignment = units.lift(device_of)
            unit_of = units.unit_of_operator()
            chunks = {op.name: places[at[unit_of[i]]][0] for i, op in enumerate(problem.operators)}
            used = set(assignment.values())
            plan = PartitionPlan(assignment, tuple(n for n in order if n in used), chunks)
            if evaluate(problem, plan).feasible:
                return plan
    return None


def check(problem, label, fired, rng):
    """Tests one problem, and counts the rules that fired and the plans that were repaired."""
    units = condense(problem)
    simplified = simplify(units)
    fired.update(merge.rule for merge in simplified.merges)
    assert len(units) - len(simplified.units) == len(simplified.merges), label
    assert all(a < b for a, b in simplified.units.edges), label
    if not simplified.merges:
        return
    fired["problems"] += 1
    best = brute_force(to_instance(problem))
    merged = brute_force(with_merges(problem, simplified))
    assert (best is None) == (merged is None), label
    if best is None:
        return
    assert merged[0] == best[0], f"{label}: the optimum is {best}, with merges {merged}"
    for _ in range(3):
        plan = random_feasible_plan(problem, rng)
        if plan is None:
            continue
        repaired = simplified.repair(plan)
        before, after = evaluate(problem, plan), evaluate(problem, repaired)
        assert after.feasible, f"{label}: {after.violations} after {plan}"
        for name in problem.objective:
            assert after.value(name) <= before.value(name), f"{label}: {name} of {plan}"
        for members in simplified.units.members:
            assert len({repaired.stage_of(problem.operators[i].name) for i in members}) == 1
        assert simplified.repair(repaired) == repaired, label
        fired["repaired"] += (
            plan.assignment != repaired.assignment or plan.chunks != repaired.chunks
        )


def check_block(block, fired):
    rng = random.Random(f"plans {block}")
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        check(reducible_problem(seed), f"seed {seed}", fired, rng)


def test_some_best_plan_survives():
    fired = Counter()
    for block in DEFAULT_BLOCKS:
        check_block(block, fired)
    for rule in (
        "free to producer",
        "cheap to producer",
        "free to reader",
        "cheap to reader",
        "beside",
        "fan",
        "problems",
        "repaired",
    ):
        assert fired[rule] >= 50, fired


@pytest.mark.nightly
@pytest.mark.parametrize("block", NIGHTLY_BLOCKS)
def test_some_best_plan_survives_in_more_problems(block):
    check_block(block, Counter())
