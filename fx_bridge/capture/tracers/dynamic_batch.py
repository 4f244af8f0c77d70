"""Exports with a symbolic batch: its dimensions, and the code that fixes it."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import fx, nn
from torch.export import Dim, ShapesCollection
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_symbols
from torch.utils import _pytree as pytree

from fx_bridge.capture.model.messages import failure, operator_name, source_place
from fx_bridge.capture.tracers.export import export
from solver import PartitionError


class Exported(NamedTuple):
    """A graph, the inputs of its export, and remarks on its batch."""

    module: fx.GraphModule
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    note: str


def batch_size_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the size that dimension 0 has in most tensors; in a tie, the first one's.

    Raise PartitionError if no input is a tensor with a dimension.
    """
    sizes = Counter(tensor.size(0) for tensor in _tensors((args, kwargs)))
    if not sizes:
        raise PartitionError(
            "dynamic_batch needs an input that is a tensor with at least one dimension; "
            "leave it out, or pass dynamic_shapes"
        )
    return sizes.most_common(1)[0][0]


def export_dynamic(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    strict: bool,
    aware: bool = True,
) -> Exported:
    """Export `model` with dimension 0 of all tensors of the common batch size as one symbol.

    A batch of one is repeated, because torch.export takes a size of one for a constant. If
    something fixes the batch nevertheless, the note names it.
    """
    size = batch_size_of(args, kwargs)
    if size != 1:
        return _export(model, args, kwargs, size, strict, aware)
    two_args, two_kwargs = pytree.tree_map_only(torch.Tensor, _repeated, (args, kwargs))
    try:
        exported = _export(model, two_args, two_kwargs, 2, strict, aware)
    except Exception as error:
        module, seen = export(model, args, kwargs, strict=strict, aware=aware)
        note = f"the batch is fixed at 1: one of 2 fails {failure(error, model)}"
        return Exported(module, args, kwargs, "; ".join(filter(None, [note, seen])))
    notes = ["the batch of 1 was repeated to 2, because torch.export fixes a size of 1"]
    return exported._replace(note="; ".join([*notes, exported.note] if exported.note else notes))


def _export(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    size: int,
    strict: bool,
    aware: bool,
) -> Exported:
    try:
        # A name makes the sizes of all inputs one symbol.
        shapes = _shapes(args, kwargs, size, Dim("batch"))
        module, seen = export(model, args, kwargs, shapes, strict=strict, aware=aware)
        return Exported(module, args, kwargs, seen)
    except Exception as error:
        if "onstraints violated" not in str(error):
            raise
        form = re.search(r"^\s*batch = (.*_batch.*)$", str(error), re.MULTILINE)
    # Dim.AUTO accepts any constraint on the sizes.
    shapes = _shapes(args, kwargs, size, Dim.AUTO)
    with _specialisations(model) as places:
        module, seen = export(model, args, kwargs, shapes, strict=strict, aware=aware)
    fixed = [
        node.name
        for node in module.graph.find_nodes(op="placeholder")
        for value in _tensors(node.meta.get("val"))
        if not free_symbols(value.size(0)) and value.size(0) == size
    ]
    note = ""
    if fixed:
        note = f"the batch of {', '.join(dict.fromkeys(fixed))} is fixed at {size}"
        note += f" {places[0]}" if places else ""
    elif form:
        note = f"the batch must be of the form {form[1].replace('_batch', 'n')}"
    return Exported(module, args, kwargs, "; ".join(filter(None, [note, seen])))


def _tensors(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of `tree` that have a dimension."""
    return [
        leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.dim()
    ]


def _repeated(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.dim() or tensor.size(0) != 1:
        return tensor
    made = torch.cat([tensor.detach(), tensor.detach()])
    return made.requires_grad_(tensor.requires_grad)


def _shapes(args: tuple[Any, ...], kwargs: dict[str, Any], size: int, dim: Any) -> Any:
    shapes = ShapesCollection()  # type: ignore[no-untyped-call]
    for tensor in _tensors((args, kwargs)):
        if tensor.size(0) == size:
            shapes[tensor] = {0: dim}
    return shapes


@contextlib.contextmanager
def _specialisations(model: nn.Module) -> Iterator[list[str]]:
    """Yield a list, filled with the operators that turn a symbol into a number, and their places.

    Torch records such places, but outside strict export only those in its own code.
    """
    places: list[str] = []
    replace = ShapeEnv._set_replacement
    own = _export.__code__

    def watched(env: ShapeEnv, symbol: Any, target: Any, message: str) -> None:
        if target.is_number:
            frames = list(traceback.walk_stack(None))[::-1]
            # Without the callers of the export.
            start = max(n for n, (frame, _) in enumerate(frames) if frame.f_code is own)
            frames = frames[start:]
            operator = operator_name(frames)
            named = (f"by {operator}" if operator else "", source_place(frames, model))
            places.append(" ".join(part for part in named if part) or f"({message})")
        replace(env, symbol, target, message)

    with mock.patch.object(ShapeEnv, "_set_replacement", watched):
        yield places
