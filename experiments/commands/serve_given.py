"""Words that someone gives to an engine with a host, beside the plan of ``serve``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from solver import SolveStatus
from solver.model.quantities import format_ns

if TYPE_CHECKING:
    from fx_bridge.serving.host_words import HostWords
    from fx_bridge.serving.offload import StreamedServingPlan


@dataclass(frozen=True, slots=True)
class ScoredWords:
    """What words give in the place of a plan."""

    found: StreamedServingPlan
    text: str
    given: HostWords

    def json(self) -> dict[str, Any]:
        """Return what the words give as plain data; gaps are parts of the best possible value."""
        given, cost = self.given, self.given.evaluation
        least, most = self._gaps()
        return {
            "words": self.text,
            "value": None if cost.value_ns is None else float(cost.value_ns),
            "violations": list(cost.violations),
            "gap": {"least": least, "most": most},
            "modes": dict(given.plan.modes),
            "notes": list(given.notes),
        }

    def lines(self) -> list[str]:
        """Return what a person reads: the time, how far it is from the best, or what breaks."""
        given, cost = self.given, self.given.evaluation
        lines = [f"given: {self.text}"]
        if cost.value_ns is None:
            lines += [f"broken: {violation}" for violation in cost.violations]
        else:
            value = format_ns(round(cost.value_ns))
            lines.append(f"given: {self.found.objective} {value}{self._told_gap()}")
        return [*lines, *(f"note: {note}" for note in given.notes)]

    def _gaps(self) -> tuple[float | None, float | None]:
        """Return how far the words are at least and at most above the best possible value."""
        solved, value = self.found.solved, self.given.evaluation.value_ns
        if value is None:
            return None, None
        best = value if solved.objective is None else min(value, solved.objective)
        bound = solved.objective_bound
        return float(value / best) - 1, float(value / bound) - 1 if bound else None

    def _told_gap(self) -> str:
        least, most = self._gaps()
        if least is None:
            return ""
        if self.found.solved.status is SolveStatus.OPTIMAL:
            if not least:
                return ", a proven optimum"
            return f", {100 * least:.2f} % above the proven optimum"
        if most is None:
            return f", at least {100 * least:.2f} % above the best possible; nothing is proven"
        return (
            f", between {100 * least:.2f} % and {100 * most:.2f} % above the best possible; a "
            "longer --time-limit may tell"
        )
