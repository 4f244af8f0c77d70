"""Checks of hand-made cuts and pinned stages for validity and consistency.

Each error message names the cut, operators or group at fault, and the remedy.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from solver.model.checks import check_name, several
from solver.model.errors import PartitionError
from solver.model.operators import Operator
from solver.model.problem_fields import NO_BLOCK, ProblemFields
from solver.model.quantities import counted


def ordered_cuts(operators: Sequence[Operator], cuts: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct cuts in execution order; refuses those that divide no forward pass."""
    names = several(cuts, "cuts")
    if not names:
        return ()
    for name in names:
        check_name(name, "an entry of cuts")
    index_of = {op.name: index for index, op in enumerate(operators)}
    last = max((i for i, op in enumerate(operators) if not op.is_backward), default=-1)
    for name in names:
        if name not in index_of:
            close = difflib.get_close_matches(name, index_of, n=3)
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else "name an operator"
            raise PartitionError(f"cut after {name!r}: there is no such operator; {hint}")
        if operators[index_of[name]].is_backward:
            raise PartitionError(
                f"cut after {name!r}: it belongs to the backward pass, which does not order "
                "stages; cut after an operator of the forward pass"
            )
        if index_of[name] == last:
            raise PartitionError(
                f"cut after {name!r}: no operator runs behind it; leave this cut out"
            )
    return tuple(sorted(dict.fromkeys(names), key=index_of.__getitem__))


def check_hand_made(problem: ProblemFields) -> None:
    """Raise PartitionError if cuts and pinned stages contradict each other or the problem.

    The checks are incomplete: a solver may still prove that no plan keeps all cuts and pins.
    """
    if not (problem.cuts or problem.stage_pins):
        return
    most = _most_stages(problem)
    if len(problem.cuts) >= most:
        raise PartitionError(
            f"{counted(len(problem.cuts), 'cut')} ({_listed(problem.cuts)}) need at least "
            f"{len(problem.cuts) + 1} stages, but {_stages_in_words(problem)}; leave a cut out, "
            "or give more devices or chunks_per_device"
        )
    for op in problem.operators:
        if op.stage is not None and op.stage >= most:
            raise PartitionError(
                f"operator {op.name!r} is pinned to stage {op.stage}, but "
                f"{_stages_in_words(problem)}, numbered from 0; write a smaller stage, or give "
                "more devices or chunks_per_device"
            )
    _check_units(problem)


def _most_stages(problem: ProblemFields) -> int:
    devices = len(problem.devices)
    if problem.max_devices is not None:
        devices = min(devices, problem.max_devices)
    return devices * problem.chunks_per_device


def _stages_in_words(problem: ProblemFields) -> str:
    most = _most_stages(problem)
    devices = counted(most // problem.chunks_per_device, "device")
    chunks = counted(problem.chunks_per_device, "chunk")
    return f"{devices} with {chunks} each allow {most}"


def _listed(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(map(repr, names[:most])) + (", …" if len(names) > most else "")


def _check_units(problem: ProblemFields) -> None:
    """Refuse operators that must share a stage on both sides of a cut, or on two pinned stages."""
    index_of, blocks = problem.index_of, problem.blocks
    joined = "colocation groups that share operators"
    groups = [(group.operators, group.reason) for group in problem.colocation]
    for stage in sorted(set(problem.stage_pins.values())):
        names = tuple(name for name, own in problem.stage_pins.items() if own == stage)
        groups.append((names, f"both are pinned to stage {stage}"))
    for names, reason in (*groups, *((unit, joined) for unit in problem.units)):
        placed = [name for name in names if blocks[index_of[name]] != NO_BLOCK]
        if placed:
            first = min(placed, key=index_of.__getitem__)
            last = max(placed, key=index_of.__getitem__)
            if blocks[index_of[first]] != blocks[index_of[last]]:
                cut = problem.cuts[blocks[index_of[first]]]
                raise PartitionError(
                    f"cut after {cut!r} divides {first!r} and {last!r}, which must share a "
                    f"stage ({reason}); cut where nothing is divided"
                )
        stages = {problem.operators[index_of[name]].stage: name for name in names}
        stages.pop(None, None)
        if len(stages) > 1:
            (one, a), (other, b) = sorted(stages.items(), key=lambda item: item[0] or 0)[:2]
            raise PartitionError(
                f"operator {a!r} is pinned to stage {one} and {b!r} to stage {other}, but they "
                f"must share one ({reason}); pin both to the same"
            )
