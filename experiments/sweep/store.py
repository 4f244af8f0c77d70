"""What sweeps have found, in one SQLite file: every cell once, each in a transaction of its own."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from experiments.comparison.records import Case, CaseKey, ModelRecord, PlannerRow, Study
from experiments.sweep.cases import Cell, case_key_from_json
from experiments.sweep.database import check_file, connect, one_writer, told, transaction
from experiments.sweep.packing import pack, unpack
from experiments.sweep.rows import record_from_json, row_from_json, row_to_json
from solver import PartitionError, SolveLimits
from solver.io.files import real_path
from solver.io.json_fields import parse_json
from solver.io.json_files import problem_from_json

FAILURES: Final = ("failed", "timed out", "out of memory", "killed")
"""Statuses of cells for which another run may find something else."""


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
        In one line, if it is no such file, or another sweep writes to it.
    """
    check_file(Path(path), create=True)
    real = real_path(path)
    with one_writer(real), contextlib.closing(connect(real, create=True)) as database, told(real):
        yield SweepStore(database)


class SweepStore:
    """The tables of one file, to write to; see :func:`open_store`."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def case(self, key: str) -> tuple[str | None, str] | None:
        """Return the digest and the reason of a case that was prepared, or None."""
        found = self._one("SELECT digest, reason FROM cases WHERE key = ?", key)
        return None if found is None else (found[0], found[1])

    def status(self, cell_key: str) -> str | None:
        """Return the status of a cell that was done, or None."""
        found = self._one("SELECT status FROM cells WHERE key = ?", cell_key)
        return None if found is None else str(found[0])

    def packed_problem(self, digest: str) -> bytes:
        """Return a problem as it is stored."""
        found = self._one("SELECT problem FROM problems WHERE digest = ?", digest)
        assert found is not None
        return bytes(found[0])

    def add_cases(
        self,
        model_key: str,
        record: Mapping[str, Any] | None,
        cases: Sequence[PreparedCase],
        problems: Mapping[str, bytes],
    ) -> None:
        """Keep what was prepared of one model, all of it or nothing.

        Parameters
        ----------
        model_key : str
            Of the model and the versions.
        record : mapping or None
            A :class:`ModelRecord` as plain data; None leaves what is there.
        cases : sequence of PreparedCase
            Of one model, at least one.
        problems : mapping of str to bytes
            Packed, by digest.
        """
        with transaction(self._database):
            self._database.execute(
                "INSERT INTO models (key, name, record) VALUES (?, ?, ?) ON CONFLICT (key) "
                "DO UPDATE SET record = coalesce(excluded.record, record)",
                (model_key, cases[0].case.model, None if record is None else pack(dict(record))),
            )
            self._database.executemany(
                "INSERT INTO problems (digest, problem) VALUES (?, ?) ON CONFLICT DO NOTHING",
                problems.items(),
            )
            for case in cases:
                model, device_set, objective, memory_model = case.case
                self._database.execute(
                    "INSERT INTO cases VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) "
                    "DO UPDATE SET digest = excluded.digest, reason = excluded.reason",
                    (
                        case.key,
                        model_key,
                        model,
                        device_set,
                        json.dumps(objective),
                        memory_model,
                        case.digest,
                        case.reason,
                    ),
                )

    def begin(
        self,
        key: str,
        settings: Mapping[str, Any],
        environment: Sequence[tuple[str, str]],
        case_keys: Sequence[str],
        cells: Sequence[tuple[str, str]],
    ) -> int:
        """Keep what a sweep consists of, before any of it is done; return its number.

        Parameters
        ----------
        key : str
            Of settings and versions.
        settings : mapping
            Plain data.
        environment : sequence of (str, str)
            Names and versions of what computes.
        case_keys : sequence of str
            All cases of the sweep, in the order of its report.
        cells : sequence of (str, str)
            Key of the case, key of the cell.
        """
        with transaction(self._database):
            self._database.execute(
                "INSERT INTO sweeps (key, settings, environment, wall_time_s, run) "
                "VALUES (?, ?, ?, 0, (SELECT coalesce(max(run), 0) + 1 FROM sweeps)) "
                "ON CONFLICT (key) DO UPDATE SET run = excluded.run",
                (key, json.dumps(dict(settings)), json.dumps(list(environment))),
            )
            found = self._one("SELECT id FROM sweeps WHERE key = ?", key)
            assert found is not None
            sweep = int(found[0])
            for table in ("sweep_cases", "sweep_cells"):
                self._database.execute(f"DELETE FROM {table} WHERE sweep = ?", (sweep,))
            self._database.executemany(
                "INSERT INTO sweep_cases VALUES (?, ?, ?)",
                ((sweep, position, case) for position, case in enumerate(case_keys)),
            )
            self._database.executemany(
                "INSERT INTO sweep_cells VALUES (?, ?, ?, ?)",
                ((sweep, position, *keys) for position, keys in enumerate(cells)),
            )
        return sweep

    def add_cell(self, sweep: int, cell: Cell, row: PlannerRow, seconds: float) -> None:
        """Keep the answer to a cell, and the `seconds` of the clock that the sweep took for it."""
        with transaction(self._database):
            self._database.execute(
                "INSERT INTO cells VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) "
                "DO UPDATE SET status = excluded.status, "
                "objective_value = excluded.objective_value, "
                "objective_bound = excluded.objective_bound, wall_time_s = excluded.wall_time_s, "
                "answer = excluded.answer",
                (
                    cell.key,
                    cell.digest,
                    cell.planner,
                    cell.seed,
                    ",".join(cell.without),
                    row.status,
                    row.objective[0] if row.objective else None,
                    row.bound[0] if row.bound else None,
                    row.wall_time_s,
                    pack(row_to_json(row)),
                ),
            )
            self._database.execute(
                "UPDATE sweeps SET wall_time_s = wall_time_s + ? WHERE id = ?", (seconds, sweep)
            )

    def _one(self, query: str, value: str) -> Any:
        return self._database.execute(query, (value,)).fetchone()


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
        # One transaction: a sweep may be writing.
        database.execute("BEGIN")
        sweep = database.execute(
            "SELECT id, settings, environment, wall_time_s FROM sweeps ORDER BY run DESC LIMIT 1"
        ).fetchone()
        if sweep is None:
            raise PartitionError(f"{path} holds no sweep yet; run fxpartition sweep first")
        number = sweep[0]
        cases = database.execute(
            "SELECT cases.key, model, device_set, objective, memory_model, cases.digest, reason, "
            "problem FROM sweep_cases JOIN cases ON cases.key = case_key "
            "LEFT JOIN problems ON problems.digest = cases.digest "
            "WHERE sweep = ? ORDER BY position",
            (number,),
        ).fetchall()
        models = database.execute(
            "SELECT name, record FROM sweep_cases JOIN cases ON cases.key = case_key "
            "JOIN models ON models.key = model_key WHERE sweep = ? "
            "GROUP BY models.key ORDER BY min(position)",
            (number,),
        ).fetchall()
        answers = database.execute(
            "SELECT case_key, answer FROM sweep_cells LEFT JOIN cells ON cells.key = cell_key "
            "WHERE sweep = ? ORDER BY position",
            (number,),
        ).fetchall()
        database.execute("COMMIT")
    return _study(str(path), sweep, cases, models, answers)


def _study(
    path: str,
    sweep: tuple[Any, ...],
    cases: Sequence[tuple[Any, ...]],
    models: Sequence[tuple[Any, ...]],
    answers: Sequence[tuple[Any, ...]],
) -> Study:
    """Build a study from rows of the file, which may be damaged or made up."""
    try:
        settings = parse_json(sweep[1], "settings")
        environment = parse_json(sweep[2], "environment")
        limits = settings["limits"]
        solve_limits = SolveLimits(
            limits["time_limit_s"],
            limits["workers"],
            settings["seeds"][0],
            limits["deterministic"],
        )
        pairs = [(str(name), str(value)) for name, value in environment]
        found: dict[str, Case] = {}
        for key, model, device_set, objective, memory_model, digest, reason, packed in cases:
            name = case_key_from_json(
                (model, device_set, parse_json(objective, "objective"), memory_model)
            )
            problem = None
            if packed is not None:
                problem = problem_from_json(unpack(packed, f"problem {digest}"))
            found[key] = Case(name, problem, reason, digest or "")
        rows = tuple(
            row_from_json(unpack(answer, "an answer"), found[key].key, "an answer")
            for key, answer in answers
            if answer is not None
        )
        records = tuple(
            ModelRecord(name, reason=_first_reason(name, found.values()))
            if packed is None
            else record_from_json(unpack(packed, f"model {name!r}"), f"model {name!r}")
            for name, packed in models
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        words = str(error) if isinstance(error, PartitionError) else repr(error)
        raise PartitionError(f"{path} is damaged: {words}; sweep again to another file") from None
    if len(rows) < len(answers):
        pairs.append(("cells", f"{len(rows)} of {len(answers)} done"))
    return Study(
        models=records,
        cases=tuple(found.values()),
        rows=rows,
        checks=(),
        limits=solve_limits,
        environment=tuple(pairs),
        wall_time_s=float(sweep[3]),
    )


def _first_reason(model: str, cases: Iterable[Case]) -> str:
    return next((case.reason for case in cases if case.key.model == model), "")
