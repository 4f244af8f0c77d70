"""Times of operators on this machine, forward and backward.

A run times each call alone, without the interpreter around it. The backward pass runs once for the
whole graph, as it would without a clock. Autograd calls a hook before each of its functions, and
the time between two such calls belongs to the operator whose forward pass made the function. Sums
of operators are then compared with runs of the generated code.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.costs.operator_run import OperatorRun, RunInputs, run_backward, untouched
from solver import PartitionError
from solver.model.checks import only_given
from solver.model.text import shown

_CLOCK_CALLS: Final = 200


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """Medians of several runs by operator name, in nanoseconds."""

    forward_ns: Mapping[str, int]
    backward_ns: Mapping[str, int]  # 0 where no gradient flows, and without training
    forward_permille: int = 1000
    """Time of the generated code for all operators, per thousand of the sum of their times; 1000
    without a comparison."""
    backward_permille: int = 1000
    __repr__ = only_given

    def calibrated(self) -> OperatorTimes:
        """Return times whose sums are those of the generated code."""
        return OperatorTimes(
            {name: -(-t * self.forward_permille // 1000) for name, t in self.forward_ns.items()},
            {name: -(-t * self.backward_permille // 1000) for name, t in self.backward_ns.items()},
        )

    @property
    def total_ns(self) -> dict[str, int]:
        """Forward and backward together, by operator name."""
        return {name: t + self.backward_ns[name] for name, t in self.forward_ns.items()}


def measure_operators(
    captured: CapturedGraph,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    repeats: int = 5,
    training: bool = False,
    before_run: Callable[[], object] | None = None,
) -> OperatorTimes:
    """Measure the forward and the backward pass of every operator on this machine.

    Arguments and errors are those of :func:`fx_bridge.costs.latency.measured_latency_ns`.
    `before_run` is called before every run, such as the barrier of processes that measure at the
    same time.

    Runs of the operators one by one and of the generated code alternate, so that other load on the
    machine affects both. With one thread on a CPU the clock is that of the thread, which stands
    still while other processes have the core.
    """
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise PartitionError(f"repeats is {shown(repeats)}; write a number from 1 on")
    inputs = RunInputs.of(captured, args, kwargs)
    runs = _Runs(captured, _clock(inputs.tensors), training)
    with untouched(captured), torch.set_grad_enabled(training):
        for _ in range(repeats + 1):
            for run in (runs.operators, runs.code):
                if before_run is not None:
                    before_run()
                run(inputs.fresh())
    return runs.medians()


def _clock(tensors: Sequence[torch.Tensor]) -> Callable[[], int]:
    if any(tensor.device.type != "cpu" for tensor in tensors):

        def synchronized() -> int:
            torch.accelerator.synchronize()
            return time.perf_counter_ns()

        return synchronized
    # The clock of one thread misses the work of others.
    return time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns


class _Runs:
    """Runs a graph in two ways, and records the times of both by one clock."""

    def __init__(self, captured: CapturedGraph, clock: Callable[[], int], training: bool) -> None:
        self._captured = captured
        self._clock = clock
        self._training = training
        self._names = [node.name for node in captured.operators]
        # The time of reading the clock is subtracted.
        readings = [clock() for _ in range(_CLOCK_CALLS)]
        steps = [after - before for before, after in itertools.pairwise(readings)]
        self._reading_ns = round(statistics.median(steps))
        self._forward: list[dict[str, int]] = []
        self._backward: list[dict[str, int]] = []
        self._code: list[tuple[int, int]] = []

    def operators(self, values: Sequence[Any]) -> None:
        timing = _Timing(self._captured.module, self._clock, self._reading_ns, self._training)
        timing.run_all(values)
        self._forward.append(timing.forward_ns)
        self._backward.append(timing.backward_ns)

    def code(self, values: Sequence[Any]) -> None:
        """Run the generated code between two readings of the clock."""
        forward = self._captured.module.forward
        info = getattr(self._captured.graph._codegen, "pytree_info", None)
        args, kwargs = tuple(values), {}
        if info is not None:
            args, kwargs = pytree.tree_unflatten(list(values), info.in_spec)
        clock = self._clock
        start_ns = clock()
        outputs = forward(*args, **kwargs)
        middle_ns = clock()
        if self._training:
            run_backward(outputs)
        stop_ns = clock()
        reading_ns = self._reading_ns
        self._code.append((middle_ns - start_ns - reading_ns, stop_ns - middle_ns - reading_ns))

    def medians(self) -> OperatorTimes:
        """Return the medians over all runs but the warm-up."""
        forward, backward, code = self._forward[1:], self._backward[1:], self._code[1:]
        return OperatorTimes(
            {name: _median([run[name] for run in forward]) for name in self._names},
            {name: _median([run.get(name, 0) for run in backward]) for name in self._names},
            self._permille([run[0] for run in code], forward),
            self._permille([run[1] for run in code], backward) if self._training else 1000,
        )

    @staticmethod
    def _permille(whole: list[int], parts: list[dict[str, int]]) -> int:
        sums = [max(1, sum(run.values())) for run in parts]
        ratios = [w / s for w, s in zip(whole, sums, strict=True)]
        return max(1, round(1000 * statistics.median(ratios)))


def _median(times: list[int]) -> int:
    return round(statistics.median(times))


class _Timing(OperatorRun):
    def __init__(
        self, module: fx.GraphModule, clock: Callable[[], int], reading_ns: int, training: bool
    ) -> None:
        super().__init__(module, training=training)
        self.forward_ns: dict[str, int] = {}
        self.backward_ns: dict[str, int] = {}
        self._now = clock
        self._reading_ns = reading_ns
        self._current: str | None = None
        self._since_ns = 0

    def before_call(self, name: str) -> None:
        self._since_ns = self._now()

    def after_call(self, name: str) -> None:
        self.forward_ns[name] = self._now() - self._since_ns - self._reading_ns

    # Releasing memory is charged to the last reader.

    def before_release(self, name: str) -> None:
        self._since_ns = self._now()

    def after_release(self, name: str) -> None:
        passed_ns = self._now() - self._since_ns - self._reading_ns
        self.forward_ns[name] = max(1, self.forward_ns[name] + passed_ns)

    def before_function(self, name: str | None) -> None:
        now_ns = self._now()
        if self._current is not None:
            passed_ns = now_ns - self._since_ns - self._reading_ns
            self.backward_ns[self._current] = self.backward_ns.get(self._current, 0) + passed_ns
        self._current = name
        self._since_ns = self._now()
