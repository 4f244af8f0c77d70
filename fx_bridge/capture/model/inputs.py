"""Example inputs: their checks, their placeholders, and the order of their leaves."""

from __future__ import annotations

import copy
import inspect
import itertools
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import fx, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from fx_bridge.capture.model.messages import describe
from solver import PartitionError
from solver.model.quantities import counted
from solver.model.text import shown

_DICTS: Final = (dict, OrderedDict, defaultdict)
_SHOWN: Final = 6
"""Most inputs that a message names."""
_GATHERING: Final = ("fully_shard", "replicate", "replicate_with_fsdp")
"""Functions of torch.distributed that add weight hooks to a module."""
_LONG: Final = 160
"""Most characters of a structure that a message shows."""


def check_constants(names: object) -> tuple[str, ...]:
    """Return the names of fixed inputs; raise PartitionError unless they are a list of names."""
    if isinstance(names, Sequence) and not isinstance(names, str):
        found = tuple(name for name in names if isinstance(name, str) and name)
        if len(found) == len(names):
            return found
    raise PartitionError(
        f"constants is {shown(names)}; write a list of names of inputs, such as ['image_grid_thw']"
    )


def check_options(
    model: object,
    known: tuple[type, ...],
    dynamic_shapes: object,
    constants: Sequence[str],
    check: object,
) -> None:
    """Refuse models of other than `known` classes, and options that a model does not take."""
    if not isinstance(check, bool):
        raise PartitionError(f"check is {shown(check)}; write True or False")
    if not isinstance(model, known):
        hint = "; give an instance, not the class" if isinstance(model, type) else ""
        raise PartitionError(
            f"cannot capture {describe(model)}: give a torch.nn.Module, a torch.fx.GraphModule, a "
            f"torch.export.ExportedProgram or the path of a .pt2 file{hint}"
        )
    if isinstance(model, nn.Module) and not isinstance(model, fx.GraphModule):
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


def check_call(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise PartitionError unless `model` takes these inputs and none of them is a module."""
    for leaf in pytree.tree_leaves((args, kwargs)):
        if isinstance(leaf, nn.Module):
            raise PartitionError(
                f"an input of {describe(model)} is a module ({type(leaf).__name__}), whose weights "
                "would be no part of the model; make it an attribute of the model"
            )
    if any(getattr(leaf, "is_nested", False) for leaf in pytree.tree_leaves((args, kwargs))):
        raise PartitionError(
            f"an input of {describe(model)} is a nested tensor, whose parts have no sizes to plan "
            "with; pad it (torch.nested.to_padded_tensor) and pass a mask"
        )
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise PartitionError(
            f"the example inputs do not fit {describe(model)}: {error}; pass args and kwargs "
            "as the model is called"
        ) from None


def check_initialised(model: nn.Module) -> None:
    """Raise PartitionError if a parameter has no shape before the first call."""
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if is_lazy(tensor):
            raise PartitionError(
                f"{name!r} of {describe(model)} has no shape yet (a lazy module); call the model "
                "once on the example inputs first"
            )


def check_scripts(model: nn.Module) -> None:
    """Raise PartitionError if TorchScript or bitsandbytes hides weights of a part of `model`."""
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


def check_unsharded(model: nn.Module) -> None:
    """Raise PartitionError if a library gathers weights of a part of `model` around its calls."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    composed: Any = sys.modules.get("torch.distributed._composable.contract")
    for name, module in model.named_modules():
        applied = (composed and composed._get_registry(module)) or ()
        wrapper = next((each for each in _GATHERING if each in applied), "")
        if fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel):
            wrapper = "FullyShardedDataParallel"
        if wrapper:
            part = f"its submodule {name!r}" if name else "it"
            raise PartitionError(
                f"cannot capture {describe(model)}: {part} is under {wrapper}, whose hooks change "
                f"weights around each run and are in no graph; capture the model before {wrapper}"
            )


def on_device_of(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Move example inputs to the meta device if the whole model is there."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    if {tensor.device.type for tensor in tensors} != {"meta"}:
        return args, kwargs
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs)
    )
    return args, kwargs


