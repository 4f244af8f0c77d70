"""Checks of a model before its capture, and of its graph after."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
from torch import fx, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from fx_bridge.capture.model.messages import describe
from solver import PartitionError
from solver.model.text import shown

_GATHERING: Final = ("fully_shard", "replicate", "replicate_with_fsdp")
"""Functions of torch.distributed that add weight hooks to a module."""
_OF_TORCH: Final = frozenset(
    {
        *(set(dir(fx.GraphModule)) - set(dir(nn.Module))),
        *vars(fx.GraphModule(nn.Module(), fx.Graph())).keys() - vars(nn.Module()).keys(),
        *("_in_spec", "_out_spec"),
    }
)
_OF_PLACED: Final = frozenset({"devices", "model_state_dict", "load_model_state_dict"})


def check_constants(names: object) -> tuple[str, ...]:
    """Return the names of fixed inputs; raise PartitionError unless they are a list of names."""
    if isinstance(names, Sequence) and not isinstance(names, str):
        found = tuple(name for name in names if isinstance(name, str) and name)
        if len(found) == len(names):
            return found
    raise PartitionError(
        f"constants is {shown(names)}; write a list of names of inputs, such as ['image_grid_thw']"
    )


def check_model(
    model: object,
    known: tuple[type, ...],
    dynamic_shapes: object,
    constants: Sequence[str],
    check: object,
) -> None:
    """Refuse models of other than `known` classes, hidden weights, and options not for a model."""
    if not isinstance(check, bool):
        raise PartitionError(f"check is {shown(check)}; write True or False")
    if not isinstance(model, known):
        hint = "; give an instance, not the class" if isinstance(model, type) else ""
        raise PartitionError(
            f"cannot capture {describe(model)}: give a torch.nn.Module, a torch.fx.GraphModule, a "
            f"torch.export.ExportedProgram or the path of a .pt2 file{hint}"
        )
    if isinstance(model, nn.Module):
        _check_parts(model)
        if not isinstance(model, fx.GraphModule):
            _check_weights(model)
            return
    kind = "GraphModule" if isinstance(model, fx.GraphModule) else describe(model)
    if dynamic_shapes is not None:
        raise PartitionError(
            f"dynamic sizes need the module itself, not a {kind}, whose sizes are as they are; "
            "give the module, or export it with dynamic_shapes yourself"
        )
    for name, is_given in (("constants", constants), ("check=True", check)):
        if is_given:
            raise PartitionError(
                f"{name} needs the module itself, not a {kind}, whose graph is as it is; give the "
                "module, or leave it out"
            )


def check_names(paths: Iterable[str]) -> None:
    """Raise PartitionError if a path begins with an attribute name of stage modules."""
    for path in paths:
        name = path.partition(".")[0]
        if name in _OF_TORCH or name in _OF_PLACED:
            raise PartitionError(
                f"the model has {path!r}, and a stage has an attribute {name!r} of its own, as "
                "every torch.fx.GraphModule; rename that part of the model"
            )


def _check_weights(model: nn.Module) -> None:
    """Raise PartitionError if a parameter has no shape yet, or a name that stages need."""
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(tensor):
            raise PartitionError(
                f"{name!r} of {describe(model)} has no shape yet (a lazy module); call the model "
                "once on the example inputs first"
            )
    check_names([*dict(model.named_parameters()), *dict(model.named_buffers())])


def _check_parts(model: nn.Module) -> None:
    """Raise PartitionError if another library hides or gathers weights of a part of `model`."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    composed: Any = sys.modules.get("torch.distributed._composable.contract")
    for name, module in model.named_modules():
        part = f"its submodule {name!r}" if name else "it"
        if type(module).__module__.startswith("bitsandbytes."):
            raise PartitionError(
                f"cannot capture {describe(model)}: {part} is a layer of bitsandbytes, which holds "
                "scales in no buffer; quantise by torchao, or capture the model as it was before, "
                "and give its bytes to with_weight_bytes (the command serve has --weights nf4)"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise PartitionError(
                f"cannot capture {describe(model)}: {part} is TorchScript; give the Python module"
            )
        for attribute, value in vars(module).items():
            if isinstance(value, torch.ScriptObject):
                path = f"{name}.{attribute}".lstrip(".")
                raise PartitionError(
                    f"cannot capture {describe(model)}: {path!r} is a TorchScript object, "
                    "such as packed weights, whose bytes cannot be seen; keep weights as "
                    "parameters or buffers, as torchao does"
                )
        applied = (composed and composed._get_registry(module)) or ()
        wrapper = next((each for each in _GATHERING if each in applied), "")
        if fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel):
            wrapper = "FullyShardedDataParallel"
        if wrapper:
            raise PartitionError(
                f"cannot capture {describe(model)}: {part} is under {wrapper}, whose hooks change "
                f"weights around each run and are in no graph; capture the model before {wrapper}"
            )


def check_content(operators: Sequence[fx.Node], graph: fx.Graph, model: object) -> None:
    """Refuse graphs without operators, or with values that have no sizes."""
    if not operators:
        raise PartitionError(
            f"the graph of {describe(model)} has no operators, so there is nothing to place; "
            "give a model that computes something"
        )
    for node in graph.nodes:
        leaves = pytree.tree_leaves(node.meta.get("val"))
        if any(getattr(leaf, "is_nested", False) for leaf in leaves):
            raise PartitionError(
                f"{node.name!r} is a nested tensor, whose parts have no sizes to plan with; pad "
                "it (torch.nested.to_padded_tensor) and pass a mask"
            )
