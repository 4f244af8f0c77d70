"""Memory of a captured graph while it runs: live bytes by time, operator and kind.

The graph, autograd and the optimiser run unchanged on fake tensors (``docs/memory.md``).
"""

from __future__ import annotations

from typing import Any, get_args

from torch import fx

from fx_bridge.capture.graph import COMPUTE_OPS, CapturedGraph, check_captured
from fx_bridge.choices import check_optimizer
from fx_bridge.memory.ledger import Allocation, Kind, Ledger
from fx_bridge.memory.optimizer import check_sparse_gradients
from fx_bridge.memory.result import LiveStorage, MemoryPoint, MemoryProfile
from fx_bridge.memory.run import Loss, MemoryRun, Runner, TrainingStep
from fx_bridge.storages.replay import Replay
from fx_bridge.storages.tensor_subclasses import tensors_in
from solver import PartitionError
from solver.model.checks import check_choice
from solver.model.text import shown


def memory_profile(
    captured: CapturedGraph,
    *,
    training: bool = False,
    optimizer: str = "adamw",
    master_weights: bool = True,
    foreach: bool = False,
    loss: Loss | None = None,
    input_gradients: bool = False,
    accumulating: bool = False,
    runner: Runner = "code",
) -> MemoryProfile:
    """Return the live bytes before, during and after every node of a graph.

    Parameters
    ----------
    captured : CapturedGraph
        On any device, the meta device included; nothing is computed.
    training : bool
        A whole step of training: forward, backward and optimiser, after earlier steps (so that
        the optimiser has its state) and with gradients set to None; otherwise only forward,
        without autograd.
    optimizer : {"sgd", "momentum", "adam", "adamw"}
        One of torch's.
    master_weights : bool
        Parameters in 16 bits have a float32 copy, which the optimiser updates.
    foreach : bool
        The optimiser updates all parameters at once, as torch does by default on CUDA, which
        takes temporaries for all of them.
    loss : callable, optional
        From the outputs of the model to a number; it may hold targets. Without it the gradient
        of every output is given, and held until the backward pass is over, as in a pipeline.
    input_gradients : bool
        The floating-point inputs require gradients, as those of a later stage do.
    accumulating : bool
        Parameters have gradients from earlier microbatches, to which those of this one are added.
    runner : {"code", "interpreter"}
        The graph runs as a module, or in an ``fx.Interpreter``, which keeps values without
        readers to the end.

    Raises
    ------
    PartitionError
        If `optimizer` or `runner` has an unknown name, the graph has no backward
        pass, or the loss is not a number.

    Notes
    -----
    Bytes are those of storages as operators return them to PyTorch's dispatcher. Workspaces
    inside a kernel, and the rounding and reserve of an allocator, come on top.

    Examples
    --------
    >>> import torch
    >>> from fx_bridge.capture.graph import capture
    >>> captured = capture(torch.nn.Linear(8, 4), (torch.ones(2, 8),))
    >>> profile = memory_profile(captured)
    >>> profile.peak_bytes, profile.bytes_at_peak
    (240, {'weight': 144, 'input': 64, 'output': 32})
    >>> memory_profile(captured, training=True, optimizer="sgd").peak_point.phase
    'backward'
    """
    check_captured(captured, "profile", "memory_profile(capture(model, args))")
    check_choice(runner, get_args(Runner), "runner")
    if not isinstance(training, bool):
        raise PartitionError(f"training is {shown(training)}; write True or False")
    if loss is not None and not (training and callable(loss)):
        raise PartitionError(
            f"loss is {loss!r} and training is {training}; give training=True and a function "
            "from the outputs to a number, or leave loss out"
        )
    check_optimizer(optimizer if isinstance(optimizer, str) else repr(optimizer))
    settings = None
    if training:
        check_sparse_gradients(captured.module, optimizer)
        settings = TrainingStep(
            optimizer=optimizer,
            master_weights=master_weights,
            foreach=foreach,
            loss=loss,
            input_gradients=input_gradients,
            accumulating=accumulating,
        )
    run = MemoryRun(captured, training=settings, runner=runner)
    run.run_once()
    return _profile(run)


