"""Given graphs that come without values, or with those of another exporter."""

from __future__ import annotations

import copy
import re
import warnings
from operator import attrgetter
from typing import Any, Final

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from fx_bridge.capture.model.call import on_device_of
from fx_bridge.capture.model.inputs import flat_inputs
from fx_bridge.capture.model.messages import failure, quiet
from fx_bridge.capture.python.transforms import fuse_transforms, has_transform
from fx_bridge.capture.tracers.lifted_weights import inputs_to_weights
from fx_bridge.storages.autocast import note_precision
from fx_bridge.storages.replay import Replay
from solver import PartitionError

Inputs = tuple[tuple[Any, ...], dict[str, Any]]

_PLAIN: Final = (torch.Tensor, torch.dtype, torch.device, str, int, float, complex, slice)


def complete(
    module: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[fx.GraphModule, Inputs, str]:
    """Return a copy of a given graph with values, its inputs, and a note.

    Example inputs that are parameters or buffers become attributes of the copy.
    """
    _check_graph(module)
    own = copied(module)
    weights: dict[int, torch.Tensor] = {}
    leaves: tuple[Any, ...] = ()
    if args or kwargs:
        # A graph with values needs no inputs, but given ones are used in later calls.
        leaves = flat_inputs(module.graph, args, kwargs)
        kinds = nn.Parameter, nn.Buffer
        weights = {n: leaf for n, leaf in enumerate(leaves) if isinstance(leaf, kinds)}
    for node in own.graph.find_nodes(op="call_module", target="_guards_fn"):
        # This submodule only checks inputs, reads all of them, and cannot be pickled.
        own.graph.erase_node(node)
    for node in own.graph.nodes:
        # Dynamo's name for "val". Left in place, it makes split_module see cycles where sizes
        # are symbolic.
        example = node.meta.pop("example_value", None)
        if "val" not in node.meta and example is not None:
            node.meta["val"] = example
    note = ""
    if weights:
        placeholders = list(own.graph.find_nodes(op="placeholder"))
        if len(placeholders) != len(leaves):
            raise PartitionError(
                "parameters are among the inputs of *args; trace the graph with named inputs"
            )
        inputs_to_weights(
            own, {placeholders[n]: (placeholders[n].name, tensor) for n, tensor in weights.items()}
        )
        args, kwargs = tuple(leaf for n, leaf in enumerate(leaves) if n not in weights), {}
        note = f"parameters and buffers among the inputs became attributes ({len(weights)})"
    fuse_transforms(own)
    if has_transform(own.graph):
        raise PartitionError(
            "the GraphModule opens a transform such as torch.vmap that it does not close; "
            "give the module itself, or an ExportedProgram of it"
        )
    if any(_lacks_value(node) for node in own.graph.nodes):
        args, kwargs = on_device_of(own, args, kwargs)
        _fill(own, args, kwargs)
    return own, (args, kwargs), note


def _fill(module: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    missing = next(node for node in module.graph.nodes if _lacks_value(node))
    placeholders = module.graph.find_nodes(op="placeholder")
    given = all("val" in node.meta for node in placeholders)
    needed = (n for n in placeholders if not n.args and not str(n.target).startswith("*"))
    if not given and not args and not kwargs and any(needed):
        raise PartitionError(
            f"node {missing.name!r} of the GraphModule has no meta['val'] and there are no "
            "example inputs to compute it; pass args, such as capture(module, (tokens,))"
        )
    try:
        with quiet():
            fill_values(module, args, kwargs, given=given)
    except PartitionError:
        raise
    except Exception as error:
        raise PartitionError(
            f"the GraphModule has no values and running it on the example inputs failed "
            f"{failure(error, module)}; pass inputs that it accepts"
        ) from error


def copied(module: fx.GraphModule) -> fx.GraphModule:
    """Return a module with a copy of the graph and the same parameters and submodules."""
    with warnings.catch_warnings():
        # torch's own deprecations, met while it copies the structure of the inputs.
        warnings.simplefilter("ignore", FutureWarning)
        graph = copy.deepcopy(module.graph)
    own = fx.GraphModule(module, graph, type(module).__name__)
    own.meta.update(module.meta)
    copy_training(module, own)
    return own


def copy_training(source: nn.Module, target: nn.Module) -> None:
    """Restore the training flags of the submodules; making a GraphModule sets them to True."""
    flags = {name: module.training for name, module in source.named_modules()}
    for name, module in target.named_modules():
        module.training = flags.get(name, source.training)


def _check_graph(module: fx.GraphModule) -> None:
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    # The hooks of torch.export only check inputs.
    own = [h for h in hooks if not re.match(r"torch\._?export", getattr(h, "__module__", ""))]
    if own:
        raise PartitionError(
            "the GraphModule has forward hooks, which are not in its graph; trace a module that "
            "calls it, or remove them"
        )
    if not module.graph.find_nodes(op="output"):
        raise PartitionError(
            "the graph of the GraphModule has no output node; write graph.output(node)"
        )
    for node in module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            try:
                attrgetter(str(node.target))(module)
            except AttributeError:
                raise PartitionError(
                    f"node {node.name!r} of the GraphModule reads {node.target!r}, which it does "
                    "not have; add it, or erase the node"
                ) from None


def _lacks_value(node: fx.Node) -> bool:
    # Of get_attr nodes, submodules have no value, and tensors are their own.
    if node.op in ("output", "get_attr") or "val" in node.meta:
        return False
    # Asserts and other statements return None, which exporters do not always record.
    return node.op == "placeholder" or bool(node.users)


def fill_values(
    module: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any], *, given: bool = False
) -> None:
    """Write ``meta["val"]`` into the nodes of `module` by running it on fake tensors.

    If it is `given` for the placeholders, `args` and `kwargs` are ignored, and values stay.
    """
    note_precision(module)
    replay = Replay(module, must_run=True)
    if not given:
        inputs = flat_inputs(module.graph, args, kwargs)
        inputs = pytree.tree_map_only(torch.Tensor, replay.fake, inputs)
        for position, node in enumerate(module.graph.find_nodes(op="placeholder")):
            starred = str(node.target).startswith("*") and not str(node.target).startswith("**")
            node.meta["val"] = list(inputs[position:]) if starred else inputs[position]
    replay.replay()
    for node, value in replay.values.items():
        if isinstance(value, nn.Module) or (given and "val" in node.meta):
            continue
        # Guards of global state cannot be copied, so they are no values.
        plain = pytree.tree_all(lambda leaf: leaf is None or isinstance(leaf, _PLAIN), value)
        node.meta["val"] = value if plain else None
