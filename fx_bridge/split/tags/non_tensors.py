"""Removal of non-tensors from the boundaries of stages, in a plan made by hand.

``docs/splitting.md`` compares it with torch's ``move_non_tensor_nodes_on_boundary``. Solvers' plans
need no moves: :func:`~fx_bridge.split.colocation.colocation_groups` keeps such values in place.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, get_args

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

from fx_bridge.capture.graph import CapturedGraph, check_captured
from fx_bridge.capture.random_numbers import random_operators
from fx_bridge.choices import TiedReaders
from fx_bridge.split.checks import check_problem, check_splittable
from fx_bridge.split.colocation import colocation_groups
from fx_bridge.split.tags.copies import Placement, with_copies
from fx_bridge.split.tags.plans import plan_from_tags
from fx_bridge.storages.tensor_subclasses import tensors_in
from solver import PartitionError, PartitionPlan, PartitionProblem, evaluate
from solver.model.quantities import counted

_PURE: Final = ("operator", "_operator", "math", "builtins", "torch", "torch_sym")
"""Modules whose functions have no effects if they return no tensors."""


@dataclass(frozen=True, slots=True)
class NonTensorMoves:
    """A plan in which only tensors pass between stages.

    Attributes
    ----------
    captured : CapturedGraph
        The graph of the plan; the given one if nothing was copied.
    plan : PartitionPlan
        Of all operators of `captured`, copies included.
    problem : PartitionProblem or None
        The given problem, with the copies among its operators and the groups of the new graph.
    moved : mapping of str to tuple of str
        Moved operators: the stages before and after.
    copies : mapping of str to tuple of str
        Operators that now run in several stages: the names of the copies.
    """

    captured: CapturedGraph
    plan: PartitionPlan
    problem: PartitionProblem | None
    moved: Mapping[str, tuple[str, str]]
    copies: Mapping[str, tuple[str, ...]]


def move_non_tensors(
    captured: CapturedGraph,
    plan: PartitionPlan | Mapping[str, str],
    problem: PartitionProblem | None = None,
) -> NonTensorMoves:
    """Change a plan so that only tensors pass from stage to stage.

    Elements of a tuple of tensors are taken in the stage of the tuple. Numbers, sizes, types and
    tuples of these are computed in the stage of their reader: moved there, or copied if several
    stages read them. Their inputs are sent instead if they are tensors. If that does not fit into
    memory, readers are moved to the value.

    Parameters
    ----------
    captured : CapturedGraph
        Not changed.
    plan : PartitionPlan, or mapping of str to str
        Or tags, as for :func:`fx_bridge.split.tags.plans.split_by_tags`.
    problem : PartitionProblem, optional
        Has the capacities. The moves never take a device over its capacity, or further over it.

    Returns
    -------
    NonTensorMoves
        Split with ``split_by_plan(moves.captured, moves.plan)``; if operators run again, give
        ``problem=moves.problem`` too.

    Raises
    ------
    PartitionError
        In one line: the plan cannot be split as it is; a value can be neither moved nor copied;
        or no change fits into memory, with the device and its missing bytes.

    Examples
    --------
    >>> from fx_bridge import capture
    >>> class Model(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.exp().reshape(-1, x.size(0)).sin()
    >>> captured = capture(torch.fx.symbolic_trace(Model()), (torch.ones(2, 3),))
    >>> tags = {"exp": "first", "size": "first", "reshape": "second", "sin": "second"}
    >>> move_non_tensors(captured, tags).moved
    {'size': ('first', 'second')}
    """
    check_captured(captured, "change", "move_non_tensors(capture(model, args), tags)")
    if not isinstance(plan, PartitionPlan):
        plan = plan_from_tags(captured, plan)
    check_splittable(captured, plan)
    if problem is not None:
        _check_problem(captured, problem)
    lifted: frozenset[str] = frozenset()
    moves = _moves(captured, plan, problem, lifted)
    if problem is None:
        return moves
    lack_bytes = _shortage(problem, plan, moves)
    # Move readers to values, one value after another, as long as that saves memory.
    for name in _by_size(captured, moves):
        if not lack_bytes:
            break
        try:
            attempt = _moves(captured, plan, problem, lifted | {name})
        except PartitionError:
            continue
        left_bytes = _shortage(problem, plan, attempt)
        if sum(left_bytes.values()) < sum(lack_bytes.values()):
            lifted, moves, lack_bytes = lifted | {name}, attempt, left_bytes
    if lack_bytes:
        device, missing_bytes = next(iter(lack_bytes.items()))
        changed = [*moves.moved, *moves.copies]
        raise PartitionError(
            f"moving {changed[0]!r}{' and others' * (len(changed) > 1)} off the boundaries takes "
            f"device {device!r} {counted(missing_bytes, 'byte')} over its memory; put them and "
            "their readers on one device, or give it more memory"
        )
    assert moves.problem is not None
    before = evaluate(problem, plan).violations
    for violation in evaluate(moves.problem, moves.plan).violations:
        if violation not in before and " bytes but has " not in violation:
            raise PartitionError(
                f"values that are no tensors cannot go to their readers: {violation}"
            )
    return moves


def is_tensor_value(node: fx.Node) -> bool:
    """Return True unless the value of `node` is known not to be a tensor."""
    return "val" not in node.meta or isinstance(node.meta["val"], torch.Tensor)


def _moves(
    captured: CapturedGraph,
    plan: PartitionPlan,
    problem: PartitionProblem | None,
    lifted: Iterable[str],
) -> NonTensorMoves:
    stage_of = dict(plan.stage_index)
    _take_elements(captured, stage_of)
    _lift(captured, stage_of, set(lifted))
    placement = _places(captured, plan, stage_of)
    made = with_copies(captured, placement)
    stages = {name: plan.stages[stage] for name, stage in made.stage_of.items()}
    used = {stage.device for stage in stages.values()}
    changed = PartitionPlan(
        {name: stage.device for name, stage in stages.items()},
        tuple(device for device in plan.device_order if device in used),
        {name: stage.chunk for name, stage in stages.items()},
        plan.recomputed,
    )
    try:
        check_splittable(made.captured, changed)
    except PartitionError as error:
        raise PartitionError(
            f"values that are no tensors cannot go to their readers: {error}"
        ) from None
    moved = {
        node.name: (str(plan.stage_of(node.name)), str(stages[node.name]))
        for node in captured.operators
        if stages[node.name] != plan.stage_of(node.name)
    }
    if problem is not None:
        problem = _problem(captured, made.captured, made.problem(problem), problem)
    return NonTensorMoves(made.captured, changed, problem, moved, made.copies)


def _take_elements(captured: CapturedGraph, stage_of: dict[str, int]) -> None:
    """Move every element of a tuple of tensors to the stage of the tuple."""
    for node in captured.operators:
        if node.target is not operator.getitem or not isinstance(node.args[0], fx.Node):
            continue
        source = node.args[0]
        if is_tensor_value(source) or not tensors_in(source.meta["val"]):
            continue
        others = [read for read in node.all_input_nodes if read is not source]
        here = stage_of.get(source.name, stage_of[node.name])
        if all(stage_of.get(read.name, 0) <= here for read in others):
            stage_of[node.name] = here


def _lift(captured: CapturedGraph, stage_of: dict[str, int], lifted: set[str]) -> None:
    for node in captured.operators:
        if node.name not in lifted:
            continue
        here = stage_of[node.name]
        for user in sorted(node.users, key=lambda user: stage_of.get(user.name, -1)):
            if stage_of.get(user.name, here) == here:
                continue
            for read in user.all_input_nodes:
                if stage_of.get(read.name, 0) > here:
                    raise PartitionError(
                        f"{user.name!r} cannot run before {read.name!r}, which it reads"
                    )
            stage_of[user.name] = here


def _places(captured: CapturedGraph, plan: PartitionPlan, stage_of: Mapping[str, int]) -> Placement:
    """Return the stages of every operator; readers of a value are placed before it."""
    random_names = {node.name for node in random_operators(captured)}
    places: dict[str, tuple[int, ...]] = {}
    for node in reversed(captured.operators):
        here = stage_of[node.name]
        places[node.name] = (here,)
        if is_tensor_value(node):
            continue
        readers = [user for user in node.users if user.op != "output"]
        needed = sorted({stage for user in readers for stage in places[user.name]})
        if not set(needed) - {here}:
            continue
        if len(needed) > 1:
            why = _why_no_copy(captured, node, node.name in random_names)
            if why:
                reader = next(u for u in readers if set(places[u.name]) - {here})
                there = plan.stages[places[reader.name][-1]]
                raise PartitionError(
                    f"the value of {node.name!r} is of type {type(node.meta['val']).__name__} and "
                    f"is read by {reader.name!r} on {str(there)!r}, but {why}; put all of its "
                    f"readers on {str(plan.stages[here])!r}, or on one other device together"
                )
        places[node.name] = tuple(needed)
    return places


def _why_no_copy(captured: CapturedGraph, node: fx.Node, is_random: bool) -> str:
    table = captured.storage_table
    if is_random:
        return "it draws random numbers"
    if node.name in table.writes:
        return "it writes in place"
    if table.allocated(node.name):
        return "it computes tensors too"
    if node.op == "call_method":
        source = node.args[0]
        held = source.meta.get("val") if isinstance(source, fx.Node) else None
        return "it may change a container" if isinstance(held, (list, dict, set)) else ""
    target = node.target
    if isinstance(target, OpOverload):
        return "it has effects" if target._schema.is_mutable else ""
    module = str(getattr(target, "__module__", "")).partition(".")[0]
    name = getattr(target, "__name__", "")
    if (
        node.op == "call_module"
        or isinstance(target, HigherOrderOperator)
        or module not in _PURE
        or name.startswith(("_enter_", "_exit_", "_set_"))
        or target in (operator.setitem, operator.delitem, print)
    ):
        return f"calling {name or target!r} twice may have effects"
    return ""


def _check_problem(captured: CapturedGraph, problem: PartitionProblem) -> None:
    check_problem(problem)
    known = {operator.name for operator in problem.operators}
    for node in captured.operators:
        if node.name not in known:
            raise PartitionError(
                f"the problem has no operator {node.name!r}; give the one of this graph: "
                "problem_from_digraph(to_digraph(captured), devices)"
            )


def _problem(
    before: CapturedGraph, after: CapturedGraph, problem: PartitionProblem, given: PartitionProblem
) -> PartitionProblem:
    """Replace the groups of the old graph by those of the new one."""
    training = given.memory_model == "training"
    present = set(given.colocation)
    choices: tuple[TiedReaders, ...] = get_args(TiedReaders)
    groups = {
        tied: colocation_groups(before, training=training, tied_weights=tied) for tied in choices
    }
    # The problem has the groups of one of the two choices, unless some were left out.
    tied = next((tied for tied in choices if present.issuperset(groups[tied])), choices[0])
    kept = [group for group in given.colocation if group not in groups[tied]]
    dropped = len(kept) < len(given.colocation)
    new = colocation_groups(after, training=training, tied_weights=tied) if dropped else []
    return problem.replace(colocation=(*kept, *new))


def _shortage(
    problem: PartitionProblem, plan: PartitionPlan, moves: NonTensorMoves
) -> dict[str, int]:
    """Return the bytes by which the moves take devices over their capacity, or further over it."""
    assert moves.problem is not None
    before = {entry.device: entry.memory_bytes for entry in evaluate(problem, plan).usage}
    return {
        entry.device: entry.memory_bytes - max(entry.capacity_bytes, before[entry.device])
        for entry in evaluate(moves.problem, moves.plan).usage
        if entry.capacity_bytes is not None
        and entry.memory_bytes > max(entry.capacity_bytes, before[entry.device])
    }


def _by_size(captured: CapturedGraph, moves: NonTensorMoves) -> list[str]:
    """Return the moved or copied values, in decreasing order of the bytes of their inputs."""
    table = captured.storage_table
    names = dict.fromkeys([*moves.moved, *moves.copies])
    brought_bytes = {
        node.name: sum(table.value_bytes[read.name] for read in node.all_input_nodes)
        for node in captured.operators
        if node.name in names and not is_tensor_value(node)
    }
    return sorted(brought_bytes, key=lambda name: -brought_bytes[name])
