"""README runs: every block, but for what ``page_lists`` says is run in the nightly or elsewhere."""

from tests.support.documents import Reader
from tests.support.page_lists import LEFT_OUT
from tests.support.paths import ROOT


def test_readme_runs_and_prints_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Reader(tmp_path, LEFT_OUT).read(ROOT / "README.md")


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
