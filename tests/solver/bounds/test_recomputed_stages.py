"""Bounds of stages in which operators run again, and the sums that they are made of."""

import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from solver import Device, Interconnect, Link, Operator, PartitionPlan, PartitionProblem, evaluate
from solver.bounds.recomputed import stages as recomputed_stages
from solver.bounds.recomputed.borders import BorderBytes
from solver.bounds.recomputed.chains import RecomputedChains, least_chains
from solver.bounds.recomputed.skeleton import Pairs, Skeleton
from solver.bounds.recomputed.stages import RecomputedStages
from solver.model.clock import UNLIMITED
from solver.model.training import Backward
from solver.presolve.device_kinds import interchangeable_kinds
from solver.presolve.instance import condense
from solver.stages.recompute_chooser import RecomputeChooser
from tests.support.oracle import brute_force, has_plan
from tests.support.problem_counts import counts
from tests.support.random_problems import random_plan, recomputed_problem, to_instance

FEW_IDEALS = 9

"""So few that units of small graphs may be on either side of a border."""

SIZE = {"min_operators": 3, "max_operators": 5, "objective": ("bottleneck",)}


def layers(count):
    """Returns layers of which some operators are on all paths, and others side by side."""
    operators = []
    for layer in range(count):
        before = [f"add{layer - 1}"] if layer else []
        for kind, reads, latency in (
            ("norm", before, 2),
            ("view", [f"norm{layer}"], 0),
            ("up", [f"view{layer}"], 9),
            ("gate", [f"norm{layer}"], 7),
            ("mask", [f"gate{layer}"], 0),
            ("add", [f"up{layer}", f"mask{layer}", *before], 3),
        ):
            name, sizes = f"{kind}{layer}", {"kept_bytes": 6, "gradient_bytes": 8}
            backward = Backward(region=layer, recomputable=True, saves=(name,), **sizes)
            size = {"value_bytes": 8 + latency, "storage_bytes": 20}
            operators.append(Operator(name, latency, reads, backward=backward, **size))
    settings = {"memory_model": "training", "recompute": "auto", "microbatches": 4}
    return condense(PartitionProblem(operators, [Device("a", 1000), Device("b", 1000)], **settings))


def units_between(skeleton, inner, outer):
    """Returns chosen units of the second ideal alone, and others between units of a stage."""
    return [
        unit
        for unit in range(len(skeleton.units))
        if (
            outer & ~inner & 1 << skeleton.place[unit]
            if unit in skeleton.place
            else skeleton.before[unit] & ~inner and skeleton.after[unit] & outer
        )
    ]


@pytest.fixture(params=[None, FEW_IDEALS], ids=["all units", "some units"])
def chosen(request, monkeypatch):
    """Ideals of all units, or few ideals first."""
    if request.param is not None:
        monkeypatch.setattr(recomputed_stages, "_FIRST_IDEALS", request.param)


def stages_of(problem, limit_ns=None):
    units, choices = condense(problem), RecomputeChooser(problem).choices
    return RecomputedStages.of(units, interchangeable_kinds(units), choices, limit_ns=limit_ns)


def bound_of(problem, limit_ns=None):
    bound_ns, _ = RecomputedChains(stages_of(problem, limit_ns), is_step=False).least(limit_ns)
    return math.inf if bound_ns is None else bound_ns


@counts(60, 240)
def test_what_a_stage_runs_for_certain_is_what_its_work_counts(count):
    more = 0
    for seed in range(count):
        problem = recomputed_problem(seed, **SIZE | {"min_operators": 6, "max_operators": 9})
        units = condense(problem)
        pairs = Pairs.within(Skeleton(units, 30), None)
        sums = pairs.sums(units.fastest_ns.astype(np.float64))
        for number, (start, end) in enumerate(zip(pairs.starts, pairs.ends, strict=True)):
            certain, perhaps = pairs.skeleton.between(int(start), int(end))
            assert sums[number] == units.fastest_ns[certain].sum(), f"seed {seed}"
            assert not set(certain) & set(perhaps)
            if not start:
                first, _ = pairs.skeleton.between(0, int(end), is_first=True)
                assert set(certain) <= set(first) <= {*certain, *perhaps}
                more += len(first) > len(certain)
    assert more > count // 3


