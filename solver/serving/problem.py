"""Problems of serving, with their objectives: request, token, throughput or context.

A *group* is the `batch` sequences of one call. All of them read a prompt, in one call or in
several, and then make a token in each call. The state that a sequence keeps between calls, its
*caches*, are written weights: of one key, on the device of whatever reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Final, Literal

from solver.evaluation.evaluate import Evaluation
from solver.model.checks import check_natural, check_positive, only_given, remake
from solver.model.errors import PartitionError
from solver.model.plan import PartitionPlan
from solver.model.problem import Weight
from solver.serving.phases import Phases

ServingObjective = Literal["request", "token", "throughput", "context"]
SERVING_OBJECTIVES: Final[tuple[str, ...]] = ("request", "token", "throughput", "context")
"""What a plan may be best in: the time of a prompt and all tokens after it, the time of a token,
tokens in a second, or the tokens that fit."""


@dataclass(frozen=True)
class ServingMetrics:
    """Metrics of a plan that fits; all but the last two are of one group.

    Attributes
    ----------
    first_token_ns, token_ns : int
        Time of the prompt, and of each token after it.
    request_ns : int
        Both together, for all tokens of a request.
    groups : int
        How many groups take turns on the devices: as many as keep the busiest device at work, or
        as many as the devices hold caches of if those are fewer.
    tokens_per_s : float
        Of these groups together.
    """

    first_token_ns: int
    token_ns: int
    request_ns: int
    groups: int
    tokens_per_s: float


@dataclass(frozen=True)
class ServingProblem:
    """Phases of a model, and how often each runs for a request.

    Parameters
    ----------
    phases : Phases
        That which holds the most first, as a rule the one with the most tokens.
    prompt_runs : mapping of str to int
        How often phases run for a prompt.
    token_phase : str
        The phase that makes a token of every sequence.
    generate : int
        Tokens of a request.
    batch, context : int
        Sequences of a group, and positions of a sequence.
    cache_bytes_per_token : mapping of str to int
        By the key of each cache among the weights: bytes of a position in all sequences of a
        group; 0 for a state that does not grow.
    cache_limits : mapping of str to int
        Most positions of a cache, by its key, where they are fewer than the context may have.
    others : mapping of int to Phases
        The same with other contexts, which say how values grow with it. Without any they are taken
        not to.

    Raises
    ------
    PartitionError
        If a phase or a cache is unknown, a number is not positive, or operators are not the same
        with every context.
    """

    phases: Phases
    prompt_runs: Mapping[str, int]
    token_phase: str
    generate: int
    batch: int
    context: int
    cache_bytes_per_token: Mapping[str, int]
    cache_limits: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[int, Phases] = field(default_factory=dict, repr=False)
    __repr__ = only_given

    def __post_init__(self) -> None:
        for name in ("prompt_runs", "cache_bytes_per_token", "cache_limits", "others"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        check_positive(self.batch, "batch")
        check_positive(self.context, "context")
        check_natural(self.generate, "generate")
        problems = self.phases.problems
        for phase in (*self.prompt_runs, self.token_phase):
            if phase not in problems:
                raise PartitionError(
                    f"there is no phase {phase!r}; the phases are {', '.join(problems)}"
                )
        known = {key for problem in problems.values() for key in problem.weights}
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

    def phase_with_other_operators(self, phases: Phases) -> str | None:
        """Return the name of a phase that has other operators here than there, if there is one."""
        for name, own in self.phases.problems.items():
            other = phases.problems.get(name)
            if other is None or other.index_of.keys() != own.index_of.keys():
                return name
        return None

    @property
    def request_runs(self) -> Mapping[str, int]:
        """Runs of each phase for a request."""
        runs = dict(self.prompt_runs)
        runs[self.token_phase] = runs.get(self.token_phase, 0) + self.generate
        return runs

    def total_ns(self, runs: Mapping[str, int], plan: PartitionPlan) -> int:
        """Return the time of some runs of each phase, one after the other."""
        found = self.phases.evaluate(plan)
        return sum(count * found[phase].latency_ns for phase, count in runs.items())

    def metrics(self, plan: PartitionPlan) -> ServingMetrics:
        """Return the metrics of a plan.

        Notes
        -----
        Groups in turns are a closed pipeline: a group begins its next token when the last one is
        made, and each device takes the groups as they come. With G of them a group's token takes
        at least `latency`, and a device works for all of them, at least G times `bottleneck`. The
        larger of both is the time of a round: the largest ratio of time to groups over the circuits
        of such a pipeline, which are its devices, one group each, and its paths, with all groups
        (Baccelli, Cohen, Olsder, Quadrat, Synchronization and Linearity, 1992, section 2.5). So
        more groups than `latency` / `bottleneck` give no more.
        """
        found = self.phases.evaluate(plan)
        first_ns = sum(runs * found[name].latency_ns for name, runs in self.prompt_runs.items())
        token = found[self.token_phase]
        groups = self._groups(plan, found)
        return ServingMetrics(
            first_token_ns=first_ns,
            token_ns=token.latency_ns,
            request_ns=first_ns + self.generate * token.latency_ns,
            groups=groups,
            tokens_per_s=self.tokens_per_s(_in_turns_ns(groups, token)),
        )

    def token_in_turns_ns(self, plan: PartitionPlan) -> Fraction:
        """Return the time of a round of all groups that take turns on a plan, divided by them."""
        found = self.phases.evaluate(plan)
        return _in_turns_ns(self._groups(plan, found), found[self.token_phase])

    def tokens_per_s(self, token_ns: Fraction) -> float:
        """Return the tokens in a second where the groups in turns take so long for one each."""
        return float(self.batch * 10**9 / token_ns)

    def with_groups(self, groups: int) -> ServingProblem:
        """Return the problem in which devices hold the caches of several groups."""

        def several(key: str, weight: Weight) -> Weight:
            if key not in self.cache_bytes_per_token:
                return weight
            return replace(weight, size_bytes=groups * weight.size_bytes)

        return replace(self, phases=self.phases.resized(several), others={})

    def _groups(self, plan: PartitionPlan, found: Mapping[str, Evaluation]) -> int:
        """Return the number of groups that alternate, given the plan's cost for one."""
        token = found[self.token_phase]
        wanted = max(-(-token.latency_ns // max(token.bottleneck_ns, 1)), 1)
        if wanted == 1:
            return 1
        groups = wanted
        for phase, held in self.with_groups(wanted).phases.evaluate(plan).items():
            for one, all_of_them in zip(found[phase].usage, held.usage, strict=True):
                if one.capacity_bytes is None:
                    continue
                more_bytes = all_of_them.memory_bytes - one.memory_bytes
                room_bytes = one.capacity_bytes - one.memory_bytes
                if more_bytes > room_bytes:
                    # Of each group as many.
                    groups = min(groups, 1 + room_bytes * (wanted - 1) // more_bytes)
        return max(groups, 1)


def _in_turns_ns(groups: int, token: Evaluation) -> Fraction:
    """Return the time of a round of a token of each group, divided by the groups."""
    return Fraction(max(groups * token.bottleneck_ns, token.latency_ns, 1), groups)
