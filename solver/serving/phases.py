"""One plan for several operator graphs that take turns on the same devices.

A model that serves runs one graph for the tokens of a prompt and another for each token that it
makes. Both read the same weights and caches, so an operator of both is on one device, and a device
holds weights once and whatever the graph needs that runs. This is a partitioning problem again:
its operators are those of all phases, each with the times of all its runs.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from solver.evaluation.evaluate import Evaluation, evaluate
from solver.model.checks import only_given, remake
from solver.model.devices import Interconnect, Link
from solver.model.errors import PartitionError
from solver.model.operators import Operator
from solver.model.plan import PartitionPlan
from solver.model.problem import ColocationGroup, PartitionProblem, Weight


@dataclass(frozen=True)
class Phases:
    """Operator graphs with one plan; operators of equal name are one.

    Parameters
    ----------
    problems : mapping of str to PartitionProblem
        By the name of the phase. The same for all are devices, links and
        limits. None of them trains.

    Raises
    ------
    PartitionError
        If settings differ, or operators that two phases share run in another order.

    Notes
    -----
    Operators between which a value passes in some phases but not in all share a stage. So whatever
    travels does so whenever a phase runs.
    """

    problems: Mapping[str, PartitionProblem]
    __repr__ = only_given

    def __post_init__(self) -> None:
        object.__setattr__(self, "problems", MappingProxyType(dict(self.problems)))
        if not self.problems:
            raise PartitionError("there are no phases; give at least one problem")
        for name, problem in self.problems.items():
            self._check(name, problem)

    def __reduce__(self) -> tuple[Any, ...]:
        return remake(self)

    def _check(self, name: str, problem: PartitionProblem) -> None:
        (first, other), *_ = self.problems.items()
        if problem.is_training or problem.microbatches > 1:
            raise PartitionError(
                f"phase {name!r} trains or has microbatches; phases are for single calls of "
                "inference, with memory_model 'weights' or 'inference'"
            )
        for setting in ("devices", "interconnect", "memory_model", "chunks_per_device", "cuts"):
            if getattr(problem, setting) != getattr(other, setting):
                raise PartitionError(f"phases {first!r} and {name!r} differ in {setting}")
        shared = [op.name for op in problem.operators if op.name in other.index_of]
        for before, after in itertools.pairwise(shared):
            if other.index_of[before] > other.index_of[after]:
                raise PartitionError(
                    f"phase {first!r} runs {after!r} before {before!r}, and phase {name!r} after "
                    "it; operators of several phases have one order"
                )

    def merged(self, runs: Mapping[str, int], memory_of: str) -> PartitionProblem:
        """Return the problem of a plan for all phases.

        Parameters
        ----------
        runs : mapping of str to int
            How often each phase runs; one that is left out takes no time.
        memory_of : str
            The phase of which a device holds the values. All weights count.

        Returns
        -------
        PartitionProblem
            Of operators with the times of all runs together. Sent are the bytes of all
            runs, each run with the latency of the link; a stage holds those of one. Where links
            differ, the time of all runs of a transfer is rounded up once.

        Raises
        ------
        PartitionError
            If a phase is unknown, or nothing runs.

        Notes
        -----
        It leaves out the memory of other phases. So its optimum is a bound, and a plan of it that
        fits all phases is an optimum (:meth:`evaluate`). A path through the stages takes the
        time of all runs together. Where the longest path of every phase is the same one, as in a
        chain, `latency_ns` is the sum over all runs, and less elsewhere.
        """
        if unknown := {*runs, memory_of} - {*self.problems}:
            raise PartitionError(
                f"there is no phase {min(unknown)!r}; the phases are {', '.join(self.problems)}"
            )
        counts = {name: runs.get(name, 0) for name in self.problems}
        if min(counts.values()) < 0 or not any(counts.values()):
            raise PartitionError(f"runs are {counts}; write how often each phase runs")
        holds = self.problems[memory_of]
        key = (memory_of, *counts.values())
        if key not in self._merged:
            self._merged[key] = holds.replace(
                operators=tuple(self._operator(name, counts, memory_of) for name in self._order),
                weights=self.weights,
                colocation=self._groups,
                interconnect=_repeated(holds.interconnect, sum(counts.values())),
            )
        return self._merged[key].replace(weights=self.weights)

    def resized(self, resize: Callable[[str, Weight], Weight]) -> Phases:
        """Return the same phases with other sizes of weights, each of which has a key."""
        problems = {
            name: problem.replace(weights={k: resize(k, w) for k, w in problem.weights.items()})
            for name, problem in self.problems.items()
        }
        made = Phases(problems)
        # Nothing but weights differs in what they are merged to.
        made.__dict__["_merged"] = self._merged
        return made

    def evaluate(self, plan: PartitionPlan) -> Mapping[str, Evaluation]:
        """Return the cost and the violations of a plan for all phases in each of them."""
        return {
            name: evaluate(problem, self.plan_of(name, plan))
            for name, problem in self.problems.items()
        }

    def plan_of(self, phase: str, plan: PartitionPlan) -> PartitionPlan:
        """Return the part of a plan for all phases that is about one of them."""
        names = [op.name for op in self.problems[phase].operators]
        chunks = {name: plan.chunks[name] for name in names if name in plan.chunks}
        assignment = {name: plan.assignment[name] for name in names}
        used = set(assignment.values())
        order = tuple(device for device in plan.device_order if device in used)
        return PartitionPlan(assignment, order, chunks)

    # -- what the phases have together ----------------------------------------------------------

    @cached_property
    def _merged(self) -> dict[tuple[object, ...], PartitionProblem]:
        """Problems merged before, by the phase that holds values and by runs."""
        return {}

    @cached_property
    def _order(self) -> tuple[str, ...]:
        """All operators in an order that is that of every phase."""
        order: list[str] = []
        for problem in self.problems.values():
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
        for phase, problem in self.problems.items():
            for op in problem.operators:
                forms[op.name][phase] = op
        return forms

    @cached_property
    def _groups(self) -> tuple[ColocationGroup, ...]:
        """Groups that share a stage in a phase, and both ends of values that some phases lack."""
        found = {group: None for problem in self.problems.values() for group in problem.colocation}
        for reader, forms in self._forms.items():
            passed = Counter(read for op in forms.values() for read in op.reads)
            for source, times in passed.items():
                if source in self._forms and times < len(self.problems):
                    found[ColocationGroup((source, reader), "some phases pass nothing")] = None
        return tuple(found)

    @property
    def weights(self) -> Mapping[str, Weight]:
        """The weights of all phases, by their keys."""
        weights: dict[str, Weight] = {}
        for problem in self.problems.values():
            for key, weight in problem.weights.items():
                if key not in weights or weights[key].size_bytes < weight.size_bytes:
                    weights[key] = weight
        return weights

    @property
    def _links_differ(self) -> bool:
        return bool(next(iter(self.problems.values())).interconnect.links)

    def _transfer_ns(self, op: Operator) -> int:
        """Return the time that its value takes over the link that all pairs have."""
        if op.transfer_ns is not None:
            return op.transfer_ns
        default = next(iter(self.problems.values())).interconnect.default
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
