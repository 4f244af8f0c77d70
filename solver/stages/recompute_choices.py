"""What parts of regions may run again: all choices of which none is better in every respect.

A choice takes time, keeps bytes of each microbatch in flight, and holds others of what the part
sends (:mod:`solver.stages.choice_program`). Alike parts, as those of identical layers, are solved
once.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from solver.model.arrays import Ints
from solver.model.holdings import GradientSpan
from solver.model.problem import PartitionProblem
from solver.model.recomputation import required
from solver.stages.choice_program import (
    Amounts,
    Candidate,
    PartModel,
    best_choices,
    given_choices,
)
from solver.stages.pareto import lower_hull


@dataclass(frozen=True, slots=True)
class Part:
    """The operators of one region on one stage.

    Attributes
    ----------
    members : tuple of int
        In the execution order; those that are there for certain.
    inside : collection of int
        All operators of the stage, those that are there for certain.
    perhaps : collection of int
        Operators that may be on the stage.
    """

    members: tuple[int, ...]
    inside: Collection[int]
    perhaps: Collection[int] = field(default=())

    def has(self, index: int) -> bool:
        """Whether an operator is certainly on the stage."""
        return index in self.inside

    def lacks(self, index: int) -> bool:
        """Whether an operator is certainly elsewhere."""
        return index not in self.inside and index not in self.perhaps


class Choice(NamedTuple):
    """What a choice takes, and keeps of a microbatch."""

    extra_ns: int
    held_bytes: int


class PartChoices(NamedTuple):
    """The choices of a part.

    Attributes
    ----------
    amounts : Ints, shape (choices, 4)
        Time in nanoseconds, bytes kept of a microbatch, bytes held of what is sent, and how much of
        what is kept is there before the part, as anchors; the choices that take least time first.
    masks : list of int
        What runs again, as bits by candidate.
    candidates : tuple of int
        Operators.
    is_complete : bool
        Whether no plan has a better choice. Else choices were left out, or what reads a value in
        another region may run again, so that the value may not.
    """

    amounts: Ints
    masks: list[int]
    candidates: tuple[int, ...]
    is_complete: bool

    def again(self, choice: int) -> list[int]:
        """Return the operators of a choice."""
        mask = self.masks[choice]
        return [index for place, index in enumerate(self.candidates) if mask >> place & 1]


class RecomputeChoices:
    """The choices of parts on one class of devices.

    Parameters
    ----------
    problem : PartitionProblem
        Of training, in which operators may run again.
    device_class : str
        Whose times count.
    """

    def __init__(self, problem: PartitionProblem, device_class: str) -> None:
        self._problem = problem
        forward, _ = problem.arrays.pass_latency_ns(device_class)
        self._latency_ns: list[int] = forward.tolist()
        self.structure = problem.storage_graph
        self.regions = [op.backward.region for op in problem.operators]
        self._root_of = [
            problem.index_of.get(problem.root_of[op.name], -1) for op in problem.operators
        ]
        self._known: dict[tuple[PartModel, tuple[int, ...]], tuple[Ints, list[int], bool]] = {}
        # By number of an array, which the former keeps.
        self._hulls: dict[int, tuple[Choice, ...]] = {}

    def parts(self, members: Sequence[int], perhaps: Collection[int] = frozenset()) -> list[Part]:
        """Return the parts of a stage.

        Parameters
        ----------
        members : sequence of int
            Operators that are there for certain, in the execution order.
        perhaps : collection of int
            Operators that may be there.
        """
        inside = frozenset(members)
        runs = itertools.groupby(members, self.regions.__getitem__)
        return [Part(tuple(run), inside, perhaps) for _, run in runs]

    def of(self, part: Part) -> PartChoices:
        """Return the choices of a part."""
        candidates = [index for index in part.members if self._is_candidate(index, part)]
        model, given = self._model(part, candidates), self._given(part, candidates)
        if (model, given) not in self._known:
            points, is_whole = (given_choices(model, given), True) if given else best_choices(model)
            amounts: Ints = np.array([point[:4] for point in points], dtype=np.int64)
            self._known[model, given] = amounts, [point[4] for point in points], is_whole
        amounts, masks, is_whole = self._known[model, given]
        is_complete = is_whole and not self._is_read_later(candidates, part)
        return PartChoices(amounts, masks, tuple(candidates), is_complete)

    def hull(self, part: Part) -> tuple[Choice, ...]:
        """Return the choices that are cheapest for some price, those that keep most first.

        Choices that hold more of what is sent are left out.
        """
        amounts = self.of(part).amounts
        if id(amounts) not in self._hulls:
            own = amounts[amounts[:, 2] <= amounts[0, 2]]
            points = lower_hull(zip(own[:, 0].tolist(), own[:, 1].tolist(), strict=True))
            self._hulls[id(amounts)] = tuple(Choice(*point) for point in points)
        return self._hulls[id(amounts)]

    # -- one part -------------------------------------------------------------------------------

    def _is_candidate(self, index: int, part: Part) -> bool:
        """Whether the rules let an operator run again, whatever other regions read."""
        operators, region = self._problem.operators, self.regions[index]
        if not operators[index].backward.recomputable or self._root_of[index] != index:
            return False
        savers = self.structure.savers[index]
        if any(part.has(saver) and self.regions[saver] != region for saver in savers):
            return False
        for member in self._writers(index):
            backward = operators[member].backward
            if part.lacks(member) or backward.region != region or backward.residual_bytes:
                return False
        users = (*savers, *self.structure.readers[index])
        return bool(operators[index].backward.residual_bytes) or any(
            self.regions[user] == region and not part.lacks(user) for user in users
        )

    def _is_read_later(self, candidates: Sequence[int], part: Part) -> bool:
        """Whether what reads a candidate in another region might run again."""
        operators = self._problem.operators
        return any(
            self.regions[reader] != self.regions[index]
            and not part.lacks(reader)
            and operators[reader].backward.recomputable
            for index in candidates
            for reader in self.structure.readers[index]
        )

    def _views_bytes(self, index: int, part: Part) -> int:
        """Return what views of a storage save, which may run again with it."""
        operators = self._problem.operators
        return sum(
            operators[member].backward.saved_bytes
            for member in self.structure.families[index]
            if member != index
            and part.has(member)
            and self.regions[member] == self.regions[index]
            and not operators[member].in_place
        )

    def _given(self, part: Part, candidates: list[int]) -> tuple[int, ...]:
        """Return the only choices, as masks, where whole layers run again; else nothing."""
        problem = self._problem
        if problem.recompute != "layers":
            return ()
        stage_of = {problem.operators[index].name: 0 for index in part.members}
        regions = ((), (self.regions[part.members[0]],))
        every = [required(problem, stage_of, (), regions=own) for own in regions]
        names = [problem.operators[index].name for index in candidates]
        masks = [sum(1 << at for at, name in enumerate(names) if name in own) for own in every]
        return tuple(dict.fromkeys(masks))

    def _writers(self, index: int) -> list[int]:
        operators = self._problem.operators
        return [member for member in self.structure.families[index] if operators[member].in_place]

    def _model(self, part: Part, candidates: list[int]) -> PartModel:
        operators = self._problem.operators
        number = {index: place for place, index in enumerate(candidates)}
        found: list[Candidate] = []
        for index in candidates:
            op, writers = operators[index], self._writers(index)
            kept_bytes = op.backward.kept_bytes
            amounts = (
                self._latency_ns[index] + sum(self._latency_ns[member] for member in writers),
                op.backward.again_bytes - op.backward.saved_bytes - self._views_bytes(index, part),
                self._sent_bytes(index, 0, part) - self._sent_bytes(index, kept_bytes, part),
                0,
            )
            reads: dict[int, bool] = {}
            for member in (index, *writers):
                for root in self._read_by(member):
                    if root != index and part.has(root):
                        place = number.setdefault(root, len(number))
                        must = place < len(candidates) and self._is_required(root)
                        may_stay = not must and not self._is_written_later(root, member, part)
                        reads[place] = reads.get(place, True) and may_stay
            is_saved = any(part.has(saver) for saver in self.structure.savers[index])
            is_needed = bool(is_saved or writers or op.backward.residual_bytes)
            must = self._is_required(index) and is_needed
            found.append(Candidate(amounts, must, tuple(sorted(reads.items()))))
        anchors = tuple(self._anchor(root, part) for root in number)
        held_bytes = sum(operators[index].backward.saved_bytes for index in part.members)
        sent_bytes = sum(
            self._sent_bytes(index, operators[index].backward.kept_bytes, part)
            for index in part.members
            if operators[index].alias_of is None
        )
        return PartModel((0, held_bytes, sent_bytes, 0), tuple(found), anchors)

    def _read_by(self, index: int) -> list[int]:
        """Return the owners of the storages that an operator reads."""
        index_of, root_of = self._problem.index_of, self._root_of
        reads = self._problem.operators[index].reads
        roots = (root_of[index_of[name]] for name in reads if name in index_of)
        return [root for root in roots if root >= 0]

    def _is_required(self, index: int) -> bool:
        """Whether an operator must run again where that is needed."""
        must = self._problem.operators[index].backward.must_recompute
        return must and self.structure.inner[index]

    def _is_written_later(self, root: int, index: int, part: Part) -> bool:
        """Whether the stage writes into a storage after an operator has read it."""
        return any(writer > index and part.has(writer) for writer in self._writers(root))

    def _anchor(self, index: int, part: Part) -> Amounts:
        """Return what comes to the amounts if a storage is an anchor.

        What several regions read is kept once: for the first of them.
        """
        op, own = self._problem.operators[index], self.regions[part.members[0]]
        if self.regions[index] != own:
            readers = self.structure.readers[index]
            regions = [self.regions[reader] for reader in readers if not part.lacks(reader)]
            if any(self.regions[index] < region < own for region in regions):
                return (0, 0, 0, 0)
        kept_bytes = op.backward.kept_bytes
        sent_bytes = self._sent_bytes(index, op.storage_bytes, part)
        sent_bytes -= self._sent_bytes(index, kept_bytes, part)
        more_bytes = op.storage_bytes - kept_bytes
        return (0, more_bytes, sent_bytes, more_bytes if self.regions[index] != own else 0)

    def _sent_bytes(self, index: int, kept_bytes: int, part: Part) -> int:
        """Return what is held of a storage for others, some of which is kept besides."""
        operators, batches = self._problem.operators, self._problem.microbatches
        storage_bytes = operators[index].storage_bytes
        if any(operators[member].is_output for member in self.structure.families[index]):
            return batches * storage_bytes
        if any(part.lacks(reader) for reader in self.structure.readers[index]):
            return batches * (storage_bytes - kept_bytes) + kept_bytes
        return 0

    def buffers_bytes(self, part: Part) -> int:
        """Return what is there for gradients that come back to the part."""
        buffers = self.structure.buffers
        own = (buffers[index] for index in part.members if index in buffers)
        return sum(one.size_bytes for one in own if any(map(part.lacks, one.waits_for)))

    def backward_bytes(self, part: Part) -> int:
        """Return the most that is there at once, of this region, while the part runs backward."""
        operators, members = self._problem.operators, part.members
        many = self._problem.microbatches > 1
        saved = np.cumsum([operators[index].backward.saved_bytes for index in members])
        besides = np.array(
            [
                operators[index].backward.workspace_bytes
                + many * operators[index].backward.weight_gradient_bytes
                for index in members
            ]
        )
        change = np.zeros(len(members) + 1, dtype=np.int64)
        for span in self._spans[self.regions[members[0]]]:
            if part.has(span.operator):
                change[bisect_left(members, span.operator)] += span.size_bytes
                if not span.stays:
                    change[bisect_right(members, span.last)] -= span.size_bytes
        return int((saved + besides + np.cumsum(change[:-1])).max())

    @cached_property
    def _spans(self) -> dict[int, list[GradientSpan]]:
        """By region, the gradients that may be there while it runs backward."""
        found: dict[int, list[GradientSpan]] = {region: [] for region in self.regions}
        numbers = sorted(found)
        for span in self.structure.gradient_spans:
            last = numbers[-1] if span.stays else self.regions[span.last]
            first = bisect_left(numbers, self.regions[span.operator])
            for region in numbers[first : bisect_right(numbers, last)]:
                found[region].append(span)
        return found