def as_distinct(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return example inputs in which a repeated tensor is another one that shares its memory.

    Traced as one value, two inputs would be one in every call.
    """
    given = [id(each) for each in pytree.tree_leaves((args, kwargs)) if torch.is_tensor(each)]
    if len(set(given)) == len(given):
        return args, kwargs
    seen: set[int] = set()

    def own(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in seen:
            tensor = tensor.detach().requires_grad_(tensor.requires_grad)
        seen.add(id(tensor))
        return tensor

    args, kwargs = pytree.tree_map_only(torch.Tensor, own, (args, kwargs))
    return args, kwargs


def flat_inputs(graph: fx.Graph, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the value of every placeholder of `graph` for a call of its module.

    Raise PartitionError if the call leaves out an input, adds one, or gives one of another
    structure.
    """
    info = getattr(graph._codegen, "pytree_info", None)
    spec = getattr(info, "in_spec", None)
    if spec is not None:
        return _leaves(graph, spec, args, kwargs)
    parameters = _parameters(graph)
    bound = _bound(graph, parameters, args, kwargs)
    bound.apply_defaults()
    values: list[Any] = []
    for parameter in parameters:
        value = bound.arguments[parameter.name]
        # The interpreter collects the remaining values for a *args placeholder.
        values.extend(value if parameter.kind is parameter.VAR_POSITIONAL else [value])
    return tuple(values)


def input_names(graph: fx.Graph) -> tuple[list[str], int]:
    """Return the argument names of a graph, and the number captured by position.

    The generated code takes every input by position or by name.
    """
    info: Any = getattr(graph._codegen, "pytree_info", None)
    if info is None or not _has_both(info.in_spec):
        names = [str(node.target) for node in graph.find_nodes(op="placeholder")]
        return names, len(names)
    names = [name for name in info.orig_args if name != "self"]
    count, keywords = info.in_spec.child(0).num_children, list(info.in_spec.child(1).context)
    return [*names[:count], *keywords], count


def _has_both(spec: pytree.TreeSpec) -> bool:
    """Return True if a structure is that of args and kwargs; make_fx has args only."""
    return spec.num_children == 2 and spec.child(1).type is dict and spec.child(0).type is tuple


def described_inputs(graph: fx.Graph) -> str:
    """Return the inputs of the capture of `graph`: ``x float32[4, 8], scale=0.5``."""
    shown = []
    for node in graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        text = f" {described_tensor(value)}" if isinstance(value, torch.Tensor) else ""
        if value is None or isinstance(value, (bool, int, float, complex, str)):
            text = f"={value!r}"
        shown.append(f"{node.target}{text}")
    return listed(shown) or "no inputs"


def listed(shown: Sequence[str]) -> str:
    """Return the first few items of a list: a cache has tensors for every layer."""
    others = len(shown) - _SHOWN
    more = f" and {counted(others, 'other')}" if others > 1 else ""
    return ", ".join(shown[: _SHOWN if more else None]) + more


def described_tensor(tensor: torch.Tensor) -> str:
    """Return dtype, shape and any layout but the strided one: ``float32[4, 8]``."""
    sizes = ", ".join(map(str, tensor.shape))
    layout = "" if tensor.layout is torch.strided else f" {tensor.layout}"
    return f"{str(tensor.dtype).removeprefix('torch.')}[{sizes}]{layout}"


def _bound(
    graph: fx.Graph,
    parameters: Sequence[inspect.Parameter],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> inspect.BoundArguments:
    try:
        return inspect.Signature(parameters).bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise _misfit(graph, str(error)) from None


def _misfit(graph: fx.Graph, reason: str) -> PartitionError:
    return PartitionError(
        f"the inputs do not fit the graph: {reason}; it was captured with "
        f"{described_inputs(graph)}: pass such inputs, or capture the model with these"
    )


def _leaves(
    graph: fx.Graph, spec: pytree.TreeSpec, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    if not _has_both(spec):
        leaves, given = pytree.tree_flatten((args, kwargs))
        if given != spec and not kwargs:
            leaves, given = pytree.tree_flatten(args)
        if given != spec:
            raise _misfit(graph, f"they have the structure {_one_line(given)}")
        return tuple(leaves)
    shown, _ = input_names(graph)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    bound = _bound(graph, [inspect.Parameter(name, kind) for name in shown], args, kwargs)
    leaves = []
    children = (*spec.child(0).children(), *spec.child(1).children())
    for name, child in zip(shown, children, strict=True):
        found, given = pytree.tree_flatten(bound.arguments[name])
        if given != child:
            found, given = pytree.tree_flatten(in_order(bound.arguments[name], child))
        if given != child:
            here, there = _apart(_one_line(given), _one_line(child))
            raise _misfit(graph, f"{name!r} has the structure {here}, not {there}")
        leaves.extend(found)
    return tuple(leaves)


def in_order(value: Any, spec: pytree.TreeSpec) -> Any:
    """Return `value` with its dicts in the key order of a structure, if the keys are the same."""
    if spec.type is tuple and type(value) is torch.Size:
        # As torch.export converts it.
        return tuple(value)
    children = spec.children()
    if spec.type in _DICTS and type(value) is spec.type:
        keys = spec.context[1] if spec.type is defaultdict else spec.context
        if value.keys() == set(keys):
            ordered = (
                (key, in_order(value[key], c)) for key, c in zip(keys, children, strict=True)
            )
            made = copy.copy(value)
            made.clear()
            made.update(ordered)
            return made
    if spec.type in (tuple, list) and type(value) is spec.type and len(value) == len(children):
        return spec.type(map(in_order, value, children))
    return value


def _apart(one: str, other: str) -> tuple[str, str]:
    """Return both texts, shortened to the surroundings of their first difference if long."""
    if max(len(one), len(other)) <= _LONG:
        return one, other
    differ = [a != b for a, b in zip(one, other, strict=False)]
    first = differ.index(True) if True in differ else len(differ)
    start = max(0, first - _LONG // 2)
    before = "… " if start else ""
    cut = [text[start : start + _LONG] for text in (one, other)]
    here, there = (
        f"{before}{part}{' …' if start + _LONG < len(text) else ''}"
        for part, text in zip(cut, (one, other), strict=True)
    )
    return here, there


def _one_line(spec: pytree.TreeSpec) -> str:
    return " ".join(str(spec).split())


def _parameters(graph: fx.Graph) -> list[inspect.Parameter]:
    parameters: list[inspect.Parameter] = []
    for node in graph.nodes:
        if node.op != "placeholder":
            continue
        name = str(node.target)
        kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
        if name.startswith("*"):
            stars = len(name) - len(name.lstrip("*"))
            kind = inspect.Parameter.VAR_POSITIONAL if stars == 1 else inspect.Parameter.VAR_KEYWORD
        elif any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
            kind = inspect.Parameter.KEYWORD_ONLY
        default = node.args[0] if node.args else inspect.Parameter.empty
        parameters.append(inspect.Parameter(name.lstrip("*"), kind, default=default))
    return parameters


def needs_inputs(graph: fx.Graph) -> bool:
    """Return True if `graph` has a placeholder without a default."""
    return any(
        node.op == "placeholder" and not node.args and not str(node.target).startswith("*")
        for node in graph.nodes
    )
