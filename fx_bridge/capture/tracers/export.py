"""Graphs from torch.export: of a module, of a given program, of a file."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
from torch import fx, nn
from torch._export.passes import replace_set_grad_with_hop_pass
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram

from fx_bridge.capture.model.checks import check_names
from fx_bridge.capture.model.messages import quiet
from fx_bridge.capture.python.data_reads import restore_reads
from fx_bridge.capture.python.eager_code import traceable, unaware
from fx_bridge.capture.python.forward import carried_out
from fx_bridge.capture.python.held_tensors import check_constants
from fx_bridge.capture.python.known_values import known_values
from fx_bridge.capture.python.transforms import fuse_transforms, has_transform
from fx_bridge.capture.tracers.repeated_functions import RepeatedFunctions
from fx_bridge.capture.tracers.values import copy_training
from fx_bridge.equivalence.calls import first_line
from solver import PartitionError
from solver.io.files import check_file

_AUTOCAST: Final = (torch.amp.autocast_mode._enter_autocast, torch.amp.autocast_mode._exit_autocast)


def export(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    *,
    constants: Mapping[str, torch.Tensor],
    aware: bool,
    repeats: RepeatedFunctions | None,
) -> tuple[fx.GraphModule, str]:
    """Export `model` as a graph that reads parameters by ``get_attr``, with remarks for its user.

    `constants` has the values of fixed inputs, by path; `repeats` traces repeated function calls
    once. ``torch.compiler.is_exporting()`` is true in forward if `aware`.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(traceable())
        if not aware:
            stack.enter_context(unaware(model))
        if repeats is not None:
            stack.enter_context(repeats.around(model))
        notes = stack.enter_context(carried_out(model))
        known = stack.enter_context(known_values(model, constants))
        # torch looks only at the first call of a stretch, and would lose its grad mode.
        sets_mode = "_is_set_grad_enabled_sub_mod", _sets_grad_mode
        with mock.patch.object(replace_set_grad_with_hop_pass, *sets_mode):
            program = torch.export.export(
                model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
            )
    module = unlift(program)
    check_constants(module, model)
    restore_reads(module)
    for node in module.graph.find_nodes(op="get_attr"):
        if isinstance(attrgetter(str(node.target))(module), FakeTensor):
            raise RuntimeError(f"a value was lost: {node.target!r} depends on no input any more")
    copy_training(model, module)
    return module, "; ".join(filter(None, (known.note, *notes)))


def _sets_grad_mode(node: fx.Node, omit_if_same_with_ambient: bool = False) -> bool:
    """Return True if a node runs a stretch of another grad mode than that around it.

    torch.export turns the calls that set a grad mode into regions, one for each stretch between two
    of them. Within autocast a stretch begins with the call that enters autocast.
    """
    if node.op != "call_module":
        return False
    stretch = getattr(node.graph.owning_module, str(node.target))
    for inner in stretch.graph.nodes:
        if inner.op != "placeholder" and inner.target not in _AUTOCAST:
            sets = inner.target is torch._C._set_grad_enabled
            same = omit_if_same_with_ambient and inner.args == (torch.is_grad_enabled(),)
            return sets and not same
    return False


def unlift(program: ExportedProgram) -> fx.GraphModule:
    """Return the graph of a program with its parameters as attributes."""
    if not _has_effects(program.graph) and has_transform(program.graph):
        # Functionalisation turns a vmap into batched operators; it cannot run other transforms.
        with contextlib.suppress(Exception), warnings.catch_warnings():
            # torch's own deprecations, met while it copies the structure of the inputs.
            warnings.simplefilter("ignore", FutureWarning)
            program = program.run_decompositions({})
    check_names([*program.state_dict, *program.constants])
    # A guards function would be a call_module node that cannot be pickled.
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    fuse_transforms(module)
    _drop_copies_to_itself(module)
    _unwrap_where_read(module)
    return module


