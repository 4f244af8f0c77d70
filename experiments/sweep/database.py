"""The SQLite file of a sweep: its schema, its connection, and a lock for its one writer.

It has a rollback journal and no write-ahead log: after every transaction the one file is complete
and can be copied, even from a sweep that was killed.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from experiments.console.output import check_writable
from solver import PartitionError
from solver.model.text import shortened

APPLICATION_ID: Final = 0x66787077
"""``fxpw`` in ASCII, in the file's header."""
SCHEMA_VERSION: Final = 5
_MAGIC: Final = b"SQLite format 3\0"
_WAIT_S: Final = 20.0
"""Seconds a sweep waits for a report that reads the file."""

_SCHEMA: Final = f"""
BEGIN;
CREATE TABLE cases (
    key TEXT PRIMARY KEY,
    model TEXT NOT NULL,
    device_set TEXT NOT NULL,
    objective TEXT NOT NULL,
    memory_model TEXT NOT NULL,
    digest TEXT,
    reason TEXT NOT NULL,
    problem TEXT,
    record TEXT
) STRICT;
CREATE INDEX cases_by_problem ON cases (digest);
CREATE TABLE cells (
    key TEXT PRIMARY KEY,
    planner TEXT NOT NULL,
    seed INTEGER NOT NULL,
    left_out TEXT NOT NULL,
    status TEXT NOT NULL,
    objective_value INTEGER,
    objective_bound INTEGER,
    wall_time_s REAL NOT NULL,
    answer TEXT NOT NULL
) STRICT;
CREATE TABLE sweeps (
    key TEXT PRIMARY KEY,
    settings TEXT NOT NULL,
    environment TEXT NOT NULL,
    wall_time_s REAL NOT NULL,
    run INTEGER NOT NULL
) STRICT;
CREATE TABLE entries (
    sweep_key TEXT NOT NULL,
    position INTEGER NOT NULL,
    case_key TEXT NOT NULL,
    cell_key TEXT,
    PRIMARY KEY (sweep_key, position)
) STRICT;
CREATE VIEW results AS
    SELECT run, model, device_set, objective, memory_model, planner, seed, left_out,
        status, objective_value, objective_bound, cells.wall_time_s AS wall_time_s
    FROM entries
        JOIN sweeps ON sweeps.key = sweep_key
        JOIN cases ON cases.key = case_key
        JOIN cells ON cells.key = cell_key
    ORDER BY run, position;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
COMMIT;
"""


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Open the file of a sweep, in autocommit mode.

    Refuses a missing file, and one that is not SQLite, of another program, or of a newer release.
    """
    is_new = check_file(path, create=create)
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}",
        uri=True,
        isolation_level=None,
        timeout=_WAIT_S,
    )
    try:
        with readable_errors(path):
            for pragma in ("trusted_schema = OFF", "synchronous = FULL"):
                connection.execute(f"PRAGMA {pragma}")
            if is_new or (create and _is_empty(connection)):
                connection.executescript(_SCHEMA)
            _check_schema(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def readable_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into PartitionError."""
    try:
        yield
    except sqlite3.Error as error:
        raise PartitionError(
            f"{shortened(path)}: {error}; free the file and its disk, or give another"
        ) from None
    except UnicodeDecodeError:
        # SQLite quotes damaged names of the file in its messages.
        raise PartitionError(
            f"{shortened(path)} is damaged: it holds no text; give another"
        ) from None


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit everything written in the context, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def one_writer(path: Path) -> Iterator[None]:
    """Lock a file against a second run, which is refused; reports may still read it.

    The lock, separate from those of SQLite, ends with its process, however that ends.
    """
    import fcntl

    try:
        stream = path.open("ab")
    except OSError as error:
        raise PartitionError(
            f"cannot write {shortened(path)}: {error.strerror}; write another path"
        ) from None
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise PartitionError(
                f"another run is writing to {shortened(path)}; wait for its end, or give "
                "another --out"
            ) from None
        yield


def check_file(path: Path, *, create: bool) -> bool:
    """Return True if there is no file yet; raise PartitionError if it is not SQLite."""
    wanted = "the --out file of a sweep"
    if not create:
        wanted += ", or the results.json of a report"
    if create:
        check_writable(str(path))
    try:
        if path.is_dir():
            raise PartitionError(f"{shortened(path)} is a folder; give {wanted}")
        if not path.exists():
            if not create:
                raise PartitionError(f"there is no file {shortened(path)}; give {wanted}")
            return True
        if not path.is_file():
            raise PartitionError(f"{shortened(path)} is not a file; give {wanted}")
        with path.open("rb") as stream:
            start = stream.read(len(_MAGIC))
    except OSError as error:
        raise PartitionError(
            f"cannot read {shortened(path)}: {error.strerror}; give {wanted}"
        ) from None
    if start not in (b"", _MAGIC):
        raise PartitionError(f"{shortened(path)} is not an SQLite file; give {wanted}")
    if not start and not create:
        raise PartitionError(f"{shortened(path)} is empty; give {wanted}")
    return not start


def _is_empty(connection: sqlite3.Connection) -> bool:
    """Return True if an SQLite file has no application id and no tables."""
    held = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    return not held and not _pragma(connection, "application_id")


def _check_schema(connection: sqlite3.Connection, path: Path) -> None:
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise PartitionError(
            f"{shortened(path)} is another program's SQLite file; give the --out file of a sweep"
        )
    version = _pragma(connection, "user_version")
    if version != SCHEMA_VERSION:
        raise PartitionError(
            f"{shortened(path)} has schema {version}, and this release reads {SCHEMA_VERSION}; "
            "read it with the release that wrote it, or sweep to another file"
        )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
