"""Answers of sweeps in one SQLite file, each in its own transaction."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.comparison.plain_data import plain, read_row
from experiments.comparison.records import Case, CaseKey, ModelRecord, PlannerRow, Study
from experiments.sweep.database import check_file, connect, one_writer, readable_errors, transaction
from experiments.sweep.packing import pack, unpack
from solver import PartitionError, SolveLimits
from solver.io.files import real_path
from solver.io.json_fields import parse_json, read_as
from solver.io.json_files import problem_from_json


@dataclass(frozen=True, slots=True)
class PreparedCase:
    """A case with its problem, or the reason for having none.

    `key` is that of the request, `digest` that of the problem, if there is one.
    """

    key: str
    case: CaseKey
    digest: str | None
    reason: str = ""


@contextlib.contextmanager
def open_store(path: str | os.PathLike[str]) -> Iterator[SweepStore]:
    """Open or create the file of a sweep for writing, unless another run writes to it."""
    check_file(Path(path), create=True)
    real = real_path(path)
    with (
        one_writer(real),
        contextlib.closing(connect(real, create=True)) as database,
        readable_errors(real),
    ):
        yield SweepStore(database, str(path))


class SweepStore:
    """The tables of one file, for writing; see :func:`open_store`."""

    def __init__(self, database: sqlite3.Connection, name: str) -> None:
        self._database = database
        self._name = name

    def case(self, key: str) -> PreparedCase | None:
        """Return a prepared case, or None."""
        found = self._one(
            "SELECT model, device_set, objective, memory_model, digest, reason FROM cases "
            "WHERE key = ?",
            key,
        )
        return None if found is None else PreparedCase(key, _case_key(*found[:4]), *found[4:])

    def status(self, cell_key: str) -> str | None:
        """Return the status of a cell, or None without an answer."""
        found = self._one("SELECT status FROM cells WHERE key = ?", cell_key)
        return None if found is None else str(found[0])

    def packed_problem(self, digest: str) -> str:
        """Return a stored problem in its packed form."""
        found = self._one("SELECT problem FROM cases WHERE digest = ? LIMIT 1", digest)
        assert found is not None
        return str(found[0])

    def add_cases(
        self,
        cases: Sequence[PreparedCase],
        problems: Sequence[str | None],
        record: Mapping[str, Any] | None,
    ) -> None:
        """Store the cases of one model with their packed problems, all or none."""
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
        """Store the contents of a sweep before its answers.

        `entries` are keys of case and cell, in the order of the report; no cell key for a case
        without cells.
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

    def add_cell(self, sweep_key: str, cell_key: str, row: PlannerRow, seconds: float) -> None:
        """Store the answer to a cell, and add its wall time in `seconds` to the sweep."""
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
            self._database.execute(
                "UPDATE sweeps SET wall_time_s = wall_time_s + ? WHERE key = ?",
                (seconds, sweep_key),
            )

    def _one(self, query: str, *values: str) -> Any:
        return self._database.execute(query, values).fetchone()


def load_study(path: str | os.PathLike[str]) -> Study:
    """Return the answers of the last sweep of a file so far.

    If cells are missing, the environment holds the number of answered ones.
    """
    source = Path(path)
    with contextlib.closing(connect(source, create=False)) as database, readable_errors(source):
        # One transaction: a sweep may be writing.
        database.execute("BEGIN")
        return _read(database, str(path))


def _read(database: sqlite3.Connection, path: str) -> Study:
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
    answers = database.execute(
        "SELECT entries.case_key, answer FROM entries LEFT JOIN cells ON key = cell_key "
        "WHERE sweep_key = ? AND entries.cell_key IS NOT NULL ORDER BY position",
        (key,),
    ).fetchall()
    return _study(path, described, cases, answers)


def _case_key(model: str, device_set: str, objective: str, memory_model: str) -> CaseKey:
    names = read_as(tuple[str, ...], parse_json(objective, "objective"), "objective")
    return CaseKey(model, device_set, names, memory_model)


def _study(
    path: str,
    described: Sequence[Any],
    cases: Sequence[tuple[Any, ...]],
    answers: Sequence[tuple[Any, ...]],
) -> Study:
    """Build a study from rows of the file, which may be damaged or forged."""
    try:
        settings = parse_json(described[0], "settings")
        environment = parse_json(described[1], "environment")
        limits = settings["limits"]
        solve_limits = SolveLimits(
            limits["time_limit_s"], limits["workers"], settings["seeds"][0], limits["deterministic"]
        )
        host = read_as(str | None, settings.get("host"), "host")
        pairs = [(str(name), str(value)) for name, value in environment]
        found: dict[str, Case] = {}
        records: dict[str, ModelRecord] = {}
        for key, *named, digest, reason, packed, record in cases:
            model = named[0]
            problem = None
            if packed is not None:
                problem = problem_from_json(unpack(packed, f"problem {digest}"))
            found[key] = Case(_case_key(*named), problem, reason, digest or "", host)
            records.setdefault(model, ModelRecord(model, reason=reason))
            if record is not None and not records[model].operators:
                what = f"model {model!r}"
                records[model] = read_as(ModelRecord, unpack(record, what), what)
        rows = tuple(
            read_row(unpack(answer, "an answer"), found[key].key, "an answer")
            for key, answer in answers
            if answer is not None
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
        checks=(),
        limits=solve_limits,
        environment=tuple(pairs),
        wall_time_s=float(described[2]),
    )
