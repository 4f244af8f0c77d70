"""Jobs: a model that serves, as problems of phases that share devices and perhaps a host.

A *group* is the `batch` sequences of one call. All of them read a prompt, in one call or in
several, and then make a token in each call. The state that a sequence keeps between calls, its
*caches*, are written weights: of one key, on the device of whatever reads it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from solver.model.checks import (
    as_mapping,
    check_choice,
    check_name,
    check_natural,
    check_positive,
    check_positive_or_none,
    only_given,
    remake,
    several,
)
from solver.model.errors import PartitionError
from solver.model.phases import MergedPhases
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import Weight
from solver.model.quantities import parse_memory
from solver.model.text import shown

ServingObjective = Literal["request", "token", "throughput", "context"]
SERVING_OBJECTIVES: Final[tuple[ServingObjective, ...]] = get_args(ServingObjective)
"""Objectives of a job: the time of a prompt and all tokens after it, the time of a token, tokens
per second, or the tokens that fit."""


def grown_bytes(position_bytes: int, limit: int | None, before: int, after: int) -> int:
    """Return the growth of a cache in bytes from a context of `before` to one of `after`.

    It holds at most `limit` positions, or all of them.
    """
    most = max(before, after) if limit is None else limit
    return (min(after, most) - min(before, most)) * position_bytes


@dataclass(frozen=True, slots=True, init=False)
class Host:
    """A host, which holds the weights that do not fit the devices, and may run units.

    Its links to the devices are those of the interconnect whose source or target is
    :data:`solver.model.devices.STAGING_HOST`.

    Parameters
    ----------
    memory_bytes : int or str, optional
        For the weights of streamed units, and weights and caches of units that run there; a
        whole number, or a text with a unit; None is unlimited.
    device_class : str, optional
        Its key in ``Operator.latency_ns``. Units whose operators all have a time of this class may
        run there; with None no unit may.
    """

    memory_bytes: int | None = None
    device_class: str | None = None
    __repr__ = only_given

    def __init__(
        self, memory_bytes: int | str | None = None, device_class: str | None = None
    ) -> None:
        if isinstance(memory_bytes, str):
            memory_bytes = parse_memory(memory_bytes, "host", 'write for example "64GiB"')
        check_positive_or_none(memory_bytes, "host: memory_bytes", "unlimited memory")
        if device_class is not None:
            check_name(device_class, "host: device_class")
        object.__setattr__(self, "memory_bytes", memory_bytes)
        object.__setattr__(self, "device_class", device_class)


@dataclass(frozen=True)
class Job:
    """A model that serves: a problem for each of its phases, and one plan for all of them.

    Operators of equal name in several phases are one. A device holds weights once, and whatever the
    phase needs that runs.

    Parameters
    ----------
    phases : mapping of str to PartitionProblem
        By the name of the phase, the one that holds the most first. Devices, links and limits are
        the same in all, and none of them trains.
    token_phase : str
        The phase that makes a token of every sequence.
    prompt_runs : mapping of str to int
        Runs of phases for a prompt.
    generate : int
        Tokens of a request.
    batch, context : int
        Sequences of a group, and positions of a sequence.
    objective : {"request", "token", "throughput", "context"}
        Least time of a request of one group; least time of a token; most tokens per second, by any
        number of groups whose caches all fit; most tokens that fit, and then the least time of a
        token. With a host one group is served at a time.
    first_token_limit_ns : int, optional
        Most time of a prompt, for the objective ``token``.
    cache_bytes_per_token : mapping of str to int
        By the key of each cache among the weights: bytes of a position in all sequences of a
        group; 0 for a state that does not grow.
    cache_limits : mapping of str to int
        Most positions of a cache, by its key, where they are fewer than the context may have.
    others : mapping of int to mapping of str to PartitionProblem
        The phases with other contexts, which say how values grow with it. Without any they are
        taken not to.
    host : Host, optional
        Where weights may be that do not fit.
    units : mapping of str to sequence of str
        With a host: groups of operators, in the order in which they run. The operators of a unit
        share a device and a mode.
    padding_bytes : mapping of str to int
        With a host: bytes that a weight takes besides its own where it is loaded, by its key; 0 if
        left out.
    pins : mapping of str to sequence of str
        With a host: places where an operator may run, by its name. They are names of devices and
        :data:`solver.model.devices.STAGING_HOST`, and hold for the whole unit.

    Raises
    ------
    PartitionError
        If settings of phases differ, or operators that two of them share run in another order; if
        a phase or a cache is unknown, a number is not positive, or operators are not the same with
        every context.

    Notes
    -----
    Operators between which a value passes in some phases but not in all share a stage. So whatever
    travels does so whenever a phase runs.
    """

    phases: Mapping[str, PartitionProblem]
    token_phase: str
    prompt_runs: Mapping[str, int] = field(default_factory=dict)
    generate: int = 1
    batch: int = 1
    context: int = 1
    objective: ServingObjective = "request"
    first_token_limit_ns: int | None = None
    cache_bytes_per_token: Mapping[str, int] = field(default_factory=dict)
    cache_limits: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[int, Mapping[str, PartitionProblem]] = field(default_factory=dict, repr=False)
    host: Host | None = None
    units: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    padding_bytes: Mapping[str, int] = field(default_factory=dict, repr=False)
    pins: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    __repr__ = only_given

    def __post_init__(self) -> None:
        for name, what in (("units", "unit"), ("pins", "pin")):
            given = as_mapping(getattr(self, name), name).items()
            object.__setattr__(
                self, name, {key: several(own, f"{what} {key!r}") for key, own in given}
            )
        for name in (
            *("phases", "prompt_runs", "cache_bytes_per_token", "cache_limits", "others"),
            *("units", "padding_bytes", "pins"),
        ):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        check_positive(self.batch, "batch")
        check_positive(self.context, "context")
        check_natural(self.generate, "generate")
        self._check_phases()
        self._check_objective()
        known = {key for problem in self.phases.values() for key in problem.weights}
        if unknown := set(self.cache_bytes_per_token) - known:
            raise PartitionError(f"cache {min(unknown)!r} is no weight of the phases")
        for context, phases in self.others.items():
            check_positive(context, "a context of others")
            if odd := self.phase_with_other_operators(phases):
                raise PartitionError(
                    f"phase {odd!r} has other operators with a context of {context} than with "
                    f"one of {self.context}; ask for another objective than 'context'"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        return remake(self)

    def replace(self, **changes: Any) -> Job:
        """Return a validated copy with `changes` applied."""
        return replace(self, **changes)

    # -- runs and contexts ----------------------------------------------------------------------

    @property
    def request_runs(self) -> Mapping[str, int]:
        """Runs of each phase for a request."""
        runs = dict(self.prompt_runs)
        if self.generate:
            runs[self.token_phase] = runs.get(self.token_phase, 0) + self.generate
        return runs

    @property
    def objective_runs(self) -> Mapping[str, int]:
        """Runs of each phase that the objective counts."""
        return self.request_runs if self.objective == "request" else {self.token_phase: 1}

    @cached_property
    def by_context(self) -> Mapping[int, Job]:
        """The job with each known context, ascending."""
        found = {
            context: replace(self, phases=phases, context=context, others={})
            for context, phases in self.others.items()
        }
        return dict(sorted({**found, self.context: self}.items()))

    def phase_with_other_operators(self, phases: Mapping[str, PartitionProblem]) -> str | None:
        """Return the name of a phase that has other operators here than there, if there is one."""
        for name, own in self.phases.items():
            other = phases.get(name)
            if other is None or other.index_of.keys() != own.index_of.keys():
                return name
        return None

    def growth_bytes(self, key: str, context: int) -> int:
        """Return the growth of a weight in bytes beyond the context of the job."""
        limit = self.cache_limits.get(key)
        return grown_bytes(self.cache_bytes_per_token.get(key, 0), limit, self.context, context)

    def with_groups(self, groups: int) -> Job:
        """Return the job whose devices hold the caches of several groups."""

        def several_of(key: str, weight: Weight) -> Weight:
            if key not in self.cache_bytes_per_token:
                return weight
            return replace(weight, size_bytes=groups * weight.size_bytes)

        return self._resized(several_of)

    # -- one problem of all phases --------------------------------------------------------------

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
        fits all phases is an optimum. A path through the stages takes the time of all runs
        together. Where the longest path of every phase is the same one, as in a chain,
        `latency_ns` is the sum over all runs, and less elsewhere.
        """
        if unknown := {*runs, memory_of} - {*self.phases}:
            raise PartitionError(
                f"there is no phase {min(unknown)!r}; the phases are {', '.join(self.phases)}"
            )
        counts = {name: runs.get(name, 0) for name in self.phases}
        if min(counts.values()) < 0 or not any(counts.values()):
            raise PartitionError(f"runs are {counts}; write how often each phase runs")
        key = (memory_of, *counts.values())
        if key not in self._merged:
            self._merged[key] = self._merging.problem(counts, memory_of)
        return self._merged[key].replace(weights=self._merging.weights)

    @cached_property
    def _merging(self) -> MergedPhases:
        return MergedPhases(self.phases)

    @cached_property
    def _merged(self) -> dict[tuple[object, ...], PartitionProblem]:
        """Problems merged before, by the phase that holds values and by runs."""
        return {}

    def _resized(self, resize: Callable[[str, Weight], Weight]) -> Job:
        """Return this job without other contexts, with other sizes of weights."""
        phases = {
            name: problem.replace(weights={k: resize(k, w) for k, w in problem.weights.items()})
            for name, problem in self.phases.items()
        }
        made = replace(self, phases=phases, others={})
        # Nothing but weights differs in what they are merged to.
        made.__dict__["_merged"] = self._merged
        return made

    def plan_of(self, phase: str, plan: PartitionPlan) -> PartitionPlan:
        """Return the part of a plan for all phases that is about one of them."""
        return plan.restricted(op.name for op in self.phases[phase].operators)

    # -- validation -----------------------------------------------------------------------------

    def _check_phases(self) -> None:
        if not self.phases:
            raise PartitionError("there are no phases; give at least one problem")
        for phase in (*self.prompt_runs, self.token_phase):
            if phase not in self.phases:
                raise PartitionError(
                    f"there is no phase {phase!r}; the phases are {', '.join(self.phases)}"
                )
        for name, problem in self.phases.items():
            self._check_phase(name, problem)

    def _check_phase(self, name: str, problem: PartitionProblem) -> None:
        (first, other), *_ = self.phases.items()
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

    def _check_objective(self) -> None:
        check_choice(self.objective, SERVING_OBJECTIVES, "objective")
        check_positive_or_none(self.first_token_limit_ns, "first_token_limit_ns", "no limit")
        if self.first_token_limit_ns is not None and self.objective != "token":
            raise PartitionError(
                "first_token_limit_ns is for the objective 'token', not "
                f"{self.objective!r}; leave it out"
            )
        if self.host is not None and not isinstance(self.host, Host):
            raise PartitionError(f"host is {shown(self.host)}; write Host(...)")
