"""Dominance reductions against brute force, and repaired plans against the evaluator."""

import itertools
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from solver.evaluation.evaluate import evaluate
from solver.model.devices import STAGING_HOST, Device, Interconnect, Link
from solver.model.errors import PartitionError
from solver.model.operators import Operator
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import ColocationGroup, GraphInput
from solver.model.training import Backward
from solver.presolve.dominance import simplify
from solver.presolve.instance import condense
from tests.support.oracle import brute_force
from tests.support.problem_counts import counts
from tests.support.random_problems import random_problem, to_instance

BLOCK = 100


def small_problem(seed, most_plans):
    """A random problem with at most so many assignments of units to devices and chunks."""
    for attempt in itertools.count():
        draw = seed + 1_000_000 * attempt
        problem = random_problem(draw, min_operators=3, max_operators=6, draw_chunks=True)
        places = len(problem.devices) * problem.chunks_per_device
        if places ** len(problem.units) <= most_plans:
            return problem
    raise AssertionError("unreachable")


def _less_backward(op, reads, is_alias, rng):
    """What may stay of the backward pass of `op` when it reads less and may own no storage."""
    if rng.random() < 0.7:
        return Backward()
    passes_to = op.backward.passes_to if op.backward.passes_to in reads else None
    kept_bytes = 0 if is_alias else op.backward.kept_bytes
    slices = tuple(name for name in op.backward.slices if name in reads)
    return replace(op.backward, passes_to=passes_to, slices=slices, kept_bytes=kept_bytes)


def reducible_problem(seed, most_plans=128):
    """A random problem with chains, fans, views, free and cheap operators and large values.

    Perhaps with a feasible plan of it, for which it may have no byte of memory to spare.
    """
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
                backward=_less_backward(op, reads, alias_of is not None, rng),
                is_output=op.is_output and rng.random() < 0.7,
                is_backward=op.is_backward and rng.random() < 0.6,
            )
        )
    objective = problem.objective[:1] if rng.random() < 0.5 else problem.objective
    problem = problem.replace(operators=tuple(operators), objective=objective)
    if rng.random() < 0.4:
        problem = problem.replace(interconnect=lopsided_interconnect(problem, rng))
    if rng.random() < 0.4:
        return problem, None
    problem = without_memory_limits(problem)
    plan = random_feasible_plan(problem, rng)
    if plan is not None and rng.random() < 0.7:
        problem = with_just_enough_memory(problem, plan)
    return problem, plan


def lopsided_interconnect(problem, rng):
    """Links of which many cost nothing, and others a lot in one direction."""
    names = [device.name for device in problem.devices]
    ends = [(a, b) for a in names for b in names if a != b]
    if rng.random() < 0.5:
        ends = [(STAGING_HOST, name) for name in names] + [(name, STAGING_HOST) for name in names]
    slow = rng.choice((Link(latency_ns=7), Link(bandwidth_bytes_per_s=10**8), Link()))
    uniform = rng.random() < 0.5
    reading = rng.random() < 0.5
    links = {}
    for source, target in ends:
        is_slow = (source == STAGING_HOST) == reading if uniform else rng.random() < 0.5
        links[source, target] = slow if is_slow else Link()
    charging = "host_staged" if (STAGING_HOST in ends[0]) else "peer_to_peer"
    return replace(problem.interconnect, links=links, charging=charging)


def without_memory_limits(problem):
    devices = tuple(replace(device, memory_bytes=None) for device in problem.devices)
    return problem.replace(devices=devices)


def with_just_enough_memory(problem, plan):
    """Give each device what it needs under `plan`: no plan may need more anywhere."""
    usage = evaluate(problem, plan).usage
    return problem.replace(
        devices=tuple(
            replace(device, memory_bytes=max(1, entry.memory_bytes))
            for device, entry in zip(problem.devices, usage, strict=True)
        )
    )


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
            unit_of = units.unit_of_operator
            chunks = {op.name: places[at[unit_of[i]]][0] for i, op in enumerate(problem.operators)}
            used = set(assignment.values())
            plan = PartitionPlan(assignment, tuple(n for n in order if n in used), chunks)
            if evaluate(problem, plan).feasible:
                return plan
    return None


