"""One plan for several operator graphs that take turns on the same devices.

A model that serves runs one graph for the tokens of a prompt and another for each token that it
makes. Both read the same weights and caches, so an operator of both is on one device, and a device
holds weights once and whatever the graph needs that runs. This is a partitioning problem again:
its operators are those of all phases, each with the times of all its runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from solver.model.devices import Interconnect, Link
from solver.model.errors import PartitionError
from solver.model.operators import Operator
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import ColocationGroup, Weight


class MergedPhases:
    """Problems of several phases, by name, as one; see :meth:`solver.model.job.Job.merged`."""

    def __init__(self, problems: Mapping[str, PartitionProblem]) -> None:
        self._problems = problems

    def problem(self, counts: Mapping[str, int], memory_of: str) -> PartitionProblem:
        """Return the problem of some runs of each phase, with the values of one of them."""
        holds = self._problems[memory_of]
        return holds.replace(
            operators=tuple(self._operator(name, counts, memory_of) for name in self._order),
            weights=self.weights,
            colocation=self._groups,
            interconnect=_repeated(holds.interconnect, sum(counts.values())),
        )

    @cached_property
    def _order(self) -> tuple[str, ...]:
        """All operators in an order that is that of every phase."""
        order: list[str] = []
        for problem in self._problems.values():
            known = {name: at for at, name in enumerate(order)}
            merged: list[str] = []
            done = 0
            for op in problem.operators:
                if op.name in known:
                    merged += order[done : known[op.name]]
                    done = known[op.name] + 1
                merged.append(op.name)
            order = merged + order[done:]
        return tuple(order)

    @cached_property
    def _forms(self) -> Mapping[str, dict[str, Operator]]:
        """The operator of every phase that has it, by its name and that of the phase."""
        forms: dict[str, dict[str, Operator]] = {name: {} for name in self._order}
        for phase, problem in self._problems.items():
            for op in problem.operators:
                forms[op.name][phase] = op
        return forms

    @cached_property
    def _groups(self) -> tuple[ColocationGroup, ...]:
        """Groups that share a stage in a phase, and both ends of values that some phases lack."""
        found = {group: None for problem in self._problems.values() for group in problem.colocation}
        for reader, forms in self._forms.items():
            passed = Counter(read for op in forms.values() for read in op.reads)
            for source, times in passed.items():
                if source in self._forms and times < len(self._problems):
                    found[ColocationGroup((source, reader), "some phases pass nothing")] = None
        return tuple(found)

    @cached_property
    def weights(self) -> Mapping[str, Weight]:
        """The weights of all phases, by their keys."""
        weights: dict[str, Weight] = {}
        for problem in self._problems.values():
            for key, weight in problem.weights.items():
                if key not in weights or weights[key].size_bytes < weight.size_bytes:
                    weights[key] = weight
        return weights

    @property
    def _links_differ(self) -> bool:
        return bool(next(iter(self._problems.values())).interconnect.links)

    def _transfer_ns(self, op: Operator) -> int:
        """Return the time that its value takes over the link that all pairs have."""
        if op.transfer_ns is not None:
            return op.transfer_ns
        default = next(iter(self._problems.values())).interconnect.default
        return default.transfer_ns(op.value_bytes)

    def _operator(self, name: str, runs: Mapping[str, int], memory_of: str) -> Operator:
        forms = self._forms[name]
        counted = [(op, runs[phase]) for phase, op in forms.items()]
        held = forms.get(memory_of)
        base = next(iter(forms.values())) if held is None else held
        transfers = {op.transfer_ns is None for op in forms.values()}
        if len(transfers) > 1:
            raise PartitionError(f"operator {name!r} has a transfer_ns in some phases only")
        travels = sum(times * op.value_bytes for op, times in counted)
        if held is None:
            # Time and weights; whatever reads it or is read by it is in its stage.
            base = replace(base, reads=(), storage_bytes=0, workspace_bytes=0, alias_of=None)
            base = replace(base, in_place=False, is_output=False)
            travels = 0
        received = base.held_value_bytes if held else 0
        own_ns = sum(times * self._transfer_ns(op) for op, times in counted)
        return replace(
            base,
            latency_ns=_latencies(counted),
            value_bytes=travels,
            received_bytes=None if received == travels else received,
            weights=tuple(dict.fromkeys(key for op in forms.values() for key in op.weights)),
            allowed_devices=_common(name, (op.allowed_devices for op in forms.values())),
            transfer_ns=None if transfers == {True} and self._links_differ else own_ns,
        )


def _latencies(counted: Sequence[tuple[Operator, int]]) -> int | dict[str, int]:
    """Return the time of all runs, by device class if it differs."""
    given = [op.latency_ns for op, _ in counted]
    classes = {name for latency in given if isinstance(latency, Mapping) for name in latency}
    if not classes:
        return sum(times * op.latency_on("") for op, times in counted)
    known = [set(latency) for latency in given if isinstance(latency, Mapping)]
    return {
        name: sum(times * op.latency_on(name) for op, times in counted)
        for name in sorted(set.intersection(*known))
    }


def _common(name: str, allowed: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    given = [devices for devices in allowed if devices is not None]
    if not given:
        return None
    both = frozenset.intersection(*given)
    if not both:
        raise PartitionError(f"the phases allow operator {name!r} on different devices")
    return both


def _repeated(interconnect: Interconnect, times: int) -> Interconnect:
    """Return links over which everything is sent `times` times."""

    def repeated(link: Link) -> Link:
        return replace(link, latency_ns=times * link.latency_ns)

    links = {pair: repeated(link) for pair, link in interconnect.links.items()}
    return replace(interconnect, default=repeated(interconnect.default), links=links)
