"""The choices of parts, and the least time that lets stages fit, against all sets of operators."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from solver import Device, Operator, PartitionProblem
from solver.evaluation.recomputed_memory import RecomputedStage
from solver.model.recomputation import Recomputation
from solver.model.training import Backward
from solver.stages.least_recomputation import StageParts, least_recomputation
from solver.stages.recompute_choices import RecomputeChoices
from tests.support.problem_counts import counts
from tests.support.random_problems import recomputed_problem

SIZE = {"min_operators": 4, "max_operators": 7, "objective": ("bottleneck",)}


def random_stages(count):
    """Yields problems and the operators of a stage of each, in the execution order."""
    for seed in range(count):
        problem = recomputed_problem(seed, is_restricted=seed % 4 > 1, **SIZE)
        if problem.is_training and problem.may_recompute:
            last = len(problem.operators)
            start, end = seed // 4 % 3 * (last > 4), last - seed // 3 % 3 * (last > 5)
            yield seed, problem, list(range(start, end))


def every_stage(problem, members):
    """Yields all sets of a stage's operators that may run again, with what the stage holds."""
    names = [problem.operators[index].name for index in members]
    stage_of = dict.fromkeys(names, 0)
    may = [
        index
        for index in members
        if problem.operators[index].backward.recomputable
        and problem.operators[index].alias_of is None
    ]
    for count in range(len(may) + 1):
        for again in itertools.combinations(may, count):
            chosen = {problem.operators[index].name for index in again}
            recomputation = Recomputation(problem, stage_of, chosen)
            if not recomputation.violations():
                yield recomputation, RecomputedStage(problem, members, recomputation)


def extra_ns(choices, recomputation):
    return sum(choices._latency_ns[index] for index in recomputation.again.nonzero()[0].tolist())


@pytest.mark.deep
def test_no_set_of_operators_is_better_than_all_choices_of_its_parts():
    seen = Counter()
    for seed, problem, members in random_stages(300):
        choices = RecomputeChoices(problem, problem.devices[0].device_class)
        parts = choices.parts(members)
        found = [choices.of(part) for part in parts]
        if not all(own.is_complete for own in found):
            seen["coupled"] += 1
            continue
        for recomputation, stage in every_stage(problem, members):
            kept = [sum(map(stage.kept_bytes, part.members)) for part in parts]
            total = sum(kept)
            rows = [own.amounts[:, 0] <= extra_ns(choices, recomputation) for own in found]
            least = [int(own.amounts[row, 1].min()) for own, row in zip(found, rows, strict=True)]
            assert sum(least) <= total, f"seed {seed}"
            seen["attained"] += sum(least) == total
    assert seen["attained"] > 300, seen


def test_a_value_that_two_regions_read_again_is_kept_once():
    backward = Backward(recomputable=True, kept_bytes=150)
    operators = [Operator("x", 5, storage_bytes=100, value_bytes=100, backward=Backward())]
    for region, name in enumerate("uv"):
        again = replace(backward, region=region, saves=(name,))
        operators.append(Operator(name, 3, ["x"], storage_bytes=150, backward=again))
    settings = {"memory_model": "training", "recompute": "auto", "microbatches": 4}
    problem = PartitionProblem(operators, [Device("a", 1000)], **settings)
    choices = RecomputeChoices(problem, problem.devices[0].device_class)
    parts = StageParts.of(choices, choices.parts([0, 1, 2]), 3)
    assert all(own.is_complete for own in parts.choices)
    kept = set()
    for recomputation, stage in every_stage(problem, [0, 1, 2]):
        size_bytes = int(stage.live_bytes.max()) + 2 * stage.saved_bytes
        least = least_recomputation([parts], size_bytes)
        assert least.bound_ns <= extra_ns(choices, recomputation)
        kept.add(stage.saved_bytes)
    # Both results, one and `x`, or `x` alone.
    assert kept == {100, 250, 300}


@counts(400, 4000, quick=50)
def test_nothing_that_fits_takes_less(count):
    seen = Counter()
    for seed, problem, members in random_stages(count):
        choices = RecomputeChoices(problem, problem.devices[0].device_class)
        flying = 1 + seed % problem.microbatches
        parts = StageParts.of(choices, choices.parts(members), flying)
        sizes = [
            (
                extra_ns(choices, recomputation),
                int(stage.live_bytes.max()) + (flying - 1) * stage.saved_bytes,
            )
            for recomputation, stage in every_stage(problem, members)
        ]
        for room_bytes in sorted({size for _, size in sizes})[::3]:
            fitting = [time for time, size in sizes if size <= room_bytes]
            least = least_recomputation([parts], room_bytes, 3)
            assert least.bound_ns <= min(fitting), f"seed {seed}, {room_bytes} bytes"
            seen["equal" if least.bound_ns == min(fitting) else "less"] += 1
            assert all(
                chosen.held_bytes + parts.always_bytes <= room_bytes for chosen in least.found
            )
        nothing = least_recomputation([parts], -1, 3)
        assert not nothing.found
        seen["none"] += nothing.bound_ns == float("inf")
    assert seen["equal"] > 15 * seen["less"], seen
    assert seen["none"] > count // 4, seen
