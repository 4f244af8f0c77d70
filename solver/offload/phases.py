"""Forwards of several kinds under one plan, such as that of a prompt and those of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from solver.model.checks import check_positive, only_given
from solver.model.errors import PartitionError
from solver.model.plan import Mode, PartitionPlan
from solver.model.problem_checks import MAX_TOTAL
from solver.offload.evaluate import OffloadEvaluation, evaluate_offload, timeline_ns
from solver.offload.model import OffloadProblem, Unit


@dataclass(frozen=True)
class OffloadPhases:
    """Problems that one plan solves: the same units and devices, with times of their own.

    The objective is the sum over phases of `counts` times theirs. Each phase counts in its steady
    state, as if forwards of its kind alone came one after the other.

    Parameters
    ----------
    problems : sequence of OffloadProblem
        Alike but for times.
    counts : sequence of int
        How often a forward of each runs.

    Raises
    ------
    PartitionError
        When problems differ, or numbers are not positive or too large.
    """

    problems: tuple[OffloadProblem, ...]
    counts: tuple[int, ...]
    __repr__ = only_given

    def __post_init__(self) -> None:
        for name in ("problems", "counts"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not self.problems or len(self.problems) != len(self.counts):
            raise PartitionError(
                f"there are {len(self.problems)} problems and {len(self.counts)} counts; give at "
                "least one problem, and a count for each"
            )
        for count in self.counts:
            check_positive(count, "counts")
        for problem in self.problems[1:]:
            self._check_alike(problem)
        if self.most_ns > MAX_TOTAL:
            raise PartitionError(
                f"times add up to more than {MAX_TOTAL} ns; check units, links and counts"
            )

    def _check_alike(self, problem: OffloadProblem) -> None:
        first = self.problems[0]
        for name in ("devices", "host", "objective"):
            if getattr(problem, name) != getattr(first, name):
                raise PartitionError(f"phases differ in {name}; give all the same")
        for ours, theirs in zip(first.units, problem.units, strict=False):
            if _bytes_of(ours) != _bytes_of(theirs):
                raise PartitionError(
                    f"phases differ in unit {ours.name!r}: name, bytes and modes must be the same"
                )
        if len(problem.units) != len(first.units):
            raise PartitionError("phases differ in how many units they have; give all the same")

    @property
    def most_ns(self) -> int:
        """A time that no plan exceeds."""
        return sum(
            count * problem.most_ns
            for problem, count in zip(self.problems, self.counts, strict=True)
        )

    def evaluate(self, plan: PartitionPlan) -> OffloadEvaluation:
        """Cost `plan`, the same in all phases, by the sum of the objective over all runs."""
        found = [evaluate_offload(problem, plan) for problem in self.problems]
        times = [evaluation.objective for evaluation in found]
        if not all(times):
            return found[0]
        value = sum(
            (count * ns for count, (ns,) in zip(self.counts, times, strict=True)), Fraction()
        )
        return replace(found[0], objective=(value,))

    def value_ns(
        self,
        devices: Sequence[int],
        modes: Sequence[Mode],
        rooms: Sequence[int | None],
        *,
        enough_ns: Fraction | None = None,
    ) -> Fraction:
        """Return the objective of a plan that fits; from `enough_ns` on it need not be exact."""
        value = Fraction(0)
        for problem, count in zip(self.problems, self.counts, strict=True):
            if enough_ns is not None and value >= enough_ns:
                break
            enough = None if enough_ns is None else (enough_ns - value) / count
            value += count * timeline_ns(problem, devices, modes, rooms, enough_ns=enough)
        return value


def _bytes_of(unit: Unit) -> tuple[object, ...]:
    return unit.name, unit.weight_bytes, unit.padding_bytes, unit.cache_bytes, unit.modes
