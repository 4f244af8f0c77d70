"""What a report shows of one plan, as plain data: figures and tables are drawn from this alone."""

from __future__ import annotations

from dataclasses import dataclass

from solver.alive import Alive
from solver.spans import Span


@dataclass(frozen=True, slots=True)
class StageDetails:
    """One stage: a node of the quotient graph.

    Attributes
    ----------
    number : int
        Its place in the plan's order of stages.
    device : str
    chunk : int
    operators : int
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
class ArcDetails:
    """What one stage reads from another: an arc of the quotient graph.

    Attributes
    ----------
    source, target : int
        Numbers of stages. Only values of backward operators, and those of plans that are not
        feasible, go to an earlier one.
    values : int
        How many values are read, each counted once.
    value_bytes, gradient_bytes : int
        Of those values of one microbatch and, in training, of their gradients on the way back.
        Under relayed charging they pass through all positions in between.
    """

    source: int
    target: int
    values: int
    value_bytes: int
    gradient_bytes: int

    @property
    def size_bytes(self) -> int:
        """Both ways."""
        return self.value_bytes + self.gradient_bytes


@dataclass(frozen=True, slots=True)
class DeviceDetails:
    """What one device does and holds.

    Attributes
    ----------
    device : str
    capacity_bytes : int or None
        None is unlimited.
    operators : int
        0 for an unused device.
    memory_bytes : int
        At the peak; the sum of `alive`.
    weights_bytes : int
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
        By rank, in the order in which data passes through them. A single entry, all names
        joined, where the plan is no pipeline because its stages form a cycle.
    stage_of_position : tuple of int or None
        Number of the stage at each position of the chain; None where a device only passes on.
    schedule : {"gpipe", "1f1b"}
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
    """

    devices: tuple[str, ...]
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


@dataclass(frozen=True, slots=True)
class PlanDetails:
    """What a report shows of one plan.

    Attributes
    ----------
    stages : tuple of StageDetails
        In the plan's order.
    arcs : tuple of ArcDetails
        Sorted by source and target.
    devices : tuple of DeviceDetails
        All devices of the problem, in its order.
    device_order : tuple of str
        The used ones, in the order in which data passes through them.
    pipeline : PipelineDetails
    memory_model : str
    charging : str
    overlap : bool
        Compute, send and receive of a device overlap.
    bottleneck_ns, latency_ns, transfer_bytes : int
    violations : tuple of str
        Empty for a feasible plan.
    """

    stages: tuple[StageDetails, ...]
    arcs: tuple[ArcDetails, ...]
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
