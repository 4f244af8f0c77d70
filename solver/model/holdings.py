"""Memory that a stage holds for an operator over time: storages, gradients and saved tensors.

The rows of ``docs/definition.md``, section 3, are sums of these holdings.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from solver.model.operators import Operator
from solver.model.problem_fields import ProblemFields
from solver.model.training import Backward

ALWAYS: Final = -1
"""A position before all operators; holdings from there begin with the stage."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Bytes that the stage of an operator holds.

    While an operator at position t runs, they are held if `first` <= t <= `last`. If t > `last`,
    they are held if `stays`, or if some of `waits_for` are in other stages.

    `operator`, `first` and `last` are positions in the execution order; `last` is before `first`
    for bytes that only wait. With `is_buffer` they are buffers for returned gradients of its value.
    """

    operator: int
    first: int
    last: int
    waits_for: tuple[int, ...]
    stays: bool
    size_bytes: int
    is_buffer: bool = False


def holdings_of(problem: ProblemFields) -> tuple[Holding, ...]:
    """Return all non-empty holdings of a problem, without those of weights."""
    if problem.memory_model == "weights":
        return ()
    operators = problem.operators
    families = _families(problem)
    gradients = _gradient_families(problem) if problem.is_training else []
    slices = _slice_spans(problem) if problem.is_training else []
    relayed = problem.interconnect.charging == "relayed"
    found: list[Holding] = []
    for index, op in enumerate(operators):
        # Readers of the value or of an alias.
        readers = _readers(problem, families[index])
        last = readers[-1] if readers else index
        returned = any(operators[member].is_output for member in families[index])
        if not problem.is_training:
            found.append(Holding(index, index, last, readers, returned, op.storage_bytes))
            found.append(Holding(index, index, index, (), False, op.workspace_bytes))
            # Sent and returned values of earlier microbatches.
            earlier_bytes = (problem.microbatches - 1) * op.storage_bytes
            found.append(Holding(index, ALWAYS, ALWAYS, readers, returned, earlier_bytes))
            continue
        backward, batches = op.backward, problem.microbatches
        gradient_bytes = backward.gradient_bytes
        released_bytes = op.storage_bytes - backward.kept_bytes
        passed = gradients[index]
        if passed:
            end, stays = _gradient_span(problem, index, passed)
            size_bytes = gradient_bytes
            if end >= last:
                # Bytes that no backward pass keeps are freed before gradients exist.
                size_bytes, released_bytes = max(released_bytes, gradient_bytes), 0
            found.append(Holding(index, index, end, (), stays, size_bytes))
        found += [
            Holding(span.operator, span.operator, span.last, (), False, span.size_bytes)
            for span in slices[index]
        ]
        found.append(Holding(index, index, last, (), False, released_bytes))
        found.append(Holding(index, index, index, (), True, backward.saved_bytes))
        workspace_bytes = backward.workspace_bytes
        if batches > 1:
            workspace_bytes += backward.weight_gradient_bytes
        # Forward and backward run at different times.
        workspace_bytes = max(workspace_bytes, op.workspace_bytes)
        found.append(Holding(index, index, index, (), False, workspace_bytes))
        # Sent values, and buffers for returned gradients, of all microbatches.
        sent_bytes = batches * (op.storage_bytes - backward.kept_bytes) + backward.kept_bytes
        if returned:
            sent_bytes = batches * op.storage_bytes
        found.append(Holding(index, ALWAYS, ALWAYS, readers, returned, sent_bytes))
        if not relayed:
            # A pipeline's stages hold them for all values that they relay.
            own = _readers(problem, (index,))
            buffers_bytes = batches * gradient_bytes
            found.append(Holding(index, ALWAYS, ALWAYS, own, False, buffers_bytes, True))
    return tuple(holding for holding in found if holding.size_bytes)


@dataclass(frozen=True, slots=True)
class GradientSpan:
    """An interval of backward passes over which a stage holds the gradient of its operator.

    From `operator` to `last`; if it `stays`, to the end of the stage.
    """

    operator: int
    last: int
    stays: bool
    size_bytes: int


def gradient_spans(problem: ProblemFields) -> tuple[GradientSpan, ...]:
    """Return spans, sorted by operator, of gradients with own memory and of sliced buffers."""
    operators = problem.operators
    found = [
        GradientSpan(index, *_gradient_span(problem, index, passed), size_bytes)
        for index, passed in enumerate(_gradient_families(problem))
        if passed and (size_bytes := operators[index].backward.gradient_bytes)
    ]
    found += itertools.chain.from_iterable(_slice_spans(problem))
    return tuple(sorted(found, key=attrgetter("operator")))


class StorageGraph:
    """Producers, readers and savers of each storage, by operator.

    Families are an operator and, if it owns a storage, its aliases, in order; `readers` are those
    of the family's values. `savers` are the operators whose backward passes need an owner's
    storage, none for other operators. `buffers` are for returned gradients of an operator's value.
    An operator is in `inner` if it may always be recomputed when its stage has all in-place writers
    to its storage: it is recomputable, only its region saves, reads and writes its value, and its
    inputs are not written later.
    """

    def __init__(self, problem: ProblemFields, holdings: Sequence[Holding]) -> None:
        self.families = _families(problem)
        self.readers = [list(_readers(problem, family)) for family in self.families]
        self.savers: list[list[int]] = [[] for _ in problem.operators]
        for index, op in enumerate(problem.operators):
            for root in {problem.root_of[name] for name in op.backward.saves}:
                if root in problem.index_of:
                    self.savers[problem.index_of[root]].append(index)
        self.gradient_spans = gradient_spans(problem)
        self.buffers = {holding.operator: holding for holding in holdings if holding.is_buffer}
        self.inner = [self._is_inner(problem, index) for index in range(len(problem.operators))]

    def _is_inner(self, problem: ProblemFields, index: int) -> bool:
        operators, family = problem.operators, self.families[index]
        if not operators[index].backward.recomputable:
            return False
        users = {*family, *self.readers[index], *self.savers[index]}
        region = operators[index].backward.region
        if any(operators[user].backward.region != region for user in users):
            return False
        if any(operators[m].in_place and operators[m].backward.residual_bytes for m in family):
            return False
        for member in family:
            for read in operators[member].reads:
                root = problem.index_of.get(problem.root_of[read], index)
                others = self.families[root] if root != index else []
                if any(operators[other].in_place and other > member for other in others):
                    return False
        return True


def least_saved_bytes(problem: ProblemFields) -> tuple[int, ...]:
    """Return by operator the bytes kept of one microbatch under any recomputation."""
    return tuple(
        0 if may_run_again(problem, op) else op.backward.saved_bytes for op in problem.operators
    )


def may_run_again(problem: ProblemFields, op: Operator) -> bool:
    """Return True if the owner of an operator's storage may be recomputed."""
    root = problem.index_of.get(problem.root_of[op.name])
    if root is None or not problem.may_recompute:
        return False
    return problem.operators[root].backward.recomputable


