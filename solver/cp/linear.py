"""Linear sums over CP-SAT variables that fold constants and can be evaluated without a solver."""

from __future__ import annotations

from collections.abc import Mapping

from ortools.sat.python import cp_model

Literal = bool | cp_model.IntVar
"""A Boolean variable, or a constant where the stage windows already decide it."""


class LinearSum:
    """A constant plus integer coefficients times variables.

    CP-SAT's own expressions cannot be evaluated without a solver; hints need that.
    """

    __slots__ = ("constant", "terms")

    def __init__(self, constant: int = 0) -> None:
        self.constant = constant
        self.terms: dict[int, tuple[cp_model.IntVar, int]] = {}

    def add(self, term: Literal, coefficient: int = 1) -> LinearSum:
        """Add `coefficient` times a variable or a constant truth value; return self."""
        if isinstance(term, bool):
            self.constant += coefficient * term
        elif coefficient:
            index = term.index
            coefficient += self.terms[index][1] if index in self.terms else 0
            if coefficient:
                self.terms[index] = (term, coefficient)
            else:
                del self.terms[index]
        return self

    def add_sum(self, other: LinearSum, factor: int = 1) -> LinearSum:
        """Add `factor` times another sum; return self."""
        self.constant += factor * other.constant
        terms = self.terms
        for index, (variable, coefficient) in other.terms.items() if factor else ():
            coefficient *= factor
            if index in terms:
                coefficient += terms[index][1]
            if coefficient:
                terms[index] = (variable, coefficient)
            else:
                del terms[index]
        return self

    def copy(self) -> LinearSum:
        """Return an independent copy."""
        result = LinearSum(self.constant)
        result.terms = dict(self.terms)
        return result

    @property
    def expression(self) -> cp_model.LinearExprT:
        """The sum as a CP-SAT expression."""
        if not self.terms:
            return self.constant
        variables = [variable for variable, _ in self.terms.values()]
        coefficients = [coefficient for _, coefficient in self.terms.values()]
        weighted = cp_model.LinearExpr.weighted_sum(variables, coefficients)
        return weighted + self.constant if self.constant else weighted

    def value(self, values: Mapping[int, int]) -> int:
        """Return the sum under `values`, by variable index."""
        return self.constant + sum(
            coefficient * values[index] for index, (_, coefficient) in self.terms.items()
        )

    def largest(self, upper: Mapping[int, int]) -> int:
        """Return an upper bound of the sum; variables run from 0 to `upper` by index."""
        return self.constant + sum(
            coefficient * upper[index]
            for index, (_, coefficient) in self.terms.items()
            if coefficient > 0
        )
