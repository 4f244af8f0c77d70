import contextlib
import sqlite3
from dataclasses import asdict

import pytest

from experiments.comparison.records import CaseKey, ModelRecord, PlannerRow, SearchPoint
from experiments.sweep.packing import pack
from experiments.sweep.store import PreparedCase, load_study, open_store
from solver import Device, Operator, PartitionError, PartitionPlan, PartitionProblem, SolveLimits
from solver.evaluation.result import StepRecord
from solver.io.json_files import problem_digest, problem_to_json
from tests.support.refusals import refused

NASTY = ("<script>alert(1)</script>", "../../x", "a'; DROP TABLE cells; --", 'b"\n\x00\u202e')
CASE = CaseKey(NASTY[0], NASTY[2], ("bottleneck", "transfer"), "inference")
OTHER = CaseKey(NASTY[1], NASTY[3], ("latency",), "training")
PROBLEM = PartitionProblem(tuple(Operator(name, 3) for name in NASTY), (Device(NASTY[1]),))
DIGEST = problem_digest(PROBLEM)
ENTRIES = [("c1", "k1"), ("c2", None)]
PACKED = pack(problem_to_json(PROBLEM))
SETTINGS = {"seeds": [5, 6], "limits": {"time_limit_s": 2.5, "workers": 1, "deterministic": True}}
ROW = PlannerRow(
    case=CASE,
    planner=NASTY[2],
    status="optimal",
    seed=5,
    without=("borders",),
    objective=(12, 0),
    bound=(12, 0),
    feasible=True,
    wall_time_s=0.5,
    words=NASTY[3],
    trace=(SearchPoint(0.1, "bottleneck", 12, 3),),
    log=(StepRecord("greedy", 1, 0.0, 0.5, "bottleneck", None, 12, 0, 12),),
    plan=PartitionPlan(dict.fromkeys(NASTY, NASTY[1]), (NASTY[1],)),
)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "results.sqlite"
    with open_store(path) as store:
        store.add_cases(
            [PreparedCase("c1", CASE, DIGEST)], [PACKED], asdict(ModelRecord(NASTY[0], operators=4))
        )
        store.add_cases([PreparedCase("c2", OTHER, None, NASTY[3])], [None], None)
        store.begin("s", SETTINGS, [("python", "3.12")], ENTRIES)
        store.add_cell("s", "k1", ROW, 1.5)
    return path


def test_names_go_in_and_come_out_unchanged(path):
    study = load_study(path)
    assert [case.key for case in study.cases] == [CASE, OTHER]
    assert study.cases[0].problem == PROBLEM
    assert study.cases[0].digest == DIGEST
    assert (study.cases[1].problem, study.cases[1].reason) == (None, NASTY[3])
    assert study.rows == (ROW,)
    assert study.rows[0].plan == ROW.plan
    assert study.rows[0].trace == ROW.trace
    assert study.rows[0].log == ROW.log
    assert study.models == (
        ModelRecord(NASTY[0], operators=4),
        ModelRecord(NASTY[1], reason=NASTY[3]),
    )
    assert study.limits == SolveLimits(2.5, 1, 5, True)
    assert study.environment == (("python", "3.12"),)
    assert study.wall_time_s == 1.5
    assert study.checks == ()


def test_a_cell_that_is_done_again_takes_the_place_of_the_first(path):
    failed = PlannerRow(CASE, NASTY[2], "failed", seed=5, reason="again")
    with open_store(path) as store:
        store.begin("s", SETTINGS, [("python", "3.12")], ENTRIES[:1])
        store.add_cell("s", "k1", failed, 0.5)
    study = load_study(path)
    assert study.rows == (failed,)
    assert study.wall_time_s == 2.0


def test_a_model_keeps_its_record_when_more_cases_of_it_are_added(path):
    with open_store(path) as store:
        store.add_cases([PreparedCase("c3", CASE, DIGEST)], [PACKED], None)
        store.begin("s", SETTINGS, [], [("c3", None), ("c1", None)])
    assert load_study(path).models[0] == ModelRecord(NASTY[0], operators=4)


def test_a_case_that_is_prepared_again_gets_its_problem(path):
    with open_store(path) as store:
        store.add_cases([PreparedCase("c2", OTHER, DIGEST)], [PACKED], None)
        assert store.case("c2") == PreparedCase("c2", OTHER, DIGEST)
    assert load_study(path).cases[1].problem == PROBLEM


def test_the_study_is_that_of_the_last_sweep_and_cells_are_shared(path):
    second = {**SETTINGS, "seeds": [6]}
    with open_store(path) as store:
        cells = [("c1", "k1"), ("c1", "k2")]
        store.begin("s2", second, [("python", "3.12")], cells)
    study = load_study(path)
    assert [case.key for case in study.cases] == [CASE]
    assert study.rows == (ROW,)
    assert study.limits.seed == 6
    assert study.environment[-1] == ("cells", "1 of 2 done")
    with open_store(path) as store:
        store.begin("s", SETTINGS, [("python", "3.12")], ENTRIES)
    assert load_study(path).limits.seed == 5


def test_cells_and_problems_are_found_by_sql(path):
    with contextlib.closing(sqlite3.connect(path)) as database:
        rows = database.execute(
            "SELECT model, device_set, planner, seed, left_out, status, "
            "objective_value FROM results"
        ).fetchall()
    assert rows == [(NASTY[0], NASTY[2], NASTY[2], 5, "borders", "optimal", 12)]


def test_a_study_can_be_read_while_a_sweep_writes(path):
    with open_store(path) as store:
        store.begin("s", SETTINGS, [], [("c1", "k1"), ("c1", "k2")])
        assert len(load_study(path).rows) == 1
        store.add_cell("s", "k2", ROW, 1.0)
        assert len(load_study(path).rows) == 2


def test_a_file_without_a_sweep_is_one_line(tmp_path):
    with open_store(tmp_path / "a.sqlite"):
        pass
    with pytest.raises(PartitionError, match=r"a\.sqlite holds no sweep yet"):
        load_study(tmp_path / "a.sqlite")
    with pytest.raises(PartitionError, match="there is no file"):
        load_study(tmp_path / "b.sqlite")


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE cases SET problem = '?' WHERE key = 'c1'", "cannot be unpacked"),
        ("UPDATE cells SET answer = substr(answer, 1, 9)", "an answer cannot be unpacked"),
        ("UPDATE cases SET objective = '{'", "is damaged"),
        ("UPDATE sweeps SET settings = '{}'", "is damaged"),
        ("DELETE FROM cases", "is damaged"),
        ("DROP TABLE cells", "no such table"),
    ],
)
def test_a_file_that_was_tampered_with_is_one_line(path, statement, says):
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)
    with refused(says, starts=str(path)):
        load_study(path)


def test_two_names_of_one_file_have_one_lock(path):
    link = path.with_name("link.sqlite")
    link.symlink_to(path)
    with (
        open_store(path),
        pytest.raises(PartitionError, match="another run is writing to"),
        open_store(link),
    ):
        pass
