"""Modules that a plan must not divide, as groups of operators that share a stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from fx_bridge.capture.modules import matching_modules
from solver import ColocationGroup, PartitionError
from solver.model.text import shown

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph

_TOGETHER: Final = "+"


def check_keep_whole(keep_whole: Sequence[str]) -> tuple[str, ...]:
    """Return the names as a tuple; raise PartitionError unless they are names."""
    example = "write a list of module names, such as ['layers.0'] or ['layers.*']"
    if isinstance(keep_whole, str) or not isinstance(keep_whole, Iterable):
        raise PartitionError(f"keep_whole is {shown(keep_whole)}; {example}")
    keep_whole = tuple(keep_whole)
    for entry in keep_whole:
        if not isinstance(entry, str) or not all(entry.split(_TOGETHER)):
            raise PartitionError(f"keep_whole names {entry!r}; {example}")
    return keep_whole


def whole_modules(captured: CapturedGraph, keep_whole: Sequence[str]) -> list[ColocationGroup]:
    """Return the groups of operators that keep modules on one device each.

    An entry is the path of a module, or a pattern of ``fnmatch`` (``*`` matches dots too), each of
    whose modules is kept whole. ``"wte+lm_head"`` puts the modules of all its parts on one device.
    There is one group for every module with operators that is inside no other one of the same
    entry. An entry without modules is refused, with the names closest to it.
    """
    keep_whole = check_keep_whole(keep_whole)
    operators = captured.modules.operators if keep_whole else {}
    groups: dict[tuple[str, ...], str] = {}
    for entry in keep_whole:
        parts = entry.split(_TOGETHER)
        paths = {path for part in parts for path in matching_modules(part, operators)}
        inner = tuple(f"{path}." for path in paths)  # how the paths of modules within begin
        outermost = [p for p in operators if p in paths and not p.startswith(inner)]
        if _TOGETHER in entry:
            named = {name for path in outermost for name in operators[path]}
            names = tuple(node.name for node in captured.operators if node.name in named)
            together = f"modules {' and '.join(map(repr, outermost))} are kept together"
            groups.setdefault(names, together)
            continue
        for path in outermost:
            groups.setdefault(operators[path], f"module {path!r} is kept whole")
    return [ColocationGroup(names, reason) for names, reason in groups.items() if names]