def least_holdings(problem: ProblemFields, holdings: tuple[Holding, ...]) -> tuple[Holding, ...]:
    """Return the least holdings of stages under any recomputation, given those without.

    Without recomputation these are the holdings themselves. Otherwise they are the forward rows of
    ``docs/definition.md``, "Recomputation", with the least of each summand. A storage is held until
    its last read, and afterwards unless it may be dropped. A value read elsewhere takes the storage
    once if all of it is kept, and more if not. Rows of stages without recomputed operators are no
    less than their forward rows.
    """
    if not problem.may_recompute:
        return holdings
    saved_bytes = least_saved_bytes(problem)
    families = _families(problem)
    found: list[Holding] = []
    for index, op in enumerate(problem.operators):
        readers = _readers(problem, families[index])
        last = readers[-1] if readers else index
        returned = any(problem.operators[member].is_output for member in families[index])
        is_kept = not may_run_again(problem, op)
        released_bytes = op.storage_bytes - is_kept * op.backward.kept_bytes
        sent_bytes = op.storage_bytes * (problem.microbatches if returned else 1)
        found += [
            Holding(index, index, last, (), False, released_bytes),
            Holding(index, index, index, (), True, saved_bytes[index]),
            Holding(index, index, index, (), False, op.workspace_bytes),
            Holding(index, ALWAYS, ALWAYS, readers, returned, sent_bytes),
        ]
    buffers = (holding for holding in holdings if holding.is_buffer)
    return tuple(holding for holding in (*found, *buffers) if holding.size_bytes)


