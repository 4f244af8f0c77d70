"""From a plan to a module of stages that computes exactly what the captured module computes.

:func:`split_by_plan` drives ``torch.fx.passes.split_module`` on a scratch graph in which its
known traps cannot occur: operators stand in stage order, so that stage numbers are first seen
in order and the original order is kept within a stage; every attribute is a placeholder, or
has a name without dots, so that no names collide and nothing is left at the root; and metadata
travels as one reference. The result then gets back names, parameters, metadata, flags and the
calling convention of the captured module.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import networkx as nx
import torch
from torch import fx, nn
from torch.fx.node import map_arg
from torch.fx.passes.split_module import split_module

from fx_bridge.capture import CapturedGraph
from fx_bridge.colocation import inseparable_groups, random_operators
from fx_bridge.sinking import adopt, attribute_at, paths_read_by
from solver import PartitionError, PartitionPlan

_ORIGIN: Final = "fxpartition_origin"
"""Key of a scratch node's metadata: the node of the captured graph that it stands for."""


def split_by_plan(captured: CapturedGraph, plan: PartitionPlan) -> fx.GraphModule:
    """Split a captured model into one submodule per stage.

    Parameters
    ----------
    captured : CapturedGraph
        Not changed.
    plan : PartitionPlan
        A device and chunk for every operator (by node name); ``stages`` in the order in which
        data flows. Operators of different stages may interleave in the captured order.

    Returns
    -------
    torch.fx.GraphModule
        Called and returning like the captured module. Its children ``submod_0``,
        ``submod_1``, … are the stages in order (``submod_stage_0``, … if the model has an
        attribute of such a name). Each owns the parameters, buffers and submodules that it
        reads, under the paths that they have in the captured module, and keeps the names and
        metadata of its nodes.

        ``meta["stages"]`` maps the name of each child to its device, in stage order; a device
        has one child for each of its chunks. Every child has ``meta["stage"]`` (its position),
        ``meta["device"]`` and ``meta["chunk"]``, and ``meta["stages"]`` where it holds stages of
        a split that was split again.
        ``meta["shared_tensors"]`` holds, for every tensor that several children own, a tuple of
        its names, such as ``("submod_0.wte.weight", "submod_2.lm_head.weight")``.

    Raises
    ------
    PartitionError
        In one line: the plan is not total, its stages form a cycle or are out of order, or it
        separates operators whose order or common storage the result depends on.

    Notes
    -----
    Parameters are shared with the captured module, not copied. One that several stages read
    (tied weights) is the same object in each of them, so that in one process gradients add up
    and the values never diverge. Who moves stages to different devices must first give each
    its own copy, for ``module.to(device)`` moves a shared parameter for all of its owners. A
    parameter that the graph itself returns is also registered at the root. Parameters that no
    operator reads are left out, and so are the forward hooks with which torch.export checks
    the shapes of inputs.
    """
    if not isinstance(captured, CapturedGraph):
        raise PartitionError(
            f"cannot split {type(captured).__name__}; capture the model first: "
            "split_by_plan(capture(model, args), plan)"
        )
    if not isinstance(plan, PartitionPlan):
        raise PartitionError(
            f"the plan is a {type(plan).__name__}; give a PartitionPlan, such as result.plan, or "
            "one that solver.load_plan reads from a file"
        )
    stage_of = _stage_of(captured, plan)
    _check_order(captured, plan, stage_of)
    _check_inseparable(captured, plan, stage_of)
    scratch = _scratch_graph(captured, stage_of)
    split = split_module(
        scratch.module,
        scratch.module,
        lambda node: stage_of[node.meta[_ORIGIN].name],
        keep_original_order=True,
        keep_original_node_name=True,
    )
    _finish(split, captured, plan, scratch)
    return split


# -- checks --------------------------------------------------------------------------------


def _stage_of(captured: CapturedGraph, plan: PartitionPlan) -> dict[str, int]:
    stage_of: dict[str, int] = {}
    for node in captured.operators:
        if node.name not in plan.assignment:
            raise PartitionError(f"the plan has no device for operator {node.name!r}")
        stage_of[node.name] = plan.stage_index[node.name]
    for name in plan.assignment:
        if name not in stage_of:
            raise PartitionError(f"the plan places {name!r}, which is not an operator of the graph")
    return stage_of


