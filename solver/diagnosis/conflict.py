"""A minimal conflict: limits that no plan keeps together, all of which it takes.

Source: Junker, "QuickXplain: preferred explanations and relaxations for over-constrained problems",
AAAI 2004.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from solver.diagnosis.answer import Limit
from solver.model.plan import PartitionPlan


@dataclass(frozen=True, slots=True)
class Answer:
    """A plan, or a proof that there is none, or neither."""

    plan: PartitionPlan | None
    proven: bool


class Clash:
    """Finds a minimal conflict by asking which limits can be kept together."""

    def __init__(self, ask: Callable[[Sequence[Limit]], Answer]) -> None:
        self._ask = ask
        self.guessed = False

    def may_hold(self, limits: Sequence[Limit]) -> bool:
        """Return True if a plan keeps `limits`, as far as is known."""
        answer = self._ask(limits)
        self.guessed |= answer.plan is None and not answer.proven
        return not answer.proven

    def smallest(
        self, kept: Sequence[Limit], limits: Sequence[Limit], *, grown: bool = False
    ) -> list[Any]:
        """Return a minimal part of `limits` that clashes with `kept`; all of them do.

        `grown` says that `kept` may clash already.
        """
        if grown and not self.may_hold(kept):
            return []
        if len(limits) == 1:
            return list(limits)
        # Kinds of limits part first: mostly memory alone clashes, and one question shows it.
        own = sum(isinstance(limit, type(limits[0])) for limit in limits)
        middle = own if own < len(limits) else len(limits) // 2
        first, second = limits[:middle], limits[middle:]
        later = self.smallest([*kept, *first], second, grown=True)
        earlier = self.smallest([*kept, *later], first, grown=bool(later))
        return [*earlier, *later]
