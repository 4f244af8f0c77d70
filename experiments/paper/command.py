"""Makes every table and figure that README and docs/tables.md show, from nothing.

    python -m experiments.paper [--list] [--only NAME]... [--out DIR] [--resume]
        [--update PAGE...] [--check PAGE...]

Units of work, not seconds, limit every solve, so that all but the columns of
the clock is the same in every run. A table is written when it is done; ``--resume`` takes those
that are there already. ``--update README.md docs/tables.md`` puts the tables between their markers
in the pages, and the figures into ``docs/figures`` beside the first page; ``--check`` with the same
pages ends with code 1 and one line for each difference.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from experiments.comparison.records import MODEL_PEERS, OWN_PLANNERS, PEERS
from experiments.console.exit_codes import EXIT_BAD_INPUT, EXIT_DONE, EXIT_INTERRUPTED
from experiments.console.progress import ProgressLine
from experiments.paper.bench import ROOMY, TIGHT, Bench
from experiments.paper.catalogue import ENTRIES, Entry
from experiments.paper.pages import marked_tables, with_tables
from experiments.paper.tables import PaperTable
from solver import PartitionError
from solver.io.files import read_text, write_text_atomically
from solver.model.quantities import format_seconds, printable

_DIFFERENT: Final = 1
_FIGURES: Final = Path("docs") / "figures"


@dataclass(slots=True)
class _Made:
    """Tables and figures, made now or taken from an earlier run."""

    tables: dict[str, PaperTable] = field(default_factory=dict)
    figures: dict[str, str] = field(default_factory=dict)


def paper(options: argparse.Namespace) -> int:
    """Make what `options` ask for; 1 if a page that is checked differs, otherwise 0."""
    chosen = _chosen(options.only)
    for pages in (options.update, options.check):
        _shown_tables(pages)
    _make_folder(options.out)
    started_s = time.perf_counter()
    with ProgressLine() as progress:
        made = _make(chosen, options.out, options.resume, progress)
        progress.done(f"all done in {format_seconds(time.perf_counter() - started_s)}")
    found = _differences(options.check, made) if options.check else []
    if options.update:
        _update(options.update, made)
    for line in found:
        print(printable(line))
    return _DIFFERENT if found else EXIT_DONE


def _chosen(only: Sequence[str] | None) -> dict[str, Entry]:
    for name in only or ():
        if name not in ENTRIES:
            raise PartitionError(f"there is no {name!r} to make; write one of {', '.join(ENTRIES)}")
    return {name: entry for name, entry in ENTRIES.items() if not only or name in only}


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PartitionError(
            f"cannot make the folder {out}: {error.strerror}; write another path"
        ) from None


def _make(chosen: Mapping[str, Entry], out: Path, resume: bool, progress: ProgressLine) -> _Made:
    made = _Made()
    missing = {
        name: entry for name, entry in chosen.items() if not (resume and _taken(name, out, made))
    }
    bench = Bench(progress)
    if any(entry.all_planners for entry in missing.values()):
        bench.planners = (*OWN_PLANNERS, *PEERS, *MODEL_PEERS)
        bench.device_sets = (*TIGHT, ROOMY)
    for name, entry in missing.items():
        result = entry.build(bench)
        if isinstance(result, PaperTable):
            made.tables[name] = result
            write_text_atomically(out / f"{name}.json", result.to_json())
            write_text_atomically(out / f"{name}.md", result.to_markdown())
        else:
            made.figures.update(result)
            _write_figures(out / name, result)
        progress.done(f"{name}: done")
    return made


def _taken(name: str, out: Path, made: _Made) -> bool:
    """Take what an earlier run left in the folder; return whether there is something."""
    file, folder = out / f"{name}.json", out / name
    if file.is_file():
        made.tables[name] = PaperTable.from_json(read_text(file, "a table of an earlier run"))
        return True
    drawn = sorted(folder.glob("*.svg")) if folder.is_dir() else []
    made.figures.update({path.name: read_text(path, "a figure") for path in drawn})
    return bool(drawn)


def _write_figures(folder: Path, figures: Mapping[str, str]) -> None:
    _make_folder(folder)
    for name, svg in figures.items():
        write_text_atomically(folder / name, svg)


def _shown_tables(pages: Sequence[Path]) -> dict[str, tuple[Path, str]]:
    """Return the page and the text of every marked table of some pages, by name.

    Raises
    ------
    PartitionError
        If markers do not fit, or two pages show one table.
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
    """Return how pages, and the figures beside the first one, differ from what was made."""
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


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.paper",
        description="Make every table and figure that README and docs/tables.md show.",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("paper"), help="folder for tables and figures"
    )
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="make this alone; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="list what can be made")
    parser.add_argument(
        "--resume", action="store_true", help="take what an earlier run wrote to the folder"
    )
    for option, text in (
        ("--update", "put the tables into these pages"),
        ("--check", "say how the tables of these pages differ"),
    ):
        parser.add_argument(option, type=Path, nargs="+", metavar="PAGE", default=[], help=text)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the script; 0 done, 1 a page differs, 2 bad input, 130 interrupted."""
    options = _parse(argv)
    if options.list:
        for name, entry in ENTRIES.items():
            print(f"{name:12} {entry.description}")
        return EXIT_DONE
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        with warnings.catch_warnings():
            # Warnings of torch about its own insides are noise here.
            warnings.simplefilter("ignore")
            return paper(options)
    except PartitionError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        print("interrupted; --resume goes on with what is written", file=sys.stderr)
        return EXIT_INTERRUPTED
