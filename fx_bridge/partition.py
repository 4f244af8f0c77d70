"""One call from a model to an optimal plan: capture, graph, solve, split.

This is the one file of ``fx_bridge`` that calls a solver.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from fx_bridge.capture.graph import CapturedGraph, capture
from fx_bridge.costs.device_specs import DEVICE_SPECS, DeviceSpec, check_specs
from fx_bridge.digraph import to_digraph
from fx_bridge.memory.optimizer import Optimizer, check_optimizer, check_sparse_gradients
from fx_bridge.placement.model import PlacedModel, TiedWeights, place
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import TiedReaders
from fx_bridge.split.keep_whole import check_keep_whole
from fx_bridge.split.pins import Pin, check_hand_made, with_hand_made
from fx_bridge.storages.attention import checked_kernels
from fx_bridge.storages.autocast import captured_precision, described
from solver import (
    PCIE,
    Device,
    Interconnect,
    Operator,
    PartitionError,
    PartitionPlan,
    PartitionProblem,
    SolveLimits,
    SolveResult,
    check_limits,
    check_solver,
    pipeline_settings,
    problem_from_digraph,
    save_plan,
    solve,
    summary,
)
from solver.evaluation.summary import result_html
from solver.model.checks import check_choice
from solver.model.devices import DEFAULT_DEVICE_CLASS
from solver.model.quantities import counted, format_bytes, printable


@dataclass(frozen=True, slots=True)
class PartitionResult:
    """A model, its plan, and what it is compared with; printing it shows one table.

    Attributes
    ----------
    captured : CapturedGraph
        The graph that was planned.
    problem : PartitionProblem
        What the solvers were given, devices included.
    baseline : SolveResult
        The greedy heuristic's answer.
    solved : SolveResult
        The answer of the solver that was asked for: status, plan, objective, bound, gap.
    attention : mapping
        By device class, how many operators were costed with which kernel of attention.
    """

    captured: CapturedGraph
    problem: PartitionProblem
    baseline: SolveResult
    solved: SolveResult
    attention: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [
            summary(self.problem, (self.baseline, self.solved)),
            f"captured by {self.captured.how}",
        ]
        if dtypes := captured_precision(self.captured.module):
            lines[1] += f" under {described(dtypes)}"
        if self.captured.note:
            lines[1] += f"; {printable(self.captured.note)}"
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
        return "\n".join(lines)

    @property
    def plan(self) -> PartitionPlan:
        """The plan.

        Raises
        ------
        PartitionError
            If there is no feasible one; the message says why.
        """
        if self.solved.plan is None or self.solved.objective is None:
            raise PartitionError(
                f"there is no plan to use ({self.solved.status.value}): {self.solved.reason}; "
                f"{self.solved.remedy}"
            )
        return self.solved.plan

    def split(self) -> fx.GraphModule:
        """Return the model as submodules ``submod_0``, ``submod_1``, … in stage order.

        It takes and returns what the model does, and computes the same; each submodule owns its
        parameters under their original names. See :func:`~fx_bridge.split.by_plan.split_by_plan`.

        Raises
        ------
        PartitionError
            If there is no feasible plan.
        """
        return split_by_plan(self.captured, self.plan)

    def place(
        self,
        devices: str | torch.device | Mapping[str, str | torch.device] | None = None,
        *,
        output_device: str | torch.device | None = None,
        tied_weights: TiedWeights | None = None,
        copy: bool = False,
        weights: str | os.PathLike[str] | None = None,
    ) -> PlacedModel:
        """Return the model with every stage on its device, for one process.

        It is called like the model, for inference or training: values travel between stages
        without blocking, and results are returned where the model would return them. See
        :func:`fx_bridge.placement.model.place`, which takes the same options. By default
        `tied_weights` is what the plan was made for: ``"sum"`` for training, else ``"copy"``.

        Raises
        ------
        PartitionError
            If there is no feasible plan, or a device is not on this machine.
        """
        if isinstance(devices, Mapping):
            # A plan need not use all devices that it was made for.
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
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to a JSON file.

        Raises
        ------
        PartitionError
            If there is no feasible plan, or the file cannot be written.
        """
        save_plan(self.plan, path)

    def _repr_html_(self) -> str:
        return result_html(str(self), self.solved.evaluation)