@pytest.mark.parametrize(("objective", "percent"), [("bottleneck", 66), ("step", 13)])
@counts(72, 600, quick=24)
@pytest.mark.usefixtures("chosen")
def test_stages_one_by_one_raise_the_bound_to_no_more_than_the_optimum(count, objective, percent):
    tight = priced = plans = 0
    for seed in range(count):
        size = SIZE | {"max_operators": 5 + seed % 2, "objective": (objective,)}
        problem = recomputed_problem(
            seed, relayed=seed % 3 == 0, is_restricted=seed % 5 > 2, **size
        )
        is_step = objective == "step"
        if not RecomputedStages.applies(problem) or (is_step and problem.interconnect.overlap):
            continue
        best = brute_force(to_instance(problem))
        if best is None:
            continue
        optimum, chooser = best[0][0], RecomputeChooser(problem)
        for most_ns in (None, optimum + 1, 3 * optimum):
            stages = stages_of(problem, None if is_step else most_ns)
            first_ns, _ = RecomputedChains(stages, is_step=is_step).least(most_ns)
            bound_ns = first_ns
            chains = least_chains(stages, lambda most_ns=most_ns: most_ns, is_step=is_step)
            for found_ns, plan in chains:
                bound_ns = max(bound_ns, found_ns)
                if plan is not None:
                    evaluation = evaluate(problem, chooser.completed(plan))
                    plans += evaluation.feasible and evaluation.objective == best[0]
            assert bound_ns <= optimum, f"seed {seed}"
            tight += bound_ns >= 0.999 * optimum
            priced += first_ns >= 0.999 * optimum
    assert tight > 1.2 * priced and tight > count * percent // 100, (tight, priced)
    assert plans > count * percent // 100, plans


