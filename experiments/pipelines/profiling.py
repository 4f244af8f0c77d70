"""Measured times and workspaces of a model's operators on this machine."""

from __future__ import annotations

from statistics import fmean

from experiments.pipelines.group import PipelineGroup
from experiments.pipelines.link_timing import fit_link
from experiments.problems.profile import Profile
from solver import PartitionError


def measure_profile(
    model: str,
    group: PipelineGroup,
    *,
    training: bool = False,
    processes: int = 1,
    repeats: int = 7,
) -> Profile:
    """Measure a model in the processes of `group`, and return the means of their times.

    `model` is as for :func:`experiments.zoo.models.resolve_model`. As many `processes` measure at
    the same time, since the stages of a pipeline share caches and memory bandwidth. Each median is
    that of `repeats` runs.
    """
    if processes > group.count:
        raise PartitionError(
            f"{processes} processes are to measure, but there are {group.count}; start as many"
        )
    samples = tuple(map(tuple, group.ask([{"task": "link"}] * group.count)[0]["samples"]))
    job = {
        "task": "measure",
        "model": model,
        "training": training,
        "repeats": repeats,
        "processes": processes,
    }
    found = group.ask([job] * group.count)[:processes]
    forward_permille = round(fmean(answer["forward_permille"] for answer in found))
    backward_permille = round(fmean(answer["backward_permille"] for answer in found))

    def calibrated(key: str, permille: int) -> dict[str, int]:
        return {
            name: -(-round(fmean(answer[key][name] for answer in found)) * permille // 1000)
            for name in found[0][key]
        }

    return Profile(
        model=model,
        graph_digest=found[0]["graph_digest"],
        training=training,
        threads=group.threads,
        processes=processes,
        repeats=repeats,
        machine=group.machine,
        forward_ns=calibrated("forward_ns", forward_permille),
        backward_ns=calibrated("backward_ns", backward_permille),
        workspace_bytes=found[0]["workspace_bytes"],
        backward_workspace_bytes=found[0]["backward_workspace_bytes"],
        forward_permille=forward_permille,
        backward_permille=backward_permille,
        link=fit_link(samples),
        link_samples=samples,
    )
