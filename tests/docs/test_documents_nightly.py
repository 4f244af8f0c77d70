"""The pages once more, with the commands that take long."""

import pytest

from tests.support.documents import PAGES, Reader, commands, name_of, read_blocks, run_command
from tests.support.page_lists import ELSEWHERE, NIGHTLY

pytestmark = pytest.mark.nightly

LONG = [
    path
    for path in PAGES
    for block in read_blocks(path)
    if block.language in ("sh", "console")
    and any(command.text in NIGHTLY for command in commands(block))
]


@pytest.mark.parametrize("path", dict.fromkeys(LONG), ids=name_of)
def test_a_page_runs_whole(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Reader(tmp_path, ELSEWHERE).read(path)


def test_the_main_job_of_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [main_job] = [text for text in ELSEWHERE if text.endswith("compare --out report/")]
    code, output, errors = run_command(main_job.rpartition(".venv/bin/")[2], tmp_path)
    assert code == 0, errors
    assert "llama3-70b" in output
    assert (tmp_path / "report" / "report.md").is_file()
