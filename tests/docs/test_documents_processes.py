"""The pages of docs/ whose commands start processes run; in a file of their own, for time."""

import pytest

from tests.support.documents import Reader
from tests.support.page_lists import LEFT_OUT, WITH_PROCESSES
from tests.support.paths import ROOT


@pytest.mark.deep
@pytest.mark.parametrize("name", WITH_PROCESSES)
def test_a_page_runs_and_prints_what_it_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Reader(tmp_path, LEFT_OUT).read(ROOT / name)
