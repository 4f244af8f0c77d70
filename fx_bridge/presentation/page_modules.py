"""The modules of a model and their devices, for a page: tiles, and a tree that folds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from fx_bridge.presentation.markup import colour_of, escaped
from fx_bridge.presentation.module_totals import ModuleTotals, Totals
from fx_bridge.presentation.modules import Module
from solver.model.plan import Stage
from solver.model.quantities import counted, format_bytes, format_ns

_MOST_TILES: Final = 200
_MOST_OPENED: Final = 60
"""Rows that are opened at first; those of the model's own children always are."""
_MOST_LETTERS: Final = 1_250_000
"""Of the rows of modules; the deepest modules of larger models are left out."""
_ROW_LETTERS: Final = 160
"""Of a row, about, besides its path."""
_MOST_OPERATOR_LETTERS: Final = 500_000
"""Of the names of operators; beyond it operators are counted instead of listed."""
_OPERATOR_LETTERS: Final = 50

_HEAD: Final = ("module", "device", "weights", "time", "sends", "operators")


class ModuleView:
    """The tiles and the tree of the modules of a plan, coloured by the numbers of devices."""

    def __init__(
        self, totals: ModuleTotals, stages: Sequence[Stage], device_numbers: Mapping[str, int]
    ) -> None:
        self._totals = totals
        self._stages = stages
        self._device = [device_numbers[stage.device] for stage in stages]
        root = totals.tree.root
        self._rows: set[str] = set()
        letters = 0
        for module in _by_level(root):
            letters += len(module.path) + _ROW_LETTERS
            if letters > _MOST_LETTERS:
                break
            self._rows.add(module.path)
        self._opened = {root.path} if root.children else set()
        left = _MOST_OPENED
        for module in filter(self._is_divided, _by_level(root)):
            # Operators stand side by side.
            left -= len(module.children) or len(module.operators) // 3
            if left >= 0:
                self._opened.add(module.path)
        self._tiles = self._chosen_tiles(root)
        self._anchors = {module.path: f"m{number}" for number, module in enumerate(self._tiles)}
        letters = sum(len(name) + _OPERATOR_LETTERS for name in totals.of_operator)
        self._lists_operators = letters <= _MOST_OPERATOR_LETTERS

    def tiles(self) -> str:
        """Return a line of tiles for each list of modules, if there are modules."""
        lines: list[str] = []
        for parent, modules in groupby(self._tiles, lambda module: module.path.rpartition(".")[0]):
            lines.append('<ul class="tiles">')
            lines.append(f'<li class="muted">{escaped(parent)}' if parent else "")
            for module in modules:
                total = self._totals.of_module[module.path]
                lines.append(
                    f'<li><a href="#{self._anchors[module.path]}" {self._colour(total)} title="'
                    f'{escaped(module.path)}: {escaped(self._words(total))}">{escaped(module.name)}'
                    "</a>"
                )
            lines.append("</ul>")
        return "".join(lines)

    def tree(self) -> str:
        """Return nested rows, one for each module."""
        head = "".join(f"<span>{name}</span>" for name in _HEAD)
        return (
            f'<div class="tree"><div class="head">{head}</div>'
            f"{''.join(self._row(self._totals.tree.root))}</div>"
        )

    def _chosen_tiles(self, root: Module) -> list[Module]:
        """Return modules for tiles: lists, and divided modules that contain some, are opened."""
        chosen = list(root.children.values())
        while any(map(self._comes_apart, chosen)):
            opened: list[Module] = []
            for module in chosen:
                opened += module.children.values() if self._comes_apart(module) else [module]
            if len(opened) > _MOST_TILES:
                break
            chosen = opened
        return chosen[:_MOST_TILES]

    def _comes_apart(self, module: Module) -> bool:
        return module.has_list and (self._is_divided(module) or not module.name.isdecimal())

    def _is_divided(self, module: Module) -> bool:
        return len(self._totals.of_module[module.path].stages) > 1

    def _row(self, module: Module) -> Iterator[str]:
        total = self._totals.of_module[module.path]
        above, dot, name = module.path.rpartition(".")
        label = (
            f"<small>{escaped(above)}{dot}</small>{escaped(name)}" if module.path else "the model"
        )
        anchor = self._anchors.get(module.path)
        yield f"<details{f' id={anchor}' if anchor else ''}"
        yield f"{' open' if module.path in self._opened else ''}>{self._summary(label, total)}"
        hidden = 0
        for child in module.children.values():
            if child.path in self._rows:
                yield from self._row(child)
            else:
                hidden += 1
        if hidden:
            yield f"<p>{counted(hidden, 'module')} within it</p>"
        if module.operators and self._lists_operators:
            if module.children:
                own = Totals()
                for operator in module.operators:
                    own.add(self._totals.of_operator[operator])
                yield f"<details>{self._summary('<small>its own forward</small>', own)}"
            yield from self._operators(module.operators)
            yield "</details>" if module.children else ""
        yield "</details>"

    def _summary(self, label: str, total: Totals) -> str:
        cells = (
            format_bytes(total.weights_bytes) if total.weights else "",
            format_ns(total.time_ns),
            format_bytes(total.sent_bytes) if total.sent_bytes else "",
            f"{sum(total.stages.values()):,}",
        )
        numbers = "".join(f"<i>{cell}</i>" for cell in cells)
        return f"<summary><b>{label}</b>{self._where(total)}{numbers}</summary>"

    def _operators(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the operators of a module's own forward, by stage."""
        members: dict[int, list[str]] = {}
        for name in names:
            (stage,) = self._totals.of_operator[name].stages
            members.setdefault(stage, []).append(name)
        for stage, own in members.items():
            yield f"<ul class=d{self._device[stage]}>"
            if len(members) > 1:
                yield f"<li>{escaped(self._stages[stage])}:"
            for name in own:
                total = self._totals.of_operator[name]
                sent = f", sends {format_bytes(total.sent_bytes)}" if total.sent_bytes else ""
                yield f"<li>{escaped(name)} <i>{format_ns(total.time_ns)}{sent}</i>"
            yield "</ul>"

    def _where(self, total: Totals) -> str:
        """Return the only stage, or the shares of several stages."""
        if len(total.stages) == 1:
            (stage,) = total.stages
            return f"<em class=d{self._device[stage]}>{escaped(self._stages[stage])}</em>"
        parts = "".join(
            f"<i class=d{self._device[stage]} style=flex:{count}></i>"
            for stage, count in sorted(total.stages.items())
        )
        return f'<em class="mix" title="{escaped(self._words(total))}">{parts}</em>'

    def _words(self, total: Totals) -> str:
        if len(total.stages) == 1:
            return ", ".join(str(self._stages[stage]) for stage in total.stages)
        return ", ".join(
            f"{counted(count, 'operator')} on {self._stages[stage]}"
            for stage, count in sorted(total.stages.items())
        )

    def _colour(self, total: Totals) -> str:
        """Return the HTML attribute with the colour of a tile, or the shares of several stages."""
        if len(total.stages) == 1:
            (stage,) = total.stages
            return f'class="d{self._device[stage]}"'
        count, end, stops = sum(total.stages.values()), 0, []
        for stage, share in sorted(total.stages.items()):
            start, end = end, end + share
            colour = colour_of(self._device[stage])
            stops.append(f"{colour} {100 * start / count:.0f}% {100 * end / count:.0f}%")
        return f'style="--g:linear-gradient(90deg,{",".join(stops)})"'


def _by_level(root: Module) -> Iterator[Module]:
    """Yield a module and those within it, outermost first."""
    level = [root]
    while level:
        yield from level
        level = [child for module in level for child in module.children.values()]