def peak_memory(captured: CapturedGraph, **settings: Any) -> int:
    """Return the most bytes that are alive at once; settings are those of `memory_profile`.

    Examples
    --------
    >>> import torch
    >>> from fx_bridge.capture.graph import capture
    >>> captured = capture(torch.nn.Linear(8, 4), (torch.ones(2, 8),))
    >>> peak_memory(captured, training=True, optimizer="adamw")
    936
    """
    return memory_profile(captured, **settings).peak_bytes


def forward_workspaces(captured: CapturedGraph, *, training: bool = False) -> dict[str, int]:
    """Return the bytes that each operator allocates beyond its results, by name, if any.

    At its peak an operator takes the bytes alive before it, the storages of its result (and those
    autograd keeps), and these. Autograd, in `training`, changes the kernels of some operators.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 4))
    >>> from fx_bridge.capture.graph import capture
    >>> forward_workspaces(capture(model, (torch.ones(2, 8),)))
    {'layer_norm': 16}
    """
    check_captured(captured, "profile", "forward_workspaces(capture(model, args))")
    captured = captured.trained if training else captured
    kinds = captured.storage_table.kinds
    run = _WorkspaceRun(captured, training=training)
    run.replay(kinds)
    return {name: n for name, n in kinds.for_all(run.workspace_bytes).items() if n}


class _WorkspaceRun(Replay):
    """A replay that records the bytes that each operator allocates beyond its results."""

    # Without gradients too: kernels query requires_grad.
    differentiates = True

    def __init__(self, captured: CapturedGraph, *, training: bool) -> None:
        super().__init__(captured.module, kernels=captured.kernels)
        self.workspace_bytes: dict[str, int] = {}
        self.grad_enabled = training
        self._ledger = Ledger()
        self.modes = (self._ledger,)

    def observe(self, node: fx.Node) -> Any:
        if node.op not in COMPUTE_OPS:
            return super().observe(node)
        ledger = self._ledger
        ledger.begin("forward", node.name)
        ledger.hold([self.env[read] for read in node.all_input_nodes], "input", node.name)
        ledger.begin("forward", node.name)
        before_bytes, known = ledger.live_bytes, len(ledger.allocations)
        value = super().observe(node)
        made = ledger.allocations[known:]
        left_bytes = sum(each.size_bytes for each in made if each.last > len(ledger.positions))
        self.workspace_bytes[node.name] = (
            ledger.positions[-1].peak_bytes - before_bytes - left_bytes
        )
        ledger.begin("forward", "")  # later allocations are not charged to `node`
        return value


def _profile(run: MemoryRun) -> MemoryProfile:
    ledger = run.ledger
    points = tuple(
        MemoryPoint(position.phase, position.node, position.peak_bytes, position.live_bytes)
        for position in ledger.positions
    )
    returned = {id(known) for known in ledger.known(tensors_in(run.outputs))}
    alive = [
        LiveStorage(_kind(known, run, id(known) in returned), known.owner, known.size_bytes)
        for known in ledger.allocations
        if known.born <= ledger.peak_change < known.died
    ]
    alive.sort(key=lambda storage: (-storage.size_bytes, storage.kind, storage.owner))
    return MemoryProfile(
        points=points,
        peak_bytes=ledger.peak_bytes,
        peak_index=next(i for i, p in enumerate(points) if p.peak_bytes == ledger.peak_bytes),
        alive_at_peak=tuple(alive),
        made_up=tuple(run.made_up),
    )


def _kind(allocation: Allocation, run: MemoryRun, returned: bool) -> Kind:
    """Return the purpose of a storage, known at the end of the run."""
    if allocation.kind != "activation":
        return allocation.kind
    if returned:
        return "output"
    if allocation.born <= run.boundary < allocation.died:
        return "saved"
    return "temporary" if allocation.first == allocation.last else "activation"
