"""Workspace of operators on this machine, including that of hidden kernels.

:func:`fx_bridge.memory.profile.forward_workspaces` sees only calls of the dispatcher. A convolution
of oneDNN copies its weight and its result into other layouts by the allocator alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import fx

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.costs.allocations import AllocationRecord, record_allocations
from fx_bridge.costs.operator_run import OperatorRun, RunInputs, untouched
from solver import PartitionError
from solver.model.checks import only_given

_FORWARD: Final = "forward "
_BACKWARD: Final = "backward "


@dataclass(frozen=True, slots=True)
class OperatorWorkspaces:
    """Bytes that operators allocate and release while they run, by operator name."""

    forward_bytes: Mapping[str, int]
    backward_bytes: Mapping[str, int]  # of several functions of one backward pass the most
    __repr__ = only_given


def measure_workspaces(captured: CapturedGraph, *, training: bool = False) -> OperatorWorkspaces:
    """Measure the workspace of every operator, in training of its backward pass too.

    The weights of `captured` are in the memory of the CPU. They, their gradients and the random
    state are restored. Raises PartitionError if weights or example inputs have no data or are
    elsewhere, or no gradient reaches anything in training.

    Examples
    --------
    >>> from fx_bridge.capture.graph import capture
    >>> captured = capture(torch.nn.Softmax(-1), (torch.ones(2, 8),))
    >>> measure_workspaces(captured).forward_bytes
    {'softmax': 0}
    """
    inputs = RunInputs.of(captured, None, None)
    elsewhere = {tensor.device.type for tensor in inputs.tensors} - {"cpu"}
    if elsewhere:
        raise PartitionError(
            f"allocations are recorded on the CPU, and the model is on {min(elsewhere)}; move it "
            "to the CPU"
        )
    with untouched(captured), torch.set_grad_enabled(training):
        # A first run makes the allocations that stay, such as gradients of weights.
        OperatorRun(captured.module, training=training).run_all(inputs.fresh())
        with record_allocations() as record:
            _Recorded(captured.module, record, training).run_all(inputs.fresh())
    names = [node.name for node in captured.operators]
    found = {step: dict.fromkeys(names, 0) for step in (_FORWARD, _BACKWARD)}
    for span in record.spans:
        step, blank, name = span.name.partition(" ")
        of_step = found[step + blank]
        of_step[name] = max(of_step[name], span.workspace_bytes)
    return OperatorWorkspaces(found[_FORWARD], found[_BACKWARD])


class _Recorded(OperatorRun):
    def __init__(self, module: fx.GraphModule, record: AllocationRecord, training: bool) -> None:
        super().__init__(module, training=training)
        self._record = record

    def before_call(self, name: str) -> None:
        self._record.begin(_FORWARD + name)

    def after_call(self, name: str) -> None:
        self._record.end()

    def before_function(self, name: str | None) -> None:
        self._record.end()
        if name is not None:
            self._record.begin(_BACKWARD + name)