def _check_order(captured: CapturedGraph, plan: PartitionPlan, stage_of: Mapping[str, int]) -> None:
    """Raise unless data flows only to the same or later stages."""
    example: dict[tuple[int, int], tuple[str, str]] = {}
    for node in captured.operators:
        for source in node.all_input_nodes:
            if source.name in stage_of and stage_of[source.name] != stage_of[node.name]:
                arc = stage_of[source.name], stage_of[node.name]
                example.setdefault(arc, (source.name, node.name))
    backward = [arc for arc in example if arc[0] > arc[1]]
    if not backward:
        return

    def describe(arc: tuple[int, int]) -> str:
        source, target = example[arc]
        here, there = (str(plan.stages[stage]) for stage in arc)
        return f"{source!r} on {here!r} -> {target!r} on {there!r}"

    quotient = nx.DiGraph(list(example))
    if not nx.is_directed_acyclic_graph(quotient):
        cycle = [(arc[0], arc[1]) for arc in nx.find_cycle(quotient)]
        raise PartitionError(
            f"the stages of the plan form a cycle: {'; '.join(describe(arc) for arc in cycle)}; "
            "put the operators of one of these edges on one device"
        )
    remedy = "put the second operator in a later chunk, or order the devices differently"
    if not plan.chunks:
        order = nx.lexicographical_topological_sort(quotient)
        remedy = f"an order that works is {', '.join(plan.stages[stage].device for stage in order)}"
    raise PartitionError(
        f"the plan's stages are out of order: {describe(backward[0])}, which is an earlier "
        f"stage; {remedy}"
    )


def _check_inseparable(
    captured: CapturedGraph, plan: PartitionPlan, stage_of: Mapping[str, int]
) -> None:
    """Raise if the plan would change the order of effects that edges do not show."""
    for group in inseparable_groups(captured):
        first = group.operators[0]
        for other in group.operators[1:]:
            if stage_of[other] != stage_of[first]:
                here, there = str(plan.stage_of(first)), str(plan.stage_of(other))
                raise PartitionError(
                    f"operators {first!r} and {other!r} are on {here!r} and {there!r} but must "
                    f"share a {'stage' if plan.chunks else 'device'}: {group.reason}"
                )
    latest: str | None = None
    for node in random_operators(captured):
        if latest is not None and stage_of[node.name] < stage_of[latest]:
            here, there = str(plan.stage_of(latest)), str(plan.stage_of(node.name))
            raise PartitionError(
                f"operators {latest!r} on {here!r} and {node.name!r} on {there!r} would draw their "
                "random numbers in the opposite order; put them on one stage, or the second on a "
                "later one"
            )
        latest = node.name


# -- the scratch graph ---------------------------------------------------------------------


@dataclass(slots=True)
class _Scratch:
    """What split_module gets, and what its names stand for."""

    module: fx.GraphModule
    weight_of: dict[str, fx.Node] = field(default_factory=dict)
    """Scratch placeholder to the get_attr node that it stands for."""
    path_of: dict[str, str] = field(default_factory=dict)
    """Scratch name of a called or read submodule to its path."""


class _ScratchModule(nn.Module):
    """All that split_module asks of a GraphModule, without generating code for it."""

    def __init__(self, graph: fx.Graph) -> None:
        super().__init__()
        self.graph = graph