def partition_module(
    model: nn.Module | fx.GraphModule | ExportedProgram | str | os.PathLike[str] | CapturedGraph,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    devices: Sequence[Device],
    objective: str | Sequence[str] | None = None,
    memory_model: str = "inference",
    interconnect: Interconnect = PCIE,
    limits: SolveLimits | None = None,
    solver: str = "auto",
    specs: Mapping[str, DeviceSpec] = DEVICE_SPECS,
    latency_ns: Mapping[str, int | Mapping[str, int]] | None = None,
    backward_latency_ns: Mapping[str, int | Mapping[str, int]] | None = None,
    schedule: str | None = None,
    microbatches: int = 1,
    chunks_per_device: int = 1,
    max_devices: int | None = None,
    keep_whole: Sequence[str] = (),
    pins: Mapping[str, Pin] | None = None,
    cut_after: Sequence[str] = (),
    optimizer: Optimizer = "adamw",
    master_weights: bool = True,
    tied_weights: TiedReaders = "colocate",
    attention: str | Sequence[str] | None = None,
    constants: Sequence[str] = (),
) -> PartitionResult:
    """Split a model across devices optimally.

    Parameters
    ----------
    model : nn.Module, fx.GraphModule, torch.export.ExportedProgram, path or CapturedGraph
        What :func:`~fx_bridge.capture.graph.capture` takes, or what it returned.
    args, kwargs : sequence, mapping
        Example inputs of the model, real or on the meta device.
    devices : sequence of Device
        What the model may be spread over; a plan need not use all of them.
    objective : str or sequence of str
        ``"bottleneck"``, ``"step"``, ``"latency"``, ``"transfer"``, ``"devices"`` or
        ``"peak_memory"``, or several to be minimised lexicographically.
    memory_model : {"inference", "training", "weights"}
        What a device must hold: parameters alone (``"weights"``), also the values that are alive in
        inference, or in a step of training.
    interconnect : Interconnect
        Bandwidth and latency between devices, and who pays for a transfer.
    limits : SolveLimits, optional
        Time limit, workers, seed, and a callback for progress.
    solver : str
        A key of ``solver.SOLVERS``; ``"auto"`` picks an exact method, and ``solved.solver``
        of the result names it.
    specs : mapping of str to DeviceSpec
        Speeds by device class, for the roofline.
    latency_ns, backward_latency_ns : mapping, optional
        Latency of every operator by name, instead of the roofline; see
        :func:`~fx_bridge.digraph.to_digraph`.
    chunks_per_device : int
        Most stages of a device; with more than one, data may pass through the devices several
        times (interleaved pipeline stages), and the split has a submodule for each stage.
    max_devices : int, optional
        Most devices to use.
    keep_whole : sequence of str
        Modules, each of which stays on one device: names, patterns such as ``"layers.*"``, or
        several modules together, such as ``"wte+lm_head"`` (:mod:`fx_bridge.split.keep_whole`).
    pins : mapping of str to str, sequence of str, or int, optional
        Module, at any depth, or operator to the device that runs it, the devices that may, or the
        number of its stage.
    cut_after : sequence of str
        Modules or operators after which a stage ends; the solver completes the rest
        (:mod:`fx_bridge.split.pins`).
    schedule : {"gpipe", "1f1b"}, optional
        Plan a pipeline that runs by this schedule, as
        :func:`~fx_bridge.pipeline.build.build_pipeline_stage` does: values are relayed from stage
        to stage, and every hop counts (``charging="relayed"``). Without it stages send to all that
        read from them; training then counts the microbatches in flight of 1F1B.
    microbatches : int
        In a step; the example inputs are one of them.
    optimizer, master_weights, tied_weights
        Of training; see :func:`~fx_bridge.digraph.to_digraph`.
    attention : str or sequence of str, optional
        Kernels that attention runs with on all devices, such as ``"math"``, instead of those of
        their device classes; see :meth:`~fx_bridge.capture.graph.CapturedGraph.with_kernels`.
    constants : sequence of str
        Input tensors that the model reads as numbers; see :func:`~fx_bridge.capture.graph.capture`.

    Raises
    ------
    PartitionError
        If the model cannot be captured, or the devices or settings are invalid, or a name is
        none of the model's, or pins and cuts contradict each other.

    Examples
    --------
    >>> import torch
    >>> from solver import KiB
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    >>> pair = [Device("cuda:0", memory_bytes=20 * KiB), Device("cuda:1", memory_bytes=20 * KiB)]
    >>> result = partition_module(model, (torch.ones(1, 64),), devices=pair)
    >>> result.solved.status.value
    'optimal'
    >>> sorted(name for name, _ in result.split().submod_1.named_parameters())
    ['1.bias', '1.weight']
    """
    # A capture takes long: refuse wrong settings before it.
    kernels = checked_kernels(attention)
    checked = check_options(
        devices,
        objective=objective,
        memory_model=memory_model,
        interconnect=interconnect,
        limits=limits,
        solver=solver,
        specs=specs,
        latency_ns=latency_ns,
        schedule=schedule,
        microbatches=microbatches,
        chunks_per_device=chunks_per_device,
        max_devices=max_devices,
        keep_whole=keep_whole,
        pins=pins,
        cut_after=cut_after,
        optimizer=optimizer,
        master_weights=master_weights,
        tied_weights=tied_weights,
    )
    captured = capture(model, args, kwargs, constants=constants)
    if kernels is not None:
        captured = captured.with_kernels(captured.device_type, kernels)
    if memory_model == "training":
        check_sparse_gradients(captured.module, optimizer)
    classes = {device.device_class for device in checked.devices}
    graph = to_digraph(
        captured,
        specs={name: spec for name, spec in specs.items() if name in classes},
        latency_ns=latency_ns,
        backward_latency_ns=backward_latency_ns,
        training=memory_model == "training",
        optimizer=optimizer,
        master_weights=master_weights,
        keep_whole=checked.keep_whole,
        tied_weights=tied_weights,
    )
    problem = problem_from_digraph(graph, checked.devices, **checked.settings)
    problem = with_hand_made(problem, captured, pins=checked.pins, cut_after=checked.cut_after)
    baseline = solve(problem, limits, solver="greedy")
    solved = baseline if solver == "greedy" else solve(problem, limits, solver=solver)
    assumed = graph.graph["info"]["attention"]
    return PartitionResult(captured, problem, baseline, solved, assumed)


