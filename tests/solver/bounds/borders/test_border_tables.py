"""Borders, against the loads and the memory of plans that stop there."""

import itertools
import random

import numpy as np
import pytest

from solver import PartitionPlan, evaluate
from solver.bounds.borders import tables as borders_module
from solver.bounds.borders.steps import BorderSteps
from solver.bounds.borders.tables import BorderList
from solver.bounds.regional.position_steps import StageKind
from solver.bounds.regional.spine import spine_units
from solver.presolve.instance import condense
from solver.stages.ideals import list_ideals
from tests.support.graphs import layers


def borders_of(problem):
    units = condense(problem)
    kept = spine_units(units)
    work, slowness = units.fastest_ns[kept], max(units.slowness.values())
    listed = BorderList(units, kept, work, len(problem.devices), slowness).borders()
    assert listed is not None
    return units, kept, listed


def stages_at_random(rng, units, count):
    """Return a stage for each unit that is not before those of what it reads."""
    stages = [0] * len(units)
    for source, target in units.edges:
        stages[target] = max(stages[target], stages[source])
    for unit in range(len(units)):
        before = [stages[source] for source, target in units.edges if target == unit]
        least = max(before, default=0)
        stages[unit] = min(count - 1, least + rng.choice((0, 0, 0, 1)))
    return stages


def sets_of(units, kept, listed):
    """Return the units of the spine that are before each border, if none is left out."""
    places, work = listed.places, units.fastest_ns[kept]
    found = [[]]
    for region in range(places.count):
        own = places.members.get(region, [])
        whole = np.flatnonzero(places.coordinate <= 2 * region).tolist()
        masks = list_ideals(len(own), places.arcs(region), 10**5) if own else [0]
        more = [[unit for place, unit in enumerate(own) if mask >> place & 1] for mask in masks]
        found += [whole + inside for inside in sorted(more, key=lambda inside: work[inside].sum())]
    found.append(list(range(len(kept))))
    assert [work[inside].sum() for inside in found] == listed.work.tolist()
    return found


def border_of(sets, kept, stages, last):
    """Return the border of what the stages up to `last` run of the spine."""
    inside = [place for place, unit in enumerate(kept) if stages[unit] <= last]
    # Of an articulation unit and the whole region before it there is one each.
    return len(sets) - 1 if len(inside) == len(kept) else sets.index(inside)


@pytest.fixture
def nothing_left_out(monkeypatch):
    monkeypatch.setattr(borders_module, "_undominated", lambda costs: list(range(len(costs))))


@pytest.mark.parametrize("charging", ["peer_to_peer", "host_staged", "relayed"])
@pytest.mark.usefixtures("nothing_left_out")
def test_no_stage_takes_or_holds_less(charging):
    checked = tight = fitting = 0
    for seed in range(150):
        rng = random.Random(seed)
        problem = layers(seed, charging=charging)
        if len({device.device_class for device in problem.devices}) > 1:
            continue
        units, kept, listed = borders_of(problem)
        sets = sets_of(units, kept, listed)
        stages = stages_at_random(rng, units, len(problem.devices))
        used = sorted(set(stages))
        names = [device.name for device in problem.devices]
        plan = PartitionPlan(
            units.lift([names[stage] for stage in stages]), tuple(names[stage] for stage in used)
        )
        usage = {entry.device: entry for entry in evaluate(problem, plan).usage}
        for stage in used:
            start = border_of(sets, kept, stages, stage - 1)
            end = border_of(sets, kept, stages, stage)
            before, after = int(listed.region[start]), int(listed.region[end])
            for level, near in enumerate(listed.last_invalid):
                # What lies beside the spine may have a stage of its own.
                if start == end or after <= near[before + 1]:
                    continue
                least_ns = listed.end_ns[level][end] - listed.start_ns[level][start]
                least_bytes = listed.held_bytes[end] - listed.start_bytes[level][start]
                entry = usage[names[stage]]
                assert entry.load_ns >= least_ns, (seed, stage, level)
                if entry.memory_bytes <= max(device.memory_bytes for device in problem.devices):
                    # A stage that fits nowhere may have both readers of a tied weight.
                    assert entry.memory_bytes >= least_bytes, (seed, stage, level)
                    fitting += 1
                checked += 1
                tight += entry.load_ns == least_ns and before >= 0
    assert checked >= 150
    assert fitting >= 100
    assert tight >= 10


def test_borders_that_are_left_out_are_no_better():
    dropped = 0
    for seed in range(150):
        problem = layers(seed)
        _, _, listed = borders_of(problem)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(borders_module, "_undominated", lambda costs: list(range(len(costs))))
            _, _, whole = borders_of(problem)
        dropped += len(whole) - len(listed)
        kept_rows = _rows(listed)
        for row in _rows(whole):
            same = kept_rows[kept_rows[:, 0] == row[0]]
            assert (same[:, 1:] <= row[1:]).all(axis=1).any(), seed
    assert dropped >= 20


def _rows(listed):
    """Regions, then needs and gains of which less is better."""
    return np.stack(
        [
            listed.region,
            listed.held_bytes,
            *listed.end_ns,
            *(-gain for gain in listed.start_ns),
            *(-gain for gain in listed.start_bytes),
        ],
        axis=1,
    )


@pytest.mark.usefixtures("nothing_left_out")
def test_fronts_know_all_that_stages_reach():
    """Every chain of borders within the limits ends at one that the front is as good as."""
    reached = 0
    for seed in range(25):
        problem = layers(seed)
        units, kept, listed = borders_of(problem)
        sets = sets_of(units, kept, listed)
        kinds = [StageKind(device.memory_bytes, 1.0, True) for device in problem.devices]
        limit_ns = max(1, int(listed.work[-1]) * 2 // 3)
        steps = BorderSteps(listed, limit_ns)
        front, exact = steps.start(), {0}
        for kind in kinds:
            front = steps.after([(front, kind)])
            exact |= {
                end
                for start, end in itertools.product(exact, range(len(listed)))
                if _is_possible(listed, sets, start, end, limit_ns, kind.capacity_bytes)
            }
            for border in exact:
                for level in range(len(listed.last_invalid)):
                    assert any(
                        listed.start_ns[level][known] >= listed.start_ns[level][border]
                        and listed.start_bytes[level][known] >= listed.start_bytes[level][border]
                        for known in front.borders[level]
                    ), (seed, border, level)
            reached += len(exact)
        assert steps.is_done(front) or len(listed) - 1 not in exact
    assert reached >= 200


def _is_possible(listed, sets, start, end, limit_ns, capacity):
    """Whether a stage between two borders may keep within limits, as far as is known."""
    before, after = listed.region[start], listed.region[end]
    if before == after:
        return set(sets[start]) <= set(sets[end]) and (
            listed.work[end] - listed.work[start] <= limit_ns
            and listed.held_bytes[end] - listed.held_bytes[start] <= capacity
        )
    return after > before and all(
        listed.end_ns[level][end] - listed.start_ns[level][start] <= limit_ns
        and listed.held_bytes[end] - listed.start_bytes[level][start] <= capacity
        for level, near in enumerate(listed.last_invalid)
        if after > near[before + 1]
    )
