"""Write a study's report into a folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

from experiments.comparison.records import Study, best_row
from experiments.reports.content.names import ReportFiles, name_files
from experiments.reports.formats.html import to_html
from experiments.reports.formats.markdown import to_markdown
from experiments.reports.formats.page import make_page
from experiments.reports.formats.study_json import study_to_json, to_text
from fx_bridge.presentation.details import plan_details
from fx_bridge.presentation.trace import pipeline_trace
from solver import PartitionError
from solver.io.files import check_folder_writable, write_texts_atomically
from solver.io.json_files import plan_to_json, problem_to_json
from solver.model.text import shortened


def prepare_folder(path: str | os.PathLike[str]) -> Path:
    """Create a report's folder, or say in one line why it cannot be.

    Called before a long run, so that the run is not lost to a wrong path.
    """
    if not os.fspath(path):
        raise PartitionError("--out is empty; give --out a folder, such as report/")
    folder = Path(path)
    _make(folder)
    check_folder_writable(folder)
    return folder


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise PartitionError(f"{shortened(folder)} is a file; give --out a folder") from None
    except OSError as error:
        raise PartitionError(
            f"cannot create the folder {shortened(folder)}: {error.strerror}"
        ) from None
    except ValueError as error:  # a null character in the name
        raise PartitionError(f"cannot create the folder {shortened(folder)}: {error}") from None


def write_report(study: Study, path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Write ``report.html``, ``report.md`` and ``results.json``, and the files that they name.

    Those are ``problems/*.json``, ``plans/*.json`` and ``traces/*.json``. All files are complete,
    beside those that they replace, before the first takes its place: a full disk leaves the old
    report whole. The pages come last, so that they never name a file that is not there. Other
    files in the folder stay.

    Returns
    -------
    tuple of Path
        The three pages.

    Raises
    ------
    PartitionError
        If the folder cannot be made or written to.
    """
    texts = compose(study)
    folder = prepare_folder(path)
    for parent in dict.fromkeys((folder / name).parent for name in texts):
        _make(parent)
    write_texts_atomically({folder / name: text for name, text in texts.items()})
    return tuple(folder / name for name in texts if "/" not in name)


def compose(study: Study) -> dict[str, str]:
    """Return the texts of all files by their names relative to the folder, pages last."""
    files = name_files(study)
    texts: dict[str, str] = {}
    for case in study.cases:
        if case.problem is not None:
            text = json.dumps(problem_to_json(case.problem))
            texts[files.problems[case.key]] = text + "\n"
    for index, row in enumerate(study.rows):
        if row.plan is not None:
            texts[files.plans[index]] = json.dumps(plan_to_json(row.plan), indent=1) + "\n"
    page = make_page(study, files)
    texts.update(_traces(study, files))
    texts["results.json"] = to_text(study_to_json(study, files))
    texts["report.md"] = to_markdown(page)
    texts["report.html"] = to_html(page)
    return texts


def _traces(study: Study, files: ReportFiles) -> dict[str, str]:
    """Return the best plan of every case as a pipeline in time."""
    texts: dict[str, str] = {}
    for case in study.cases:
        best = best_row(study.rows_of(case.key))
        if case.key in files.traces and case.problem is not None and best is not None and best.plan:
            trace = pipeline_trace(plan_details(case.problem, best.plan))
            texts[files.traces[case.key]] = json.dumps(trace, separators=(",", ":")) + "\n"
    return texts
