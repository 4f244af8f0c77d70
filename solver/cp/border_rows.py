"""Rows that leave to the borders between positions only the ideals that some plan has there."""

from __future__ import annotations

from collections.abc import Mapping

from ortools.sat.python import cp_model

from solver.bounds.windows import BorderIdeals
from solver.cp.hinted_model import StageChoice
from solver.cp.stage_model import StageModel


def add_border_ideals(stages: StageModel, ideals: BorderIdeals) -> None:
    """Let exactly one of the sets be before each border, and pairs of them follow each other.

    The rows say nothing that the windows and costs of a plan within the limit do not imply, but
    a search that picks a set decides many units at once.

    Parameters
    ----------
    stages : StageModel
        With one chunk per device.
    """
    literals = [
        _literals(stages, ideals, border) if columns.shape[1] > 1 else {}
        for border, columns in enumerate(ideals.inside)
    ]
    for border, chosen in enumerate(literals):
        if chosen:
            stages.model.add_exactly_one(chosen.values())
        _define(stages, ideals, border, chosen)
    for position, pairs in enumerate(ideals.follows):
        before, behind = literals[position], literals[position + 1]
        if not before or not behind:
            continue
        after: dict[int, list[cp_model.IntVar]] = {column: [] for column in before}
        ahead: dict[int, list[cp_model.IntVar]] = {column: [] for column in behind}
        for first, last in pairs.tolist():
            after[first].append(behind[last])
            ahead[last].append(before[first])
        for literal, others in zip(before.values(), after.values(), strict=True):
            stages.model.add_bool_or([literal.negated(), *others])
        for literal, others in zip(behind.values(), ahead.values(), strict=True):
            stages.model.add_bool_or([literal.negated(), *others])


def _literals(stages: StageModel, ideals: BorderIdeals, border: int) -> dict[int, cp_model.IntVar]:
    """Return a literal for each set at a border: all of it, and none of the rest, is before."""
    columns = ideals.inside[border]

    def definition(column: int) -> cp_model.IntVar:
        inside = columns[:, column].tolist()

        def holds(choice: StageChoice) -> int:
            return all(
                (choice.position_of[unit] < border) == before
                for unit, before in zip(ideals.units, inside, strict=True)
            )

        return stages.new_bool(holds)

    return {column: definition(column) for column in range(columns.shape[1])}


def _define(
    stages: StageModel,
    ideals: BorderIdeals,
    border: int,
    literals: Mapping[int, cp_model.IntVar],
) -> None:
    for row, unit in enumerate(ideals.units):
        behind = False if border == len(stages.positions) else stages.reaches(unit, border)
        if behind is True or behind is False:
            continue
        for column, literal in literals.items():
            if ideals.inside[border][row, column]:
                stages.model.add_implication(literal, behind.negated())
            else:
                stages.model.add_implication(literal, behind)
