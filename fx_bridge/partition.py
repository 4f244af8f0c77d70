"""One call from a model to an optimal plan: capture, graph, solve, split.

Only this file and :mod:`fx_bridge.serving` call a solver.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from fx_bridge.capture.graph import CapturedGraph, capture
from fx_bridge.costs.recompute import Recompute
from fx_bridge.digraph import to_digraph
from fx_bridge.interop.hand_overs import hand_overs
from fx_bridge.memory.optimizer import check_sparse_gradients
from fx_bridge.options import (
    DEFAULT_COSTS,
    DEFAULT_PIPELINE,
    DEFAULT_PLACEMENT,
    DEFAULT_SEARCH,
    Costs,
    Placement,
    Search,
    Training,
    check_group,
)
from fx_bridge.placement.model import PlacedModel, place
from fx_bridge.placement.placing import TiedWeights
from fx_bridge.presentation.plan_files import save_plan_as
from fx_bridge.presentation.summary import result_html, summary
from fx_bridge.presentation.tables import wrapped
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.pins import with_hand_made
from fx_bridge.storages.autocast import captured_precision, described
from solver import (
    Device,
    Operator,
    PartitionError,
    PartitionPlan,
    PartitionProblem,
    Pipeline,
    SolveLimits,
    SolveResult,
    SolveStatus,
    diagnose,
    problem_from_digraph,
    solve,
)
from solver.model.checks import only_given
from solver.model.device_text import as_devices
from solver.model.devices import DEFAULT_DEVICE_CLASS
from solver.model.quantities import counted, format_bytes
from solver.model.text import printable, shown

_DIAGNOSIS_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """A model, its plan, and a greedy baseline; printing it shows one table.

    If no plan exists, printing takes up to five more seconds, to find the clashing limits and a
    remedy.

    Attributes
    ----------
    captured : CapturedGraph
        The planned graph.
    problem : PartitionProblem
        The problem given to the solvers, devices included.
    baseline : SolveResult
        The greedy heuristic's answer.
    solved : SolveResult
        The requested solver's answer: status, plan, objective, bound, gap.
    attention : mapping
        Number of operators costed with each attention kernel, by device class.
    """

    captured: CapturedGraph
    problem: PartitionProblem
    baseline: SolveResult
    solved: SolveResult
    attention: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    __repr__ = only_given

    def __str__(self) -> str:
        lines = [f"captured by {self.captured.how}"]
        if dtypes := captured_precision(self.captured.module):
            lines[0] += f" under {described(dtypes)}"
        if self.captured.note:
            lines[0] += f"; {self.captured.note}"
        lines += [
            f"attention on {name}: "
            + ", ".join(f"{kernel} ({counted(count, 'operator')})" for kernel, count in of.items())
            for name, of in self.attention.items()
            if name != DEFAULT_DEVICE_CLASS
        ]
        count, size_bytes = _unread_weights(self.captured)
        if count:
            stay, them = ("stays", "it") if count == 1 else ("stay", "them")
            lines.append(
                f"{counted(count, 'weight')} that no operator reads ({format_bytes(size_bytes)}) "
                f"{stay} with the model: no device of the plan holds {them}"
            )
        if self.solved.status is SolveStatus.INFEASIBLE:
            limits = SolveLimits(_DIAGNOSIS_S)
            lines.append(diagnose(self.problem, limits, result=self.solved).text)
        elif self.solved.remedy:
            lines.append(self.solved.remedy)
        notes = wrapped(map(printable, lines), "  ")
        return "\n".join([summary((self.baseline, self.solved)), *notes])

    @property
    def plan(self) -> PartitionPlan:
        """The plan.

        Raises
        ------
        PartitionError
            If there is no feasible plan; the message says why.
        """
        if self.solved.plan is None or self.solved.objective is None:
            raise PartitionError(
                f"there is no plan to use ({self.solved.status.value}): {self.solved.reason}; "
                f"{self.solved.remedy}"
            )
        return self.solved.plan

    def split(self) -> fx.GraphModule:
        """Return the model as submodules ``submod_0``, ``submod_1``, … in stage order.

        The split model has the inputs and results of the original. Each submodule owns its
        parameters under their original names. See :func:`~fx_bridge.split.by_plan.split_by_plan`.

        Raises
        ------
        PartitionError
            If there is no feasible plan.
        """
        return split_by_plan(self.captured, self.plan, problem=self.problem)

    def place(
        self,
        devices: str | torch.device | Mapping[str, str | torch.device] | None = None,
        *,
        output_device: str | torch.device | None = None,
        tied_weights: TiedWeights | None = None,
        copy: bool = False,
        weights: str | os.PathLike[str] | None = None,
        streamed: Collection[str] = (),
        slots: int = 2,
    ) -> PlacedModel:
        """Return the model with every stage on its device, for one process.

        It is called like the model, for inference or training. Transfers between stages do not
        block, and results are returned on the device where the model would return them. See
        :func:`fx_bridge.placement.model.place` for the options. The default of `tied_weights`
        follows the plan: ``"sum"`` for training, else ``"copy"``.

        Raises
        ------
        PartitionError
            If there is no feasible plan, or a device is not on this machine.
        """
        if isinstance(devices, Mapping):
            # A plan may leave some devices of its problem unused.
            idle = {device.name for device in self.problem.devices} - {*self.plan.device_order}
            devices = {name: device for name, device in devices.items() if name not in idle}
        if tied_weights is None:
            tied_weights = "sum" if self.problem.memory_model == "training" else "copy"
        return place(
            self.split(),
            devices,
            output_device=output_device,
            tied_weights=tied_weights,
            copy=copy,
            weights=weights,
            streamed=streamed,
            slots=slots,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan (``.json``) to a file, or a page (``.html``).

        The page also has the arguments for other programs.

        Raises
        ------
        PartitionError
            If there is no feasible plan, the suffix is unknown, or the file cannot be written.
        """
        plan = self.plan
        save_plan_as(
            self.solved,
            path,
            title=type(self.captured.model).__name__,
            hand_overs=lambda: hand_overs(self.captured, plan, self.problem),
        )

    def _repr_html_(self) -> str:
        return result_html(str(self), self.solved)


