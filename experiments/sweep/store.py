"""What sweeps and comparisons found, in one SQLite file: each cell in a transaction of its own."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.comparison.plain_data import plain, read_check, read_row
from experiments.comparison.records import (
    Case,
    CaseKey,
    EquivalenceRow,
    ModelRecord,
    PlannerRow,
    Study,
)
from experiments.sweep.database import (
    check_file,
    connect,
    connect_memory,
    one_writer,
    told,
    transaction,
)
from experiments.sweep.packing import pack, unpack
from solver import PartitionError, PartitionProblem, SolveLimits
from solver.io.files import real_path
from solver.io.json_fields import parse_json, read_as
from solver.io.json_files import problem_from_json


@dataclass(frozen=True, slots=True)
class PreparedCase:
    """What became of the problem of a case.

    Attributes
    ----------
    key : str
        Of what was asked.
    case : CaseKey
        Names of model, devices and objective.
    digest : str or None
        Of the problem, if there is one.
    reason : str
        Why there is none, or empty.
    """

    key: str
    case: CaseKey
    digest: str | None
    reason: str = ""


@contextlib.contextmanager
def open_store(path: str | os.PathLike[str]) -> Iterator[SweepStore]:
    """Open the file that a sweep writes to; it is made if there is none.

    Raises
    ------
    PartitionError
        In one line, if it is no such file, or another run writes to it.
    """
    check_file(Path(path), create=True)
    real = real_path(path)
    with one_writer(real), contextlib.closing(connect(real, create=True)) as database, told(real):
        yield SweepStore(database, str(path))


@contextlib.contextmanager
def memory_store() -> Iterator[SweepStore]:
    """Open tables that no file keeps."""
    with contextlib.closing(connect_memory()) as database:
        yield SweepStore(database, "the answers")


class SweepStore:
    """The tables of one file, to write to; see :func:`open_store`."""

    def __init__(self, database: sqlite3.Connection, name: str) -> None:
        self._database = database
        self._name = name

    def case(self, key: str) -> PreparedCase | None:
        """Return a case that was prepared, or None."""
        found = self._one(
            "SELECT model, device_set, objective, memory_model, digest, reason FROM cases "
            "WHERE key = ?",
            key,
        )
        return None if found is None else PreparedCase(key, _case_key(*found[:4]), *found[4:])

    def status(self, cell_key: str) -> str | None:
        """Return the status of a cell that was done, or None."""
        found = self._one("SELECT status FROM cells WHERE key = ?", cell_key)
        return None if found is None else str(found[0])

    def row(self, cell_key: str, case: CaseKey) -> PlannerRow | None:
        """Return the answer to a cell that was done, as one of `case`, or None."""
        found = self._one("SELECT answer FROM cells WHERE key = ?", cell_key)
        return None if found is None else read_row(unpack(found[0], self._name), case, self._name)

    def has_check(self, case_key: str, cell_key: str) -> bool:
        """Return whether a split by the plan of a cell was checked."""
        query = "SELECT 1 FROM checks WHERE case_key = ? AND cell_key = ?"
        return self._one(query, case_key, cell_key) is not None

    def cells(self) -> int:
        """Return how many cells were done."""
        return int(self._one("SELECT count(*) FROM cells")[0])

    def study(self) -> Study:
        """Return what the last sweep has found so far."""
        return _read(self._database, self._name)

    def problem(self, digest: str) -> PartitionProblem:
        """Return a problem that is stored."""
        return problem_from_json(unpack(self.packed_problem(digest), f"problem {digest}"))

    def packed_problem(self, digest: str) -> str:
        """Return a problem as it is stored."""
        found = self._one("SELECT problem FROM cases WHERE digest = ? LIMIT 1", digest)
        assert found is not None
        return str(found[0])

    def add_cases(
        self,
        cases: Sequence[PreparedCase],
        problems: Sequence[str | None],
        record: Mapping[str, Any] | None,
    ) -> None:
        """Keep what was prepared of one model, all of it or nothing.

        Parameters
        ----------
        problems : sequence of str or None
            The packed problem of each.
        """
        packed = None if record is None else pack(dict(record))
        with transaction(self._database):
            self._database.executemany(
                "INSERT OR REPLACE INTO cases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    (
                        case.key,
                        case.case.model,
                        case.case.device_set,
                        json.dumps(case.case.objective),
                        case.case.memory_model,
                        case.digest,
                        case.reason,
                        problem,
                        packed,
                    )
                    for case, problem in zip(cases, problems, strict=True)
                ),
            )

    def begin(
        self,
        key: str,
        settings: Mapping[str, Any],
        environment: Sequence[tuple[str, str]],
        entries: Sequence[tuple[str, str | None]],
    ) -> None:
        """Keep what a sweep consists of, before any of it is done.

        Parameters
        ----------
        entries : sequence of (str, str or None)
            Key of a case with that of a cell, in the order of the report; None for a case that
            has no cells.
        """
        with transaction(self._database):
            self._database.execute(
                "INSERT INTO sweeps "
                "VALUES (?, ?, ?, 0, (SELECT coalesce(max(run), 0) + 1 FROM sweeps)) "
                "ON CONFLICT (key) DO UPDATE SET run = excluded.run",
                (key, json.dumps(settings), json.dumps(environment)),
            )
            self._database.execute("DELETE FROM entries WHERE sweep_key = ?", (key,))
            self._database.executemany(
                "INSERT INTO entries VALUES (?, ?, ?, ?)",
                ((key, position, *keys) for position, keys in enumerate(entries)),
            )

    def forget(self, sweep_key: str) -> None:
        """Forget what a sweep consists of and took; its cells stay."""
        with transaction(self._database):
            for table, column in (("sweeps", "key"), ("entries", "sweep_key")):
                self._database.execute(f"DELETE FROM {table} WHERE {column} = ?", (sweep_key,))

    def add_cell(self, sweep_key: str, cell_key: str, row: PlannerRow, seconds: float) -> None:
        """Keep the answer to a cell, and the `seconds` of the clock that the sweep took for it.

        Checks of an earlier answer are forgotten with it.
        """
        with transaction(self._database):
            self._database.execute(
                "INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    cell_key,
                    row.planner,
                    row.seed,
                    ",".join(row.without),
                    row.status,
                    row.objective[0] if row.objective else None,
                    row.bound[0] if row.bound else None,
                    row.wall_time_s,
                    pack(plain(row)),
                ),
            )
            self._database.execute("DELETE FROM checks WHERE cell_key = ?", (cell_key,))
            self._spend(sweep_key, seconds)

    def add_check(
        self, sweep_key: str, case_key: str, cell_key: str, row: EquivalenceRow, seconds: float
    ) -> None:
        """Keep what a split by the plan of a cell computes, and the seconds as for a cell."""
        with transaction(self._database):
            self._database.execute(
                "INSERT OR REPLACE INTO checks VALUES (?, ?, ?)",
                (case_key, cell_key, pack(plain(row))),
            )
            self._spend(sweep_key, seconds)

    def _spend(self, sweep_key: str, seconds: float) -> None:
        self._database.execute(
            "UPDATE sweeps SET wall_time_s = wall_time_s + ? WHERE key = ?", (seconds, sweep_key)
        )

    def _one(self, query: str, *values: str) -> Any:
        return self._database.execute(query, values).fetchone()


def load_study(path: str | os.PathLike[str]) -> Study:
    """Return what the last sweep of a file has found so far.

    The environment says how many of its cells were done, if not all of them.

    Raises
    ------
    PartitionError
        In one line, if it is no such file, or damaged.
    """
    source = Path(path)
    with contextlib.closing(connect(source, create=False)) as database, told(source):
        return _read(database, str(path))


def _read(database: sqlite3.Connection, path: str) -> Study:
    # One transaction: a sweep may be writing.
    database.execute("BEGIN")
    sweep = database.execute(
        "SELECT key, settings, environment, wall_time_s FROM sweeps ORDER BY run DESC LIMIT 1"
    ).fetchone()
    if sweep is None:
        raise PartitionError(f"{path} holds no sweep yet; run fxpartition sweep first")
    key, *described = sweep
    cases = database.execute(
        "SELECT cases.key, model, device_set, objective, memory_model, digest, reason, "
        "problem, record FROM entries JOIN cases ON cases.key = case_key "
        "WHERE sweep_key = ? GROUP BY case_key ORDER BY min(position)",
        (key,),
    ).fetchall()
    answers, checks = (
        database.execute(
            f"SELECT entries.case_key, answer FROM entries {join} "
            "WHERE sweep_key = ? AND entries.cell_key IS NOT NULL ORDER BY position",
            (key,),
        ).fetchall()
        for join in ("LEFT JOIN cells ON key = cell_key", "JOIN checks USING (case_key, cell_key)")
    )
    database.execute("COMMIT")
    return _study(path, described, cases, answers, checks)


def _case_key(model: str, device_set: str, objective: str, memory_model: str) -> CaseKey:
    names = read_as(tuple[str, ...], parse_json(objective, "objective"), "objective")
    return CaseKey(model, device_set, names, memory_model)


def _study(
    path: str,
    described: Sequence[Any],
    cases: Sequence[tuple[Any, ...]],
    answers: Sequence[tuple[Any, ...]],
    checks: Sequence[tuple[Any, ...]],
) -> Study:
    """Build a study from rows of the file, which may be damaged or made up."""
    try:
        settings = parse_json(described[0], "settings")
        environment = parse_json(described[1], "environment")
        limits = settings["limits"]
        solve_limits = SolveLimits(
            limits["time_limit_s"],
            limits["workers"],
            settings["seeds"][0],
            limits["deterministic"],
        )
        pairs = [(str(name), str(value)) for name, value in environment]
        found: dict[str, Case] = {}
        records: dict[str, ModelRecord] = {}
        for key, *named, digest, reason, packed, record in cases:
            model = named[0]
            problem = None
            if packed is not None:
                problem = problem_from_json(unpack(packed, f"problem {digest}"))
            found[key] = Case(_case_key(*named), problem, reason, digest or "")
            records.setdefault(model, ModelRecord(model, reason=reason))
            if record is not None and not records[model].operators:
                what = f"model {model!r}"
                records[model] = read_as(ModelRecord, unpack(record, what), what)
        rows = tuple(
            read_row(unpack(answer, "an answer"), found[key].key, "an answer")
            for key, answer in answers
            if answer is not None
        )
        checked = tuple(
            read_check(unpack(answer, "a check"), found[key].key, "a check")
            for key, answer in checks
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        words = str(error) if isinstance(error, PartitionError) else repr(error)
        raise PartitionError(f"{path} is damaged: {words}; sweep again to another file") from None
    if len(rows) < len(answers):
        pairs.append(("cells", f"{len(rows)} of {len(answers)} done"))
    return Study(
        models=tuple(records.values()),
        cases=tuple(found.values()),
        rows=rows,
        checks=checked,
        limits=solve_limits,
        environment=tuple(pairs),
        wall_time_s=float(described[2]),
    )
