"""Every page of docs/ runs, but for those that start processes."""

import pytest

from tests.support.documents import PAGES, Reader
from tests.support.page_lists import LEFT_OUT, WITH_PROCESSES
from tests.support.paths import ROOT

NAMES = [path.name for path in PAGES if path.parent.name == "docs"]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WITH_PROCESSES])
def test_a_page_runs_and_prints_what_it_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Reader(tmp_path, LEFT_OUT).read(ROOT / "docs" / name)
