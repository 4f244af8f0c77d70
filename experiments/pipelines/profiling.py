"""What the operators of a model take on this machine, measured once and kept in a JSON file."""

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
    """Measure a model in the processes of `group`.

    Parameters
    ----------
    model : str
        A zoo name, an import string or a ``.pt2`` file, as
        :func:`experiments.zoo.models.resolve_model` takes it.
    group : PipelineGroup
        Of at least two processes, for the link between them, and of `processes`.
    processes : int
        How many measure at the same time, as the stages of a pipeline run at the same time and
        share caches and the way to memory.
    repeats : int
        Runs of which medians are taken.

    Returns
    -------
    Profile
        Of the times that the processes found, the means.

    Raises
    ------
    PartitionError
        If the model cannot be built, captured or run, a process fails, or time runs out.
    """
    if processes > group.count:
        raise PartitionError(
            f"{processes} processes are to measure, but there are {group.count}; start as many"
        )
    samples = group.measure_link()
    found = group.measure_operators(model, training=training, repeats=repeats, processes=processes)
    forward_permille = round(fmean(answer["forward_permille"] for answer in found))
    backward_permille = round(fmean(answer["backward_permille"] for answer in found))

    def calibrated(what: str, permille: int) -> dict[str, int]:
        return {
            name: -(-round(fmean(answer[what][name] for answer in found)) * permille // 1000)
            for name in found[0][what]
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
        link_samples=tuple(samples),
    )
