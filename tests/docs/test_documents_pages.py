"""Every page runs and prints what it shows; with ``--deep`` those that take long too."""

import pytest

from tests.support.documents import PAGES, Reader, name_of, run_command
from tests.support.page_lists import LEFT_OUT, LONG, WITH_PROCESSES
from tests.support.paths import ROOT
from tests.support.problem_counts import samples

QUICK = [path for path in PAGES if name_of(path) not in (*LONG, *WITH_PROCESSES)]


@pytest.mark.parametrize("path", samples(PAGES, QUICK), ids=name_of)
def test_a_page_runs_and_prints_what_it_shows(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Reader(tmp_path, LEFT_OUT).read(path)


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_quoted_reasons_are_those_of_the_command(tmp_path):
    text = (ROOT / "docs" / "diagnosis.md").read_text(encoding="utf-8")
    _, _, after = text.partition(
        "`fxpartition plan mlp --devices 200KiB,150KiB` ends with exit code 1 and"
    )
    quoted = [line.removeprefix("> ") for line in after.splitlines() if line.startswith("> ")]
    assert quoted
    code, _, errors = run_command("fxpartition plan mlp --devices 200KiB,150KiB", tmp_path)
    assert code == 1
    assert " ".join(quoted) in " ".join(errors.split())
