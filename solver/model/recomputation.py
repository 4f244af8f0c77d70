"""Recomputation in the backward pass, by the rules of ``docs/definition.md``, section 3.

A backward pass needs storages of the forward pass. A stage keeps them, or recomputes them region by
region: before the backward pass of a region, all of its operators marked for recomputation run
again, in order. They read weights, received values, each other, and *anchors*: values kept for
this purpose alone.

Regions are contiguous in the execution order; a region split over stages is recomputed in parts, by
each stage its own. Plans cover selective activation checkpointing of whole layers (Chen, Xu, Zhang,
Guestrin, "Training deep nets with sublinear memory cost", 2016), of parts of them (Korthikanti et
al., "Reducing activation recomputation in large transformer models", MLSys 2023) and of any
operators.

An operator whose value only its region needs is *inner* to the region, and may always be
recomputed. Some inner operators must be, or all of a region must if one is: then exactly the needed
ones are recomputed (:func:`required`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from solver.model.arrays import Bools
from solver.model.holdings import GradientSpan, StorageGraph
from solver.model.operators import Operator
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem


def with_required(problem: PartitionProblem, plan: PartitionPlan) -> PartitionPlan:
    """Return a plan that also recomputes all required operators, and records its regions."""
    recomputed = required(problem, plan.stage_index, plan.recomputed)
    starts = problem.region_starts if recomputed else ()
    if (recomputed, starts) == (plan.recomputed, plan.region_starts):
        return plan
    return replace(plan, recomputed=recomputed, region_starts=starts)


def with_regions(problem: PartitionProblem, plan: PartitionPlan) -> PartitionProblem:
    """Return `problem` with the regions recorded in `plan`; unchanged if there are none."""
    starts = set(plan.region_starts)
    if not starts:
        return problem
    operators: list[Operator] = []
    region = 0
    for op in problem.operators:
        region += bool(operators) and op.name in starts
        operators.append(replace(op, backward=replace(op.backward, region=region)))
    return problem.replace(operators=tuple(operators))


def other_regions(problem: PartitionProblem, plan: PartitionPlan) -> list[str]:
    """Return one sentence if the regions of a plan and of the problem differ."""
    said, own = set(plan.region_starts), set(problem.region_starts)
    if not said or said == own:
        return []
    first = next(op.name for op in problem.operators if op.name in said ^ own)
    here, there = ("plan", "problem") if first in said else ("problem", "plan")
    return [f"a region begins at operator {first!r} in the {here}, but not in the {there}"]


def required(
    problem: PartitionProblem,
    stage_of: Mapping[str, int],
    recomputed: Collection[str],
    *,
    regions: Collection[int] = (),
) -> frozenset[str]:
    """Return the closure of `recomputed` under the operators that must be recomputed with them.

    `stage_of` is as in :class:`Recomputation`. With ``recompute="layers"``, `regions` are
    recomputed besides those of `recomputed`.
    """
    found = frozenset(recomputed)
    while problem.must_recompute or (problem.recompute == "layers" and (found or regions)):
        missing = Recomputation(problem, stage_of, found).missing(regions)
        if not missing:
            break
        found |= {problem.operators[index].name for index in missing}
    return found


class Recomputation:
    """The recomputed operators of some stages, and the values that they need.

    `stage_of` has the stage number of each operator that is not elsewhere; `recomputed` are
    operators with a storage of their own. `again`, by operator, is true of these, of in-place
    writers to their storages, and of views of them on the same stage that others of these read.
    `anchor` is true of operators kept because recomputed operators of their stage read them.
    """

    def __init__(
        self, problem: PartitionProblem, stage_of: Mapping[str, int], recomputed: Collection[str]
    ) -> None:
        self._problem, self._stage_of = problem, stage_of
        operators, index_of = problem.operators, problem.index_of
        self._chosen = sorted(index_of[name] for name in recomputed)
        chosen = frozenset(self._chosen)
        count = len(operators)
        self.again: Bools = np.zeros(count, dtype=np.bool_)
        self.anchor: Bools = np.zeros(count, dtype=np.bool_)
        self.again[self._chosen] = True
        for index in self._chosen:
            for member in self.family(index):
                self.again[member] |= operators[member].in_place
        # Views come after their bases and before their readers.
        for index in sorted((m for c in self._chosen for m in self.here(c)), reverse=True):
            readers = self._direct_readers(index)
            self.again[index] |= any(self._runs_again_with(index, reader) for reader in readers)
        for index in np.flatnonzero(self.again).tolist():
            for read in operators[index].reads:
                root = index_of.get(problem.root_of[read])
                if root is not None and root not in chosen and self._together(index, root):
                    self.anchor[root] = True

    # Both take a moment, which is spared where nothing is recomputed.

    @cached_property
    def _graph(self) -> StorageGraph:
        return self._problem.storage_graph

    @cached_property
    def _stage(self) -> list[int | None]:
        return [self._stage_of.get(op.name) for op in self._problem.operators]

    def _together(self, index: int, other: int) -> bool:
        """Return True if two operators share a stage."""
        return self._stage[index] is not None and self._stage[index] == self._stage[other]

    def _runs_again_with(self, index: int, other: int) -> bool:
        return bool(self.again[other]) and self._together(index, other)

    def family(self, index: int) -> list[int]:
        """Return an operator and all its aliases, in order."""
        return self._graph.families[index]

    def here(self, index: int) -> list[int]:
        """Return the members of an operator's family on its stage, in order."""
        return [member for member in self.family(index) if self._together(member, index)]

    @property
    def gradient_spans(self) -> tuple[GradientSpan, ...]:
        """Intervals over which gradients are held."""
        return self._graph.gradient_spans

    def _direct_readers(self, index: int) -> list[int]:
        """Return the readers of an operator's value, without those of its aliases."""
        names = self._problem.readers_of[self._problem.operators[index].name]
        return [self._problem.index_of[name] for name in names]

    def savers(self, index: int) -> list[int]:
        """Return the operators whose backward passes need the storage of an operator."""
        return self._graph.savers[index]

    def readers(self, index: int) -> list[int]:
        """Return the readers of an operator and its aliases."""
        return self._graph.readers[index]

    def missing(self, regions: Collection[int] = ()) -> list[int]:
        """Return further operators that must be recomputed, with their required predecessors."""
        operators = self._problem.operators
        whole: set[int] = set()
        if self._problem.recompute == "layers":
            whole = {*regions, *(operators[index].backward.region for index in self._chosen)}
        if not whole and not self._problem.must_recompute:
            return []
        found: list[int] = []
        again = self.again.copy()
        # Users of an operator's value come after it.
        for index in reversed(range(len(operators))):
            backward = operators[index].backward
            must = backward.must_recompute or backward.region in whole
            if must and not again[index] and self._is_needed(index, again):
                found.append(index)
                again[index] = True
                for member in reversed(self.here(index)):
                    again[member] |= operators[member].in_place or any(
                        again[reader] and self._together(member, reader)
                        for reader in self._direct_readers(member)
                    )
        return found[::-1]

    def _is_needed(self, index: int, again: Bools) -> bool:
        """Return True if an operator is inner, and its stage needs its value."""
        operators = self._problem.operators
        if not self._graph.inner[index] or self._stage[index] is None:
            return False
        family = self.family(index)
        writers = [member for member in family if operators[member].in_place]
        if writers:
            return all(self._together(index, member) for member in writers)
        needing = [other for other in self.readers(index) if again[other] and other not in family]
        return bool(operators[index].backward.residual_bytes) or any(
            self._together(index, other) for other in (*self.savers(index), *needing)
        )

    # -- rules ----------------------------------------------------------------------------

    def violations(self) -> list[str]:
        """Return one sentence for each operator that breaks a rule of recomputation."""
        if self._chosen and not self._problem.is_training:
            return ["operators run again, but the memory model has no backward pass"]
        if self._chosen and self._problem.recompute == "none":
            return ["operators run again, but the problem's recompute is 'none'"]
        operators = self._problem.operators
        found = [
            f"operator {operators[index].name!r} cannot run again: {reason}"
            for index in self._chosen
            if (reason := self._why_not(index))
        ]
        for index in self.missing():
            op = operators[index]
            why = "it must wherever its region needs it"
            if not op.backward.must_recompute:
                why = f"others of region {op.backward.region} do, and recompute is 'layers'"
            found.append(f"operator {op.name!r} does not run again, but {why}")
        return found

    def _why_not(self, index: int) -> str | None:
        operators = self._problem.operators
        op = operators[index]
        if op.alias_of is not None:
            return f"it is an alias of {op.alias_of!r}; name what owns the storage"
        if not op.backward.recomputable:
            return "it is not recomputable"
        if self._problem.recompute == "layers" and not self._graph.inner[index]:
            return "recompute is 'layers', and not its region alone needs it"
        mine = [v for v in self.savers(index) if self._together(index, v)]
        needed = [v for v in self.readers(index) if self._runs_again_with(index, v)]
        for other in (*mine, *needed):
            if operators[other].backward.region != op.backward.region:
                return f"{operators[other].name!r}, of another region, needs it"
        if not mine and not needed and not op.backward.residual_bytes:
            return "nothing needs what it makes"
        return self._why_not_written(index) or self._why_not_read(index)

    def _why_not_written(self, index: int) -> str | None:
        """Return a reason if an in-place writer to its storage cannot be recomputed."""
        operators = self._problem.operators
        for member in self.family(index):
            other = operators[member]
            if not other.in_place:
                continue
            if not self._together(index, member):
                return f"{other.name!r}, which writes into its storage, is in another stage"
            if other.backward.region != operators[index].backward.region:
                return f"{other.name!r}, which writes into its storage, is of another region"
            if other.backward.residual_bytes:
                return f"{other.name!r}, which writes into its storage, keeps something of its own"
        return None

    def _why_not_read(self, index: int) -> str | None:
        """Return a reason if it, or a writer to its storage, reads a value modified later."""
        problem = self._problem
        for member in self.family(index):
            if not self.again[member]:
                continue
            for read in problem.operators[member].reads:
                root = problem.index_of.get(problem.root_of[read])
                if root is None or not self.anchor[root] or not self._together(index, root):
                    continue
                for other in self.family(root):
                    writer = problem.operators[other]
                    if writer.in_place and other > member and self._together(index, other):
                        return f"{writer.name!r} writes into {read!r} after it has read it"
        return None
