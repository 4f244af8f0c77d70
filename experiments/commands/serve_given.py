"""Given arguments of an engine with a host, scored beside the plan of ``serve``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from solver import SolveStatus
from solver.model.quantities import format_ns

if TYPE_CHECKING:
    from fx_bridge.serving.host_words import HostWords
    from fx_bridge.serving.hosted import HostedPlan
    from fx_bridge.serving.plan import ServingPlan


@dataclass(frozen=True, slots=True)
class ScoredWords:
    """Cost of given arguments, beside the best plan."""

    found: HostedPlan
    text: str
    given: HostWords

    @classmethod
    def of(cls, found: ServingPlan, engine: str | None, text: str) -> ScoredWords:
        """Return the arguments of an engine, scored for the model of a plan with a host."""
        from fx_bridge.serving.hosted import HostedPlan

        assert isinstance(found, HostedPlan) and engine is not None
        return cls(found, text, found.host_words(engine).read(text))

    def json(self) -> dict[str, Any]:
        """Return the score as plain data; gaps are relative to the best possible value."""
        given, cost = self.given, self.given.evaluation
        least, most = self._gaps()
        return {
            "words": self.text,
            "value": None if cost.value_ns is None else float(cost.value_ns),
            "violations": list(cost.violations),
            "gap": {"least": least, "most": most},
            "mode_of": dict(given.plan.mode_of),
            "notes": list(given.notes),
        }

    def lines(self) -> list[str]:
        """Return lines of text: the time and its gap, or the violated limits."""
        given, cost = self.given, self.given.evaluation
        lines = [f"given: {self.text}"]
        if cost.value_ns is None:
            lines += [f"broken: {violation}" for violation in cost.violations]
        else:
            value = format_ns(round(cost.value_ns))
            lines.append(f"given: {self.found.objective} {value}{self._gap_text()}")
        return [*lines, *(f"note: {note}" for note in given.notes)]

    def _gaps(self) -> tuple[float | None, float | None]:
        """Return the least and the largest possible relative gap to the best possible value."""
        solved, value = self.found.solved, self.given.evaluation.value_ns
        if value is None:
            return None, None
        best = value if solved.objective is None else min(value, solved.objective)
        bound = solved.objective_bound
        return float(value / best) - 1, float(value / bound) - 1 if bound else None

    def _gap_text(self) -> str:
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
