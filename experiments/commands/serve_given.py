"""Given arguments of an engine with a host, scored beside the plan of ``serve``."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from experiments.commands.serve_words import value_text
from solver import SolveStatus
from solver.evaluation.result import MAXIMISED

if TYPE_CHECKING:
    from fx_bridge.serving.gguf_plan import GgufPlan
    from fx_bridge.serving.host_words import HostWords
    from fx_bridge.serving.hosted import HostedPlan
    from fx_bridge.serving.plan import ServingPlan


@dataclass(frozen=True, slots=True)
class ScoredWords:
    """Cost of given arguments, beside the best plan."""

    found: HostedPlan | GgufPlan
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
            "value": float(cost.objective[0]) if cost.feasible else None,
            "violations": list(cost.violations),
            "gap": {"least": least, "most": most},
            "assignment": dict(given.plan.assignment),
            "notes": list(given.notes),
        }

    def lines(self) -> list[str]:
        """Return lines of text: the time and its gap, or the violated limits."""
        given, cost = self.given, self.given.evaluation
        lines = [f"given: {self.text}"]
        if not cost.feasible:
            lines += [f"broken: {violation}" for violation in cost.violations]
        else:
            value = value_text(self.found.objective, cost.objective[0])
            lines.append(f"given: {self.found.objective} {value}{self._gap_text()}")
        return [*lines, *(f"note: {note}" for note in given.notes)]

    def _gaps(self) -> tuple[float | None, float | None]:
        """Return the least and the largest possible relative gap to the best possible value."""
        solved, cost = self.found.solved, self.given.evaluation
        if not cost.feasible:
            return None, None
        best = cost.objective[0] if solved.objective is None else solved.objective
        bound = solved.objective_bound
        return max(self._gap(best), 0.0), self._gap(bound) if bound else None

    def _gap(self, other: Fraction | float) -> float:
        """Return how much worse the value is than another one, relative to the smaller one."""
        value = self.given.evaluation.objective[0]
        if value == other:
            return 0.0
        return float(other / value if self._is_maximised else value / other) - 1

    @property
    def _is_maximised(self) -> bool:
        return self.found.objective in MAXIMISED

    def _gap_text(self) -> str:
        least, most = self._gaps()
        if least is None:
            return ""
        side = "below" if self._is_maximised else "above"
        if self.found.solved.status is SolveStatus.OPTIMAL:
            if not least:
                return ", a proven optimum"
            return f", {100 * least:.2f} % {side} the proven optimum"
        if most is None:
            return f", at least {100 * least:.2f} % {side} the best possible; nothing is proven"
        return (
            f", between {100 * least:.2f} % and {100 * most:.2f} % {side} the best possible; a "
            "longer --time-limit may tell"
        )
