"""What a report shows of one plan, as plain data: figures and tables are drawn from this alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from solver import DeviceUsage, Evaluation, PartitionPlan, PartitionProblem, evaluate
from solver.evaluation.alive import Alive, alive_at_peak
from solver.evaluation.quotient import QuotientArc, Travel, stage_arcs, travels
from solver.evaluation.spans import Span, spans
from solver.evaluation.usage import StageUsage

MAX_POINTS: Final = 480
"""The most numbers in a memory timeline, more than a figure has pixels for it."""

MIN_SHOWN_MICROBATCHES: Final = 16
"""At least this number of microbatches of a step is shown, or all of them."""


@dataclass(frozen=True, slots=True)
class StageDetails:
    """One stage: a node of the quotient graph.

    Attributes
    ----------
    number : int
        Its place in the plan's order of stages.
    device : str
        That runs the stage.
    chunk : int
        How often data passed through the devices before; 0 without interleaving.
    operators : int
        How many run in the stage.
    first_operator, last_operator : str
        In execution order.
    weights_bytes : int
        Of the distinct weights that its operators read; chunks of a device share theirs.
    compute_ns, send_ns, receive_ns, time_ns : int
        Times per sample; in training per microbatch, forward and backward.
    """

    number: int
    device: str
    chunk: int
    operators: int
    first_operator: str
    last_operator: str
    weights_bytes: int
    compute_ns: int
    send_ns: int
    receive_ns: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class DeviceDetails:
    """What one device does and holds.

    Attributes
    ----------
    device : str
        Its name.
    capacity_bytes : int or None
        None is unlimited.
    operators : int
        0 for an unused device.
    memory_bytes : int
        At the peak; the sum of `alive`.
    weights_bytes : int
        Of the distinct weights that it holds.
    timeline_bytes : tuple of int
        Memory while the operators run, one after another, chunk after chunk. With more than
        `MAX_POINTS` operators each number is the largest of a run of operators; run k begins at
        operator ``k * operators // len(timeline_bytes)``.
    peak_position : int or None
        Index in `timeline_bytes` of the first largest number; None for an unused device.
    peak_operator : str or None
        The operator that runs then.
    alive : tuple of Alive
        What is held at the peak, largest first.
    compute_ns, send_ns, receive_ns, load_ns : int
        `load_ns` is the sum of the others, or the largest of them where they overlap.
    """

    device: str
    capacity_bytes: int | None
    operators: int
    memory_bytes: int
    weights_bytes: int
    timeline_bytes: tuple[int, ...]
    peak_position: int | None
    peak_operator: str | None
    alive: tuple[Alive, ...]
    compute_ns: int
    send_ns: int
    receive_ns: int
    load_ns: int


@dataclass(frozen=True, slots=True)
class PipelineDetails:
    """One step of the plan as a pipeline.

    Attributes
    ----------
    devices : tuple of str
        By rank, in the order in which data passes through them.
    in_turn : bool
        The plan is no pipeline, since something would travel to an earlier stage: `spans` are
        those of a single rank that does the work of all devices, one after another.
    stage_of_position : tuple of int or None
        Number of the stage at each position of the chain; None where a device only passes on,
        or where everything happens in turn.
    schedule : {"gpipe", "1f1b"}
        The order of forward and backward passes, as torch has it.
    microbatches : int
        Of the step.
    shown_microbatches : int
        Of the step that `spans` show, at most `microbatches`: enough to see how the pipeline
        fills, works and empties.
    assumed : bool
        The problem asks for no pipeline: schedule and microbatches are there to show one.
    backward : bool
        Whether there are backward passes.
    step_ns : int
        Of the step of all microbatches.
    shown_ns : int
        Of the one that is shown; the last of `spans` ends there.
    idle_shares : tuple of float
        By rank, the share of `step_ns` in which it does nothing: its bubble.
    spans : tuple of Span
        In order of their start.
    travels : tuple of Travel
        Bytes that transfers between positions move for each microbatch.
    """

    devices: tuple[str, ...]
    in_turn: bool
    stage_of_position: tuple[int | None, ...]
    schedule: str
    microbatches: int
    shown_microbatches: int
    assumed: bool
    backward: bool
    step_ns: int
    shown_ns: int
    idle_shares: tuple[float, ...]
    spans: tuple[Span, ...]
    travels: tuple[Travel, ...]


@dataclass(frozen=True, slots=True)
class PlanDetails:
    """What a report shows of one plan.

    Attributes
    ----------
    stages : tuple of StageDetails
        In the plan's order.
    arcs : tuple of QuotientArc
        By source and target. Only values of backward operators, and those of plans that are not
        feasible, go to an earlier stage; under relayed charging values pass through all
        positions in between.
    devices : tuple of DeviceDetails
        All devices of the problem, in its order.
    device_order : tuple of str
        The used ones, in the order in which data passes through them.
    pipeline : PipelineDetails
        The plan in time.
    memory_model : str
        What devices hold; see :class:`~solver.model.problem.PartitionProblem`.
    charging : str
        Who pays for transfers; see :class:`~solver.model.devices.Interconnect`.
    overlap : bool
        Compute, send and receive of a device overlap.
    bottleneck_ns, latency_ns, transfer_bytes : int
        As :func:`~solver.evaluation.evaluate.evaluate` has them.
    violations : tuple of str
        Empty for a feasible plan.
    """

    stages: tuple[StageDetails, ...]
    arcs: tuple[QuotientArc, ...]
    devices: tuple[DeviceDetails, ...]
    device_order: tuple[str, ...]
    pipeline: PipelineDetails
    memory_model: str
    charging: str
    overlap: bool
    bottleneck_ns: int
    latency_ns: int
    transfer_bytes: int
    violations: tuple[str, ...]


def plan_details(problem: PartitionProblem, plan: PartitionPlan) -> PlanDetails:
    """Return what a report shows of `plan`.

    Parameters
    ----------
    plan : PartitionPlan
        Need not be feasible.

    Raises
    ------
    PartitionError
        If the plan is not a total map from the operators to the devices.
    """
    evaluation = evaluate(problem, plan)
    alive = alive_at_peak(problem, plan)
    return PlanDetails(
        stages=_stages(problem, plan, evaluation.stages),
        arcs=stage_arcs(problem, plan),
        devices=tuple(map(_device, evaluation.usage, alive)),
        device_order=plan.device_order,
        pipeline=_pipeline(problem, plan, evaluation),
        memory_model=problem.memory_model,
        charging=problem.interconnect.charging,
        overlap=problem.interconnect.overlap,
        bottleneck_ns=evaluation.bottleneck_ns,
        latency_ns=evaluation.latency_ns,
        transfer_bytes=evaluation.transfer_bytes,
        violations=evaluation.violations,
    )


def _stages(
    problem: PartitionProblem, plan: PartitionPlan, usage: Sequence[StageUsage]
) -> tuple[StageDetails, ...]:
    members: list[list[int]] = [[] for _ in usage]
    for index, op in enumerate(problem.operators):
        members[plan.stage_index[op.name]].append(index)
    found: list[StageDetails] = []
    for number, (entry, indices) in enumerate(zip(usage, members, strict=True)):
        operators = [problem.operators[index] for index in indices]
        keys = {key for op in operators for key in op.weights}
        held_bytes = (problem.weights[key].held_bytes(problem.memory_model) for key in keys)
        found.append(
            StageDetails(
                number=number,
                device=entry.stage.device,
                chunk=entry.stage.chunk,
                operators=len(operators),
                first_operator=operators[0].name,
                last_operator=operators[-1].name,
                weights_bytes=sum(held_bytes),
                compute_ns=entry.compute_ns,
                send_ns=entry.send_ns,
                receive_ns=entry.receive_ns,
                time_ns=entry.time_ns,
            )
        )
    return tuple(found)


def _device(usage: DeviceUsage, alive: tuple[Alive, ...]) -> DeviceDetails:
    timeline_bytes = thinned(usage.timeline_bytes, MAX_POINTS)
    peak_position = None
    if timeline_bytes:
        peak_position = timeline_bytes.index(usage.memory_bytes)
    return DeviceDetails(
        device=usage.device,
        capacity_bytes=usage.capacity_bytes,
        operators=len(usage.operators),
        memory_bytes=usage.memory_bytes,
        weights_bytes=usage.weights_bytes,
        timeline_bytes=timeline_bytes,
        peak_position=peak_position,
        peak_operator=usage.peak_operator,
        alive=alive,
        compute_ns=usage.compute_ns,
        send_ns=usage.send_ns,
        receive_ns=usage.receive_ns,
        load_ns=usage.load_ns,
    )


def thinned(numbers: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the largest number of each of at most `most` runs of about equal length.

    Examples
    --------
    >>> thinned((3, 1, 4, 1, 5, 9), 3)
    (3, 4, 9)
    """
    count = min(len(numbers), most)
    starts = [run * len(numbers) // count for run in range(count)] + [len(numbers)]
    return tuple(max(numbers[starts[run] : starts[run + 1]]) for run in range(count))


def _pipeline(
    problem: PartitionProblem, plan: PartitionPlan, evaluation: Evaluation
) -> PipelineDetails:
    ranks, step = len(plan.device_order), evaluation.step
    in_turn = len(step.times.forward_ns) < ranks * (1 + plan.stages[-1].chunk)
    planned = "step" in problem.objective or problem.interconnect.charging == "relayed"
    assumed = problem.microbatches == 1 and not planned
    if assumed:
        step = replace(step, schedule="gpipe", microbatches=2 * ranks)
    # A multiple of the ranks, as interleaved schedules want it.
    most = ranks * max(2, -(-MIN_SHOWN_MICROBATCHES // ranks))
    shown = replace(step, microbatches=min(step.microbatches, most))
    step_ns = step.step_ns
    found = spans(shown)
    stages: dict[int, int] = {}
    if not in_turn:
        rank = {device: number for number, device in enumerate(plan.device_order)}
        stages = {
            stage.chunk * ranks + rank[stage.device]: number
            for number, stage in enumerate(plan.stages)
        }
    return PipelineDetails(
        devices=plan.device_order,
        in_turn=in_turn,
        stage_of_position=tuple(map(stages.get, range(len(step.times.forward_ns)))),
        schedule=step.schedule,
        microbatches=step.microbatches,
        shown_microbatches=shown.microbatches,
        assumed=assumed,
        backward=step.backward,
        step_ns=step_ns,
        shown_ns=max(span.end_ns for span in found),
        idle_shares=tuple((step_ns - busy_ns) / max(step_ns, 1) for busy_ns in step.busy_ns),
        spans=found,
        travels=() if in_turn else travels(problem, plan),
    )
