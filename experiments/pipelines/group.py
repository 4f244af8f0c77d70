"""The parent's side of the processes that run pipelines on this machine."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Self

from experiments.processes.environment import available_memory_bytes
from experiments.processes.workers import WorkerGroup
from experiments.zoo.building import DEFAULT_CAPTURE, CaptureRequest
from solver import MiB, PartitionError, PartitionPlan
from solver.io.json_files import plan_to_json
from solver.model.checks import check_positive
from solver.model.quantities import counted, format_bytes

_PROCESS_BYTES: Final = 200 * MiB
"""Lower bound on the memory of a process with torch and without a model."""


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """The measured time and memory of a plan's steps.

    By step, `steps_ns` is from the start of the first rank to the end of the last, and
    `processor_ns` the processor time of each rank, without waits. The bytes, of the peak in a step
    and of weights, are by rank; empty if not measured.
    """

    steps_ns: tuple[int, ...]
    processor_ns: tuple[tuple[int, ...], ...]
    peak_bytes: tuple[int, ...]
    weights_bytes: tuple[int, ...]


class PipelineGroup(WorkerGroup):
    """Processes of one gloo group on this machine, at least two; a context manager that ends them.

    The time limit is the wall-clock time of all jobs together. Raises PartitionError on entry if
    the memory of this machine cannot hold all processes.
    """

    def __init__(
        self,
        count: int = 2,
        *,
        threads: int = 1,
        time_limit_s: float = math.inf,
        capture: CaptureRequest = DEFAULT_CAPTURE,
    ) -> None:
        check_positive(threads, "threads")
        super().__init__(
            "experiments.pipelines.worker",
            max(2, count),
            time_limit_s=time_limit_s,
            threads=threads,
        )
        self.machine: Mapping[str, str] = {}
        self._capture = capture

    def __enter__(self) -> Self:
        _check_memory(self.count)
        super().__enter__()
        try:
            tasks = ["open"] + ["wait"] * (self.count - 1)
            opened = self.ask([{"task": task} for task in tasks])
            job = {
                "task": "join",
                "world": self.count,
                "threads": self.threads,
                "port": opened[0]["port"],
                "capture": asdict(self._capture),
            }
            answers = self.ask([{**job, "rank": rank} for rank in range(self.count)])
        except BaseException:
            self.stop()
            raise
        self.machine = {"cores": str(os.cpu_count()), **answers[0]["machine"]}
        return self

    def run(
        self,
        model: str,
        plans: Sequence[PartitionPlan],
        *,
        training: bool,
        schedule: str,
        microbatches: int,
        steps: int,
        memory: bool = True,
    ) -> list[MeasuredPlan]:
        """Run plans as pipelines, alternating after each step, so that other load affects all.

        No plan has more devices than there are processes. With `memory`, untimed steps measure it.
        """
        job = {
            "task": "run",
            "model": model,
            "plans": [plan_to_json(plan) for plan in plans],
            "training": training,
            "schedule": schedule,
            "microbatches": microbatches,
            "steps": steps,
            "memory": memory,
        }
        answers = self.ask([job] * self.count)
        found: list[MeasuredPlan] = []
        for index, plan in enumerate(plans):
            ranks = [answer["plans"][index] for answer in answers[: len(plan.device_order)]]
            # The clock is the same in all processes of the machine.
            starts = zip(*(rank["start_ns"] for rank in ranks), strict=True)
            ends = zip(*(rank["end_ns"] for rank in ranks), strict=True)
            found.append(
                MeasuredPlan(
                    steps_ns=tuple(
                        max(end) - min(start) for start, end in zip(starts, ends, strict=True)
                    ),
                    processor_ns=tuple(zip(*(rank["processor_ns"] for rank in ranks), strict=True)),
                    peak_bytes=tuple(rank["peak_bytes"] for rank in ranks) if memory else (),
                    weights_bytes=tuple(rank["weights_bytes"] for rank in ranks) if memory else (),
                )
            )
        return found


def _check_memory(count: int) -> None:
    free_bytes = available_memory_bytes()
    if count * _PROCESS_BYTES <= free_bytes:
        return
    most = free_bytes // _PROCESS_BYTES
    raise PartitionError(
        f"{counted(count, 'process', 'processes')} need at least "
        f"{format_bytes(count * _PROCESS_BYTES)} of memory, without any model, but only "
        f"{format_bytes(free_bytes)} is available here; "
        + (f"start at most {most}" if most > 1 else "free some, since 2 are the least")
    )