def _gradient_span(problem: ProblemFields, index: int, passed: Sequence[int]) -> tuple[int, bool]:
    """Return the last operator that holds the gradient of `passed`, and True if it stays."""
    takers = _readers(problem, passed)
    stays = any(problem.operators[member].is_output for member in passed)
    return (takers[-1] if takers else index), stays


def sliced_gradients(problem: ProblemFields) -> list[bool]:
    """Return by operator True if its gradient may be a slice of a buffer."""
    found = [False] * len(problem.operators)
    for index, op in reversed(list(enumerate(problem.operators))):
        names = _passed(op.backward) if found[index] else op.backward.slices
        for taker in _takers(problem, names):
            found[taker] = True
    return found


def _slice_spans(problem: ProblemFields) -> list[list[GradientSpan]]:
    """Return by operator the buffer bytes kept alive by slices that end there.

    A buffer lives until the oldest of its slices ends. From the end of one slice to that of the
    next, the excess is the gradients of the slices that have ended.
    """
    operators = problem.operators
    found: list[list[GradientSpan]] = [[] for _ in operators]
    if not any(op.backward.slices for op in operators):
        return found
    ends: list[_SliceEnd] = []
    for index, op in enumerate(operators):
        ends.append(_slice_end(problem, index, ends))
        rest_bytes = op.backward.gradient_bytes
        ended: dict[int, int] = {}
        for part in _takers(problem, op.backward.slices):
            size_bytes, (end, is_used) = operators[part].backward.gradient_bytes, ends[part]
            rest_bytes -= size_bytes
            if _readers(problem, (part,))[-1] == index:
                ended[end] = ended.get(end, 0) + size_bytes
                if not is_used:
                    found[end].append(GradientSpan(end, end, False, size_bytes))
        gone_bytes, behind = max(rest_bytes, 0), index
        for end in sorted(ended, reverse=True):
            found[end].append(GradientSpan(end, behind - 1, False, gone_bytes))
            gone_bytes, behind = gone_bytes + ended[end], end
    return [[span for span in own if span.size_bytes] for own in found]


class _SliceEnd(NamedTuple):
    """The end of a slice that is the gradient of an operator.

    It ends in the backward pass of the operator at `place`: there it is used or, if not `is_used`,
    replaced by its sum with the gradient from another reader.
    """

    place: int
    is_used: bool


def _slice_end(problem: ProblemFields, index: int, ends: Sequence[_SliceEnd]) -> _SliceEnd:
    """Return the end of a slice; gradients that its operator passes on are the same slice."""
    operators = problem.operators
    *others, _ = _readers(problem, (index,)) or (index,)
    if others:
        given = _takers(problem, _passed(operators[others[-1]].backward))
        return _SliceEnd(others[-1], is_used=index in given)
    takers = _takers(problem, _passed(operators[index].backward))
    passed = [ends[taker] for taker in takers if _readers(problem, (taker,))[-1] == index]
    return min([_SliceEnd(index, is_used=True), *passed])


def _passed(backward: Backward) -> tuple[str, ...]:
    return backward.slices if backward.passes_to is None else (backward.passes_to, *backward.slices)


def _takers(problem: ProblemFields, names: Sequence[str]) -> list[int]:
    return [problem.index_of[name] for name in names if name in problem.index_of]


def _readers(problem: ProblemFields, members: Sequence[int]) -> tuple[int, ...]:
    names = {name for m in members for name in problem.readers_of[problem.operators[m].name]}
    return tuple(sorted(problem.index_of[name] for name in names))


def _families(problem: ProblemFields) -> list[list[int]]:
    """Return for every operator itself and, if it owns a storage, its aliases."""
    families = [[index] for index in range(len(problem.operators))]
    for index, op in enumerate(problem.operators):
        root = problem.index_of.get(problem.root_of[op.name], index)
        if root != index:
            families[root].append(index)
    return families


def _gradient_families(problem: ProblemFields) -> list[list[int]]:
    """Return for every operator those whose gradients share memory with its own.

    The list is empty for an operator that passes its gradient on.
    """
    families: list[list[int]] = []
    roots: list[int] = []
    for index, op in enumerate(problem.operators):
        root, size_bytes = index, op.backward.gradient_bytes
        taker = problem.index_of.get(op.backward.passes_to or "", index)
        if taker != index and problem.operators[taker].backward.gradient_bytes >= size_bytes:
            root = roots[taker]
        roots.append(root)
        families.append([index] if root == index else [])
        if root != index:
            families[root].append(index)
    return families
