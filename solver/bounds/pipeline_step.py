"""Lower bounds of the time of a pipeline's step, from the loads of its stages.

A device runs all microbatches, each for its load. While the first microbatch, or the last, passes
all stages, most of them wait; this module adds the two.

The stages that hold units of a longest path are a chain. :mod:`solver.stages.step_paths` has
three inequalities of each stage for a step. Multiplied by weights and added, each bounds a step
by the sum of all loads. Stages of equal loads attain the first two: (m + P - 1) / P of the work
is the least possible step. In the first and the third each stage stands alone, so that slower
devices can count for less: a load on a device is at least its work on the fastest one, divided by
the rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

from solver.bounds.regional.spine import longest_path
from solver.model.problem import PartitionProblem
from solver.presolve.instance import Instance


def step_of_load_ns(problem: PartitionProblem, load_ns: int) -> int:
    """Return the least step of a plan in which some device has this load."""
    return problem.microbatches * load_ns


def load_of_step_ns(problem: PartitionProblem, step_ns: int) -> int:
    """Return the largest load of a device in plans with at most this step."""
    return step_ns // problem.microbatches


def least_filled_step_ns(units: Instance, slots: int) -> int:
    """Return a lower bound of the step of all plans by the work of their stages.

    Stages without a unit of the path lie between two of its units, and hold only units comparable
    to neither: their work is left out of the sums. With several chunks per device the bound is the
    time of the path.
    """
    problem = units.problem
    path = longest_path(units)
    least_ns = int(units.fastest_ns[path].sum())
    if not problem.is_forward_only:
        return least_ns
    work_ns = int(units.fastest_ns.sum())
    beside_ns = most_beside_ns(units, path)
    rates = _rates(units)
    found = [
        Fraction(max(work_ns - (slots - stages) * beside_ns, least_ns))
        * (1 + _share(problem, slots, rates[:stages]))
        for stages in range(1, min(slots, len(path)) + 1)
    ]
    return max(least_ns, -(-min(found).numerator // min(found).denominator))


def _rates(units: Instance) -> list[Fraction]:
    """Return upper bounds of device speeds relative to the fastest class, the fastest first."""
    slowness = (units.slowness[device.device_class] for device in units.problem.devices)
    # Rounded up by more than the error of the float division.
    return sorted(min(Fraction(1), Fraction((1 + 1e-12) / each)) for each in slowness)[::-1]


def _share(problem: PartitionProblem, slots: int, rates: Sequence[Fraction]) -> Fraction:
    """Return the least part of a step besides the work of some stages, relative to that work.

    `rates` are those of the devices of the stages, in the order that minimises the result.
    """
    batches = problem.microbatches
    if batches == 1:
        return Fraction(0)
    if problem.schedule == "gpipe" or not problem.is_training:
        return (batches - 1) / sum(rates, Fraction(0))
    ahead = [min(batches, slots - stage) for stage in range(len(rates))]
    # Third inequality: the work is at most the rest of the step times the sum of these.
    alone = (
        rate / (batches - Fraction(each + 1, 2)) for rate, each in zip(rates, ahead, strict=True)
    )
    by_stage = sum(alone, Fraction(0))
    if batches <= slots:
        return 1 / by_stage
    # Second inequality: weights with which the sums of all stages add up to the work, where the
    # load of a later stage is in the sums of the earlier ones too.
    total = Fraction(0)
    for each in ahead:
        total += (1 - total) / (batches - each)
    return 1 / min(by_stage, total)


def most_beside_ns(units: Instance, path: Sequence[int]) -> int:
    """Return the most work, on the fastest class, of a stage without units of a path.

    All earlier units of the path are before such a stage and all later ones behind it. So its units
    have no ancestor behind, and no descendant before, one place on the path.
    """
    place = {unit: at for at, unit in enumerate(path)}
    after = [place.get(unit, -1) for unit in range(len(units))]
    for unit in range(len(units)):
        after[unit] = max([after[unit], *(after[other] for other in units.predecessors[unit])])
    before = [place.get(unit, len(path)) for unit in range(len(units))]
    for unit in reversed(range(len(units))):
        before[unit] = min([before[unit], *(before[other] for other in units.successors[unit])])
    changes = [0] * (len(path) + 2)
    for unit, time_ns in enumerate(units.fastest_ns.tolist()):
        if unit not in place:
            changes[after[unit] + 1] += time_ns
            changes[before[unit] + 1] -= time_ns
    return max(accumulate(changes), default=0)