def move_of(units, unit, anchor):
    """Where a unit moves, if nothing was merged into either before."""
    if anchor in units.predecessors[unit]:
        return "to producer"
    return "to reader" if anchor in units.successors[unit] else "beside"


def check(problem, known, label, fired, rng, plans=4):
    """Tests one problem, and counts the moves that were made and the plans that were repaired."""
    units = condense(problem)
    simplified = simplify(units)
    fired.update(move_of(units, *merge) for merge in simplified.merges)
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
    timed = bool({"bottleneck", "latency"} & set(problem.objective))
    drawn = [known, *(random_feasible_plan(problem, rng) for _ in range(plans))]
    for plan in drawn:
        if plan is None:
            continue
        repaired = simplified.repair(plan)
        before, after = evaluate(problem, plan), evaluate(problem, repaired)
        assert after.feasible, f"{label}: {after.violations} after {plan}"
        for name in problem.objective:
            assert after.value(name) <= before.value(name), f"{label}: {name} of {plan}"
        for old, new in zip(before.usage, after.usage, strict=True):
            # More than is needed: no load grows, not only the largest.
            assert not timed or new.load_ns <= old.load_ns, f"{label}: {old.device} of {plan}"
        for members in simplified.units.members:
            assert len({repaired.stage_of(problem.operators[i].name) for i in members}) == 1
        assert simplified.repair(repaired) == repaired, label
        fired["repaired"] += (
            plan.assignment != repaired.assignment or plan.chunks != repaired.chunks
        )


def operator(name, *reads, ns=1_000, value=0, **fields):
    return Operator(name, ns, reads=reads, value_bytes=value, **fields)


def anchor_of(problem, name):
    """The operator to whose stage `name` moves, perhaps itself."""
    units = condense(problem)
    simplified = simplify(units)
    unit = units.unit_of_operator[problem.index_of[name]]
    return problem.operators[units.members[simplified.anchor_of[unit]][0]].name


BYTE_PER_NS = Link(bandwidth_bytes_per_s=10**9)
THREE = tuple(Device(f"dev{i}") for i in range(3))


def timed(*operators, charging="peer_to_peer", links=None, objective="bottleneck"):
    """Operators on three devices with unlimited memory; a byte takes a nanosecond."""
    interconnect = Interconnect(BYTE_PER_NS, links or {}, charging)
    return PartitionProblem(operators, THREE, interconnect=interconnect, objective=objective)


def optima(problem):
    """The optimum by brute force, as the problem is and with its units merged."""
    simplified = simplify(condense(problem))
    instances = to_instance(problem), with_merges(problem, simplified)
    return [best and best[0] for best in map(brute_force, instances)]


@pytest.mark.parametrize("charging", ["peer_to_peer", "host_staged"])
def test_a_fan_may_read_what_its_producer_does_not(charging):
    for time_ns, anchor in ((4, "u"), (5, "v1")):
        operators = (
            operator("f", value=1),
            operator("g", value=9),
            operator("u", "g", value=10),
            operator("v1", "u", "f", ns=time_ns),
            operator("v2", "u", ns=time_ns),
        )
        problem = timed(*operators, charging=charging)
        # v1 may read f only because what makes it comes before u.
        problem = problem.replace(colocation=(ColocationGroup(("f", "g")),))
        assert anchor_of(problem, "v1") == anchor
        assert optima(problem) == [(2010,), (2010,)]


@pytest.mark.parametrize("charging", ["peer_to_peer", "host_staged"])
def test_the_members_of_a_fan_may_read_each_other(charging):
    for time_ns, anchor in ((4, "u"), (5, "v1")):
        operators = (
            operator("u", value=10),
            operator("v1", "u", ns=time_ns, value=1, is_backward=True),
            operator("v2", "u", "v1", ns=time_ns, is_backward=True),
        )
        interconnect = Interconnect(BYTE_PER_NS, charging=charging)
        problem = PartitionProblem(
            operators, THREE, interconnect=interconnect, memory_model="weights"
        )
        assert anchor_of(problem, "v1") == anchor
        assert optima(problem) == [(1000 + 2 * time_ns,)] * 2


