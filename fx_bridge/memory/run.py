"""Forward pass, backward pass and optimiser step of a captured graph on fake tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx

from fx_bridge.capture.graph import COMPUTE_OPS, CapturedGraph
from fx_bridge.equivalence.calls import first_line
from fx_bridge.memory.ledger import Ledger
from fx_bridge.memory.optimizer import OptimizerStep
from fx_bridge.storages.mutations import memory_of
from fx_bridge.storages.replay import Replay, last_reads
from fx_bridge.storages.tensor_subclasses import tensor_leaves
from fx_bridge.storages.weights import weight_storages
from solver import PartitionError

Runner = Literal["code", "interpreter"]
Loss = Callable[[Any], torch.Tensor]


class NothingToTrainError(PartitionError):
    """A graph without a backward pass."""


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """Settings of a training step; see :func:`fx_bridge.memory.profile.memory_profile`."""

    optimizer: str
    master_weights: bool
    foreach: bool
    loss: Loss | None
    input_gradients: bool
    accumulating: bool


class MemoryRun(Replay):
    """A replay that holds nothing longer than a real run would.

    `training` has the rest of a training step, None for inference. The other parameters are those
    of :func:`fx_bridge.memory.profile.memory_profile`.
    """

    def __init__(
        self, captured: CapturedGraph, *, training: TrainingStep | None, runner: Runner
    ) -> None:
        super().__init__(captured.module, kernels=captured.kernels)
        # Without gradients too: kernels query requires_grad.
        self.differentiates = True
        self.grad_enabled = training is not None
        self.ledger = Ledger()
        self.modes = (self.ledger,)
        self.boundary = 0  # the change at which the backward pass began
        self.outputs: Any = None  # the results of the graph, after the forward pass
        self._training = training
        # An fx.Interpreter keeps a value without readers to the end; generated code drops it.
        dropped_unread = COMPUTE_OPS if runner == "code" else ()
        self._last_reads = {
            node: [value for value in values if value is not node or node.op in dropped_unread]
            for node, values in last_reads(self.graph.nodes).items()
        }
        self._inputs: dict[fx.Node, Any] = {}
        self._parameters: dict[str, torch.Tensor] = {}
        self._input_leaves: dict[str, torch.Tensor] = {}
        self._step: OptimizerStep | None = None
        self._hold_weights(captured)

    def run_once(self) -> None:
        """Run forward, and backward and the optimiser if it is a training step."""
        with contextlib.ExitStack() as stack:
            for context in self.contexts():
                stack.enter_context(context)
            self._make_inputs()
            if self._training is not None:
                self._step = self._optimizer_step(self._training)
            self._forward()
            self.boundary = self.ledger.changes
            if self._training is None:
                return
            try:
                self._backward(self._training)
            except PartitionError:
                raise
            except Exception as error:
                raise PartitionError(
                    f"the backward pass failed ({type(error).__name__}: {first_line(error)}); "
                    "check that the model and the loss can be differentiated, or pass "
                    "training=False"
                ) from error
            self._update()

    def _hold_weights(self, captured: CapturedGraph) -> None:
        names = {id(p): n for n, p in reversed([*self.module.named_parameters()])}
        table = captured.storage_table
        returned = [table.storages[n.name] for n in self.graph.output_node().all_input_nodes]
        read = {s.owner for storages in returned for s in storages if s.kind == "weight"}
        read.update(table.weights)
        weights = weight_storages(self.module, self.graph, captured.weight_bytes)
        for key, weight in weights.items():
            if key not in read:
                continue
            for tensor in weight.tensors:
                fake = self.fake(tensor)
                for part, made in self.fake_parts(tensor):
                    size_bytes = weight.memory_bytes.get(memory_of(part))
                    if size_bytes is not None:
                        self.ledger.hold(made, "weight", key, size_bytes)
                fake.grad = None  # a fake copies the tensor's gradient
                if any(tensor is parameter for parameter in weight.trainable):
                    self._parameters[names.get(id(tensor), key)] = fake

    def _make_inputs(self) -> None:
        wanted = self._training is not None and self._training.input_gradients
        with self.ledger.pause():
            for node in self.graph.find_nodes(op="placeholder"):
                value = self._inputs[node] = self._fresh(node)
                self.ledger.hold(value, "input", node.name)
                for tensor in tensor_leaves(value):
                    if wanted and tensor.dtype.is_floating_point:
                        tensor.requires_grad_()
                    if tensor.requires_grad:
                        self._input_leaves[node.name] = tensor

    def _optimizer_step(self, training: TrainingStep) -> OptimizerStep:
        with self.ledger.pause():
            step = OptimizerStep(
                self._parameters,
                training.optimizer,
                master_weights=training.master_weights,
                foreach=training.foreach,
            )
            for name, master in step.masters():
                self.ledger.hold(master, "optimizer", name)
        return step

    def _forward(self) -> None:
        for node in self.graph.nodes:
            if node.op in COMPUTE_OPS or node.op == "output":
                self.ledger.begin("forward", node.name)
            if node.op == "placeholder":
                self.env[node] = self._inputs[node]
            elif node.op == "output":
                (self.outputs,), _ = self.fetch_args_kwargs_from_env(node)
            else:
                self.env[node] = self.observe(node)
            for read in self._last_reads.get(node, ()):
                del self.env[read]
        self.env.clear()

    def _backward(self, training: TrainingStep) -> None:
        if training.loss is not None:
            self.ledger.begin("forward", "loss")
            roots = [_checked_loss(training.loss(self.graph.process_outputs(self.outputs)))]
            self.outputs = self.outputs, roots[0]
            self.boundary = self.ledger.changes
        else:
            leaves = tensor_leaves(self.outputs)
            roots = list({id(t): t for t in leaves if t.requires_grad}.values())
            if not roots:
                raise NothingToTrainError(
                    "no output of the graph requires a gradient, so there is no backward pass; "
                    "capture a model whose parameters require gradients, or pass training=False"
                )
        if training.accumulating:
            self._add_gradients(roots)
        self.ledger.begin("backward", "loss")
        gradients = None if training.loss else [torch.empty_like(root) for root in roots]
        torch.autograd.backward(roots, gradients)
        for name, leaf in {**self._parameters, **self._input_leaves}.items():
            for known in self.ledger.known(leaf.grad):
                known.kind, known.owner = "gradient", name

    def _add_gradients(self, roots: Sequence[torch.Tensor]) -> None:
        """Give the parameters that `roots` depend on gradients, as from an earlier pass."""
        reached = _leaves_of(roots)
        made = []
        with self.ledger.pause():
            for name, parameter in self._parameters.items():
                if id(parameter) in reached:
                    parameter.grad = torch.empty_like(parameter)
                    made.append((name, parameter.grad))
        self.ledger.backdate(made, "gradient")

    def _update(self) -> None:
        step = self._step
        assert step is not None
        with self.ledger.pause():
            step.run(lambda _: None)  # optimisers allocate their state in the first step
        self.ledger.backdate(step.states(), "optimizer")
        step.run(lambda name: self.ledger.begin("optimizer", name))


def _checked_loss(loss: object) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.requires_grad:
        what = f"a {type(loss).__name__}"
        if isinstance(loss, torch.Tensor):
            what = f"a tensor of shape {tuple(loss.shape)}" + (
                "" if loss.requires_grad else " that requires no gradient"
            )
        raise PartitionError(
            f"loss returned {what}; let it return one number that depends on the outputs, such "
            "as lambda outputs: outputs[0].float().mean()"
        )
    return loss


def _leaves_of(roots: Sequence[torch.Tensor]) -> set[int]:
    """Return the ids of the leaf tensors that autograd reaches from `roots`."""
    found = {id(root) for root in roots if root.is_leaf}
    pending = [root.grad_fn for root in roots if root.grad_fn is not None]
    seen = set(pending)
    while pending:
        function = pending.pop()
        if hasattr(function, "variable"):
            found.add(id(function.variable))
        for following, _ in function.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)
    return found
