"""Units made of the operators of a partitioning problem."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from solver.model.checks import did_you_mean, several
from solver.model.errors import PartitionError
from solver.model.problem import PartitionProblem
from solver.offload.model import Unit


def units_of(
    problem: PartitionProblem,
    groups: Mapping[str, Sequence[str]],
    host_class: str | None,
    *,
    caches: Collection[str] = (),
    written: Collection[str] = (),
    padding_bytes: Mapping[str, int] = MappingProxyType({}),
) -> tuple[Unit, ...]:
    """Return the units that groups of operators are.

    Times are sums of those of the operators, bytes those of their weights. A weight that several
    groups read counts in each: every unit holds or loads its own reads.

    Parameters
    ----------
    groups : mapping of str to sequence of str
        The operators of each unit, in the order in which units run; every operator is in one.
    host_class : str or None
        The class of the host among the times of operators; None if no unit may run there.
    caches : collection of str
        Keys of weights that are caches.
    written : collection of str
        Keys of other weights that are written in a forward.
    padding_bytes : mapping of str to int
        Padding of each loaded weight, by key; 0 if left out.

    Raises
    ------
    PartitionError
        If an operator is in no group or in two, or reads a later one; if a key is
        unknown, or a time on the host is missing.
    """
    given = {"caches": caches, "written": written, "padding_bytes": padding_bytes}
    for what, keys in given.items():
        # Sizes by key name their keys as well.
        for key in several([*keys] if isinstance(keys, Mapping) else keys, what):
            if key not in problem.weights:
                hint = did_you_mean(key, problem.weights, "write keys of the problem's weights")
                raise PartitionError(f"{what} names {key!r}, which is no weight; {hint}")
    _check_groups(problem, groups)
    return tuple(
        _unit(problem, name, names, host_class, caches, written, padding_bytes)
        for name, names in groups.items()
    )


def _check_groups(problem: PartitionProblem, groups: Mapping[str, Sequence[str]]) -> None:
    number: dict[str, int] = {}
    for index, (group, members) in enumerate(groups.items()):
        for name in several(members, f"group {group!r}"):
            if name not in problem.index_of:
                hint = did_you_mean(name, problem.index_of, "write names of its operators")
                raise PartitionError(f"group {group!r} names {name!r}, which is unknown; {hint}")
            if name in number:
                raise PartitionError(f"two groups name operator {name!r}; put it in one")
            number[name] = index
    titles = list(groups)
    for op in problem.operators:
        if op.name not in number:
            raise PartitionError(f"operator {op.name!r} is in no group; add it to one")
        for source in op.reads:
            if number.get(source, -1) > number[op.name]:
                raise PartitionError(
                    f"operator {op.name!r} of group {titles[number[op.name]]!r} reads {source!r} "
                    f"of {titles[number[source]]!r}, which runs later; put that group first"
                )


def _unit(
    problem: PartitionProblem,
    name: str,
    names: Sequence[str],
    host_class: str | None,
    caches: Collection[str],
    written: Collection[str],
    padding_bytes: Mapping[str, int],
) -> Unit:
    operators = [problem.operators[problem.index_of[member]] for member in names]
    keys = dict.fromkeys(key for op in operators for key in op.weights)
    cached = [key for key in keys if key in caches]
    if host_class is not None:
        for op in operators:
            if isinstance(op.latency_ns, Mapping) and host_class not in op.latency_ns:
                raise PartitionError(
                    f"operator {op.name!r}: latency_ns lacks class {host_class!r} of the host; "
                    "add it, or write host_class=None"
                )
    classes = sorted({device.device_class for device in problem.devices})
    return Unit(
        name,
        sum(problem.weights[key].size_bytes for key in keys if key not in caches),
        sum(problem.weights[key].size_bytes for key in cached),
        {kind: sum(op.latency_on(kind) for op in operators) for kind in classes},
        None if host_class is None else sum(op.latency_on(host_class) for op in operators),
        any(key in written and key not in caches for key in keys),
        sum(padding_bytes.get(key, 0) for key in keys if key not in caches),
    )