def test_for_latency_a_unit_may_wait_in_a_later_chunk():
    """Tests a unit that runs beside another device, in a stage of its own, if it may have one."""
    operators = (
        operator("t", ns=1, value=1),
        operator("u", "t", ns=1, value=10),
        operator("v", "u", ns=5),
        operator("w", "t", ns=10),
    )
    for chunks, anchor, best in ((1, "t", 17), (2, "v", 14)):
        problem = PartitionProblem(
            operators,
            (Device("a"), Device("b")),
            interconnect=Interconnect(BYTE_PER_NS),
            objective="latency",
            colocation=(ColocationGroup(("t", "u")),),
            chunks_per_device=chunks,
        )
        assert anchor_of(problem, "v") == anchor
        assert optima(problem) == [(best,), (best,)]


def test_every_stage_of_a_device_needs_room_for_activations():
    """Tests a device with more room than one stage of all operators needs, but not for two."""
    operators = (
        operator("first", "in", value=1, allowed_devices={"a"}),
        operator("v", "first", ns=0, storage_bytes=5),
        operator("between", "first", value=1, allowed_devices={"b"}),
        operator("last", "between", "in", allowed_devices={"a"}),
    )
    # Both stages of a hold the input, and the second one the value of "between".
    for room, anchor in ((41, "v"), (54, "first")):
        problem = PartitionProblem(
            operators,
            (Device("a", room), Device("b")),
            inputs=(GraphInput("in", 20),),
            chunks_per_device=2,
            memory_model="inference",
            interconnect=Interconnect(BYTE_PER_NS),
        )
        assert anchor_of(problem, "v") == anchor
        assert optima(problem) == [(2002,), (2002,)]


@counts(7, 200)
def test_some_best_plan_survives(count):
    fired = Counter()
    for block in range(count):
        rng = random.Random(f"plans {block}")
        for seed in range(block * BLOCK, (block + 1) * BLOCK):
            check(*reducible_problem(seed), f"seed {seed}", fired, rng)
    for rule in ("to producer", "to reader", "beside", "problems", "repaired"):
        assert fired[rule] >= 50 * count // 20, fired


@counts(200, 600, quick=200)
def test_some_best_plan_survives_between_cuts(count):
    fired = Counter()
    rng = random.Random("cuts")
    for seed in range(count):
        problem, _ = reducible_problem(seed)
        cuts = rng.sample([op.name for op in problem.operators], 1)
        try:
            problem = problem.replace(cuts=tuple(cuts))
        except PartitionError:
            continue
        check(problem, None, f"seed {seed} cut after {cuts}", fired, rng)
        op = problem.operators[0]
        pinned = (replace(op, stage=0), *problem.operators[1:])
        assert not simplify(condense(problem.replace(operators=pinned))).merges
    assert fired["problems"] >= count // 15, fired


def test_of_two_operators_in_series_those_are_merged_that_no_chain_needs_apart():
    """The rules are tight: a pair that they leave is cut by the only best plan of some chain."""
    rng = random.Random(5)
    merged = 0
    for _ in range(300):
        first_ns, second_ns = rng.randint(1, 6), rng.randint(1, 6)
        into, between, out = (rng.randint(1, 12) for _ in range(3))
        # Each device is as busy as the other if the pair is cut, and no plan needs less.
        load_ns = 1_000
        operators = (
            Operator("before", load_ns - first_ns - between, value_bytes=into),
            Operator("first", first_ns, ("before",), value_bytes=between),
            Operator("second", second_ns, ("first",), value_bytes=out),
            Operator("behind", load_ns - second_ns - between, ("second",)),
        )
        problem = PartitionProblem(
            operators=operators,
            devices=(Device("a"), Device("b")),
            interconnect=Interconnect(Link(1_000_000_000)),
            objective=("bottleneck",),
        )
        unit_of = simplify(condense(problem)).units.unit_of_operator
        together = problem.replace(colocation=(ColocationGroup(("first", "second")),))
        needed_apart = brute_force(to_instance(together))[0] > brute_force(to_instance(problem))[0]
        assert (unit_of[1] == unit_of[2]) is not needed_apart
        merged += not needed_apart
    assert 60 <= merged <= 240
