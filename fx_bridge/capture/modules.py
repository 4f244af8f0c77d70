"""The modules of the model in which the operators of a captured graph run.

Exporters write the stack of modules whose ``forward`` was running when a node was made into
``meta["nn_module_stack"]``, each with its path. ``symbolic_trace`` leaves calls of modules in the
graph. Graphs with neither, such as those of ``make_fx``, still name the weights they read.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple

from fx_bridge.presentation.modules import enclosing
from solver import PartitionError
from solver.model.text import shown

if TYPE_CHECKING:
    from torch import fx, nn

_ROOT: Final = re.compile(r"^L\[[^\]]*\]\.?")
"""Prefix of module paths by dynamo: the local variable that holds the model."""
_CALL: Final = re.compile(r"@(\d+)$")
"""Suffix of module paths by tracers for repeated calls."""
_SUGGESTIONS: Final = 3


class ModuleCall(NamedTuple):
    """One call of a module: its path, and the tracer's number of the call."""

    path: str
    number: int


@dataclass(frozen=True, slots=True)
class Modules:
    """The modules of a captured model, and the operators that run in them.

    Operators are in execution order, in names of their nodes.
    """

    calls: dict[str, tuple[ModuleCall, ...]]
    """Calls of modules in which each operator runs, outermost first. The model itself is left out:
    an operator of its own ``forward`` has an empty tuple. In a graph without a record of modules,
    an operator is in the module of the first weight it reads."""
    operators: dict[str, tuple[str, ...]]
    """Operators of every module, by its path. Modules are in the order of their first operators, an
    outer one before its inner ones; known modules without operators are last. A module with several
    paths has an entry for each.

    An operator is inside a module if it runs while the module, or one registered beneath it, runs.
    So a ``ModuleList`` has the operators of its members. A block has those of a shared module that
    it calls, wherever that is registered, and all of one registered in it, whoever calls it."""
    paths: Sequence[tuple[str, ...]]  # of every registered module, those of one module together

    @property
    def innermost(self) -> dict[str, str]:
        """Path of the innermost module in which each operator runs, "" for the model."""
        return {name: calls[-1].path if calls else "" for name, calls in self.calls.items()}


def modules_of(operators: Sequence[fx.Node], paths: Sequence[tuple[str, ...]]) -> Modules:
    """Return the modules registered at `paths` with the operators of a graph."""
    calls = _module_calls(operators)
    also = {path: own for own in paths for path in own}
    around = {
        running: dict.fromkeys(
            prefix
            for call in running
            for path in also.get(call.path, (call.path,))
            for prefix in enclosing(path)
        )
        for running in dict.fromkeys(calls.values())
    }
    found: dict[str, list[str]] = {}
    for name, running in calls.items():
        for prefix in around[running]:
            found.setdefault(prefix, []).append(name)
    inside = {path: tuple(names) for path, names in found.items()}
    return Modules(calls, inside | {path: () for path in also if path not in inside}, paths)


def _module_calls(operators: Sequence[fx.Node]) -> dict[str, tuple[ModuleCall, ...]]:
    if not any(n.meta.get("nn_module_stack") or n.op == "call_module" for n in operators):
        return {node.name: _calls_by_weight(node) for node in operators}
    earlier: Counter[str] = Counter()
    stacks = {node.name: _stack(node, earlier) for node in operators}
    calls = {stack: _calls(stack) for stack in dict.fromkeys(stacks.values())}
    return {name: calls[stack] for name, stack in stacks.items()}


def check_modules(names: Iterable[str], what: str, example: str) -> tuple[str, ...]:
    """Return names or patterns as a tuple; otherwise raise an error beginning with `what`."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise PartitionError(f"{what} is {shown(names)}; write a list of modules, {example}")
    names = tuple(names)
    for name in names:
        if not isinstance(name, str) or not name:
            raise PartitionError(f"{what} names {name!r}; write a list of modules, {example}")
    return names


def matching_modules(pattern: str, known: Iterable[str]) -> list[str]:
    """Return the paths equal to a path or matching an ``fnmatch`` pattern; ``*`` takes dots too.

    Raise PartitionError if there are none.
    """
    known = list(known)
    found = [path for path in known if path == pattern]
    found = found or [path for path in known if fnmatchcase(path, pattern)]
    if not found:
        raise unknown_module(pattern, known)
    return found


def unknown_module(path: object, known: Iterable[str]) -> PartitionError:
    """Return the error for a module that the model does not have, with the closest names."""
    known = list(known)
    close = difflib.get_close_matches(str(path), known, _SUGGESTIONS)
    advice = "its graph records no modules; capture the model itself"
    if close:
        advice = f"did you mean {' or '.join(map(repr, close))}?"
    elif known:
        more = " and so on" if len(known) > _SUGGESTIONS else ""
        advice = f"its modules are {', '.join(known[:_SUGGESTIONS])}{more}"
    return PartitionError(f"the model has no module {path!r}; {advice}")


def _stack(node: fx.Node, earlier: Counter[str]) -> tuple[tuple[str, str], ...]:
    stack = node.meta.get("nn_module_stack") or {}
    calls = tuple((str(entry[0]), str(key)) for key, entry in stack.items())
    if node.op == "call_module" and str(node.target) not in [path for path, _ in calls]:
        calls = (*calls, (str(node.target), f"@{earlier[str(node.target)]}"))
        earlier[str(node.target)] += 1
    return calls


def _calls(stack: Iterable[tuple[str, str]]) -> tuple[ModuleCall, ...]:
    calls = []
    for path, key in stack:
        number = _CALL.search(key)
        calls.append(ModuleCall(_path(path), int(number[1]) if number else 0))
    return tuple(dict.fromkeys(call for call in calls if call.path))


def _calls_by_weight(node: fx.Node) -> tuple[ModuleCall, ...]:
    for read in node.all_input_nodes:
        if read.op == "get_attr" and "." in str(read.target):
            return (ModuleCall(str(read.target).rpartition(".")[0], 0),)
    return ()


def class_name(cls: object) -> str:
    """Return the full name of a class, or the name that a saved graph has in its place."""
    return f"{cls.__module__}.{cls.__qualname__}" if isinstance(cls, type) else str(cls)


def called_classes(operators: Sequence[fx.Node]) -> dict[str, str]:
    """Return the class of every module that a graph records, by its path."""
    entries = (
        entry for node in operators for entry in (node.meta.get("nn_module_stack") or {}).values()
    )
    return {_path(str(entry[0])): class_name(entry[1]) for entry in entries}


def _path(recorded: str) -> str:
    return _CALL.sub("", _ROOT.sub("", recorded))


def registered_paths(model: nn.Module, *, with_graphs: bool) -> list[tuple[str, ...]]:
    """Return the paths of every registered module, those of one module together."""
    from torch import fx

    paths: dict[int, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        # A graph holds bodies of conditions and loops as submodules that the model lacks.
        if path and (with_graphs or not isinstance(module, fx.GraphModule)):
            paths.setdefault(id(module), []).append(path)
    return [tuple(names) for names in paths.values()]
