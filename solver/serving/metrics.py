"""Times and throughput of a plan in the phases of a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from solver.evaluation.evaluate import Evaluation, evaluate
from solver.model.job import Job
from solver.model.plan import PartitionPlan


@dataclass(frozen=True)
class ServingMetrics:
    """Metrics of a plan that fits; all but the last two are of one group.

    `first_token_ns` is the time of the prompt, `token_ns` that of each token after it, and
    `request_ns` both together, for all tokens of a request. `groups` take turns on the devices: as
    many as keep the busiest device at work, or as many as the devices hold caches of if those are
    fewer. `tokens_per_s` is that of these groups together.
    """

    first_token_ns: int | Fraction
    token_ns: int | Fraction
    request_ns: int | Fraction
    groups: int
    tokens_per_s: float


def evaluate_phases(job: Job, plan: PartitionPlan) -> dict[str, Evaluation]:
    """Return the cost and the violations of a plan for all phases in each of them."""
    return {name: evaluate(each, job.plan_of(name, plan)) for name, each in job.phases.items()}


def total_ns(phases: Mapping[str, Evaluation], runs: Mapping[str, int]) -> int:
    """Return the time of some runs of each phase, one after the other."""
    return sum(count * phases[name].latency_ns for name, count in runs.items())


def metrics_of(job: Job, plan: PartitionPlan, phases: Mapping[str, Evaluation]) -> ServingMetrics:
    """Return the metrics of a plan, given its cost in each phase.

    Groups in turns are a closed pipeline: a group begins its next token when the last one is
    made, and each device takes the groups as they come. With G of them a group's token takes
    at least `latency`, and a device works for all of them, at least G times `bottleneck`. The
    larger of both is the time of a round: the largest ratio of time to groups over the circuits
    of such a pipeline, which are its devices, one group each, and its paths, with all groups
    (Baccelli, Cohen, Olsder, Quadrat, Synchronization and Linearity, 1992, section 2.5). So
    more groups than `latency` / `bottleneck` give no more.
    """
    first_ns, token = total_ns(phases, job.prompt_runs), phases[job.token_phase]
    groups = _groups(job, plan, phases)
    return ServingMetrics(
        first_token_ns=first_ns,
        token_ns=token.latency_ns,
        request_ns=first_ns + job.generate * token.latency_ns,
        groups=groups,
        tokens_per_s=tokens_per_s(job, _in_turns_ns(groups, token)),
    )


def hosted_metrics(job: Job, times_ns: Mapping[str, Fraction]) -> ServingMetrics:
    """Return the metrics of a plan with a host, of which one group is served at a time.

    `times_ns` are those of a call of each phase.
    """
    token_ns = times_ns[job.token_phase]
    first_ns = sum(runs * times_ns[phase] for phase, runs in job.prompt_runs.items())
    request_ns = first_ns + job.generate * token_ns
    return ServingMetrics(first_ns, token_ns, request_ns, 1, tokens_per_s(job, token_ns))


def token_in_turns_ns(job: Job, plan: PartitionPlan) -> Fraction:
    """Return the time of a round of all groups that take turns on a plan, divided by them."""
    found = evaluate_phases(job, plan)
    return _in_turns_ns(_groups(job, plan, found), found[job.token_phase])


def tokens_per_s(job: Job, token_ns: Fraction) -> float:
    """Return the tokens in a second where the groups in turns take so long for one each."""
    return float(job.batch * 10**9 / token_ns)


def _groups(job: Job, plan: PartitionPlan, found: Mapping[str, Evaluation]) -> int:
    """Return the number of groups that alternate, given the plan's cost for one."""
    token = found[job.token_phase]
    wanted = max(-(-token.latency_ns // max(token.bottleneck_ns, 1)), 1)
    if wanted == 1:
        return 1
    groups = wanted
    for phase, held in evaluate_phases(job.with_groups(wanted), plan).items():
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