@counts(30, 120)
@pytest.mark.usefixtures("chosen")
def test_no_plan_fits_where_least_bytes_are_too_many(count):
    """Tests memory from half of what the best of some plans needs; inf means that nothing fits."""
    said, unsaid = Counter(), Counter()
    for seed in range(count):
        drawn = recomputed_problem(seed, relayed=seed % 3 == 0, is_restricted=seed % 5 == 0, **SIZE)
        if not RecomputedStages.applies(drawn):
            continue
        for percent in (50, 75, 95):
            devices = [
                replace(device, memory_bytes=max(1, device.memory_bytes * percent // 100))
                for device in drawn.devices
            ]
            problem = drawn.replace(devices=devices)
            fits = has_plan(to_instance(problem))
            if bound_of(problem) == math.inf:
                assert not fits, f"seed {seed}, {percent} %"
                said[percent] += 1
            elif not fits:
                unsaid[percent] += 1
    assert said[50] > unsaid[50] and said[95] > count // 15, (said, unsaid)


def exact_loads(stages, kind, flying, numbers):
    pairs = stages.pairs
    return [
        stages.exact_ns(kind, flying, int(pairs.starts[at]), int(pairs.ends[at]), is_first=False)
        for at in numbers
    ]


@pytest.mark.usefixtures("chosen")
@counts(60, 240)
def test_exact_loads_are_between_least_ones_and_those_of_plans(count):
    """Random plans with any choice take no less; more in flight never take less."""
    compared = raised = 0
    for seed in range(count):
        problem = recomputed_problem(seed, relayed=seed % 3 == 0, **SIZE)
        if not RecomputedStages.applies(problem) or problem.is_hand_made:
            continue
        stages, units = stages_of(problem), condense(problem)
        kind_of = {name: at for at, kind in enumerate(stages.kinds) for name in kind.names}
        place, masks = stages.skeleton.place, stages.skeleton.masks
        chooser = RecomputeChooser(problem)
        for draw in range(12):
            plan = chooser.completed(random_plan(problem, 100 * seed + draw))
            evaluation = evaluate(problem, plan)
            if not evaluation.feasible:
                continue
            load_ns = {usage.device: usage.load_ns for usage in evaluation.usage}
            inside, start = 0, 0
            for at, stage in enumerate(plan.stages):
                names = plan.operators_of(stage.device)
                own = {units.unit_of_operator[problem.index_of[name]] for name in names}
                inside |= sum(1 << place[unit] for unit in own if unit in place)
                key = kind_of[stage.device], problem.in_flight(len(plan.stages) - at)
                end = masks.index(inside)
                if end != start:
                    pair = stages.pairs.number(start, end)
                    least_ns = float(stages.loads_ns[key][pair])
                    (exact_ns,) = exact_loads(stages, *key, [pair])
                    assert least_ns <= exact_ns <= load_ns[stage.device] + 1e-6, (seed, draw)
                    compared, raised = compared + 1, raised + (exact_ns > least_ns)
                start = end
        sizes = sorted({flying for _, flying in stages.loads_ns})
        some = range(0, len(stages.pairs), 1 + len(stages.pairs) // 8)
        by_flying = [exact_loads(stages, 0, flying, some) for flying in sizes]
        assert all(less <= more for less, more in itertools.pairwise(by_flying)), seed
    assert compared > count and raised > count // 10, (compared, raised)


def test_a_stage_holds_what_it_relays_and_what_comes_back():
    """With a byte less than it takes a stage does not fit; nothing but `c` may run again."""
    sizes = {"value_bytes": 10, "storage_bytes": 12}
    operators = [
        Operator(name, 5, reads, is_output=name == "b", backward=backward, **sizes)
        for name, reads, backward in (
            ("a", [], Backward(gradient_bytes=10, latency_ns=3)),
            ("b", [], Backward(gradient_bytes=10, kept_bytes=12, saves=("b",))),
            ("c", ["a", "b"], Backward(latency_ns=9, recomputable=True, saves=("c",))),
        )
    ]
    devices = [Device(name, 10_000) for name in "xyz"]
    relays = Interconnect(Link(bandwidth_bytes_per_s=10**9), charging="relayed")
    settings = {"memory_model": "training", "recompute": "auto", "microbatches": 4}
    problem = PartitionProblem(operators, devices, interconnect=relays, **settings)
    plan = PartitionPlan({"a": "x", "b": "y", "c": "z"}, ("x", "y", "z"))
    for rank, usage in enumerate(evaluate(problem, plan).usage[:2]):
        for less_bytes, load_ns in ((0, usage.load_ns), (1, math.inf)):
            size_bytes = usage.memory_bytes - less_bytes
            stages = stages_of(
                problem.replace(devices=[Device(name, size_bytes) for name in "xyz"])
            )
            place, masks = stages.skeleton.place, stages.skeleton.masks
            start, end = (
                masks.index(sum(1 << place[unit] for unit in range(count)))
                for count in (rank, rank + 1)
            )
            flying = problem.in_flight(3 - rank)
            found_ns = stages.exact_ns(0, flying, start, end, is_first=False)
            assert found_ns == load_ns, (rank, less_bytes)


@counts(40, 160)
def test_what_is_known_of_stages_survives_more_units(count, monkeypatch):
    monkeypatch.setattr(recomputed_stages, "_FIRST_IDEALS", FEW_IDEALS)
    kept = 0
    for seed in range(count):
        problem = recomputed_problem(seed, **SIZE | {"min_operators": 5, "max_operators": 7})
        if not RecomputedStages.applies(problem):
            continue
        fewer = stages_of(problem)
        more = fewer.finer()
        if more is None:
            continue
        place = {mask: at for at, mask in enumerate(fewer.skeleton.masks)}
        own = [more.skeleton.place[unit] for unit in fewer.skeleton.chosen]
        image = [
            place[sum(1 << at for at, unit in enumerate(own) if more.skeleton.member[unit, ideal])]
            for ideal in range(len(more.skeleton))
        ]
        pairs = zip(more.pairs.starts.tolist(), more.pairs.ends.tolist(), strict=True)
        for at, (start, end) in enumerate(pairs):
            if image[start] != image[end]:
                old = fewer.pairs.number(image[start], image[end])
                assert all(
                    more.loads_ns[key][at] >= fewer.loads_ns[key][old] for key in more.loads_ns
                )
                kept += 1
    assert kept > 5 * count, kept


def test_stages_have_what_lies_between_their_units():
    values = np.random.default_rng(0).integers(1, 100, size=(2, 4 * 6)).astype(np.float64)
    units = layers(4)
    skeleton = Skeleton(units, 20)
    assert 0 < len(skeleton.chosen) < len(units)
    for limit_ns in (None, 40):
        pairs = Pairs.within(skeleton, limit_ns)
        found = pairs.sums(values)
        every = zip(pairs.starts.tolist(), pairs.ends.tolist(), strict=True)
        numbers = {pair: number for number, pair in enumerate(every)}
        for start, inner in enumerate(skeleton.masks):
            for end, outer in enumerate(skeleton.masks):
                own = units_between(skeleton, inner, outer)
                is_pair = inner != outer and not inner & ~outer
                is_kept = limit_ns is None or units.fastest_ns[own].sum() <= limit_ns
                number = numbers.get((start, end))
                assert (number is not None) == (is_pair and is_kept), (start, end)
                if number is not None:
                    assert (found[:, number] == values[:, own].sum(axis=1)).all()
        some = np.arange(len(pairs))[::3]
        assert (pairs.sums(values[0], some) == found[0, some]).all()


def test_alike_borders_are_cut_as_others_are(monkeypatch):
    pairs = Pairs.within(Skeleton(layers(5), 200), None)
    shared = BorderBytes(pairs, UNLIMITED)
    found = [*shared.received, *shared.sent]
    cuts = [own.cut for own in shared.starts]
    assert len({id(cut) for cut in cuts}) < len(cuts) / 2
    apart = BorderBytes(pairs, UNLIMITED)
    monkeypatch.setitem(apart.__dict__, "_shapes", np.arange(5 * 6))
    assert all(
        (one == other).all()
        for one, other in zip(found, [*apart.received, *apart.sent], strict=True)
    )
    assert len({id(own.cut) for own in apart.starts}) > len(cuts) / 2
    assert any((own > 0).any() for own in found)
