"""A CP-SAT model in which every variable defines its value under a plan.

So any plan becomes a full hint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from solver.cp.linear import LinearSum, Literal
from solver.model.clock import UNLIMITED, Clock
from solver.model.plan import PartitionPlan

Place = tuple[int, ...]
"""Positions that count as one: a single stage, or all stages of one device."""
ConditionalRow = tuple[LinearSum, list[tuple[Literal, bool]]]
"""A sum that counts if all literals have the values paired with them."""


class OutOfTime(Exception):  # noqa: N818
    """Raised if the clock is over before a model is complete."""


@dataclass(frozen=True, slots=True)
class StageChoice:
    """A plan, and its terms in the model: unit to position, slot to kind."""

    plan: PartitionPlan
    position_of: tuple[int, ...]
    kind_at: tuple[int | None, ...]

    def on(self, unit: int, place: Place) -> bool:
        """Return True if `unit` is on one of the positions of `place`."""
        return self.position_of[unit] in place


class HintedModel:
    """Variables with their definitions.

    When the clock is over, every new variable and row raises :class:`OutOfTime`: building a large
    model may take longer than its search may. `upper` and `values` have, by the index of a
    variable, its upper bound (all lower bounds are 0) and its value under the current hint;
    `definitions` its value under a plan, in an order in which they can be computed.
    """

    def __init__(self, clock: Clock = UNLIMITED) -> None:
        self._clock = clock
        self.model = cp_model.CpModel()
        self.definitions: list[
            tuple[cp_model.IntVar, Callable[[StageChoice], int] | LinearSum]
        ] = []
        self.upper: dict[int, int] = {}
        self.values: dict[int, int] = {}

    def _define(
        self,
        variable: cp_model.IntVar,
        upper: int,
        definition: Callable[[StageChoice], int] | LinearSum,
    ) -> cp_model.IntVar:
        self._check_time()
        self.definitions.append((variable, definition))
        self.upper[variable.index] = upper
        return variable

    def _check_time(self) -> None:
        if self._clock.is_over:
            raise OutOfTime

    def add_row(
        self, row: cp_model.BoundedLinearExpression | bool | np.bool_
    ) -> cp_model.Constraint:
        """Add a row to the model."""
        self._check_time()
        return self.model.add(row)

    def new_bool(self, definition: Callable[[StageChoice], int]) -> cp_model.IntVar:
        """Return a new Boolean variable whose value under a plan is `definition`."""
        return self._define(self.model.new_bool_var(""), 1, definition)

    def new_int(self, upper: int, definition: Callable[[StageChoice], int]) -> cp_model.IntVar:
        """Return a new variable from 0 to `upper` whose value under a plan is `definition`."""
        return self._define(self.model.new_int_var(0, upper, ""), upper, definition)

    def at_least(self, total: LinearSum, *, exactly: bool = False) -> LinearSum:
        """Return a variable that is at least (or exactly) `total`, or `total` itself if short."""
        if len(total.terms) <= 1:
            return total
        upper = max(total.largest(self.upper), 0)
        variable = self._define(self.model.new_int_var(0, upper, ""), upper, total)
        row = variable == total.expression if exactly else variable >= total.expression
        self.add_row(row)
        return LinearSum().add(variable)

    def largest_of(self, rows: Sequence[LinearSum]) -> LinearSum:
        """Return a variable that is at least every row."""
        return self.largest_that_count([(row, []) for row in rows])

    def largest_that_count(
        self, rows: Sequence[ConditionalRow], upper: int | None = None
    ) -> LinearSum:
        """Return a variable that is at least every row whose literals have their values.

        Its upper bound is `upper`, or by default that of the rows.
        """
        counting: list[tuple[LinearSum, list[tuple[cp_model.IntVar, bool]]]] = []
        for row, literals in rows:
            open_ones = [(lit, wanted) for lit, wanted in literals if not isinstance(lit, bool)]
            if all(lit == wanted for lit, wanted in literals if isinstance(lit, bool)):
                counting.append((row, open_ones))
        values = self.values

        def largest(_: StageChoice) -> int:
            found = [
                row.value(values)
                for row, conditions in counting
                if all(values[lit.index] == wanted for lit, wanted in conditions)
            ]
            return max([0, *found])

        if upper is None:
            upper = max([0, *(row.largest(self.upper) for row, _ in counting)])
        variable = self.new_int(upper, largest)
        for row, conditions in counting:
            constraint = self.add_row(variable >= row.expression)
            if conditions:
                constraint.only_enforce_if(
                    *(lit if wanted else lit.negated() for lit, wanted in conditions)
                )
        return LinearSum().add(variable)

    @staticmethod
    def sum_of(literals: Sequence[Literal]) -> LinearSum:
        """Return the sum of literals."""
        total = LinearSum()
        for literal in literals:
            total.add(literal)
        return total

    def imply(self, premise: Literal, conclusion: Literal) -> None:
        """Add premise => conclusion."""
        if premise is False or conclusion is True:
            return
        self.model.add_implication(
            self.model.new_constant(1) if premise is True else premise,
            self.model.new_constant(0) if conclusion is False else conclusion,
        )

    def set_hint(self, choice: StageChoice) -> None:
        """Give the model a full hint."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for index, value in self.hint(choice).items():
            self.model.add_hint(self.model.get_int_var_from_proto_index(index), value)

    def hint(self, choice: StageChoice) -> dict[int, int]:
        """Return the value of every variable under `choice`, by index."""
        values = self.values
        values.clear()
        for variable, definition in self.definitions:
            if isinstance(definition, LinearSum):
                values[variable.index] = definition.value(values)
            else:
                values[variable.index] = int(definition(choice))
        return dict(values)
