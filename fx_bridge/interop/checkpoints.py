"""Recomputation by torch's ``checkpoint_wrapper``: whole modules.

A checkpointed module (``torch.utils.checkpoint`` without reentrance) keeps its inputs and runs
again in the backward pass, up to the last operator with a saved tensor. In a plan, these are the
operators of one call of the module that its backward pass needs, except those that operators
outside read too. ``recompute="layers"`` recomputes whole layers in the same sense.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.modules import unknown_module
from fx_bridge.recomputation.decisions import problem_with_regions
from fx_bridge.split.checks import check_total
from solver import PartitionError, PartitionPlan, PartitionProblem
from solver.model.recomputation import Recomputation


def checkpointed_modules(
    captured: CapturedGraph, plan: PartitionPlan, *, problem: PartitionProblem | None = None
) -> list[str]:
    """Return the modules that torch's ``checkpoint_wrapper`` must wrap for a plan's recomputation.

    Parameters
    ----------
    problem : PartitionProblem, optional
        The problem of the plan. Needed only if the plan recomputes operators.

    Returns
    -------
    list of str
        The fewest modules recomputed as a whole, none inside another, in execution order.

    Raises
    ------
    PartitionError
        In one line: an operator is recomputed without the rest of its module, or a module would
        repeat an operator that the plan runs once.

    Notes
    -----
    torch runs a module again in order, up to the last operator with a saved tensor, and so also
    operators before it that nothing needs. A plan counts only needed operators.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from fx_bridge import Training, partition_module
    >>> from solver import Device
    >>> layers = [nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(2)]
    >>> model = nn.Sequential(*layers)
    >>> result = partition_module(
    ...     model, (torch.ones(2, 4),), devices=[Device("cpu")], training=Training(recompute="auto")
    ... )
    >>> captured, problem = result.captured, result.problem
    >>> plan = plan_with_checkpoints(captured, result.plan, ["1"], problem=problem)
    >>> sorted(plan.recomputed), checkpointed_modules(captured, plan, problem=problem)
    (['linear_2', 'tanh_1'], ['1'])
    """
    check_total(captured, plan)
    if not plan.recomputed:
        return []
    modules = WholeModules(captured, plan, problem_with_regions(captured, plan, problem))
    found = list(dict.fromkeys(modules.found(list(modules.calls), 0)))
    made = plan_with_checkpoints(captured, plan, found, problem=problem).recomputed
    for name in sorted(plan.recomputed ^ made):
        does = "runs again" if name in made else "does not run again"
        raise PartitionError(
            f"with the modules {', '.join(found)} checkpointed operator {name!r} {does}, which the "
            "plan does not say; plan with recompute='layers'"
        )
    return found


def plan_with_checkpoints(
    captured: CapturedGraph,
    plan: PartitionPlan,
    modules: Collection[str],
    *,
    problem: PartitionProblem | None = None,
) -> PartitionPlan:
    """Return a plan with the recomputation of modules wrapped by torch's ``checkpoint_wrapper``.

    Parameters
    ----------
    plan : PartitionPlan
        Its recomputation is replaced.
    modules : collection of str
        Paths of modules. One inside another runs again with that.
    problem : PartitionProblem, optional
        The problem of the plan, with ``recompute="auto"``. Needed only if there are modules.

    Raises
    ------
    PartitionError
        In one line: the model has no such module, stages divide it, or it cannot run again.
    """
    check_total(captured, plan)
    if not modules:
        return replace(plan, recomputed=frozenset())
    problem = problem_with_regions(captured, plan, problem)
    whole = WholeModules(captured, plan, problem)
    operators = captured.modules.operators
    for path in modules:
        if not isinstance(path, str) or path not in operators:
            raise unknown_module(path, operators)
        example_of = {str(plan.stage_of(name)): name for name in operators[path]}
        if len(example_of) > 1:
            where = " and ".join(f"{stage} ({name!r})" for stage, name in example_of.items())
            raise PartitionError(
                f"the plan divides module {path!r} between {where}, and a checkpoint runs a module "
                f"again as a whole; plan with Placement(keep_whole=[{path!r}])"
            )
    names = set(modules)
    outer = {
        name: call
        for name, running in whole.calls.items()
        if (call := next((each for each in running if each.path in names), None)) is not None
    }
    for path in sorted(names - {call.path for own in whole.calls.values() for call in own}):
        raise PartitionError(
            f"module {path!r} is never called, so that nothing runs it again; name the modules "
            "inside it"
        )
    if (name := whole.divided(outer)) is not None:
        raise PartitionError(
            f"module {outer[name].path!r} has operators of several layers, as {name!r}, and a plan "
            "runs one after the other again; name the layers"
        )
    for path in dict.fromkeys(call.path for call in outer.values()):
        whole.check_effects(path, [name for name, call in outer.items() if call.path == path])
    recomputed = whole.again(outer)
    return replace(plan, recomputed=recomputed, region_starts=problem.region_starts)


class WholeModules:
    """Recomputation of groups of operators as a whole, such as the calls of modules.

    `calls` has the calls of modules around every operator, outermost first.
    """

    def __init__(
        self, captured: CapturedGraph, plan: PartitionPlan, problem: PartitionProblem
    ) -> None:
        self.calls = captured.modules.calls
        self._captured, self._plan, self._problem = captured, plan, problem
        self._graph = Recomputation(problem, plan.stage_index, ())

    def again(self, group_of: Mapping[str, Hashable]) -> frozenset[str]:
        """Return the operators that run again if each group does as a whole.

        `group_of` has the group of every grouped operator. Each group is on one stage and in one
        region.
        """
        operators, index_of = self._problem.operators, self._problem.index_of
        groups = {index_of[name]: group for name, group in group_of.items()}
        able = {index for index in groups if self._is_inner(index, groups)}
        found: set[int] = set()
        stack = [
            index
            for index in able
            if operators[index].backward.residual_bytes or self._graph.savers(index)
        ]
        while stack:
            index = stack.pop()
            if index not in found:
                found.add(index)
                stack += able.intersection(self._roots_read(index))
        return frozenset(operators[index].name for index in found)

    def _is_inner(self, index: int, groups: Mapping[int, Hashable]) -> bool:
        """Return True if an operator may run again and only its group uses its result."""
        operators, family = self._problem.operators, self._graph.family(index)
        users = {*family, *self._graph.savers(index), *self._graph.readers(index)}
        return (
            operators[index].backward.recomputable
            and operators[index].alias_of is None
            and all(groups.get(user) == groups[index] for user in users)
            and not any(
                operators[writer].backward.residual_bytes for writer in self._writers(index)
            )
            # It reads no tensor that is later modified in place.
            and all(w <= index for root in self._roots_read(index) for w in self._writers(root))
        )

    def _writers(self, index: int) -> list[int]:
        family = self._graph.family(index)
        return [other for other in family if self._problem.operators[other].in_place]

    def _roots_read(self, index: int) -> set[int]:
        """Return the owners of the storages that an operator and writers of its storage read."""
        problem = self._problem
        roots = (
            problem.root_of[read]
            for member in (index, *self._writers(index))
            for read in problem.operators[member].reads
        )
        return {problem.index_of[root] for root in roots if root in problem.index_of} - {index}

    def found(self, names: Iterable[str], depth: int) -> list[str]:
        """Return the outermost modules, from a depth of calls on, that run again as a whole."""
        members: dict[str, list[str]] = {}
        for name in names:
            running = self.calls[name]
            if len(running) > depth:
                members.setdefault(running[depth].path, []).append(name)
            elif name in self._plan.recomputed:
                module = f"module {running[-1].path!r}" if running else "the model itself"
                raise PartitionError(
                    f"operator {name!r} on {self._plan.stage_of(name)} runs again, but not all of "
                    f"{module} does, and checkpoint_wrapper runs modules again as a whole; plan "
                    "with recompute='layers'"
                )
        found: list[str] = []
        for path, own in members.items():
            if self._plan.recomputed.isdisjoint(own):
                continue
            if self.is_whole({name: self.calls[name][depth] for name in own}):
                self.check_effects(path, own)
                found.append(path)
            else:
                found += self.found(own, depth + 1)
        return found

    def is_whole(self, group_of: Mapping[str, Hashable]) -> bool:
        """Return True if groups run again as a whole, each on one stage and in one region."""
        recomputed = self._plan.recomputed.intersection(group_of)
        return self.divided(group_of) is None and self.again(group_of) == recomputed

    def divided(self, group_of: Mapping[str, Hashable]) -> str | None:
        """Return an operator on another stage or in another region than the first of its group."""
        first: dict[Hashable, tuple[int, int]] = {}
        for name, group in group_of.items():
            region = self._problem.operators[self._problem.index_of[name]].backward.region
            place = self._plan.stage_index[name], region
            if first.setdefault(group, place) != place:
                return name
        return None

    def check_effects(self, path: str, names: Iterable[str]) -> None:
        """Raise PartitionError if a module would repeat an operator that the plan runs once."""
        for name, what in self.effects(names):
            raise PartitionError(
                f"a checkpoint of module {path!r} would also run {name!r} again, which {what}; "
                "name modules without it"
            )

    def effects(self, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield operators that only a checkpoint would run again, not the plan, with the reason."""
        table = self._captured.storage_table
        for name in names:
            op = self._problem.operators[self._problem.index_of[name]]
            if {storage.kind for storage in table.writes.get(name, ())} & {"weight", "input"}:
                yield name, "writes a buffer or an input"
            elif op.storage_bytes and not op.alias_of and not op.backward.recomputable:
                yield name, "may not run again"
