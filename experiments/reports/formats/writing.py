"""Writing of a study's report into a folder."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

from experiments.comparison.records import Study, best_row
from experiments.reports.content.names import name_files
from experiments.reports.formats.html import to_html
from experiments.reports.formats.markdown import to_markdown
from experiments.reports.formats.page import MOST_SHOWN, make_report
from experiments.reports.formats.study_json import study_to_json, to_text
from solver import PartitionError
from solver.io.files import check_folder_writable, write_files_atomically
from solver.io.json_files import plan_to_json, problem_to_json
from solver.model.text import shortened


def prepare_folder(path: str | os.PathLike[str]) -> Path:
    """Create a report's folder; called before a long run, which a wrong path would lose."""
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


def write_report(
    study: Study, path: str | os.PathLike[str], *, is_last: bool = True
) -> tuple[Path, ...]:
    """Write ``report.html``, ``report.md`` and ``results.json``, and the files that they name.

    Those are in ``problems``, ``plans`` and ``pages``. All files are complete, beside those they
    replace, before the first is moved into place: a full disk leaves the old report whole. The
    report comes last, so that it only names existing files (but pages of plans, until the last
    report). Other files in the folder stay, and unchanged files are not rewritten. Pages of plans
    are written with the last report: `is_last` says that no other follows soon. Returns the paths
    of ``results.json`` and of the report in two formats.
    """
    contents = compose(study, is_last=is_last)
    folder = prepare_folder(path)
    for parent in dict.fromkeys((folder / name).parent for name in contents):
        _make(parent)
    write_files_atomically(
        {
            folder / name: content
            for name, content in contents.items()
            if not _holds(folder / name, content)
        }
    )
    return tuple(folder / name for name in contents if "/" not in name)


def _holds(path: Path, content: bytes) -> bool:
    try:
        return path.stat().st_size == len(content) and path.read_bytes() == content
    except OSError:
        return False


def compose(study: Study, *, is_last: bool = True) -> dict[str, bytes]:
    """Return the contents of all files by path relative to the folder, pages last."""
    # Reports are written by commands that start without torch.
    from fx_bridge.presentation.plan_files import plan_text

    files = name_files(study)
    contents: dict[str, bytes] = {}
    for case in study.cases:
        if case.problem is not None:
            contents[files.problems[case.key]] = _packed(problem_to_json(case.problem))
    for index, row in enumerate(study.rows):
        if row.plan is not None and files.plans[index] not in contents:
            contents[files.plans[index]] = _packed(plan_to_json(row.plan))
    for case in study.cases[:MOST_SHOWN] if is_last else ():
        best = best_row(study.rows_of(case.key))
        if case.key in files.pages and best is not None and case.problem is not None:
            result = best.result(case.problem)
            title = f"{case.key.model} on {case.key.device_set}"
            contents[files.pages[case.key]] = plan_text(result, "page", title=title).encode()
    page = make_report(study, files)
    contents["results.json"] = to_text(study_to_json(study, files)).encode()
    contents["report.md"] = to_markdown(page).encode()
    contents["report.html"] = to_html(page).encode()
    return contents


def _packed(document: object) -> bytes:
    """Return plain data as gzipped JSON, byte for byte reproducible."""
    text = json.dumps(document, separators=(",", ":")) + "\n"
    return gzip.compress(text.encode(), compresslevel=6, mtime=0)
