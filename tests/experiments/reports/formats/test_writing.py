"""Tests of how the files of a report are written."""

import os
from pathlib import Path

import pytest

from experiments.reports.formats import writing
from experiments.reports.formats.writing import prepare_folder, write_report
from solver import PartitionError
from tests.support.studies import HOSTILE, row, solved_study, study


def files_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_all_files_are_written(tmp_path):
    folder = tmp_path / "deep" / "report"
    paths = write_report(solved_study(), folder)
    assert [path.name for path in paths] == ["results.json", "report.md", "report.html"]
    assert sorted(files_of(folder)) == [
        "pages/m-a.html",
        "plans/m-a-chain.json.gz",
        "plans/m-a-greedy.json.gz",
        "problems/m-a.json.gz",
        "report.html",
        "report.md",
        "results.json",
    ]


def test_a_folder_that_cannot_be_is_refused(tmp_path):
    path = tmp_path / "report"
    path.write_text("mine")
    with pytest.raises(PartitionError, match="is a file; give --out a folder"):
        prepare_folder(path)
    with pytest.raises(PartitionError, match="cannot create the folder"):
        prepare_folder(path / "below")
    assert path.read_text() == "mine"
    for name, says in (("", "--out is empty"), ("x\0y", "cannot create the folder")):
        with pytest.raises(PartitionError, match=says):
            prepare_folder(name)


def test_a_report_stays_whole_when_the_new_one_cannot_be_made(tmp_path, monkeypatch):
    write_report(solved_study(), tmp_path)
    before = files_of(tmp_path)

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(writing, "to_markdown", fail)
    with pytest.raises(MemoryError):
        write_report(study(row("auto", 2, bound=2)), tmp_path)
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("after", [1, 2])
def test_no_file_of_a_report_is_replaced_when_the_disk_is_full_for_a_later_one(
    tmp_path, monkeypatch, after
):
    write_report(solved_study(), tmp_path)
    before = files_of(tmp_path)
    written = []
    sync = os.fsync

    def full(handle):
        written.append(handle)
        if len(written) > after:
            raise OSError(28, "No space left on device")
        sync(handle)

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(PartitionError, match="No space left on device"):
        write_report(study(row("auto", 2, bound=2)), tmp_path)
    assert len(written) == after + 1
    assert files_of(tmp_path) == before


def test_a_report_that_is_interrupted_while_it_is_put_in_place_is_whole(tmp_path, monkeypatch):
    new = tmp_path / "new"
    write_report(study(row("auto", 2, bound=2)), new)
    old = tmp_path / "old"
    write_report(solved_study(), old)
    replace = Path.replace
    turns = []

    def interrupted(path, target):
        turns.append(target)
        if len(turns) == 2:
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_report(study(row("auto", 2, bound=2)), old)
    assert {**files_of(old), **files_of(new)} == files_of(old)


def test_other_files_in_the_folder_stay(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    write_report(solved_study(), tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_the_same_study_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_report(solved_study(HOSTILE), tmp_path / name)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_files_that_are_there_are_not_written_again(tmp_path, monkeypatch):
    write_report(solved_study(), tmp_path)
    written = []
    replace = Path.replace

    def counted(path, target):
        written.append(target)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", counted)
    write_report(solved_study(), tmp_path)
    assert written == []
    (tmp_path / "report.md").write_text("another")
    write_report(solved_study(), tmp_path)
    assert written == [tmp_path / "report.md"]


def test_pages_of_plans_are_left_to_the_last_report(tmp_path):
    write_report(solved_study(), tmp_path, is_last=False)
    folders = {name.partition("/")[0] for name in files_of(tmp_path)}
    assert folders == {"plans", "problems", "report.html", "report.md", "results.json"}
    write_report(solved_study(), tmp_path)
    assert "pages/m-a.html" in files_of(tmp_path)
