"""Run a captured graph on fake tensors of known size: no weights in memory, no arithmetic.

Storages, FLOPs and autograd's saved values are all found by observing such a run. Values recorded
by an exporter are not enough: a graph that was saved and loaded gives every view a storage of its
own, and symbolic sizes have no bytes.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from fx_bridge.storages.autocast import captured_precision, precision
from fx_bridge.storages.device_kernels import DeviceKernels
from fx_bridge.storages.fake_kernels import SizedFakeTensorMode
from fx_bridge.storages.kinds import Kinds, KindsFound
from fx_bridge.storages.repeated_calls import RepeatedCalls
from fx_bridge.storages.tensor_subclasses import is_wrapper, mapped_parts, named_tensors, tensors_in


class Replay(fx.Interpreter):
    """An interpreter of the captured graph in which every tensor is fake.

    Symbolic sizes take their hints. An operator that cannot run on fake tensors, for example
    because its result depends on the data, yields new tensors of the captured sizes. In a
    differentiated run, gradients flow through it to all of its operands.

    The placeholders of `module` must have ``meta["val"]``, and so must the nodes that cannot run.
    It is not changed, not even by operators that write to its buffers. With `must_run`, the error
    of an operator that cannot run is raised. `kernels` chooses those of composite operators, for
    the costs of a device.
    """

    differentiates: bool = False
    grad_enabled: bool | None = None  # while it runs; by default if it differentiates
    repeats: bool = True
    """Reuse the result of an earlier call with the same key; False for a class that observes the
    run of each call."""

    def __init__(
        self,
        module: fx.GraphModule,
        *,
        must_run: bool = False,
        kernels: DeviceKernels | None = None,
    ) -> None:
        super().__init__(module, garbage_collect_values=False)
        self._precision = captured_precision(module)
        self.kernels = kernels
        self.modes: tuple[contextlib.AbstractContextManager[Any], ...] = ()
        """Contexts within all others, such as modes that observe the run."""
        self.mode = SizedFakeTensorMode(allow_non_fake_inputs=True)
        self.must_run = must_run
        self.values: dict[fx.Node, Any] = {}
        """The value of every node, after :meth:`replay`. All are kept, so that no two storages of
        one run have the same address."""
        self.made_up: list[str] = []  # the operators that could not run
        self.notes: Any = None
        """Result of :meth:`take_notes` for the last node, from its own run or that of an earlier
        call with its key."""
        self.kinds_found: KindsFound | None = None
        self._repeated = RepeatedCalls(self.mode)
        self._fakes: dict[int, torch.Tensor] = {}
        tensors = itertools.chain(module.parameters(), module.buffers())
        self._on_meta = {tensor.device.type for tensor in tensors} == {"meta"}

    def replay(self, kinds: Kinds | None = None) -> None:
        """Run every node but the output in order; of `kinds`, only the first operator of each."""
        with contextlib.ExitStack() as stack:
            for context in self.contexts():
                stack.enter_context(context)
            if kinds is not None and kinds.given is not None:
                for node, given in kinds.given.items():
                    made = self._repeated.given(given)
                    reads = (read for read in node.all_input_nodes if read not in made)
                    self.env = made | {read: self.observe(read) for read in reads}
                    self.observe(node)
                return
            for node in self.graph.nodes:
                if node.op == "output":
                    continue
                # The interpreter looks up its arguments here.
                self.env[node] = self.values[node] = self.observe(node)

    def fetch_attr(self, target: str) -> Any:
        """Return the part of the model at a path, even if it is called ``graph``."""
        prefix, _, name = target.rpartition(".")
        owner = self.module.get_submodule(prefix)
        for table in (owner._parameters, owner._buffers, owner._modules):
            if name in table:
                return table[name]
        return getattr(owner, name)

    def contexts(self) -> Iterator[contextlib.AbstractContextManager[Any]]:
        """Yield the context managers around the run, outermost first."""
        enabled = self.differentiates if self.grad_enabled is None else self.grad_enabled
        yield torch.set_grad_enabled(enabled)
        yield precision(self._precision)
        if self.kernels is not None:
            yield self.kernels
        yield self.mode
        yield from self.modes

    def observe(self, node: fx.Node) -> Any:
        """Return the value of `node`; subclasses extend this."""
        self.notes = None
        if node.op == "placeholder":
            return self._fresh(node)
        if node.op == "get_attr":
            value = self.fetch_attr(str(node.target))
            return self.fake(value) if isinstance(value, torch.Tensor) else value
        try:
            args, kwargs = self.fetch_args_kwargs_from_env(node)
            args = tuple(self._here(a) if isinstance(a, torch.device) else a for a in args)
            if kwargs.get("device") is not None:
                kwargs = {**kwargs, "device": self._here(torch.device(kwargs["device"]))}
            return self._run(node, args, kwargs)
        except Exception:
            if self.must_run:
                raise
            self.made_up.append(node.name)
            self.notes = self.take_notes()
            value = self.substitute(node)
            return self._passing_gradients(node, value) if self.differentiates else value

    def take_notes(self) -> Any:
        """Return observations of a node's run besides its value; subclasses override this."""
        return None

    def _run(self, node: fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a node, or reuse the result of an earlier call with its key."""
        call = None
        if self.repeats and (self.kinds_found is not None or not self.differentiates):
            call = self._repeated.call(node.target, args, kwargs)
        if self.kinds_found is not None:
            self.kinds_found.note(node, call, self.env)
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            # It only checks, by the device of the capture instead of that of this run.
            return None
        if self.differentiates:
            # Autograd's saved values depend on more than sizes.
            call = None
        known = None if call is None else self._repeated.again(call)
        if known is not None:
            value, self.notes = known
            return value
        value = getattr(self, node.op)(node.target, args, kwargs)
        self.notes = self.take_notes()
        if call is not None:
            self._repeated.keep(call, value, self.notes)
        return value

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a submodule on fakes of its parameters and buffers, which may change the fakes."""
        submodule = self.fetch_attr(target)
        fakes = {name: self.fake(tensor) for name, tensor in named_tensors(submodule).items()}
        return torch.func.functional_call(submodule, fakes, args, kwargs)

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the fake of a parameter or buffer, always the same for one tensor."""
        if id(tensor) not in self._fakes:
            self._fakes[id(tensor)] = self._new_fake(tensor)
        return self._fakes[id(tensor)]

    def fake_parts(self, tensor: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield each part of a parameter or buffer with its fake."""
        parts, fakes = tensors_in(tensor), tensors_in(self.fake(tensor))
        # A quantised tensor has one fake for all of its parts.
        yield from zip(
            parts, fakes if len(fakes) == len(parts) else fakes * len(parts), strict=False
        )

    def _here(self, device: torch.device) -> torch.device:
        """Return the device on which to replay a tensor of `device`, which may be missing here."""
        if self._on_meta:
            return torch.device("meta")
        present = torch.accelerator.current_accelerator(check_available=True)
        if device.type in ("cpu", "meta") or (present and present.type == device.type):
            return device
        return torch.device("cpu")

    def _new_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        # Quantised tensors have no fake.
        with contextlib.suppress(Exception):
            if is_wrapper(tensor):
                # Each part by itself, so that shared parts have one fake too.
                made = mapped_parts(tensor, lambda _, part: self._new_fake(part))
                return made.requires_grad_(self.differentiates and tensor.requires_grad)
            # In a run without gradients, torch's own hooks fail on tensors that require one.
            known = None if self.differentiates else self._repeated.fake(tensor)
            if known is not None:
                return known
            made = self.mode.from_tensor(tensor, static_shapes=True)
            return made if self.differentiates else made.detach()
        with self.mode:
            return torch.empty(tensor.size(), dtype=torch.uint8, device=tensor.device)

    def substitute(self, node: fx.Node) -> Any:
        """Return a value for a node that cannot run; see :class:`Replay`."""
        return self._fresh(node)

    def _passing_gradients(self, node: fx.Node, value: Any) -> Any:
        """Make autograd see the value of `node` as depending on its operands."""
        read = [
            tensor
            for tensor in pytree.tree_leaves([self.env[other] for other in node.all_input_nodes])
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad
        ]

        def passing(made: Any) -> Any:
            if not isinstance(made, torch.Tensor) or made.layout is not torch.strided:
                return made
            if not read or not (made.is_floating_point() or made.is_complex()):
                return made
            return _PassesGradients.apply(made, *read)  # type: ignore[no-untyped-call]

        return pytree.tree_map(passing, value)

    def _fresh(self, node: fx.Node) -> Any:
        return pytree.tree_map(self._concrete, node.meta.get("val"))

    def _concrete(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                return value
            made = mapped_parts(value, lambda _, part: self._empty(part))
            return made.requires_grad_(self.differentiates and value.requires_grad)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return hint(value)
        return value

    def _empty(self, value: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(
            [hint(size) for size in value.size()],
            [hint(stride) for stride in value.stride()],
            dtype=value.dtype,
            device=self._here(value.device),
        )


class _PassesGradients(torch.autograd.Function):
    """Returns a tensor that depends on others, and saves nothing for backward."""

    @staticmethod
    def forward(ctx: Any, made: torch.Tensor, *read: torch.Tensor) -> torch.Tensor:
        ctx.read = [(t.size(), t.dtype, t.device) for t in read]
        return made

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        made = (torch.empty(size, dtype=dtype, device=at) for size, dtype, at in ctx.read)
        return None, *made


@contextlib.contextmanager
def without_fast_path() -> Iterator[None]:
    """Run torch's encoder layers unfused, for which there are formulas and rules."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


def last_reads(nodes: Iterable[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """Return the values dropped after each node; values without readers are dropped at once."""
    last: dict[fx.Node, list[fx.Node]] = {}
    seen: set[fx.Node] = set()
    for node in reversed([*nodes]):
        dropped = [read for read in (*node.all_input_nodes, node) if read not in seen]
        seen.update(dropped)
        last[node] = dropped
    return last


def hint(size: Any) -> Any:
    """Return the number that a symbolic size stands for.

    It is the size of the example inputs. A size that depends on data takes its upper bound, or
    without one its lower bound.
    """
    if not isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return size
    kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(size)]
    node = size.node
    if node.has_hint():
        return kind(node.hint)
    known = {}
    for symbol in node.expr.free_symbols:
        bounds = node.shape_env.bound_sympy(symbol)
        bound = bounds.upper if bounds.upper.is_number and bounds.upper < 2**31 else bounds.lower
        known[symbol] = bound if bound.is_number and bound > 0 else 1
    return kind(node.expr.xreplace(known))


def value_bytes(value: Any) -> int:
    """Return numel x itemsize of all tensors in `value`; of a wrapper, of its inner tensors."""
    return sum(hint(part.numel()) * part.element_size() for part in tensors_in(value))