def _planned(
    captured: CapturedGraph,
    devices: tuple[Device, ...],
    settings: Mapping[str, Any],
    training: Training | None,
    placement: Placement,
    costs: Costs,
    search: Search,
) -> PartitionResult:
    """Plan a captured graph by checked arguments; see :func:`partition_module`."""
    captured = costs.with_kernels(captured)
    if training is not None:
        check_sparse_gradients(captured.module, training.optimizer)
    classes = {device.device_class for device in devices}
    specs = {name: spec for name, spec in costs.specs.items() if name in classes}
    graph = to_digraph(
        captured,
        costs=replace(costs, specs=specs),
        training=training,
        keep_whole=placement.keep_whole,
    )
    problem = with_hand_made(
        problem_from_digraph(graph, devices, **settings),
        captured,
        pins=placement.pins,
        cut_after=placement.cut_after,
    )
    # `without` applies to the requested search, not to the baseline.
    solved = solve(problem, search.limits, solver=search.solver, without=search.without)
    baseline = solved
    if search.solver != "greedy":
        baseline = solve(problem, search.limits, solver="greedy")
    return PartitionResult(captured, problem, baseline, solved, graph.graph["info"]["attention"])


def partition_module(
    model: nn.Module | fx.GraphModule | ExportedProgram | str | os.PathLike[str] | CapturedGraph,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    devices: Sequence[Device] | str,
    objective: str | Sequence[str] | None = None,
    training: Training | None = None,
    pipeline: Pipeline = DEFAULT_PIPELINE,
    placement: Placement = DEFAULT_PLACEMENT,
    costs: Costs = DEFAULT_COSTS,
    search: Search = DEFAULT_SEARCH,
) -> PartitionResult:
    """Split a model across devices optimally.

    Parameters
    ----------
    model : nn.Module, fx.GraphModule, torch.export.ExportedProgram, path or CapturedGraph
        A model that :func:`fx_bridge.capture` accepts, or its result. Capture a model that reads
        input tensors as Python numbers yourself, with ``constants=[...]``.
    args, kwargs : sequence, mapping
        Example inputs of the model, real or on the meta device.
    devices : sequence of Device, or str
        At least one device, each with a unique name and its memory. Or text such as
        ``"24GB,12GB"``, ``"2x24GB@rtx-4090"``, or ``"auto"`` for the local CUDA devices with their
        free memory; see :func:`solver.model.device_text.read_devices`.
    objective : str or sequence of str, optional
        ``"bottleneck"``, ``"step"``, ``"latency"``, ``"transfer"``, ``"devices"`` or
        ``"peak_memory"``, or several to be minimised lexicographically. The default is
        ``"bottleneck"``, or ``"step"`` with a schedule.
    training : Training, optional
        Plan forward and backward passes and the optimiser's step; inference if left out.
    pipeline : Pipeline
        Schedule, number of microbatches, and limits on stages.
    placement : Placement
        Pins of modules and operators, stage boundaries, and modules that stay whole.
    costs : Costs
        Links, speeds or times of operators, their workspaces, and the memory model.
    search : Search
        Solver, time limit, workers, seed, steps to leave out.

    Returns
    -------
    PartitionResult
        The answer even if no plan exists; see its status.

    Raises
    ------
    PartitionError
        If the model cannot be captured, devices or settings are invalid, the model has no module
        or operator of a given name, or pins and cuts contradict each other.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    >>> result = partition_module(model, (torch.ones(1, 64),), devices="2x20KiB")
    >>> result.solved.status.value
    'optimal'
    >>> sorted(name for name, _ in result.split().submod_1.named_parameters())
    ['1.bias', '1.weight']

    Training by SGD as a pipeline of four microbatches, the second layer on the second device:

    >>> result = partition_module(
    ...     model,
    ...     (torch.ones(1, 64),),
    ...     devices="2x60KiB",
    ...     training=Training("sgd"),
    ...     pipeline=Pipeline("1f1b", microbatches=4),
    ...     placement=Placement(pins={"1": "cuda:1"}),
    ... )
    >>> dict(result.plan.assignment)
    {'linear': 'cuda:0', 'linear_1': 'cuda:1'}
    """
    # Invalid arguments are reported before the capture, which is slow.
    if training is not None:
        check_group(training, Training, "training")
    check_group(pipeline, Pipeline, "pipeline")
    check_group(placement, Placement, "placement")
    check_group(costs, Costs, "costs")
    check_group(search, Search, "search")
    if training is not None and costs.memory_model != "inference":
        raise PartitionError(
            f"memory_model of costs is {shown(costs.memory_model)}, but training counts what "
            "training holds; leave one of them out"
        )
    checked = _checked_devices(devices, costs)
    settings = {
        **pipeline.settings(objective, costs.interconnect),
        "memory_model": costs.memory_model,
    }
    if training is not None:
        rule = Recompute.of(training.recompute).problem_rule
        settings |= {"memory_model": "training", "recompute": rule}
    PartitionProblem((Operator("placeholder"),), checked, **settings)
    captured = capture(model, args, kwargs)
    return _planned(captured, checked, settings, training, placement, costs, search)


def _checked_devices(devices: Sequence[Device] | str, costs: Costs) -> tuple[Device, ...]:
    devices = as_devices(devices)
    if not devices:
        raise PartitionError("there are no devices; give at least one Device")
    for device in devices:
        if costs.latency_ns is None and device.device_class not in costs.specs:
            known = ", ".join(map(str, costs.specs)) or "none"
            raise PartitionError(
                f"device {device.name!r}: no speed is known for class {device.device_class!r}; "
                f"write one of {known}, or give costs=Costs(specs=...) or Costs(latency_ns=...)"
            )
    return devices


def _unread_weights(captured: CapturedGraph) -> tuple[int, int]:
    """Return the number and bytes of the model's tensors that are in no stage."""
    held = {id(t) for weight in captured.storage_table.weights.values() for t in weight.tensors}
    model = captured.model
    tensors = {id(t): t for t in itertools.chain(model.parameters(), model.buffers())}
    unread = [tensor for key, tensor in tensors.items() if key not in held]
    return len(unread), sum(tensor.nbytes for tensor in unread)
