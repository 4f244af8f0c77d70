"""CP-SAT rows that leave one plan of those that differ only by exchanges of identical blocks.

The notation is that of :mod:`solver.cp.formulation`. For consecutive blocks a and b of a group
(:mod:`solver.presolve.symmetry`) the positions of a come before those of b in lexicographic
order:

    y[a_1,p] <= y[b_1,p];    y[a_k,p] <= y[b_k,p]  if tied[k]
    tied[k+1] >= tied[k] - sum over p of (y[b_k,p] - y[a_k,p])

where tied[k] says that a and b agree in their units before the k-th, and tied[1] is 1. The sum is
how much later b_k is than a_k; the last row is asked for only if tied[k], and then the sum is 0
or more. Some best plan satisfies the rows of all groups at once; the proof is in
:mod:`solver.presolve.symmetry`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from solver.cp.linear import LinearSum, Literal

if TYPE_CHECKING:
    from solver.cp.stage_model import StageModel
    from solver.presolve.symmetry import IdenticalBlocks


def add_block_order(stages: StageModel, blocks: IdenticalBlocks) -> None:
    """Put the blocks of every group in lexicographic order of their positions."""
    for group in blocks.groups:
        for before, after in itertools.pairwise(group):
            _add_pair(stages, before, after)


def _add_pair(stages: StageModel, before: Sequence[int], after: Sequence[int]) -> None:
    tied: Literal = True
    for place, (first, second) in enumerate(zip(before, after, strict=True)):
        for position in stages.positions[1:]:
            _add_order(
                stages, tied, stages.reaches(first, position), stages.reaches(second, position)
            )
        if place + 1 == len(before):
            return
        lead = LinearSum()
        for position in stages.positions[1:]:
            lead.add(stages.reaches(second, position))
            lead.add(stages.reaches(first, position), -1)
        if not lead.terms:
            if lead.constant > 0:
                return
            continue
        following = stages.new_bool(
            lambda s, k=place + 1: all(  # type: ignore[misc]
                s.position_of[a] == s.position_of[b]
                for a, b in zip(before[:k], after[:k], strict=True)
            )
        )
        row = stages.add_row(lead.add(following).expression >= 1)
        if not isinstance(tied, bool):
            row.only_enforce_if(tied)
        tied = following


def _add_order(stages: StageModel, tied: Literal, lower: Literal, upper: Literal) -> None:
    """Add lower <= upper if `tied`."""
    if tied is True:
        stages.imply(lower, upper)
    elif lower is not False and upper is not True:
        assert not isinstance(tied, bool)
        clause = [~tied]
        if lower is not True:
            clause.append(~lower)
        if upper is not False:
            clause.append(upper)
        stages.model.add_bool_or(clause)
