"""The Pareto-optimal choices of operators to recompute in parts of regions.

A choice takes time, keeps bytes of each microbatch in flight, and holds further bytes for values
that the part sends (:mod:`solver.stages.choice_program`). Identical parts, such as those of equal
layers, are solved once.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from solver.model.arrays import Ints
from solver.model.holdings import GradientSpan
from solver.model.problem import PartitionProblem
from solver.model.recomputation import required
from solver.stages.choice_program import Amounts, Candidate, PartModel, best_choices, given_choices
from solver.stages.pareto import lower_hull


@dataclass(frozen=True, slots=True)
class Part:
    """The operators of one region on one stage, in the execution order.

    `members` and `inside`, all operators of the stage, are there for certain; `perhaps` may be.
    """

    members: tuple[int, ...]
    inside: Collection[int]
    perhaps: Collection[int] = field(default=())

    def has(self, index: int) -> bool:
        """Return True if an operator is certainly on the stage."""
        return index in self.inside

    def lacks(self, index: int) -> bool:
        """Return True if an operator is certainly elsewhere."""
        return index not in self.inside and index not in self.perhaps


class Choice(NamedTuple):
    """Time added by a choice, and bytes kept of a microbatch."""

    extra_ns: int
    held_bytes: int


class PartChoices(NamedTuple):
    """The choices of a part.

    `amounts` has a row for each choice, the fastest first: time in nanoseconds, bytes kept of a
    microbatch, bytes held for sends, the kept bytes that exist before the part, as anchors, and
    those by which the part has a higher peak while it is recomputed than while it runs backward.
    `masks` are recomputed operators, as bits by candidate.

    If `is_complete`, no plan has a better choice, otherwise choices were dropped. Choices of parts
    are independent: one may recompute a value that is an anchor of another.
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
    """The choices of parts on one class of devices, in training with recomputation."""

    def __init__(self, problem: PartitionProblem, device_class: str) -> None:
        self._problem = problem
        forward, _ = problem.arrays.pass_latency_ns(device_class)
        self._latency_ns: list[int] = forward.tolist()
        self.structure = problem.storage_graph
        self.regions = [op.backward.region for op in problem.operators]
        self._root_of = [
            problem.index_of.get(problem.root_of[op.name], -1) for op in problem.operators
        ]
        self._found: dict[tuple[tuple[int, ...], bytes], PartChoices] = {}
        self._known: dict[tuple[PartModel, tuple[int, ...]], tuple[Ints, list[int], bool]] = {}
        # By identity of an array, which `_known` keeps alive.
        self._hulls: dict[int, tuple[Choice, ...]] = {}

    def parts(self, members: Sequence[int], perhaps: Collection[int] = frozenset()) -> list[Part]:
        """Return the parts of a stage of `members`, in the execution order, and perhaps others."""
        inside = frozenset(members)
        runs = itertools.groupby(members, self.regions.__getitem__)
        return [Part(tuple(run), inside, perhaps) for _, run in runs]

    def of(self, part: Part) -> PartChoices:
        """Return the choices of a part."""
        inside, perhaps = part.inside, part.perhaps
        near = self._near[self.regions[part.members[0]]]
        key = part.members, bytes(2 if index in inside else index in perhaps for index in near)
        if key not in self._found:
            self._found[key] = self._choices(part)
        return self._found[key]

    @cached_property
    def _near(self) -> dict[int, list[int]]:
        """By region, the operators of which it matters to its choices if the stage has them."""
        structure, found = self.structure, dict[int, set[int]]()
        for index, region in enumerate(self.regions):
            own = found.setdefault(region, set())
            for member in (index, *self._writers(index)):
                for root in (index, *self._read_by(member)):
                    own |= {root, *structure.readers[root], *structure.families[root]}
            own.update(structure.savers[index])
        for span in structure.gradient_spans:
            found[self.regions[span.last]].add(span.operator)
        return {region: sorted(own) for region, own in found.items()}

    def _choices(self, part: Part) -> PartChoices:
        candidates = [index for index in part.members if self._is_candidate(index, part)]
        model, given = self._model(part, candidates), self._given(part, candidates)
        if (model, given) not in self._known:
            points, is_whole = (given_choices(model, given), True) if given else best_choices(model)
            amounts: Ints = np.array([point[:5] for point in points], dtype=np.int64)
            self._known[model, given] = amounts, [point[5] for point in points], is_whole
        amounts, masks, is_whole = self._known[model, given]
        return PartChoices(amounts, masks, tuple(candidates), is_whole)

    def hull(self, part: Part) -> tuple[Choice, ...]:
        """Return the choices that are cheapest for some price, those with most kept bytes first.

        Choices that hold more bytes for sends are left out.
        """
        amounts = self.of(part).amounts
        if id(amounts) not in self._hulls:
            own = amounts[amounts[:, 2] <= amounts[0, 2]]
            points = lower_hull(zip(own[:, 0].tolist(), own[:, 1].tolist(), strict=True))
            self._hulls[id(amounts)] = tuple(Choice(*point) for point in points)
        return self._hulls[id(amounts)]

    def fastest_ns(self, part: Part) -> float:
        """Return the least time that recomputing anything of a part adds, infinite if none may."""
        times = (self._latency_ns[index] for index in self.of(part).candidates)
        return min(map(float, times), default=math.inf)

    def _is_candidate(self, index: int, part: Part) -> bool:
        """Return True if the rules allow to recompute an operator, whatever other regions read."""
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

    def _views_bytes(self, index: int, part: Part) -> int:
        """Return the bytes saved by views of a storage, which may be recomputed with it."""
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
        """Return the only choices, as masks, if whole layers are recomputed; else nothing."""
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
        for index, peaks in zip(candidates, self._rerun_peaks(part, candidates), strict=True):
            op, writers = operators[index], self._writers(index)
            kept_bytes = op.backward.kept_bytes
            own = [operators[member].backward for member in (index, *writers)]
            saved_bytes = sum(one.saved_bytes for one in own) + self._views_bytes(index, part)
            amounts = (
                sum(self._latency_ns[member] for member in (index, *writers)),
                sum(one.again_bytes for one in own) - saved_bytes,
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
            found.append(Candidate(amounts, *peaks, must, tuple(sorted(reads.items()))))
        anchors = tuple(self._anchor(root, part) for root in number)
        held_bytes = sum(operators[index].backward.saved_bytes for index in part.members)
        sent_bytes = sum(
            self._sent_bytes(index, operators[index].backward.kept_bytes, part)
            for index in part.members
            if operators[index].alias_of is None
        )
        return PartModel((0, held_bytes, sent_bytes, 0), tuple(found), anchors)

    def _read_by(self, index: int) -> list[int]:
        index_of, root_of = self._problem.index_of, self._root_of
        reads = self._problem.operators[index].reads
        roots = (root_of[index_of[name]] for name in reads if name in index_of)
        return [root for root in roots if root >= 0]

    def _is_required(self, index: int) -> bool:
        """Return True if an operator must be recomputed where it is needed."""
        must = self._problem.operators[index].backward.must_recompute
        return must and self.structure.inner[index]

    def _is_written_later(self, root: int, index: int, part: Part) -> bool:
        return any(writer > index and part.has(writer) for writer in self._writers(root))

    def _anchor(self, index: int, part: Part) -> Amounts:
        """Return the amounts added by a storage if it is an anchor.

        A storage read by several regions is kept once: for the first of them. All count the bytes
        that are then not held for sends, so that no choice adds up to more than the stage holds.
        """
        op, own = self._problem.operators[index], self.regions[part.members[0]]
        sent_bytes = self._sent_bytes(index, op.storage_bytes, part)
        sent_bytes -= self._sent_bytes(index, op.backward.kept_bytes, part)
        readers = self.structure.readers[index]
        before = [reader for reader in readers if self.regions[reader] < own]
        if any(
            self._may_rerun(reader, part) for reader in before if self._root_of[reader] != index
        ):
            return (0, 0, sent_bytes, 0)
        more_bytes = op.storage_bytes - op.backward.kept_bytes
        return (0, more_bytes, sent_bytes, more_bytes if self.regions[index] != own else 0)

    def _may_rerun(self, index: int, part: Part) -> bool:
        """Return True if an operator may be recomputed on the stage, by itself or with others."""
        root = self._root_of[index]
        may = root >= 0 and self._problem.operators[root].backward.recomputable
        return may and not part.lacks(index)

    def _sent_bytes(self, index: int, kept_bytes: int, part: Part) -> int:
        """Return the bytes of a storage held for other stages, besides those that are kept."""
        operators, batches = self._problem.operators, self._problem.microbatches
        storage_bytes = operators[index].storage_bytes
        if any(operators[member].is_output for member in self.structure.families[index]):
            return batches * storage_bytes
        if any(part.lacks(reader) for reader in self.structure.readers[index]):
            return batches * (storage_bytes - kept_bytes) + kept_bytes
        return 0

    def buffers_bytes(self, part: Part) -> int:
        """Return the bytes of buffers for gradients that the part receives."""
        buffers = self.structure.buffers
        own = (buffers[index] for index in part.members if index in buffers)
        return sum(one.size_bytes for one in own if any(map(part.lacks, one.waits_for)))

    def _rerun_peaks(self, part: Part, candidates: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield R(t) of each candidate, if it is the last one, and made(t).

        They are those of :mod:`solver.stages.least_recomputation`; R(t) is above the peak of the
        backward pass, and 0 below it.
        """
        operators, members = self._problem.operators, part.members
        held = [operators[index].backward for index in members]
        above_bytes = sum(own.saved_bytes for own in held) - self.backward_bytes(part)
        is_miss = np.isin(members, self._misses(part, candidates))
        if is_miss.any():
            known = np.where(is_miss, self._gradients_bytes(part), np.iinfo(np.int64).max)
            gradients = np.minimum.accumulate(known[::-1])[::-1].tolist()
        else:
            gradients = [0] * len(members)
        made = [own.saved_bytes - own.number_bytes for own in held]
        is_view = [operators[index].alias_of is not None for index in members]
        views = [size if view else 0 for size, view in zip(made, is_view, strict=True)]
        views_behind = [*itertools.accumulate(reversed(views), initial=0)][::-1]
        for index in candidates:
            op, at = operators[index], bisect_left(members, index)
            savers = [saver for saver in self.structure.savers[index] if part.has(saver)]
            savers += [index] if op.backward.residual_bytes else []
            peak_bytes = op.storage_bytes - op.backward.kept_bytes + op.workspace_bytes
            peak_bytes += gradients[bisect_left(members, max(savers, default=-1))]
            peak_bytes += above_bytes - views_behind[at]
            yield max(peak_bytes, 0), made[at]

    def _misses(self, part: Part, candidates: Sequence[int]) -> list[int]:
        """Return the operators that may be the last to miss something while a part runs backward.

        None are known if further operators of the region may be on the stage.
        """
        operators, region = self._problem.operators, self.regions[part.members[0]]
        if any(self.regions[index] == region for index in part.perhaps):
            return []
        again = [index for index in part.members if self._root_of[index] in candidates]
        found = [index for index in again if operators[index].backward.residual_bytes]
        return found + [saver for index in candidates for saver in self.structure.savers[index]]

    def backward_bytes(self, part: Part) -> int:
        """Return the peak bytes of this region while the part runs backward."""
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
        return int((saved + besides + self._gradients_bytes(part)).max())

    def _gradients_bytes(self, part: Part) -> Ints:
        """Return the bytes of gradients while each operator of a part runs backward."""
        members = part.members
        change = np.zeros(len(members) + 1, dtype=np.int64)
        for span in self._spans[self.regions[members[0]]]:
            if part.has(span.operator):
                change[bisect_left(members, span.operator)] += span.size_bytes
                if not span.stays:
                    change[bisect_right(members, span.last)] -= span.size_bytes
        found: Ints = np.cumsum(change[:-1])
        return found

    @cached_property
    def _spans(self) -> dict[int, list[GradientSpan]]:
        """By region, the gradients that may exist while it runs backward."""
        found: dict[int, list[GradientSpan]] = {region: [] for region in self.regions}
        numbers = sorted(found)
        for span in self.structure.gradient_spans:
            last = numbers[-1] if span.stays else self.regions[span.last]
            first = bisect_left(numbers, self.regions[span.operator])
            for region in numbers[first : bisect_right(numbers, last)]:
                found[region].append(span)
        return found