def _scratch_graph(captured: CapturedGraph, stage_of: Mapping[str, int]) -> _Scratch:
    """Build the graph to split: operators in stage order, attributes without a path."""
    source = captured.module
    graph = fx.Graph()
    scratch = _Scratch(_ScratchModule(graph))  # type: ignore[arg-type]
    prefix = "fxp"
    while any(node.name.startswith(prefix) for node in source.graph.nodes):
        prefix += "_"
    environment: dict[fx.Node, fx.Node] = {}
    operators: list[list[fx.Node]] = [[] for _ in set(stage_of.values())]
    attributes: dict[tuple[int | None, fx.Node], fx.Node] = {}
    modules: dict[str, str] = {}
    output: fx.Node | None = None
    for node in source.graph.nodes:
        if node.op == "placeholder":
            placeholder = graph.create_node(
                "placeholder", node.name, node.args, name=node.name, type_expr=node.type
            )
            placeholder.meta[_ORIGIN] = node
            environment[node] = placeholder
        elif node.op == "output":
            output = node
        elif node.op != "get_attr":
            operators[stage_of[node.name]].append(node)
    assert output is not None

    def scratch_path(path: str) -> str:
        if path not in modules:
            modules[path] = f"{prefix}_module_{len(modules)}"
            scratch.path_of[modules[path]] = path
            scratch.module.add_module(modules[path], attribute_at(source, path))
        return modules[path]

    def attribute(node: fx.Node, stage: int | None) -> fx.Node:
        """Return the stand-in of a get_attr node, one for each stage that reads it."""
        key = stage, node
        if key not in attributes:
            if isinstance(attribute_at(source, str(node.target)), nn.Module):
                # The body of a torch.cond or a no_grad region: split_module keeps it in place.
                stand_in = graph.create_node("get_attr", scratch_path(str(node.target)))
            else:
                name = f"{prefix}_weight_{len(scratch.weight_of)}"
                stand_in = graph.create_node("placeholder", name, name=name)
                scratch.weight_of[stand_in.name] = node
            stand_in.meta[_ORIGIN] = node
            attributes[key] = stand_in
        return attributes[key]

    def values(arguments: Any, stage: int | None) -> Any:
        return map_arg(
            arguments,
            lambda read: attribute(read, stage) if read.op == "get_attr" else environment[read],
        )

    for stage, nodes in enumerate(operators):
        for node in nodes:
            target = scratch_path(str(node.target)) if node.op == "call_module" else node.target
            operator = graph.create_node(
                node.op,
                target,
                values(node.args, stage),
                values(node.kwargs, stage),
                name=node.name,
                type_expr=node.type,
            )
            operator.meta[_ORIGIN] = node
            environment[node] = operator
    result = graph.output(values(output.args[0], None), output.type)
    result.meta[_ORIGIN] = output
    return scratch


# -- putting everything back ---------------------------------------------------------------


def _finish(
    split: fx.GraphModule, captured: CapturedGraph, plan: PartitionPlan, scratch: _Scratch
) -> None:
    source = captured.module
    names = _rename_stages(split, source, len(plan.stages))
    stages: list[fx.GraphModule] = []
    for position, name in enumerate(names):
        stage = split.get_submodule(name)
        assert isinstance(stage, fx.GraphModule)
        stages.append(stage)
        call = next(node for node in split.graph.nodes if node.target == name)
        call.args = _restore_stage(stage, call.args, source, scratch)
        call.meta["val"] = _output_value(stage)
        stage.meta.update(
            stage=position,
            device=plan.stages[position].device,
            chunk=plan.stages[position].chunk,
        )
        held = {k: v for k, v in source.meta.get("stages", {}).items() if k in stage._modules}
        if held:
            # A split is split again: parameters keep their names within its stages.
            stage.meta["stages"] = held
    _restore_root(split, source, scratch)
    split.meta = {
        **source.meta,
        **split.meta,
        "stages": {name: stage.device for name, stage in zip(names, plan.stages, strict=True)},
        "shared_tensors": _shared(dict(zip(names, stages, strict=True))),
    }
    # Recompiles the stages too; nothing else compiles after an edit.
    split.recompile()


def _rename_stages(split: fx.GraphModule, source: nn.Module, count: int) -> list[str]:
    """Give the stages names that no attribute of the model has."""
    affix = ""
    while any(hasattr(source, f"submod_{affix}{stage}") for stage in range(count)):
        affix = f"stage_{affix}"
    names = [f"submod_{affix}{stage}" for stage in range(count)]
    if affix:
        # split_module has an affix too, but fails with it on graphs that set the grad mode.
        renamed = {f"submod_{stage}": name for stage, name in enumerate(names)}
        split._modules = {renamed[old]: child for old, child in split._modules.items()}
        for node in split.graph.nodes:
            if node.op == "call_module":
                node.target = renamed[node.target]
        split.meta["partition_names"] = set(names)
    return names


