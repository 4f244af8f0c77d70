"""How long every operator takes on this machine, forward and backward.

A run notes the time of each call alone, not that of the interpreter around it. The backward pass
runs once for the whole graph, as it would without a clock: autograd calls a hook before each of
its functions, and the time from one call to the next belongs to the operator whose forward pass
made that function. Sums of operators are then held against runs of the generated code.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fx_bridge.capture import COMPUTE_OPS, CapturedGraph, check_captured, placeholder_values
from fx_bridge.inputs import checked_inputs
from fx_bridge.replay import tensors_in
from solver import PartitionError

_CLOCK_CALLS: Final = 200


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """Medians of several runs, in nanoseconds.

    Attributes
    ----------
    forward_ns, backward_ns : mapping of str to int
        By operator name; `backward_ns` is 0 where no gradient passes, and without training.
    forward_permille, backward_permille : int
        What the generated code takes for all operators together, per thousand of the sum of
        their times; 1000 if there is nothing to compare with.
    """

    forward_ns: Mapping[str, int]
    backward_ns: Mapping[str, int]
    forward_permille: int = 1000
    backward_permille: int = 1000

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
    """Measure the forward, and the backward pass of every operator on this machine.

    Parameters
    ----------
    captured : CapturedGraph
        With its weights in memory. They, their gradients and the random state are the same
        afterwards.
    args, kwargs : optional
        Inputs; the example inputs of the capture when both are left out.
    repeats : int
        Runs after one to warm up.
    training : bool
        Measure the backward pass too.
    before_run : callable, optional
        Called before every run, such as the barrier of processes that measure at the same time.

    Returns
    -------
    OperatorTimes

    Raises
    ------
    PartitionError
        If weights or inputs have no data, no gradient reaches anything in training, or
        `repeats` is not positive.

    Notes
    -----
    Runs of the operators one by one and of the generated code take turns, so that whatever else
    the machine does meets both. With one thread on a CPU the clock is that of the thread, which
    stands still while other processes have the core.
    """
    check_captured(captured, "measure", "measure_operators(capture(model, args))")
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise PartitionError(f"repeats is {repeats!r}; write a number from 1 on")
    if args is None and kwargs is None:
        args, kwargs = captured.args, captured.kwargs
    checked_inputs(args or (), kwargs)
    values = placeholder_values(captured, args or (), kwargs)
    tensors = (*captured.module.parameters(), *captured.module.buffers(), *tensors_in(values))
    if any(tensor.is_meta for tensor in tensors):
        raise PartitionError(
            "cannot measure a model on the meta device, it has no data; use "
            "roofline_latency_ns, or load its weights"
        )
    runs = _Runs(captured, _clock(tensors), training)
    with _untouched(captured), torch.set_grad_enabled(training):
        for repeat in range(repeats + 1):
            for run in (runs.operators, runs.code):
                if before_run is not None:
                    before_run()
                run(pytree.tree_map_only(torch.Tensor, _fresh, values))
            if repeat == 0:
                runs.forget()
    return runs.medians()


def _fresh(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def _clock(tensors: Sequence[torch.Tensor]) -> Callable[[], int]:
    if any(tensor.device.type != "cpu" for tensor in tensors):

        def synchronized() -> int:
            torch.accelerator.synchronize()
            return time.perf_counter_ns()

        return synchronized
    # Work of several threads does not show on the clock of one.
    return time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns


@contextlib.contextmanager
def _untouched(captured: CapturedGraph) -> Iterator[None]:
    """Put back weights that the graph writes, gradients, and the random state; collect nothing."""
    table = captured.storage_table
    changed = {s.owner for found in table.writes.values() for s in found if s.kind == "weight"}
    before = [(t, t.detach().clone()) for key in changed for t in table.weights[key].tensors]
    gradients = [(parameter, parameter.grad) for parameter in captured.module.parameters()]
    collects = gc.isenabled()
    for parameter, _ in gradients:
        parameter.grad = None
    gc.disable()
    try:
        with torch.random.fork_rng(enabled=True):
            yield
    finally:
        if collects:
            gc.enable()
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)


class _Runs:
    """Runs a graph in two ways and keeps the times; what tells them apart is the clock alone."""

    def __init__(self, captured: CapturedGraph, clock: Callable[[], int], training: bool) -> None:
        self._captured = captured
        self._clock = clock
        self._training = training
        self._names = [node.name for node in captured.operators]
        # What reading the clock takes is in no operator.
        readings = [clock() for _ in range(_CLOCK_CALLS)]
        steps = [after - before for before, after in itertools.pairwise(readings)]
        self._reading_ns = round(statistics.median(steps))
        self.forget()

    def forget(self) -> None:
        """Drop all times: those of the run to warm up."""
        self._forward: list[dict[str, int]] = []
        self._backward: list[dict[str, int]] = []
        self._code: list[tuple[int, int]] = []

    def operators(self, values: Sequence[Any]) -> None:
        """Run operator after operator, each under the clock."""
        timing = _Timing(self._captured.module, self._clock, self._reading_ns, self._training)
        outputs = timing.forward(values)
        if self._training:
            self._run_backward(outputs)
            timing.stop()
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
            self._run_backward(outputs)
        stop_ns = clock()
        reading_ns = self._reading_ns
        self._code.append((middle_ns - start_ns - reading_ns, stop_ns - middle_ns - reading_ns))

    @staticmethod
    def _run_backward(outputs: Any) -> None:
        wanted = [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]
        if not wanted:
            raise PartitionError(
                "no output of the model has a gradient, so there is no backward pass to measure; "
                "measure without training"
            )
        torch.autograd.backward(wanted, [torch.ones_like(tensor) for tensor in wanted])

    def medians(self) -> OperatorTimes:
        """Return the medians over all runs."""
        forward, backward = self._forward, self._backward
        return OperatorTimes(
            {name: _median([run[name] for run in forward]) for name in self._names},
            {name: _median([run.get(name, 0) for run in backward]) for name in self._names},
            self._permille([code for code, _ in self._code], forward),
            self._permille([code for _, code in self._code], backward) if self._training else 1000,
        )

    @staticmethod
    def _permille(whole: list[int], parts: list[dict[str, int]]) -> int:
        sums = [max(1, sum(run.values())) for run in parts]
        ratios = [w / s for w, s in zip(whole, sums, strict=True)]
        return max(1, round(1000 * statistics.median(ratios)))


def _median(times: list[int]) -> int:
    return round(statistics.median(times))


class _Timing(fx.Interpreter):
    """One run of a graph, operator by operator."""

    def __init__(
        self, module: fx.GraphModule, clock: Callable[[], int], reading_ns: int, training: bool
    ) -> None:
        super().__init__(module)
        self.forward_ns: dict[str, int] = {}
        self.backward_ns: dict[str, int] = {}
        self._now = clock
        self._reading_ns = reading_ns
        self._training = training
        # Functions of autograd, kept alive so that each is one object for as long as this is.
        self._functions: dict[Any, str] = {}
        self._current: str | None = None
        self._since_ns = 0

    def forward(self, values: Sequence[Any]) -> Any:
        """Run the graph, dropping each value after its last reader as generated code does."""
        self.args_iter = iter(values)
        outputs: Any = None
        for node in self.graph.nodes:
            if node.op in COMPUTE_OPS:
                self._call(node)
            elif node.op == "output":
                outputs = self.run_node(node)
            else:
                self.env[node] = self.run_node(node)
        self.env.clear()
        return outputs

    def _call(self, node: fx.Node) -> None:
        args, kwargs = self.fetch_args_kwargs_from_env(node)
        call = getattr(self, node.op)
        start_ns = self._now()
        value = call(node.target, args, kwargs)
        called_ns = self._now() - start_ns
        self.env[node] = value
        if self._training:
            self._watch(node.name, value)
        del args, kwargs, value
        # Memory is given back at the cost of the last reader.
        start_ns = self._now()
        for dead in self.user_to_last_uses.get(node, ()):
            del self.env[dead]
        called_ns += self._now() - start_ns - 2 * self._reading_ns
        self.forward_ns[node.name] = max(called_ns, 1)

    def _watch(self, name: str, value: Any) -> None:
        """Put hooks on what autograd will call for this operator: all that no earlier one made."""
        found = [tensor.grad_fn for tensor in tensors_in(value) if tensor.grad_fn is not None]
        while found:
            function = found.pop()
            if function in self._functions:
                continue
            self._functions[function] = name
            function.register_prehook(lambda _, name=name: self._enter(name))
            found.extend(each for each, _ in function.next_functions if each is not None)

    def _enter(self, name: str | None) -> None:
        now_ns = self._now()
        if self._current is not None:
            passed_ns = now_ns - self._since_ns - self._reading_ns
            self.backward_ns[self._current] = self.backward_ns.get(self._current, 0) + passed_ns
        self._current = name
        self._since_ns = self._now()

    def stop(self) -> None:
        """Say that the backward pass is over."""
        self._enter(None)
        self._functions.clear()