def _unread_weights(captured: CapturedGraph) -> tuple[int, int]:
    """Return number and bytes of the model's tensors that are in no stage."""
    held = {id(t) for weight in captured.storage_table.weights.values() for t in weight.tensors}
    model = captured.source or captured.module
    tensors = {id(t): t for t in itertools.chain(model.parameters(), model.buffers())}
    unread = [tensor for key, tensor in tensors.items() if key not in held]
    return len(unread), sum(tensor.nbytes for tensor in unread)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of :func:`partition_module` that were checked.

    Attributes
    ----------
    settings : mapping
        Of :class:`~solver.model.problem.PartitionProblem`.
    keep_whole, cut_after : tuple of str
        As of :func:`partition_module`.
    pins : mapping of str to Pin
        As of :func:`partition_module`; empty where none were given.
    """

    devices: tuple[Device, ...]
    settings: Mapping[str, Any]
    keep_whole: tuple[str, ...]
    pins: Mapping[str, Pin]
    cut_after: tuple[str, ...]


def check_options(
    devices: Sequence[Device],
    *,
    objective: str | Sequence[str] | None,
    memory_model: str,
    interconnect: Interconnect,
    limits: SolveLimits | None,
    solver: str,
    specs: Mapping[str, DeviceSpec],
    latency_ns: Mapping[str, int | Mapping[str, int]] | None,
    schedule: str | None,
    microbatches: int,
    chunks_per_device: int,
    max_devices: int | None,
    keep_whole: Sequence[str],
    pins: Mapping[str, Pin] | None,
    cut_after: Sequence[str],
    optimizer: str,
    master_weights: bool,
    tied_weights: str,
) -> Options:
    """Return options of :func:`partition_module`, checked as far as that needs no model.

    Raises
    ------
    PartitionError
        For options that no model can be planned with.
    """
    settings = {
        **pipeline_settings(schedule, objective, interconnect),
        "memory_model": memory_model,
        "microbatches": microbatches,
        "chunks_per_device": chunks_per_device,
        "max_devices": max_devices,
    }
    checked = _checked_devices(devices, specs, latency_ns)
    check_solver(solver)
    check_limits(limits)
    PartitionProblem((Operator("placeholder"),), checked, **settings)
    check_optimizer(optimizer)
    if not isinstance(master_weights, bool):
        raise PartitionError(f"master_weights is {master_weights!r}; write True or False")
    check_choice(tied_weights, get_args(TiedReaders), "tied_weights")
    return Options(
        checked, settings, check_keep_whole(keep_whole), *check_hand_made(pins, cut_after)
    )


def _checked_devices(
    devices: Sequence[Device],
    specs: Mapping[str, DeviceSpec],
    latency_ns: Mapping[str, int | Mapping[str, int]] | None,
) -> tuple[Device, ...]:
    example = "Device('cuda:0', memory_bytes=24 * GiB)"
    if isinstance(devices, str) or not isinstance(devices, Iterable):
        raise PartitionError(f"devices is {devices!r}; write a list, such as [{example}]")
    devices = tuple(devices)
    if not devices:
        raise PartitionError("there are no devices; give at least one solver.Device")
    check_specs(specs)
    if latency_ns is not None and not isinstance(latency_ns, Mapping):
        raise PartitionError(
            f"latency_ns is a {type(latency_ns).__name__}; "
            "give a mapping of operator to nanoseconds"
        )
    for device in devices:
        if not isinstance(device, Device):
            raise PartitionError(f"{device!r} is not a solver.Device; write {example}")
        if latency_ns is None and device.device_class not in specs:
            raise PartitionError(
                f"device {device.name!r}: no speed is known for class {device.device_class!r}; "
                f"write one of {', '.join(map(str, specs)) or 'none'}, or pass specs or latency_ns"
            )
    return devices