def _restore_stage(
    stage: fx.GraphModule, arguments: tuple[Any, ...], source: nn.Module, scratch: _Scratch
) -> tuple[Any, ...]:
    """Turn stand-ins into attributes of `stage`; return the arguments that are left to pass."""
    graph = stage.graph
    placeholders = list(graph.find_nodes(op="placeholder"))
    kept: list[Any] = []
    anchor = placeholders[-1] if placeholders else None
    for placeholder, argument in zip(placeholders, arguments, strict=True):
        origin = scratch.weight_of.get(str(placeholder.target))
        if origin is None:
            kept.append(argument)
            continue
        # After the placeholders: the signature of a graph comes first.
        with graph.inserting_after(anchor):
            anchor = read = graph.create_node(
                "get_attr", origin.target, name=origin.name, type_expr=origin.type
            )
        read.meta = placeholder.meta
        placeholder.replace_all_uses_with(read)
    for placeholder in placeholders:
        if placeholder.name in scratch.weight_of:
            graph.erase_node(placeholder)
    for node in graph.nodes:
        if node.op == "call_module" or (node.op == "get_attr" and node.target in scratch.path_of):
            node.target = scratch.path_of[node.target]
        _restore_meta(node)
    stage._modules = {}
    adopt(stage, source, paths_read_by(graph))
    stage.training = source.training
    return tuple(kept)


def _restore_root(split: fx.GraphModule, source: fx.GraphModule, scratch: _Scratch) -> None:
    graph = split.graph
    placeholders = list(graph.find_nodes(op="placeholder"))
    returned: list[str] = []
    originals = iter(source.graph.find_nodes(op="placeholder"))
    for placeholder in placeholders:
        origin = scratch.weight_of.get(placeholder.name)
        if origin is None:
            # split_module writes the name of the node: *args would become a plain argument.
            placeholder.target = next(originals).target
        elif placeholder.users:
            with graph.inserting_after(placeholders[-1]):
                read = graph.create_node("get_attr", origin.target, name=origin.name)
            read.meta = placeholder.meta
            placeholder.replace_all_uses_with(read)
            returned.append(str(origin.target))
    for placeholder in placeholders:
        if placeholder.name in scratch.weight_of:
            graph.erase_node(placeholder)
    output = next(iter(source.graph.find_nodes(op="output")))
    for node in graph.nodes:
        if node.op == "call_function":
            # An element of a stage's tuple of results.
            node.meta["val"] = node.args[0].meta["val"][node.args[1]]
        elif node.op == "output":
            node.meta[_ORIGIN] = output
            node.type = output.type
        _restore_meta(node)
    adopt(split, source, returned)
    graph.set_codegen(copy.copy(source.graph._codegen))
    split.training = source.training


def _restore_meta(node: fx.Node) -> None:
    origin = node.meta.pop(_ORIGIN, None)
    if origin is not None:
        node.meta = origin.meta.copy()


def _output_value(stage: fx.GraphModule) -> Any:
    """Set and return the value of a stage's output, None where the graph has no values."""
    output = next(iter(stage.graph.find_nodes(op="output")))
    value = map_arg(output.args[0], lambda node: node)
    result = (
        tuple(node.meta.get("val") for node in value)
        if isinstance(value, tuple)
        else value.meta.get("val")
    )
    output.meta["val"] = result
    return result


def _shared(stages: Mapping[str, fx.GraphModule]) -> tuple[tuple[str, ...], ...]:
    """Return the qualified names of each tensor that several stages own."""
    paths: dict[int, list[str]] = {}
    owners: dict[int, set[str]] = {}
    for name, stage in stages.items():
        for path, tensor in _tensors(stage):
            paths.setdefault(id(tensor), []).append(f"{name}.{path}")
            owners.setdefault(id(tensor), set()).add(name)
    return tuple(tuple(paths[key]) for key in paths if len(owners[key]) > 1)


def _tensors(stage: fx.GraphModule) -> Iterator[tuple[str, torch.Tensor]]:
    yield from stage.named_parameters(remove_duplicate=False)
    yield from stage.named_buffers(remove_duplicate=False)
    for node in stage.graph.find_nodes(op="get_attr"):
        prefix, _, name = str(node.target).rpartition(".")
        # Tensors that torch.export lifted out of the code are neither of the two.
        value = stage.get_submodule(prefix).__dict__.get(name)
        if isinstance(value, torch.Tensor):
            yield str(node.target), value
