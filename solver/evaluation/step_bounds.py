"""A closed-form lower bound of the step time of a pipeline."""

from __future__ import annotations

from solver.evaluation.timeline import PipelineTimes
from solver.model.schedules import action_tables


def step_bound_ns(
    times: PipelineTimes, microbatches: int, *, devices: int, backward: bool = True
) -> int:
    """Return a lower bound of a step's time under every schedule of this project.

    `times` are those of one microbatch; `devices` and `backward` are as in
    :func:`solver.model.schedules.action_tables`. The bound is the maximum over ranks and links of
    the least time before one of their jobs, plus the time of all their jobs, plus the least time
    after one of them.

    Both least times are longest paths in the event graph of a single microbatch: every schedule
    passes each microbatch through its jobs in that order. For a chain without overlap, and rank q
    with a single chunk, the bound is the sum of the passes of the ranks before q plus m times the
    load of q.

    >>> chain = PipelineTimes((1, 3), (2, 6), {(0, 1): (0, 0)})
    >>> step_bound_ns(chain, 10, devices=2)
    93
    """
    count = len(times.forward_ns)
    tables = action_tables("gpipe", 1, devices=devices, chunks=count // devices, backward=backward)
    jobs = times.jobs(tables)
    durations = [times.duration_ns(job.task) for job in jobs]
    heads, tails = [0] * len(jobs), [0] * len(jobs)
    for number, job in enumerate(jobs):
        heads[number] = max([heads[e] + durations[e] for e, _ in job.after], default=0)
    for number in reversed(range(len(jobs))):
        for earlier, _ in jobs[number].after:
            tails[earlier] = max(tails[earlier], tails[number] + durations[number])
    by_resource: dict[object, list[int]] = {}
    for number, job in enumerate(jobs):
        by_resource.setdefault(job.task.resource(devices), []).append(number)
    path_ns = max(head + time for head, time in zip(heads, durations, strict=True))
    return max(
        path_ns,
        *(
            min(heads[n] for n in own)
            + microbatches * sum(durations[n] for n in own)
            + min(tails[n] for n in own)
            for own in by_resource.values()
        ),
    )
