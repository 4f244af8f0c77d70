"""Names for sets of operators, by module: ``transformer.h.0-5, part of h.6 (attn)``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, islice
from typing import Final

from fx_bridge.presentation.tables import names_width
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem

_MOST_LETTERS: Final = 100
"""Of names of operators without modules, if the caller sets no width."""
_MOST_NESTED: Final = 2
"""Levels of brackets within the name of a part."""
_MOST_LEVELS: Final = 100
"""Of nested modules; deeper operators count to the module at that level."""


@dataclass
class Module:
    """A module of a model, and its children by name, in the order of their first operators."""

    path: str = ""  # dotted, such as ``"layers.0.attn"``; empty for the model itself
    children: dict[str, Module] = field(default_factory=dict)
    operators: list[str] = field(default_factory=list)
    """Those of its own ``forward``, outside its children."""
    count: int = 0  # number of operators within it, at any depth

    @property
    def name(self) -> str:
        """The last word of its path."""
        return self.path.rpartition(".")[2]

    @property
    def has_list(self) -> bool:
        """True if it contains numbered modules, at any depth."""
        return any(child.name.isdecimal() or child.has_list for child in self.children.values())


class ModuleTree:
    """The modules of a problem's operators.

    `module_of` has the module path of each operator, in execution order; empty if unknown.

    Examples
    --------
    >>> names = ["wte", *(f"h.{i}.{part}" for i in range(8) for part in ("attn", "mlp"))]
    >>> tree = ModuleTree({f"op{i}": f"model.{name}" for i, name in enumerate(names)})
    >>> tree.words(f"op{i}" for i in range(14))
    'model.wte, h.0-5, part of h.6 (attn)'
    >>> tree.words(["op14", "op15", "op16"])
    'part of model.h.6 (mlp), h.7'
    """

    def __init__(self, module_of: Mapping[str, str]) -> None:
        self.root = Module()
        self._module_of = module_of
        for name, path in module_of.items():
            module = self.root
            module.count += 1
            for child_path in islice(enclosing(path), _MOST_LEVELS) if path else ():
                child = child_path.rpartition(".")[2]
                module = module.children.setdefault(child, Module(child_path))
                module.count += 1
            module.operators.append(name)

    @classmethod
    def of(cls, problem: PartitionProblem) -> ModuleTree:
        """Return the tree of a problem."""
        return cls({op.name: op.module for op in problem.operators})

    def words(self, operators: Iterable[str], width: int | None = None) -> str:
        """Return the names of the modules that the operators of a stage make up, folded.

        These are paths in execution order, each without the prefix that it shares with the previous
        one. Operators of a module's own ``forward`` are omitted if a part of the module is named.
        Without known modules: operators, consecutive ones as the first and the last. Beyond `width`
        letters details of parts are left out first, then the last modules are counted instead of
        named.
        """
        names = list(operators)
        if not names:
            return ""
        if not self.root.children:
            rows = self._rows(names)
            ends = [row[0] if len(row) == 1 else f"{row[0]} to {row[-1]}" for row in rows]
            ends[0] = f"operator{'s' * (len(names) > 1)} {ends[0]}"
            return _cut(ends, _MOST_LETTERS if width is None else width, [*map(len, rows)])
        if len(names) == self.root.count:
            return _cut(["the whole model"], width)
        held = self._held(names)
        parts: list[str] = []
        for nested in range(_MOST_NESTED, -1, -1):
            parts = _without_shared_words(_parts(self.root, held, nested))
            start = "part of " * bool(parts and parts[0].startswith("part of "))
            first = parts[0].removeprefix(start) if parts else ""
            if first[:1].isdecimal():
                # Numbers alone, as those of a Sequential, need a noun.
                are_many = not start and (len(parts) > 1 or "-" in first)
                parts[0] = f"{start}module{'s' * are_many} {first}"
            if width is None or len(", ".join(parts)) <= width:
                break
        return _cut(parts or ["part of the model's forward"], width)

    def stages(self, plan: PartitionPlan, width: int | None = None) -> tuple[str, ...]:
        """Return the :meth:`words` of each stage of a plan, in its order."""
        members: list[list[str]] = [[] for _ in plan.stages]
        for name in self._module_of:
            members[plan.stage_index[name]].append(name)
        return tuple(self.words(names, width) for names in members)

    def stage_lines(self, plan: PartitionPlan) -> list[str]:
        """Return a line of the terminal for each stage of a plan, with its modules."""
        labels = [f"{stage}: " for stage in plan.stages]
        words = self.stages(plan, names_width() - max(map(len, labels)))
        return [label + names for label, names in zip(labels, words, strict=True)]

    def _rows(self, names: Iterable[str]) -> list[list[str]]:
        """Return runs of consecutive operators, in execution order."""
        chosen, rows = set(names), list[list[str]]()
        for is_chosen, row in groupby(self._module_of, chosen.__contains__):
            rows += [list(row)] * is_chosen
        return rows

    def _held(self, names: Iterable[str]) -> dict[str, int]:
        """Return the number of `names` within each module that contains one."""
        held: dict[str, int] = {}
        for name in names:
            path = self._module_of[name]
            for around in enclosing(path) if path else ():
                held[around] = held.get(around, 0) + 1
        return held


@dataclass
class _Part:
    """A part of a module, or a run of whole modules."""

    path: str
    last: str = ""
    inner: str | None = None


def _parts(module: Module, held: Mapping[str, int], nested: int) -> Iterator[_Part]:
    """Yield the held children with their inner parts, a run of equal ones as one."""
    row: _Part | None = None
    for child in module.children.values():
        count = held.get(child.path, 0)
        inner = None
        if count < child.count:
            if row is not None and (not count or child.has_list):
                yield row
                row = None
            if not count:
                continue
            if child.has_list and not child.name.isdecimal():
                yield from list(_parts(child, held, nested)) or [_Part(child.path, inner="")]
                continue
            parts = _without_shared_words(_parts(child, held, nested - 1), child) if nested else ()
            inner = ", ".join(parts)
        if row is not None and row.inner == inner:
            last = row.last or row.path.rpartition(".")[2]
            is_number = last.isdecimal() and child.name.isdecimal()
            if is_number and int(child.name) == int(last) + 1:
                row.last = child.name
                continue
        if row is not None:
            yield row
        row = _Part(child.path, inner=inner)
    if row is not None:
        yield row


def _without_shared_words(parts: Iterable[_Part], within: Module | None = None) -> list[str]:
    """Return the name of each part, without the prefix that it shares with the previous one."""
    previous: list[str] = [] if within is None or not within.path else within.path.split(".")
    start = len(previous)
    found = []
    for part in parts:
        words = part.path.split(".")
        shared = start
        while shared < min(len(previous), len(words) - 1) and previous[shared] == words[shared]:
            shared += 1
        # A number needs the name of its list.
        while shared > start and words[shared].isdecimal():
            shared -= 1
        text = ".".join(words[shared:])
        if part.last:
            text += f"-{part.last}"
        if part.inner is not None:
            text = f"part of {text}" + (f" ({part.inner})" if part.inner else "")
        found.append(text)
        previous = words[:-1]
    return found


def _cut(parts: list[str], width: int | None, counts: Sequence[int] = ()) -> str:
    """Return parts in `width` letters at most; omitted ones count as 1, or as their `counts`."""
    text = ", ".join(parts)
    if width is None or len(text) <= width:
        return text
    for kept in range(len(parts) - 1, 0, -1):
        more = sum(counts[kept:]) or len(parts) - kept
        text = f"{', '.join(parts[:kept])} and {more} more"
        if len(text) <= width:
            return text
    return f"{parts[0][: max(width - 1, 0)]}…"


def enclosing(path: str) -> Iterator[str]:
    """Yield the paths of the modules around that at `path`, outermost first, and then `path`.

    Examples
    --------
    >>> list(enclosing("h.0.attn"))
    ['h', 'h.0', 'h.0.attn']
    """
    return accumulate(path.split("."), lambda above, name: f"{above}.{name}")
