"""The numbers of a problem as arrays, for speed on 100,000 operators.

Operators are numbered by their position in the execution order, graph inputs after them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from solver.model.devices import Link
from solver.model.holdings import Holding, sliced_gradients
from solver.model.problem_fields import ProblemFields

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]

_LARGEST_FAST_BANDWIDTH: Final = 2**53
"""Up to this bandwidth the steps of the long division stay below 2**63."""


@dataclass(frozen=True, slots=True)
class Lists:
    """A list of numbers for each item, in compressed row format: those of i begin at start[i]."""

    start: Ints
    values: Ints

    @classmethod
    def of(cls, rows: Iterable[Sequence[int]]) -> Lists:
        """Put lists of numbers into one array."""
        counts: list[int] = [0]
        values: list[int] = []
        for row in rows:
            values.extend(row)
            counts.append(len(values))
        return cls(np.array(counts, dtype=np.int64), np.array(values, dtype=np.int64))

    def pairs(self, items: Ints) -> tuple[Ints, Ints]:
        """Return all pairs of an item of `items` and one of its values, as two arrays."""
        lengths = self.start[items + 1] - self.start[items]
        total = int(lengths.sum())
        before = np.cumsum(lengths) - lengths
        places = np.arange(total, dtype=np.int64) + np.repeat(self.start[items] - before, lengths)
        return np.repeat(items, lengths), self.values[places]


@dataclass(frozen=True, slots=True)
class HoldingArrays:
    """The holdings of a problem (:mod:`solver.model.holdings`), one array entry for each."""

    operator: Ints
    first: Ints
    last: Ints
    waits_for: Lists
    stays: Bools
    size_bytes: Ints

    @classmethod
    def of(cls, holdings: Sequence[Holding]) -> HoldingArrays:
        """Put the fields of holdings into arrays."""
        return cls(
            operator=_array([holding.operator for holding in holdings]),
            first=_array([holding.first for holding in holdings]),
            last=_array([holding.last for holding in holdings]),
            waits_for=Lists.of(holding.waits_for for holding in holdings),
            stays=np.array([holding.stays for holding in holdings], dtype=np.bool_),
            size_bytes=_array([holding.size_bytes for holding in holdings]),
        )


class ProblemArrays:
    """Arrays that depend on the problem alone, by operator unless they say otherwise."""

    def __init__(self, problem: ProblemFields) -> None:
        self._problem = problem
        operators = problem.operators
        number = dict(problem.index_of)
        number.update((g.name, len(operators) + i) for i, g in enumerate(problem.inputs))
        # Numbers of operators and graph inputs, and of the owners of their storages.
        self.reads = Lists.of([number[name] for name in op.reads] for op in operators)
        readers = problem.readers_of
        self.readers = Lists.of([number[reader] for reader in readers[name]] for name in number)
        self.root = _array([number[problem.root_of[name]] for name in number])
        self.value_bytes = _array([op.value_bytes for op in operators])
        self.gradient_bytes = np.zeros(len(operators), dtype=np.int64)
        self.saved_bytes = np.zeros(len(operators), dtype=np.int64)  # of a microbatch
        # Of a reading stage elsewhere, by operator and graph input: the values of all microbatches
        # and, in training, one gradient, or two if it may be a slice.
        held_bytes = [op.held_value_bytes for op in operators]
        self.held_bytes = _array([*held_bytes, *(g.value_bytes for g in problem.inputs)])
        if problem.memory_model != "weights":
            self.held_bytes *= problem.microbatches
        if problem.is_training:
            self.gradient_bytes = _array([op.backward.gradient_bytes for op in operators])
            self.saved_bytes = _array([op.backward.saved_bytes for op in operators])
            self.held_bytes[: len(operators)] += self.gradient_bytes
            # For a slice, the stage holds a copy throughout, or the whole buffer.
            copies_bytes = self.gradient_bytes * sliced_gradients(problem)
            buffer_bytes = _array([op.backward.buffer_bytes for op in operators])
            rests_bytes = buffer_bytes - self.gradient_bytes
            self.held_bytes[: len(operators)] += np.maximum(copies_bytes, rests_bytes)
        # Held by the sender of a value for the returned gradients of all microbatches.
        self.returned_bytes = problem.microbatches * self.gradient_bytes
        self.is_output = np.array([op.is_output for op in operators], dtype=np.bool_)
        self.is_backward = np.array([op.is_backward for op in operators], dtype=np.bool_)
        weight_number = {key: i for i, key in enumerate(problem.weights)}
        self.weights = Lists.of([weight_number[key] for key in op.weights] for op in operators)
        self.weight_bytes = _array(
            [weight.held_bytes(problem.memory_model) for weight in problem.weights.values()]
        )
        # -1 stands for the link's time, which may overflow 64 bits for values never transferred.
        self._transfer_ns = _array(
            [-1 if op.transfer_ns is None else op.transfer_ns for op in operators]
        )
        self._latency_ns: dict[str, Ints] = {}
        self._pass_latency_ns: dict[str, tuple[Ints, Ints]] = {}

    def latency_ns(self, device_class: str) -> Ints:
        """Return the execution time of every operator on a device of `device_class`.

        In training it includes the backward pass.
        """
        if device_class not in self._latency_ns:
            forward_ns, backward_ns = self.pass_latency_ns(device_class)
            self._latency_ns[device_class] = forward_ns + backward_ns
        return self._latency_ns[device_class]

    def pass_latency_ns(self, device_class: str) -> tuple[Ints, Ints]:
        """Return the times of forward and backward passes; without training the latter are 0."""
        if device_class not in self._pass_latency_ns:
            operators = self._problem.operators
            backward_ns = np.zeros(len(operators), dtype=np.int64)
            if self._problem.is_training:
                backward_ns = _array([op.backward.latency_on(device_class) for op in operators])
            self._pass_latency_ns[device_class] = (
                _array([op.latency_on(device_class) for op in operators]),
                backward_ns,
            )
        return self._pass_latency_ns[device_class]

    def transfer_ns(self, operators: Ints, link: Link, back: Link) -> Ints:
        """Return the time of one transfer of each operator's value over `link`.

        In training it includes the return of its gradient, if any, over `back`.
        """
        forward_ns, gradient_ns = self.transfer_parts_ns(operators, link, back)
        return forward_ns + gradient_ns

    def transfer_parts_ns(self, operators: Ints, link: Link, back: Link) -> tuple[Ints, Ints]:
        """Return the time of each value over `link`, and of its gradient over `back`.

        An operator's own `transfer_ns`, which covers both, is split in halves.
        """
        own_ns = self._transfer_ns[operators]
        has_own = own_ns >= 0
        gradient_bytes = self.gradient_bytes[operators]
        returns = gradient_bytes > 0
        forward_ns = link_ns(link, self.value_bytes[operators])
        gradient_ns = np.zeros(len(operators), dtype=np.int64)
        if returns.any():
            half_ns = own_ns // 2
            gradient_ns = np.where(has_own, half_ns, link_ns(back, gradient_bytes))
            gradient_ns = np.where(returns, gradient_ns, 0)
        forward_ns = np.where(has_own, own_ns - gradient_ns, forward_ns)
        return forward_ns, gradient_ns


def link_ns(link: Link, value_bytes: Ints) -> Ints:
    """Return :meth:`solver.model.devices.Link.transfer_ns` for an array of values.

    Computes bytes * 10**9 / bandwidth by long division in digits of 10**3, since the product
    would overflow 64 bits.
    """
    bandwidth = link.bandwidth_bytes_per_s
    if bandwidth is None:
        return np.full(len(value_bytes), link.latency_ns, dtype=np.int64)
    if bandwidth > _LARGEST_FAST_BANDWIDTH:
        return _array([link.transfer_ns(size_bytes) for size_bytes in value_bytes.tolist()])
    quotient, rest = np.divmod(value_bytes, bandwidth)
    for _ in range(3):
        digit, rest = np.divmod(rest * 1000, bandwidth)
        quotient = quotient * 1000 + digit
    result: Ints = link.latency_ns + quotient + (rest > 0)
    return result


def unique_pairs(first: Ints, second: Ints, second_count: int) -> tuple[Ints, Ints]:
    """Return the distinct pairs, in lexicographic order."""
    keys = np.unique(first * second_count + second)
    quotient, remainder = np.divmod(keys, max(second_count, 1))
    return quotient, remainder


def sums(groups: Ints, values: Ints, count: int) -> Ints:
    """Return the sum of the values of each group."""
    result = np.zeros(count, dtype=np.int64)
    np.add.at(result, groups, values)
    return result


def _array(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)
