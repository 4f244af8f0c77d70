"""Values that depend on no input, and the decisions of Python that rest on them.

Forward is traced with fake tensors, which have no values; ``if mask.all()`` or ``sizes.tolist()``
would stop the capture, even where the value is the same in every call. Here tensors computed only
from numbers, buffers and fixed inputs are computed for real beside the trace. They answer for the
fake ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils.weak import WeakIdKeyDictionary

from fx_bridge.capture.model.call import named_leaves
from fx_bridge.capture.python.eager_code import around_forward
from fx_bridge.storages.mutations import memory_of, written_arguments
from solver.model.quantities import counted

_NAMESPACES: Final = ("aten", "prims")
_READ: Final = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_PACK: Final = torch.ops.aten._pack_padded_sequence.default
_SHAPED_BY_VALUES: Final = (torch.ops.aten.index.Tensor, _PACK)
_MOST_ELEMENTS: Final = 1 << 24
"""Most elements of a known value; larger ones are masks and tables, not read as numbers."""


class Known(NamedTuple):
    """A value on the CPU, and the names of the buffers and inputs from which it was computed."""

    value: torch.Tensor
    origins: frozenset[str]


@contextlib.contextmanager
def known_values(
    model: nn.Module, constants: Mapping[str, torch.Tensor], *, real: bool = False
) -> Iterator[KnownValues]:
    """Compute known values in traced calls of `model` within the block.

    `constants` has the values of fixed inputs, by path
    (:func:`~fx_bridge.capture.model.call.named_leaves`). If the trace is of `real` tensors,
    reads of values that are not known are errors. Raises RuntimeError on exit if forward changes a
    buffer whose value decided the computation.
    """
    buffers = dict(model.named_buffers())
    known = KnownValues(real=real)
    known.names = {
        id(value): f"{path}.{name}".lstrip(".")
        for path, module in model.named_modules()
        for name, value in vars(module).items()
        if isinstance(value, torch.Tensor)
    }

    @contextlib.contextmanager
    def inside(*args: Any, **kwargs: Any) -> Iterator[None]:
        for name, buffer in buffers.items():
            known.add(model.get_buffer(name), buffer, name)
        for name, weight in model.named_parameters():
            known.sources[weight] = frozenset([f"weight {name!r}"])
        for path, leaf in named_leaves(model, args, kwargs):
            if path in constants:
                known.add(leaf, constants[path], "")
            elif isinstance(leaf, torch.Tensor):
                known.sources[leaf] = frozenset([path])
        with known:
            yield
        known.look_for_writes(model)

    try:
        with around_forward(model, inside):
            yield known
    except Exception as error:
        error.sources = known.asked  # type: ignore[attr-defined]
        raise
    known.check()


class KnownValues(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes values that depend on no input beside a trace; see :func:`known_values`."""

    # Read by HigherOrderOperator.dispatch.
    supports_higher_order_operators = True

    def __init__(self, *, real: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sources: Any = WeakIdKeyDictionary()
        """Inputs and weights from which each value that is not known was computed."""
        self.asked: frozenset[str] = frozenset()
        """Sources of the last value that Python tried to read in vain."""
        self.decided: set[str] = set()
        """Buffers, and other tensors that forward writes, whose values Python read."""
        self.names: dict[int, str] = {}
        """Of tensors in modules that are neither parameters nor buffers, by identity."""
        self._written: set[str] = set()
        self._real = real
        self._known: Any = WeakIdKeyDictionary()
        self._spoiled: set[object] = set()
        self._buffers: dict[str, tuple[torch.Tensor, int]] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True if operators may compile parts of themselves in this mode; read by torch."""
        return True

    @property
    def note(self) -> str:
        """A remark about the graph for its user; empty if no value decided anything."""
        if not self.decided - self._written:
            return ""
        first, *others = sorted(self.decided - self._written)
        more = f" and {counted(len(others), 'other buffer')}" if others else ""
        return f"the values of the buffer {first!r}{more} decide what is computed, as they are now"

    def add(self, traced: Any, value: torch.Tensor, origin: str) -> None:
        """Record the concrete value of a traced tensor, and the buffer it came from, if any."""
        if type(value) not in (torch.Tensor, nn.Buffer) or value.device.type == "meta":
            return
        if value.numel() <= _MOST_ELEMENTS:
            with _computing():
                copied = value.detach().to("cpu", copy=True)
            self._known[traced] = Known(copied, frozenset([origin] if origin else []))
            if origin:
                self._buffers[origin] = (traced, traced._version)

    def knows(self, tensor: torch.Tensor) -> bool:
        """Return True if the value of a traced tensor is known."""
        return tensor in self._known

    def look_for_writes(self, model: nn.Module) -> None:
        """Keep records only of the buffers that `model` has changed or replaced."""
        held = dict(model.named_buffers())
        self._buffers = {
            name: (traced, version)
            for name, (traced, version) in self._buffers.items()
            if held.get(name) is not traced or traced._version != version
        }

    def check(self) -> None:
        """Raise RuntimeError if a value that forward changes decided the computation."""
        changed = sorted(self.decided & self._written)
        changed += [f"the buffer {name!r}" for name in sorted(self.decided & self._buffers.keys())]
        if changed:
            raise RuntimeError(
                f"the value of {changed[0]} decides what is computed, and forward changes it"
            )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        found = None
        if isinstance(func, OpOverload):
            found = self._computed(func, leaves, args, kwargs)
            if found is None and func in _SHAPED_BY_VALUES and not self._real:
                shaped = self._shaped(func, args)
                if shaped is not None:
                    return shaped
        if found is None:
            return self._traced(func, tensors, args, kwargs)
        value, origins = found
        if func._schema.is_mutable:
            self._note_writes(written_arguments(func, args, kwargs))
        if not any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value)):
            self.decided |= origins
            return value
        if torch.Tag.dynamic_output_shape in func.tags and not self._real:
            self.decided |= origins
            made = _fake_like(value, tensors)
        else:
            made = func(*args, **kwargs)
        pairs = zip(pytree.tree_leaves(made), pytree.tree_leaves(value), strict=False)
        for traced, own in pairs:
            if isinstance(traced, torch.Tensor):
                self._known[traced] = Known(own, origins)
        return made

    def _traced(self, func: Any, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        """Run an operator with unknown operands, and record the sources of its results."""
        none: frozenset[str] = frozenset()
        sources = none.union(*(self.sources.get(tensor, none) for tensor in tensors))
        if isinstance(func, OpOverload):
            for tensor in written_arguments(func, args, kwargs):
                self.sources[tensor] = sources
                shadow = self._shadow(tensor, func)
                if shadow is not None:
                    self._spoiled.add(memory_of(shadow.value))
            if any(tag in func.tags for tag in _READ) and not _is_plain_index(func, args):
                self.asked = sources
                if self._real:
                    raise RuntimeError(f"what {func} returns depends on the values of tensors")
        made = func(*args, **kwargs)
        for leaf in pytree.tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self.sources[leaf] = sources
        if func is _PACK:
            self.sources[made[1]] = self.sources.get(args[1], none)
        return made

    def _computed(
        self,
        func: OpOverload,
        leaves: Sequence[Any],
        args: Any,
        kwargs: Any,
        own_tensors: Sequence[torch.Tensor] = (),
    ) -> tuple[Any, frozenset[str]] | None:
        """Return the value of an operator with known operands, and its origins; None otherwise."""
        if torch.Tag.nondeterministic_seeded in func.tags or func.namespace not in _NAMESPACES:
            return None
        shadows = {id(tensor): Known(tensor, frozenset()) for tensor in own_tensors}
        for leaf in leaves:
            if isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                return None
            if isinstance(leaf, torch.Tensor):
                shadow = self._shadow(leaf, func)
                if shadow is None:
                    return None
                shadows[id(leaf)] = shadow

        def own(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                return shadows[id(leaf)].value
            return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

        try:
            with _computing():
                own_args, own_kwargs = pytree.tree_map(own, (args, kwargs))
                value = func(*own_args, **own_kwargs)
        except Exception:
            # The CPU lacks the kernel, or the model raises: the trace will report it.
            return None
        made = (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))
        if any(leaf.numel() > _MOST_ELEMENTS for leaf in made):
            return None
        return value, frozenset().union(*(shadow.origins for shadow in shadows.values()))

    def _shaped(self, func: OpOverload, args: tuple[Any, ...]) -> Any:
        """Return the results of ``x[mask]`` and the like for an unknown `x` and a known mask.

        Further integer results depend on the other operands alone, and so are known.
        """
        if _is_plain_index(func, args):
            return None
        with _computing():
            like = torch.zeros((), dtype=args[0].dtype).expand(tuple(args[0].shape))
        leaves = pytree.tree_leaves(args[1:])
        found = self._computed(func, leaves, (like, *args[1:]), {}, [like])
        if found is None:
            return None
        values, origins = found
        self.decided |= origins
        is_one = isinstance(values, torch.Tensor)
        first, *others = [values] if is_one else values
        results = [_fake_like(first, [args[0]]), *_fake_like(others, leaves)]
        self.sources[results[0]] = self.sources.get(args[0], frozenset())
        for traced, own in zip(results[1:], others, strict=True):
            self._known[traced] = Known(own, origins)
        return results[0] if is_one else tuple(results)

    def _note_writes(self, tensors: Iterable[torch.Tensor]) -> None:
        """Add written tensors that are no buffers to the origins of later values."""
        for tensor in tensors:
            if not self._real and not isinstance(tensor, FakeTensor):
                name = self.names.get(id(tensor))
                label = f"the attribute {name!r}" if name else "a tensor that is no buffer"
                self._written.add(label)
                value, origins = self._known[tensor]
                self._known[tensor] = Known(value, origins | {label})

    def _shadow(self, tensor: torch.Tensor, func: OpOverload) -> Known | None:
        shadow: Known | None = self._known.get(tensor)
        if shadow is not None:
            return None if memory_of(shadow.value) in self._spoiled else shadow
        if isinstance(tensor, FakeTensor):
            return None if tensor.constant is None else Known(tensor.constant, frozenset())
        # A literal of Python, as in torch.tensor([1, 2]).
        literal = not self._real or func is torch.ops.aten.lift_fresh.default
        if literal and type(tensor) is torch.Tensor and tensor.device.type == "cpu":
            if tensor.numel() > _MOST_ELEMENTS:
                return None if func._schema.is_mutable else Known(tensor, frozenset())
            # A copy: the model's own tensor must not be written.
            with _computing():
                shadow = self._known[tensor] = Known(tensor.detach().clone(), frozenset())
            return shadow
        return None


def _is_plain_index(func: OpOverload, args: tuple[Any, ...]) -> bool:
    """Return True for an index without masks, whose kernel reads no values."""
    masks = (torch.bool, torch.uint8)
    return func is torch.ops.aten.index.Tensor and not any(
        isinstance(index, torch.Tensor) and index.dtype in masks for index in args[1]
    )


def _fake_like(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return fake tensors of the shapes of real ones, on the device of the operands."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)

    def fake(own: torch.Tensor) -> torch.Tensor:
        assert mode is not None
        with mode:
            return torch.empty_strided(
                own.size(), own.stride(), dtype=own.dtype, device=tensors[0].device
            )

    return pytree.tree_map_only(torch.Tensor, fake, value)


@contextlib.contextmanager
def _computing() -> Iterator[None]:
    """Leave all modes, so that operators compute.

    torch.no_grad() would not do: torch.export records it.
    """
    below_autograd: Any = torch._C._AutoDispatchBelowAutograd
    with _disable_current_modes(), unset_fake_temporarily(), below_autograd():
        yield
