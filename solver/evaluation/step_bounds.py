"""What the step of a pipeline takes at least, and what GPipe's takes exactly, by formulas."""

from __future__ import annotations

from solver.evaluation.timeline import PipelineTimes, Task, event_graph
from solver.model.schedules import PASSES, action_tables


def step_bound_ns(
    times: PipelineTimes, microbatches: int, *, devices: int, backward: bool = True
) -> int:
    """Return a lower bound of a step's time under every schedule of this project.

    Parameters
    ----------
    times : PipelineTimes
        Of one microbatch, by position.
    microbatches : int
        Of the step.
    devices, backward
        As in :func:`solver.model.schedules.action_tables`.

    Returns
    -------
    int
        Nanoseconds: the largest, over ranks and links, of the least time from the start to one
        of their jobs, all of their jobs, and the least time from one of them to the end.

    Notes
    -----
    Both times are longest paths in the event graph of a single microbatch: every schedule lets
    each microbatch pass through its jobs in that order. For a chain without overlap, and the
    rank q of a single chunk, this is the sum of the passes of the ranks before q, and m times the
    load of q.

    Examples
    --------
    >>> chain = PipelineTimes((1, 3), (2, 6), {(0, 1): (0, 0)})
    >>> step_bound_ns(chain, 10, devices=2)
    93
    """
    count = len(times.forward_ns)
    tables = action_tables("gpipe", 1, devices=devices, chunks=count // devices, backward=backward)
    jobs = event_graph(
        tables, count, tuple(times.arcs), overlap=times.overlap, staged=bool(times.staged_ns)
    )
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


def gpipe_step_ns(times: PipelineTimes, microbatches: int) -> int:
    """Return how long a step of GPipe takes in a chain of ranks with one stage each.

    Parameters
    ----------
    times : PipelineTimes
        Its arcs are those from every position to the next one.
    microbatches : int
        Of the step.

    Notes
    -----
    Forward passes are a flow shop of identical jobs: their microbatches visit the same machines
    in the same order, which are the ranks, and if transfers overlap the links between them. It
    takes the sum of all times plus (m - 1) times the longest; docs/definition.md proves it. The
    backward passes are another one, which begins when the first has ended.

    Examples
    --------
    >>> chain = PipelineTimes((3, 5), (4, 6), {(0, 1): (1, 1)}, overlap=True)
    >>> gpipe_step_ns(chain, microbatches=10)
    119
    """
    positions = range(len(times.forward_ns))
    total_ns = 0
    for step in PASSES:
        machines = [times.duration_ns(Task("action", step, p, p)) for p in positions]
        if times.overlap:
            ends = [arc if step == "forward" else arc[::-1] for arc in times.arcs]
            machines += [times.duration_ns(Task("link", step, *pair)) for pair in ends]
        total_ns += sum(machines) + (microbatches - 1) * max(machines)
    return total_ns
