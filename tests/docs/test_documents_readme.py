"""README runs: every block, but for what ``page_lists`` says is run in the nightly or elsewhere."""

from tests.support.documents import Reader, run_command
from tests.support.page_lists import LEFT_OUT
from tests.support.paths import ROOT


def test_readme_runs_and_prints_what_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Reader(tmp_path, LEFT_OUT).read(ROOT / "README.md")


def test_the_quoted_reasons_are_those_of_the_command(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    _, _, after = text.partition(
        "`fxpartition plan mlp --devices 200KiB,150KiB` ends with exit code 1 and"
    )
    quoted = [line.removeprefix("> ") for line in after.splitlines() if line.startswith("> ")]
    code, _, errors = run_command("fxpartition plan mlp --devices 200KiB,150KiB", tmp_path)
    assert code == 1
    assert " ".join(quoted) in " ".join(errors.split())
