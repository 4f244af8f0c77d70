import contextlib
import sqlite3
import subprocess
import sys
import threading

import pytest

from experiments.sweep import database
from experiments.sweep.database import (
    APPLICATION_ID,
    SCHEMA_VERSION,
    check_file,
    connect,
    one_writer,
    readable_errors,
    transaction,
)
from tests.support.refusals import refused

ADD = "INSERT INTO sweeps VALUES (?, '{}', '[]', 0, 1)"


def pragma(database, name):
    return database.execute(f"PRAGMA {name}").fetchone()[0]


def test_a_new_file_says_whose_it_is_and_is_all_that_there_is(tmp_path):
    path = tmp_path / "50% of #1?.sqlite"
    with contextlib.closing(connect(path, create=True)) as database:
        assert pragma(database, "application_id") == APPLICATION_ID
        assert pragma(database, "user_version") == SCHEMA_VERSION
        assert pragma(database, "journal_mode") == "delete"
        assert pragma(database, "trusted_schema") == 0
        assert database.execute("SELECT * FROM results").fetchall() == []
    with contextlib.closing(connect(path, create=False)):
        assert [each.name for each in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("create", [True, False])
def test_another_kind_of_file_is_one_line_and_stays_as_it_is(tmp_path, create):
    text = tmp_path / "a.txt"
    text.write_text("SQLite is nice")
    with refused("is not an SQLite file", path=text):
        connect(text, create=create)
    assert text.read_text() == "SQLite is nice"

    other = tmp_path / "other.sqlite"
    with contextlib.closing(sqlite3.connect(other)) as database:
        database.executescript("CREATE TABLE cells (x); PRAGMA user_version = 1;")
    before = other.read_bytes()
    with refused("is another program's SQLite file", path=other):
        connect(other, create=create)
    assert other.read_bytes() == before

    newer = tmp_path / "newer.sqlite"
    connect(newer, create=True).close()
    with contextlib.closing(sqlite3.connect(newer)) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with refused(f"has schema {SCHEMA_VERSION + 1}, and this release reads", path=newer):
        connect(newer, create=create)

    with refused("is a folder", path=tmp_path):
        connect(tmp_path, create=create)
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(newer.read_bytes()[:100] + b"x" * 2000)
    with refused("damaged.sqlite: ", path=damaged):
        connect(damaged, create=create)
    no_text = newer.read_bytes().replace(b"CREATE TABLE sweeps", b"CREATE TABLX sweep\xfe")
    damaged.write_bytes(no_text.replace(b"sweeps", b"sweep\xfe"))
    with refused("damaged.sqlite is damaged: it holds no text", path=damaged):
        connect(damaged, create=create)


def test_a_missing_or_empty_file_is_made_only_where_asked(tmp_path):
    missing, empty = tmp_path / "missing.sqlite", tmp_path / "empty.sqlite"
    empty.touch()
    with refused("there is no file", path=missing):
        connect(missing, create=False)
    with refused("is empty", path=empty):
        connect(empty, create=False)
    # Who asks for a report may have results of a comparison, in a folder of their own.
    for path in (missing, empty, tmp_path):
        with refused("the --out file of a sweep, or the results.json of a report", path=path):
            connect(path, create=False)
    assert not missing.exists()
    with refused("there is no folder", path=tmp_path / "no"):
        check_file(tmp_path / "no" / "a.sqlite", create=True)
    with refused("cannot write", path="a\0b"):
        check_file(tmp_path / "a\0b", create=True)
    for path in (missing, empty):
        with contextlib.closing(connect(path, create=True)) as database:
            assert pragma(database, "application_id") == APPLICATION_ID


def test_a_transaction_is_all_or_nothing(tmp_path):
    with contextlib.closing(connect(tmp_path / "a.sqlite", create=True)) as database:
        with transaction(database):
            database.execute(ADD, ("a",))
        with pytest.raises(KeyboardInterrupt), transaction(database):
            database.execute(ADD, ("b",))
            raise KeyboardInterrupt
        assert database.execute("SELECT key FROM sweeps").fetchall() == [("a",)]


def test_what_sqlite_says_is_one_line(tmp_path):
    path = tmp_path / "a.sqlite"
    with (
        contextlib.closing(connect(path, create=True)) as database,
        refused("no such table: cels", path=path),
        readable_errors(path),
    ):
        database.execute("SELECT * FROM cels")


HOLD = """
import sys, time
from pathlib import Path
from experiments.sweep.database import one_writer
with one_writer(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_refused_until_the_first_is_gone_however_it_went(tmp_path):
    path = tmp_path / "a.sqlite"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        with refused("another run is writing to", path=path), one_writer(path):
            pass
        holder.kill()
    with one_writer(path):
        # Their locks do not hinder a report or the sweep itself.
        connect(path, create=True).close()
        with refused("another run is writing to", path=path), one_writer(path):
            pass
    assert list(tmp_path.iterdir()) == [path]


LOCKED = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def locked(tmp_path):
    """A file of a sweep, and a process that has it locked."""
    path = tmp_path / "a.sqlite"
    connect(path, create=True).close()
    with subprocess.Popen(
        [sys.executable, "-c", LOCKED, str(path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "held\n"
        yield path, holder
        holder.kill()


def test_a_file_that_stays_locked_is_one_line(locked, monkeypatch):
    path, _ = locked
    monkeypatch.setattr(database, "_WAIT_S", 0.2)
    for create in (True, False):
        with refused("database is locked; free the file", path=path):
            connect(path, create=create)


def test_a_locked_file_is_written_to_as_soon_as_it_is_free(locked):
    path, holder = locked
    threading.Timer(0.5, holder.kill).start()
    with contextlib.closing(connect(path, create=True)) as opened, transaction(opened):
        opened.execute(ADD, ("k",))
