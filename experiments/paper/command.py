"""The tables and figures of docs/tables.md, made from scratch.

Every solve is limited by work, not seconds, so that all but the time columns are reproducible. A
table is written when it is done. ``--update docs/tables.md`` puts the tables between their markers
in the page, and the figures into ``figures`` beside it; ``--check`` with the same page ends with
code 1 and one line for each difference.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import typer

from experiments.comparison.settings import default_planners
from experiments.console.command_line import run_script
from experiments.console.progress import ProgressLine
from experiments.paper.bench import Bench
from experiments.paper.catalogue import ENTRIES, Entry
from experiments.paper.tables import PaperTable, marked_tables, with_tables
from experiments.reports.formats.writing import prepare_folder
from solver import PartitionError
from solver.io.files import read_text, write_text_atomically
from solver.model.quantities import format_seconds
from solver.model.text import printable

_DIFFERENT: Final = 1
_FIGURES: Final = "figures"


@dataclass(slots=True)
class _Made:
    """Tables and figures, by name."""

    tables: dict[str, PaperTable] = field(default_factory=dict)
    figures: dict[str, str] = field(default_factory=dict)


def command(
    pages: Annotated[
        list[Path] | None, typer.Argument(metavar="PAGE", help="What --update and --check are of.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for tables and figures.")
    ] = Path("paper"),
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="NAME", help="Make this alone. May be repeated."),
    ] = None,
    list_only: Annotated[bool, typer.Option("--list", help="List what can be made.")] = False,
    update: Annotated[
        bool, typer.Option("--update", help="Put the tables into the pages.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Say how the tables of the pages differ.")
    ] = False,
) -> None:
    """Make every table and figure that docs/tables.md shows."""
    if list_only:
        for name, entry in ENTRIES.items():
            print(f"{name:12} {entry.description}")
        return
    shown = pages or []
    if bool(shown) != (update or check):
        raise PartitionError("--update and --check are of pages; write both, or neither")
    chosen = _chosen(only)
    _shown_tables(shown)
    prepare_folder(out)
    started_s = time.perf_counter()
    with ProgressLine() as progress:
        made = _make(chosen, out, progress)
        progress.done(f"all done in {format_seconds(time.perf_counter() - started_s)}")
    found = _differences(shown, made) if check else []
    if update:
        _update(shown, made)
    for line in found:
        print(printable(line))
    if found:
        raise typer.Exit(_DIFFERENT)


def _chosen(only: Sequence[str] | None) -> dict[str, Entry]:
    for name in only or ():
        if name not in ENTRIES:
            raise PartitionError(f"there is no {name!r} to make; write one of {', '.join(ENTRIES)}")
    return {name: entry for name, entry in ENTRIES.items() if not only or name in only}


def _make(chosen: Mapping[str, Entry], out: Path, progress: ProgressLine) -> _Made:
    made = _Made()
    bench = Bench(progress)
    if any(entry.all_planners for entry in chosen.values()):
        bench.planners = default_planners(with_model=True)
    for name, entry in chosen.items():
        result = entry.build(bench)
        if isinstance(result, PaperTable):
            made.tables[name] = result
            write_text_atomically(out / f"{name}.md", result.to_markdown())
        else:
            made.figures.update(result)
            _write_figures(out / name, result)
        progress.done(f"{name}: done")
    return made


def _write_figures(folder: Path, figures: Mapping[str, str]) -> None:
    prepare_folder(folder)
    for name, svg in figures.items():
        write_text_atomically(folder / name, svg)


def _shown_tables(pages: Sequence[Path]) -> dict[str, tuple[Path, str]]:
    """Return the page and the text of every marked table of some pages, by name.

    Raises
    ------
    PartitionError
        If markers do not match, or two pages have the same table.
    """
    found: dict[str, tuple[Path, str]] = {}
    for page in pages:
        for name, text in marked_tables(read_text(page, "a Markdown page"), ENTRIES).items():
            if name in found:
                raise PartitionError(
                    f"table {name!r} is in {found[name][0]} and in {page}; leave one out"
                )
            found[name] = (page, text)
    return found


def _update(pages: Sequence[Path], made: _Made) -> None:
    """Put tables between their markers in pages, and figures beside the first one."""
    tables = {name: table.to_markdown() for name, table in made.tables.items()}
    for page in pages:
        write_text_atomically(page, with_tables(read_text(page, "a Markdown page"), tables))
    if made.figures:
        _write_figures(pages[0].parent / _FIGURES, made.figures)


def _differences(pages: Sequence[Path], made: _Made) -> list[str]:
    """Compare pages, and the figures beside the first one, with the new tables and figures."""
    shown = _shown_tables(pages)
    found = []
    for name, table in made.tables.items():
        if name not in shown:
            found.append(f"{', '.join(map(str, pages))}: table {name}: it is not shown")
            continue
        page, text = shown[name]
        found += [f"{page}: table {name}: {line}" for line in table.differences(text)]
    for name, svg in made.figures.items():
        file = pages[0].parent / _FIGURES / name
        if not file.is_file():
            found.append(f"{file}: there is no such figure")
        elif read_text(file, "a figure") != svg:
            found.append(f"{file}: another figure is shown")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`, or that of the process."""
    return run_script("python -m experiments.paper", command, argv)
