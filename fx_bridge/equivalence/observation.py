"""Observe one call of a module: outputs, effects, gradients. Everything is restored."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fx_bridge.equivalence.calls import first_line
from fx_bridge.equivalence.containers import named_leaves
from fx_bridge.python_state.restoration import PythonState
from fx_bridge.storages.mutations import memory_of
from fx_bridge.storages.tensor_subclasses import (
    cloned,
    is_wrapper,
    mapped_parts,
    parts_of,
    pieces_of,
    tensor_leaves,
)
from solver import PartitionError


@dataclass(slots=True)
class Observation:
    """Outputs and effects of a call of a module."""

    outputs: Any
    inputs: Any
    """Positional and keyword inputs after the call."""
    state: dict[str, list[torch.Tensor]]
    """Parameters, buffers and other tensors after the call, by original name; one entry for
    each stage that holds one."""
    written: list[set[str]]
    """Names of each tensor that the call wrote, and of each buffer that it made. Other new tensors,
    such as the weight of an old ``weight_norm``, are left out: no graph keeps them."""
    shared: set[frozenset[str]]
    """Groups of outputs, inputs and names of `state` that share memory."""
    differentiable: list[bool]
    """The requires_grad of every tensor among the outputs."""
    random_state: list[torch.Tensor]
    returned: set[tuple[int, Any]]
    """Inputs whose objects are among the outputs: 0 and the position, or 1 and the keyword."""
    gradients: dict[str, dict[int, torch.Tensor | None]] = field(default_factory=dict)
    """By original name, then by the identity of the parameter."""
    input_gradients: list[torch.Tensor | None] = field(default_factory=list)
    """Of every input that required a gradient before the call."""


_FAILURES: Final = {
    "model": ("the model fails on these inputs", "pass inputs that it accepts"),
    "split": (
        "the split fails on inputs that the model accepts",
        "a graph keeps the sizes and types of the inputs that it was captured with: pass such",
    ),
}
"""Message and remedy for a call that raises, by role."""


@contextlib.contextmanager
def saying(failure: str, remedy: str) -> Iterator[None]:
    """Turn errors of a call into a PartitionError of one line."""
    try:
        yield
    except PartitionError:
        raise
    except Exception as error:
        raise PartitionError(
            f"{failure} ({type(error).__name__}: {first_line(error)}); {remedy}"
        ) from error


def observe(
    role: str,
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    gradients: bool,
    seed: int,
) -> Observation:
    """Call `module` on clones of the inputs, and restore it.

    Messages call it `role`. With `gradients`, also run backward from all differentiable outputs,
    with random cotangents; PartitionError if there are none. `seed` is that of all random numbers.
    """
    _check_initialised(role, module)
    with _unchanged(module) as before:
        for parameter in module.parameters():
            parameter.grad = None
        inputs = _cloned((args, dict(kwargs)))
        leaves = [leaf for leaf in tensor_leaves(inputs) if leaf.requires_grad]
        torch.manual_seed(seed)
        with torch.set_grad_enabled(gradients or torch.is_grad_enabled()), saying(*_FAILURES[role]):
            outputs = module(*inputs[0], **inputs[1])
        random_state = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
        state, written = _state(module, before)
        tensors = [t for t in pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)]
        observation = Observation(
            # Outputs may be parameters or buffers, which are about to be restored.
            outputs=_detached(outputs),
            inputs=_detached(inputs),
            state=state,
            written=written,
            shared=_sharing(module, inputs, outputs),
            differentiable=[tensor.requires_grad for tensor in tensors],
            random_state=random_state,
            returned=_returned(inputs, outputs),
        )
        if gradients:
            remedy = "call check_equivalence without gradients"
            if role == "split":
                # For example torch.export may write buffers at the end that backward needs.
                remedy += ", or compare with the captured module, which is split as it is"
            with saying(f"the backward pass of the {role} fails", remedy):
                _backward([tensor for tensor in tensors if tensor.requires_grad], seed)
            for name, parameter in module.named_parameters(remove_duplicate=False):
                held_by = observation.gradients.setdefault(original_name(module, name), {})
                held_by[id(parameter)] = parameter.grad
            observation.input_gradients = [leaf.grad if leaf.is_leaf else None for leaf in leaves]
    return observation


def _check_initialised(role: str, module: nn.Module) -> None:
    for name, tensor in _tensors(module):
        if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
            raise PartitionError(
                f"the {role} has no values for {name!r} yet; call it once on example inputs"
            )


def _state(
    module: nn.Module, before: Mapping[int, torch.Tensor]
) -> tuple[dict[str, list[torch.Tensor]], list[set[str]]]:
    """Return the tensors of `module` by name, and the names of each that was written."""
    state: dict[str, list[torch.Tensor]] = {}
    written: dict[int, set[str]] = {}
    registered = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
    for name, tensor in _tensors(module):
        known = before.get(id(tensor))
        kept = known is not None and same_bits(tensor, known)
        if not kept and (known is not None or id(tensor) in registered):
            written.setdefault(id(tensor), set()).add(name)
        # Tensors that were not written need no copy: they will not be restored.
        state.setdefault(name, []).append(tensor if kept else cloned(tensor))
    return state, list(written.values())


def _returned(inputs: Any, outputs: Any) -> set[tuple[int, Any]]:
    """Return the inputs whose objects are within the outputs."""
    found: set[int] = set()

    def note(node: Any) -> bool:
        found.add(id(node))
        return False

    pytree.tree_flatten(outputs, is_leaf=note)
    named = [((0, n), value) for n, value in enumerate(inputs[0])]
    named += [((1, name), value) for name, value in inputs[1].items()]
    return {place for place, value in named if id(value) in found}


def _backward(roots: list[torch.Tensor], seed: int) -> None:
    if not roots:
        raise PartitionError(
            "no output depends on a parameter that requires a gradient; "
            "call check_equivalence without gradients"
        )
    # Gradients of a sum would hide values with a constant sum, such as the rows of a softmax.
    generator = torch.Generator().manual_seed(seed)
    cotangents = [
        torch.empty_like(root)
        if root.is_meta
        else torch.randn(root.shape, generator=generator, dtype=torch.float64).to(root)
        for root in roots
    ]
    torch.autograd.backward(roots, cotangents)


def _detached(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, cloned, tree)


def _cloned(tree: Any) -> Any:
    """Clone all tensors of a tree of inputs, each once, and copy every other object once.

    Tensors that share memory do so afterwards.
    """
    leaves = {id(t): t for t in tensor_leaves(tree)}
    storages = [memory_of(part) for leaf in leaves.values() for part in pieces_of(leaf).values()]
    memo: dict[int, Any] = {}

    def clone_piece(_: str, tensor: torch.Tensor) -> torch.Tensor:
        if storages.count(memory_of(tensor)) > 1:
            return copy.deepcopy(tensor.detach(), memo)
        return tensor.detach().clone()

    for key, leaf in leaves.items():
        whole = leaf.is_nested or not is_wrapper(leaf)
        made = clone_piece("", leaf) if whole else mapped_parts(leaf, clone_piece)
        # Also for objects that hold the tensor, such as a cache that is no pytree.
        memo[key] = made.requires_grad_(leaf.requires_grad)
    return pytree.tree_map(lambda leaf: copy.deepcopy(leaf, memo), tree)


def _sharing(module: nn.Module, inputs: Any, outputs: Any) -> set[frozenset[str]]:
    """Return the groups of names that share memory with an output."""
    names: dict[object, set[str]] = {}
    found: set[object] = set()
    for what, tree in (("input", inputs), ("output", outputs)):
        for path, leaf in named_leaves(tree)[0]:
            for part in pieces_of(leaf).values() if isinstance(leaf, torch.Tensor) else ():
                names.setdefault(memory_of(part), set()).add(what + path)
                if what == "output":
                    found.add(memory_of(part))
    for name, tensor in _tensors(module):
        for part in pieces_of(tensor).values():
            names.setdefault(memory_of(part), set()).add(name)
    return {frozenset(names[memory]) for memory in found if len(names[memory]) > 1}


@contextlib.contextmanager
def _unchanged(module: nn.Module) -> Iterator[dict[int, torch.Tensor]]:
    """Restore tensors, gradients, random states and Python state of the module on exit.

    Yields the values of the tensors, by identity.
    """
    tensors: dict[int, tuple[torch.Tensor, torch.Tensor | None, bool]] = {}
    values: dict[int, torch.Tensor] = {}
    for part in module.modules():
        attributes = {k: v for k, v in part.__dict__.items() if isinstance(v, torch.Tensor)}
        for table in (part._parameters, part._buffers, attributes):
            for tensor in table.values():
                if tensor is not None and id(tensor) not in tensors:
                    gradient = tensor.grad if tensor.is_leaf else None
                    tensors[id(tensor)] = tensor, gradient, tensor.requires_grad
                    values[id(tensor)] = cloned(tensor)
    devices = range(torch.cuda.device_count())
    remembered = PythonState(module).during(watch=False)
    with remembered, torch.random.fork_rng(devices=devices):
        try:
            yield values
        finally:
            with torch.no_grad():
                for key, (tensor, gradient, was_differentiable) in tensors.items():
                    if tensor.requires_grad and not was_differentiable and not tensor._is_view():
                        # A write of a value with a gradient: the tensor is no leaf any more.
                        tensor.detach_()
                    if not same_bits(tensor, values[key]):
                        pieces = (pieces_of(each).values() for each in (tensor, values[key]))
                        for piece, value in zip(*pieces, strict=True):
                            piece.copy_(value)
                    if tensor.is_leaf:
                        tensor.grad = gradient


def original_name(module: nn.Module, name: str) -> str:
    """Return `name` without the prefixes of stages, nested ones included."""
    stage, _, rest = name.partition(".")
    # A part of the model may have the name of a stage.
    meta = vars(module).get("meta")
    if not isinstance(meta, dict) or stage not in meta.get("stages", {}):
        return name
    return original_name(module.get_submodule(stage), rest)


def _tensors(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters, buffers and plain tensors of a module, by original name.

    Plain tensors in the memory of a parameter or buffer are left out.
    """
    tensors = (*module.parameters(), *module.buffers())
    registered = {memory_of(part) for tensor in tensors for part in pieces_of(tensor).values()}
    for prefix, part in module.named_modules(remove_duplicate=False):
        for table in (part._parameters, part._buffers, part.__dict__):
            for name, tensor in table.items():
                if not isinstance(tensor, torch.Tensor) or (
                    table is part.__dict__
                    and registered.issuperset(map(memory_of, pieces_of(tensor).values()))
                ):
                    continue
                yield original_name(module, f"{prefix}.{name}" if prefix else name), tensor


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return True if two strided tensors, or all of their inner tensors, hold the same bytes.

    On the meta device, their shapes are compared.
    """
    if is_wrapper(a) and not a.is_nested:
        there, here = parts_of(a), parts_of(b)
        same_kind = type(a) is type(b) and there.keys() == here.keys()
        return same_kind and all(same_bits(part, here[path]) for path, part in there.items())
    if a.is_meta or b.is_meta:
        return a.shape == b.shape
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != torch.strided:
        return False
    return torch.equal(
        a.detach().contiguous().view(-1).view(torch.uint8),
        b.detach().contiguous().view(-1).view(torch.uint8),
    )
