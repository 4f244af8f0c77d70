"""A captured module split by a plan into a module of stages with exactly the same results.

:func:`split_by_plan` runs one of torch's two splitters on a scratch graph
(:mod:`fx_bridge.split.scratch_graph`) that avoids their traps. The result then gets back the names,
parameters, metadata, flags and calling convention of the captured module.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx, nn

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.model.attributes import adopt, paths_read_by, stage_results
from fx_bridge.capture.model.generated_names import keep_names_apart
from fx_bridge.capture.model.inputs import input_names
from fx_bridge.capture.model.mode import of_one_mode
from fx_bridge.recomputation.decisions import Decisions, decisions_of
from fx_bridge.recomputation.stage import recomputing
from fx_bridge.split.checks import check_splittable
from fx_bridge.split.guards import CheckedModel, check_calls
from fx_bridge.split.name_map import name_map, shared_tensors
from fx_bridge.split.scratch_graph import ORIGIN, Scratch, final_value, scratch_graph, split_scratch
from solver import PartitionPlan, PartitionProblem


def split_by_plan(
    captured: CapturedGraph, plan: PartitionPlan, *, problem: PartitionProblem | None = None
) -> fx.GraphModule:
    """Split a captured model into one submodule per stage.

    Parameters
    ----------
    captured : CapturedGraph
        Not changed.
    plan : PartitionPlan
        A device and chunk for every operator (by node name); ``stages`` in the order of data flow.
        Operators of different stages may interleave in the captured order.
    problem : PartitionProblem, optional
        The problem of `plan`. Needed if operators run again in the backward pass: it has the
        tensors saved for that pass (:class:`~fx_bridge.recomputation.stage.RecomputingStage`).

    Returns
    -------
    torch.fx.GraphModule
        With the calling convention and results of the captured module. Its children ``submod_0``,
        ``submod_1``, … are the stages in order (``submod_stage_0``, … if the model has an
        attribute of such a name). Each owns the parameters, buffers and submodules that it
        reads, under their paths in the captured module, and keeps the names and metadata of its
        nodes. Every child has ``meta["stage"]`` (its position), ``meta["device"]`` and
        ``meta["chunk"]``, and ``meta["stages"]`` if it holds stages of a split that was split
        again. The ``meta`` of the result has

        * ``"stages"``: the device of each child, by name, in stage order;
        * ``"shared_tensors"``: for every tensor that several children own, a tuple of its names,
          such as ``("submod_0.wte.weight", "submod_2.lm_head.weight")``;
        * ``"name_map"``: a :class:`fx_bridge.split.name_map.NameMap`;
        * ``"written_inputs"`` and ``"written_weights"``: names of graph inputs, and of weights in
          the split, that a stage writes in place;
        * ``"plan"``: the plan.

    Raises
    ------
    PartitionError
        In one line: the plan is not total, its stages form a cycle or are out of order, or it
        separates operators whose order or common storage affects the result; or an operator
        cannot run again.

    Notes
    -----
    Parameters are shared with the captured module, not copied; those that no operator reads are
    left out. Callers that move stages to different devices must first give each its own copy of
    one that several stages read, for ``module.to(device)`` moves it for all of its owners. Calls
    for which the graph was not captured are refused (``docs/splitting.md``).

    Examples
    --------
    >>> import torch
    >>> from fx_bridge.capture.graph import capture
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    >>> plan = PartitionPlan({"linear": "cuda:0", "relu": "cpu"}, ("cuda:0", "cpu"))
    >>> split = split_by_plan(capture(model, (torch.ones(1, 4),)), plan)
    >>> split.meta["stages"], split.meta["name_map"].nodes["relu"]
    ({'submod_0': 'cuda:0', 'submod_1': 'cpu'}, ('submod_1.relu',))
    """
    check_splittable(captured, plan)
    decisions = decisions_of(captured, plan, problem)
    names = _stage_names(captured, len(plan.stages))
    scratch = scratch_graph(captured, plan)
    split = CheckedModel(made := split_scratch(scratch, names), made.graph, "SplitModel")
    _finish(split, captured.module, plan, scratch, names, decisions)
    _note_writes(split, captured)
    check_calls(split, captured)
    return split


def _finish(
    split: fx.GraphModule,
    source: fx.GraphModule,
    plan: PartitionPlan,
    scratch: Scratch,
    names: Sequence[str],
    decisions: Mapping[int, Decisions],
) -> None:
    stages: list[fx.GraphModule] = []
    for position, name in enumerate(names):
        made = split.get_submodule(name)
        assert isinstance(made, fx.GraphModule)
        stage = of_one_mode(made)
        (call,) = split.graph.find_nodes(op="call_module", target=name)
        call.args = _restore_stage(stage, call.args, source, scratch)
        keep_names_apart(stage)
        if position in decisions:
            stage = recomputing(stage, decisions[position])
        split._modules[name] = stage
        stages.append(stage)
        values = tuple(node.meta.get("val") for node in stage_results(stage))
        output = stage.graph.output_node()
        call.meta["val"] = values if isinstance(output.args[0], tuple) else values[0]
        output.meta["val"] = call.meta["val"]
        unit = plan.stages[position]
        stage.meta.update(stage=position, device=unit.device, chunk=unit.chunk)
        held = {k: v for k, v in source.meta.get("stages", {}).items() if k in stage._modules}
        if held:
            # A split of a split: parameters keep their names within its stages.
            stage.meta["stages"] = held
    _restore_root(split, source, scratch)
    split.meta = {
        **source.meta,
        **split.meta,
        "stages": {name: stage.device for name, stage in zip(names, plan.stages, strict=True)},
        "plan": plan,
        "shared_tensors": shared_tensors(dict(zip(names, stages, strict=True))),
        "name_map": name_map(source, split, names),
    }
    # Recompiles the stages too; nothing else compiles after an edit.
    split.recompile()


def _note_writes(split: fx.GraphModule, captured: CapturedGraph) -> None:
    table, names = captured.storage_table, split.meta["name_map"]
    written = {(s.kind, s.owner) for found in table.writes.values() for s in found}
    inputs = (node.name for node in captured.graph.find_nodes(op="placeholder"))
    split.meta["written_inputs"] = tuple(name for name in inputs if ("input", name) in written)
    weights = (key for kind, key in sorted(written) if kind == "weight")
    paths = (path for key in weights for path in table.weights[key].names)
    split.meta["written_weights"] = tuple(
        dict.fromkeys(place for path in paths for place in names.tensors[path])
    )


def _stage_names(captured: CapturedGraph, count: int) -> list[str]:
    """Return names for stages that no attribute, argument or value of the model has."""
    taken = {name for node in captured.graph.nodes for name in (node.name, str(node.target))}
    taken.update(input_names(captured.graph)[0], vars(captured.module), captured.module._modules)
    taken.update(captured.module._parameters, captured.module._buffers)
    affix = ""
    while not taken.isdisjoint(f"submod_{affix}{stage}" for stage in range(count)):
        affix = f"stage_{affix}"
    return [f"submod_{affix}{stage}" for stage in range(count)]


def _restore_stage(
    stage: fx.GraphModule, arguments: tuple[Any, ...], source: nn.Module, scratch: Scratch
) -> tuple[Any, ...]:
    """Turn stand-ins into attributes of `stage`; return the arguments left to pass."""
    graph = stage.graph
    placeholders = list(graph.find_nodes(op="placeholder"))
    kept: list[Any] = []
    anchor = placeholders[-1] if placeholders else None
    for placeholder, argument in zip(placeholders, arguments, strict=True):
        origin = scratch.weight_of.get(str(placeholder.target))
        if origin is None:
            kept.append(argument)
            continue
        # The placeholders of a graph come first.
        with graph.inserting_after(anchor):
            anchor = read = graph.create_node(
                "get_attr", origin.target, name=origin.name, type_expr=origin.type
            )
        read.meta = placeholder.meta
        placeholder.replace_all_uses_with(read)
    for placeholder in placeholders:
        if placeholder.name in scratch.weight_of:
            graph.erase_node(placeholder)
    for mark in graph.find_nodes(op="call_function", target=final_value):
        mark.replace_all_uses_with(mark.args[0])
        graph.erase_node(mark)
    for node in graph.nodes:
        if node.op == "call_module" or (node.op == "get_attr" and node.target in scratch.path_of):
            node.target = scratch.path_of[node.target]
            # Names are unique in the scratch graph, but not across stages.
            node._rename(node.meta[ORIGIN].name)
        _restore_meta(node)
    stage._modules = {}
    adopt(stage, source, paths_read_by(graph))
    stage.training = source.training
    return tuple(kept)


def _restore_root(split: fx.GraphModule, source: fx.GraphModule, scratch: Scratch) -> None:
    graph = split.graph
    placeholders = list(graph.find_nodes(op="placeholder"))
    returned: list[str] = []
    originals = iter(source.graph.find_nodes(op="placeholder"))
    for placeholder in placeholders:
        origin = scratch.weight_of.get(placeholder.name)
        if origin is None:
            # The splitter writes the name of the node, so that *args would become a plain
            # argument.
            original = next(originals)
            placeholder.target, placeholder.args = original.target, original.args
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
            call, index = node.args  # an element of a stage's tuple of results
            node.meta["val"] = call.meta["val"][index]
            node._rename(stage_results(split.get_submodule(call.target))[index].name)
        elif node.op == "output":
            node.meta[ORIGIN] = output
            node.type = output.type
        _restore_meta(node)
    adopt(split, source, returned)
    graph.set_codegen(copy.copy(source.graph._codegen))
    split.training = source.training


def _restore_meta(node: fx.Node) -> None:
    origin = node.meta.pop(ORIGIN, None)
    if origin is not None:
        node.meta = origin.meta.copy()