def _unwrap_where_read(module: fx.GraphModule) -> None:
    """Unwrap the inner tensors of a quantised weight right before each operator that reads them.

    Export unwraps all weights at the start of the graph, outside of any module, so the first stage
    would hold all of them.
    """
    wanted = torch.ops.export.access_subclass_inner_tensor.default
    found = module.graph.find_nodes(op="call_function", target=wanted)
    # In nested wrappers, the inner ones first.
    for node in reversed(list(found)):
        for user in list(node.users):
            with module.graph.inserting_before(user):
                own = module.graph.node_copy(node, lambda read: read)
            for key in ("nn_module_stack", "stack_trace"):
                if key in user.meta:
                    own.meta[key] = user.meta[key]
            user.replace_input_with(node, own)
        module.graph.erase_node(node)
    if found:
        module.recompile()


def _drop_copies_to_itself(module: fx.GraphModule) -> None:
    """Drop the copy of a buffer to itself that export appends for ``self.n += 1``.

    Autograd counts it as a further write, after which backward refuses values saved before.
    """
    copies = module.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    redundant = [node for node in copies if not node.users and _is_of(node.args[1], node.args[0])]
    for node in redundant:
        module.graph.erase_node(node)
    if redundant:
        module.recompile()


def _is_of(value: Any, tensor: Any) -> bool:
    """Return True if a node returns `tensor` itself, possibly after writing to it in place."""
    while value is not tensor:
        if not isinstance(value, fx.Node):
            return False
        if value.op == "get_attr":
            return bool(tensor.op == "get_attr" and tensor.target == value.target)
        schema = value.target._schema if isinstance(value.target, OpOverload) else None
        if schema is None or not schema.returns or not value.args:
            return False
        alias = schema.arguments[0].alias_info
        # Views alias their base too, but write nothing.
        if alias is None or not alias.is_write or schema.returns[0].alias_info is None:
            return False
        value = value.args[0]
    return True


def _has_effects(graph: fx.Graph) -> bool:
    """Return True if functionalising `graph` would change its effects besides values.

    It drops random operators without readers and regions of another grad mode, and moves writes to
    the end, where backward may need the old values.
    """
    seeded = torch.Tag.nondeterministic_seeded
    return any(
        isinstance(target, HigherOrderOperator)
        or (isinstance(target, OpOverload) and (target._schema.is_mutable or seeded in target.tags))
        for target in (node.target for node in graph.nodes)
    )


def program_graph(
    given: ExportedProgram | str | os.PathLike[str],
) -> tuple[fx.GraphModule, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return the graph of a program, or of one that ``torch.export.save`` wrote, and its inputs.

    Raise PartitionError if the file is missing, unreadable or no exported program.
    """
    program = given if isinstance(given, ExportedProgram) else _loaded(Path(given))
    args, kwargs = program.example_inputs or ((), {})
    return unlift(program), (tuple(args or ()), kwargs or {})


def _loaded(file: Path) -> ExportedProgram:
    check_file(file, "the path of a .pt2 file that torch.export.save(program, path) wrote")
    try:
        with quiet():
            return torch.export.load(str(file))
    except Exception as error:
        raise PartitionError(f"cannot read {str(file)!r}: {_reason(file, error)}") from error


def _reason(file: Path, error: Exception) -> str:
    """Return the reason why a file is no program, which torch.export.load only logs."""
    if isinstance(error, PermissionError):
        return "permission denied; make it readable"
    from torch.export.pt2_archive._package import is_pt2_package, load_pt2

    resave = "save it again with torch.export.save(torch.export.export(model, args), path)"
    other = f"it is no exported program (a checkpoint holds weights without a model); {resave}"
    try:
        if not is_pt2_package(str(file)):
            return other
    except Exception:
        return other
    try:
        with quiet():
            load_pt2(str(file))
    except Exception as cause:
        missing = re.search(r"failed to resolve (?:torch\.ops\.)?(\S+) to an operator", str(cause))
        if missing:
            return (
                f"it calls the operator {missing[1]}, which is not registered here; "
                "import the library that defines it first"
            )
        return f"the file is damaged ({type(cause).__name__}: {first_line(cause)}); {resave}"
    return f"it holds no exported program, perhaps compiled code alone; {resave}"
