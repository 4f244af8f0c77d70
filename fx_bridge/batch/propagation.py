"""Batch propagation: a graph run on fake tensors, with rules for every dispatched operator.

Modules, methods and functions that nodes call arrive as ATen operators, few of which have rules of
their own: linear, attention and recurrent layers, einsum and normalisation decompose into products,
views and reductions on the way.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import fx
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fx_bridge.batch.rules.arithmetic import outcome
from fx_bridge.batch.rules.call import Call
from fx_bridge.batch.rules.dims import REPLICATED, BatchDim, mixed, partial, unknown
from fx_bridge.storages.mutations import memory_of
from fx_bridge.storages.replay import Replay, without_fast_path

State = Any
"""A :class:`BatchDim`, or the structure of a value with one for each leaf."""

_HIGHER_ORDER_REASON: Final = "operators inside {} are not followed"
_ARITHMETIC: Final = frozenset(
    {
        *(operator.mul, operator.truediv, operator.add, operator.sub, operator.pow),
        *(operator.floordiv, torch.mul, torch.div, torch.add, torch.sub, torch.true_divide),
        *("mul", "div", "add", "sub", "pow", "true_divide"),
    }
)


class BatchRun(Replay):
    """A replay that finds the `states` of every node from those of the placeholders.

    `module` has values of batches of `batch_size`; `dims` has, for each placeholder, the dimension
    of the batch in each of its leaves. `unique_size` is True if only the batch's sizes are
    multiples of `batch_size`, so that sizes verify the rules.
    """

    # States of results depend on those of arguments.
    repeats = False

    def __init__(
        self,
        module: fx.GraphModule,
        batch_size: int,
        dims: Mapping[str, tuple[int | None, ...]],
        *,
        unique_size: bool,
    ) -> None:
        super().__init__(module)
        self.batch_size = batch_size
        self.dims = dims
        self.unique_size = unique_size
        self.states: dict[str, State] = {}
        self.writes: dict[str, BatchDim] = {}
        self._watch = _Watch(self)
        self.modes = (self._watch,)
        self._of: dict[int, BatchDim] = {}
        self._alive: list[torch.Tensor] = []
        self._sharing: dict[object, list[torch.Tensor]] = {}
        self._node = ""
        self._weights: set[object] = set()

    def follow(self) -> None:
        """Run all nodes."""
        with without_fast_path():
            self.replay()
        # Results of the graph may have been written to after their node.
        for node in self.graph.output_node().all_input_nodes:
            self._keep_states(node, self.values[node])

    def observe(self, node: fx.Node) -> Any:
        """Run `node` and keep the states of its value."""
        self._node = node.name
        failed = len(self.made_up)
        value = super().observe(node)
        leaves = pytree.tree_leaves(value)
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if node.op == "placeholder":
            dims = self.dims.get(node.name, ())
            for leaf, dim in zip(leaves, (*dims, *[None] * len(leaves)), strict=False):
                if isinstance(leaf, torch.Tensor) and dim is not None:
                    self._set(leaf, BatchDim("batch", dim))
        elif node.op == "get_attr":
            self._weights.update(map(memory_of, tensors))
        elif len(self.made_up) > failed:
            lost = self._made_up(node)
            for tensor in tensors:
                self._set(tensor, lost)
        else:
            self._scaled(node, tensors)
        self._keep_states(node, value)
        return value

    def _keep_states(self, node: fx.Node, value: Any) -> None:
        self.states[node.name] = pytree.tree_map(self._leaf, value)

    def _made_up(self, node: fx.Node) -> BatchDim:
        """Return the state of a value that cannot run on fakes."""
        leaves = pytree.tree_leaves([self.values.get(read) for read in node.all_input_nodes])
        states = [self.state(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)]
        lost = [state for state in states if state.kind == "unknown"]
        if lost:
            return lost[0]
        if states and all(state.kind == "replicated" for state in states):
            return REPLICATED
        reason = "its result depends on the data of all samples"
        return replace(unknown(reason), origin=node.name)

    def _leaf(self, leaf: Any) -> BatchDim:
        if isinstance(leaf, torch.Tensor):
            return self.state(leaf)
        if isinstance(leaf, int) and not isinstance(leaf, bool) and self._grows(leaf):
            return partial("sum", "a number of samples or of their entries")
        return REPLICATED

    def _grows(self, number: int) -> bool:
        return self.unique_size and number != 0 and number % self.batch_size == 0

    def _scaled(self, node: fx.Node, tensors: list[torch.Tensor]) -> None:
        """Correct the state of a value that was computed with the batch size as a number."""
        numbers = [
            self.values[arg] if isinstance(arg, fx.Node) else arg
            for arg in (*node.args, *node.kwargs.values())
        ]
        grown = [n for n in numbers if isinstance(n, int) and self._grows(n)]
        name = getattr(node.target, "overloadpacket", node.target)
        arithmetic = (
            torch.Tag.pointwise in node.target.tags
            if isinstance(node.target, OpOverload)
            else name in _ARITHMETIC
        )
        if not grown or not arithmetic:
            return
        short = str(getattr(name, "__name__", name)).rpartition(".")[2]
        for tensor in tensors:
            state = self.state(tensor)
            if state.kind == "unknown":
                continue
            if "div" in short and state.kind == "partial" and state.reduction == "sum":
                self._set(tensor, replace(state, reduction="mean"))
            else:
                lost = mixed(f"{short} computes with the batch size as a number")
                self._set(tensor, replace(lost, origin=node.name))

    def state(self, tensor: torch.Tensor) -> BatchDim:
        """Return the state of a tensor of this run."""
        return self._of.get(id(tensor), REPLICATED)

    def _set(self, tensor: torch.Tensor, state: BatchDim) -> None:
        if id(tensor) not in self._of:
            self._alive.append(tensor)  # so that no other tensor gets its id
            self._sharing.setdefault(memory_of(tensor), []).append(tensor)
        self._of[id(tensor)] = state

    def note(self, func: OpOverload, args: tuple[Any, ...], kwargs: Any, out: Any) -> None:
        """Set the states of the results of an operator, and of the tensors that it wrote to."""
        call = Call(
            func, args, kwargs, out, self.batch_size, self.state, self._node, self.unique_size
        )
        found = outcome(call)
        results = [leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        states = [found] * len(results) if isinstance(found, BatchDim) else list(found)
        written = self._written(call)
        for result, state in zip(results, states, strict=False):
            settled = self._settled(call, result, state)
            if any(result is target for target in written):
                self._write(result, settled)
            self._set(result, settled)

    def _written(self, call: Call) -> list[torch.Tensor]:
        targets = [
            call[argument.name]
            for argument in call.func._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        if call["training"] is True and "batch_norm" in call.name:
            targets += [call["running_mean"], call["running_var"]]
        found = [target for target in targets if isinstance(target, torch.Tensor)]
        for target in found:
            if memory_of(target) in self._weights:
                self.writes.setdefault(self._node, self.state(target))
        return found

    def _write(self, target: torch.Tensor, state: BatchDim) -> None:
        """Update the states of all tensors that share the storage of a written `target`.

        Values that hold a part of the samples, or all of them next to a written part, become
        unknown.
        """
        if state == self.state(target) and state.kind != "unknown":
            return
        for other in self._sharing.get(memory_of(target), ()):
            if other is target or self.state(other).kind == "unknown":
                continue
            if other.shape == target.shape and other.stride() == target.stride():
                self._of[id(other)] = state
            elif state.kind == "unknown" or self.state(other).kind != state.kind:
                lost = unknown("part of it is written in place, through a view")
                self._of[id(other)] = replace(lost, origin=self._node, mixes=state.mixes)

    def _settled(self, call: Call, result: torch.Tensor, state: BatchDim) -> BatchDim:
        """Compare the state that the rules give with the sizes that grew."""
        size = self.batch_size
        grown = [
            dim
            for dim, extent in enumerate(result.shape)
            if self.unique_size and extent and extent % size == 0
        ]
        if state.kind == "unknown":
            origin = state.origin or self._node
            return replace(state, origin=origin, dim=grown[0] if len(grown) == 1 else None)
        if state.dim is not None:
            fits = state.dim < result.dim() and result.size(state.dim) == state.factor * size
            if fits and (not self.unique_size or grown == [state.dim]):
                return state
            if fits:
                state = call.mixed("pairs samples with each other")
            else:
                state = call.no_rule(f"yields {list(result.shape)}, which the rules do not expect")
        elif grown:
            state = call.no_rule(f"yields {list(result.shape)}, which grows with the batch")
        else:
            return state
        return replace(state, origin=self._node, dim=grown[0] if len(grown) == 1 else None)

    def higher_order(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run an operator that calls graphs; those of regions and branches are followed."""
        name = str(getattr(func, "__name__", func))
        if name == "wrap_with_set_grad_enabled":
            with self._watch:
                return fx.Interpreter(args[1]).run(*args[2:])
        if name == "wrap_with_autocast":
            with self._watch, torch.autocast(args[0], args[1], args[2], args[3]):
                return fx.Interpreter(args[4]).run(*args[5:])
        if name == "cond":
            return self._branches(*args)
        out = func(*args, **kwargs)
        for leaf in pytree.tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                lost = unknown(_HIGHER_ORDER_REASON.format(name))
                self._set(leaf, replace(lost, origin=self._node))
        return out

    def _branches(self, predicate: Any, one: Any, other: Any, operands: Any) -> Any:
        with self._watch:
            taken, left = (fx.Interpreter(body).run(*operands) for body in (one, other))
        decided = not isinstance(predicate, torch.Tensor) or (
            self.state(predicate).kind == "replicated"
        )
        pairs = zip(pytree.tree_leaves(taken), pytree.tree_leaves(left), strict=True)
        for leaf, second in pairs:
            if not isinstance(leaf, torch.Tensor):
                continue
            if not decided:
                state = mixed("cond takes a branch by a value of the whole batch")
            elif self.state(leaf) != self.state(second):
                state = unknown("the branches of cond treat the batch differently")
            else:
                continue
            self._set(leaf, replace(state, origin=self._node))
        return taken


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    # Read by HigherOrderOperator.dispatch.
    supports_higher_order_operators = True

    def __init__(self, run: BatchRun) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.run = run

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            return self.run.higher_order(func, args, kwargs)
        out = func(*args, **kwargs)
        self.run.note(func, args, kwargs, out)
        return out
