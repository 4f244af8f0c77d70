"""The options ``--recompute`` and ``--regions``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from fx_bridge.costs.recompute import RULES
from solver import PartitionError, PartitionProblem
from solver.model.text import shown

if TYPE_CHECKING:
    from fx_bridge.options import Training

_FORCED: Final = ("always", "never")


@dataclass(frozen=True, slots=True)
class RecomputeRequest:
    """The fields of ``fx_bridge.Recompute``, a rule or modules, and the regions, without torch."""

    rule: str | tuple[str, ...] | None = None
    always: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()

    @classmethod
    def read(cls, texts: Sequence[str], regions: Sequence[str] = ()) -> RecomputeRequest:
        """Parse option values, each a rule, a module, or ``MODULE=always`` or ``=never``.

        Examples
        --------
        >>> RecomputeRequest.read(["layers", "h.0=never"])
        RecomputeRequest(rule='layers', always=(), never=('h.0',), regions=())
        """
        forced: dict[str, list[str]] = {when: [] for when in _FORCED}
        others: list[str] = []
        if any(not name.strip() for name in regions):
            raise PartitionError("--regions is empty; write a module, such as h.0")
        for text in texts:
            if not text.strip() or text.startswith("="):
                raise PartitionError(
                    f"--recompute {text!r} names nothing; write one of {', '.join(RULES)}, or a "
                    "module, such as h.0"
                )
            if "," in text:
                raise PartitionError(
                    f"--recompute is {shown(text)}; write one rule, or each module by an option of "
                    "its own"
                )
            module, equals, when = text.rpartition("=")
            if equals and when not in _FORCED:
                raise PartitionError(
                    f"--recompute is {shown(text)}; write MODULE=always or MODULE=never"
                )
            (forced[when] if equals else others).append(module if equals else text)
        rule: str | tuple[str, ...] | None = tuple(others) or None
        if any(text in RULES for text in others):
            if len(others) > 1:
                raise PartitionError(
                    f"--recompute is {' and '.join(map(repr, others))}; write one rule, or modules "
                    "alone, or MODULE=always or MODULE=never beside the rule"
                )
            rule = others[0]
        elif rule is None and texts:
            rule = "auto"
        return cls(rule, tuple(forced["always"]), tuple(forced["never"]), tuple(regions))

    @property
    def is_asked(self) -> bool:
        """True if recomputation or regions are requested."""
        return self.rule not in (None, "none") or bool(self.regions)

    def check(self, memory_model: str) -> None:
        """Raise PartitionError if recomputation is requested outside training."""
        if self.is_asked and memory_model != "training":
            option = "--regions" if self.rule in (None, "none") else "--recompute"
            raise PartitionError(
                f"{option} says what runs again in training, and the memory model is "
                f"{memory_model}; write --memory-model training"
            )

    def training(self, training: Training) -> Training:
        """Return training options with the requested recomputation."""
        from fx_bridge.costs.recompute import Recompute

        recompute = Recompute(self.rule or "none", self.always, self.never)
        return replace(training, recompute=recompute, regions=self.regions)

    def settings(self) -> dict[str, Any]:
        """Return the settings of a problem, whose operators hold the other fields."""
        if self.rule is None:
            return {}
        return {"recompute": self.rule if self.rule in ("none", "auto") else "layers"}

    def of_saved(self, problem: PartitionProblem) -> PartitionProblem:
        """Apply the request to a saved problem, which has no modules."""
        if self.always or self.never or self.regions or isinstance(self.rule, tuple):
            option, remedy = "--recompute", f"write one of {', '.join(RULES)}"
            if self.regions:
                option, remedy = "--regions", "leave it out, its regions are those of the file"
            raise PartitionError(
                f"{option} names modules, and a saved problem knows none; {remedy}"
            )
        if self.rule != "all":
            return problem
        operators = [
            replace(op, backward=replace(op.backward, must_recompute=op.backward.recomputable))
            for op in problem.operators
        ]
        return problem.replace(operators=operators)
