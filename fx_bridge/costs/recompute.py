"""A person's choice of recomputation in the backward pass, by modules of the model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fx_bridge.capture.modules import check_modules, matching_modules
from solver import PartitionError
from solver.model.checks import only_given
from solver.model.text import shown
from solver.model.training import RecomputeRule

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph

RULES: Final = ("none", "auto", "layers", "all")
_EXAMPLE: Final = "such as ['h.0'] or ['h.*.mlp']"


@dataclass(frozen=True, slots=True)
class Recompute:
    """Operators that may run again in the backward pass instead of being kept, and those that must.

    Modules are named by their paths, or by patterns of ``fnmatch`` (``*`` matches dots too). They
    mean all operators inside that may run again at all
    (:func:`fx_bridge.costs.recomputation.recomputable_operators`). Values that other regions need,
    such as the result of a layer, are always kept where this says "must".

    Parameters
    ----------
    rule : {"auto", "none", "layers", "all"} or sequence of str
        "auto": the operators for which it pays, decided with the plan; "none": no operator;
        "layers": all or none of each layer, decided with the plan; "all": all of every layer. A
        sequence: exactly these modules. A layer is the region that begins at it
        (:func:`~fx_bridge.costs.recomputation.recomputation_regions`). With ``"layers"`` and
        ``"all"`` nothing before the first and after the last layer runs again, as in programs that
        know only layers.
    always : sequence of str
        Modules that run again in any case; with ``"layers"`` all eligible operators of their
        regions.
    never : sequence of str
        Modules that do not, even if other fields include them.

    Raises
    ------
    PartitionError
        If a field has another form, or nothing is left to decide where something is forced.

    Examples
    --------
    >>> Recompute("layers", always=["h.0"], never=["h.*.mlp"])
    Recompute(rule='layers', always=('h.0',), never=('h.*.mlp',))
    >>> Recompute("all", always=["h.0"])
    Traceback (most recent call last):
    solver.model.errors.PartitionError: always is given with rule 'all', which decides nothing; \
leave it out, or write 'auto' or 'layers'
    """

    rule: str | Sequence[str] = "auto"
    always: Sequence[str] = ()
    never: Sequence[str] = ()

    def __post_init__(self) -> None:
        rule = self.rule
        if isinstance(rule, str) or not isinstance(rule, Collection):
            if rule not in RULES:
                raise PartitionError(
                    f"recompute is {shown(rule)}; write one of {', '.join(RULES)}, or a list of "
                    f"modules, {_EXAMPLE}"
                )
        else:
            object.__setattr__(self, "rule", check_modules(rule, "recompute", _EXAMPLE))
            if not self.rule:
                raise PartitionError(f"recompute is empty; write 'none', or modules, {_EXAMPLE}")
        for name in ("always", "never"):
            object.__setattr__(self, name, check_modules(getattr(self, name), name, _EXAMPLE))
        if self.always and self.rule not in ("auto", "layers"):
            raise PartitionError(
                f"always is given with rule {self.rule!r}, which decides nothing; leave it out, or "
                "write 'auto' or 'layers'"
            )
        if self.never and self.rule == "none":
            raise PartitionError("never is given with rule 'none'; leave it out")

    __repr__ = only_given

    @classmethod
    def of(cls, given: Recompute | str | Sequence[str]) -> Recompute:
        """Return `given` as a Recompute: a rule, modules, or one already."""
        return given if isinstance(given, cls) else cls(given)  # type: ignore[arg-type]

    @property
    def shortest(self) -> Recompute | str | Sequence[str]:
        """The rule or modules alone, if no other field is set."""
        return self if self.always or self.never else self.rule

    @property
    def problem_rule(self) -> RecomputeRule:
        """Rule of a problem whose operators carry the other fields."""
        if self.rule == "none" or self.rule == "auto":
            return self.rule
        return "layers"

    def choices(
        self, captured: CapturedGraph, recomputable: Collection[str], regions: Sequence[str] = ()
    ) -> tuple[frozenset[str], frozenset[str]]:
        """Return the operators that may run again, and those of them that must.

        `recomputable` are those that may run again in the graph, and `regions` the modules that are
        layers; by default those that the model repeats. PartitionError if the model has no module
        of a name.
        """
        from fx_bridge.costs.recomputation import operators_of_layers

        operators = captured.modules.operators
        may = frozenset(recomputable) - _inside(self.never, operators)
        always = _inside(self.always, operators)
        if self.rule in ("layers", "all"):
            may &= operators_of_layers(captured, regions) | always
        if self.rule == "all":
            return may, may
        if isinstance(self.rule, str):
            return may, may & always
        may &= _inside(self.rule, operators)
        return may, may


ANYTHING: Final = Recompute()


def _inside(patterns: Sequence[str], operators: Mapping[str, Sequence[str]]) -> frozenset[str]:
    paths = (path for pattern in patterns for path in matching_modules(pattern, operators))
    return frozenset(name for path in paths for name in operators[path])
