"""Whatever a planner does is a row."""

import dataclasses
import time

import pytest

from experiments.comparison.planner_row import plan_row
from experiments.comparison.records import CaseKey
from experiments.planners import registry, solvers
from experiments.planners.registry import PLANNERS
from experiments.planners.task import PlannerAnswer, PlannerSpec, PlanningTask, judged
from solver import (
    Device,
    Operator,
    PartitionError,
    PartitionPlan,
    PartitionProblem,
    Progress,
    SolveLimits,
    Weight,
    solve,
)
from tests.support.studies import steps

KEY = CaseKey("model", "equal", ("bottleneck",), "weights")
PROBLEM = PartitionProblem(
    tuple(
        Operator(f"op{i}", i, (f"op{i - 1}",) if i else (), weights=(f"w{i}",)) for i in range(8)
    ),
    (Device("x", 6), Device("y", 6)),
    weights={f"w{i}": Weight(1) for i in range(8)},
    memory_model="weights",
)


@pytest.fixture
def named(monkeypatch):
    """A function that names a planner for this test, and asks it."""

    def ask(plan, limits=None, without=(), **flags):
        spec = PlannerSpec("mine", "of a test", "this file", plan, **flags)
        monkeypatch.setattr(registry, "PLANNERS", {**PLANNERS, "mine": spec})
        return plan_row(
            KEY, PlanningTask(PROBLEM, without=without), "mine", limits or SolveLimits(seed=7)
        )

    return ask


def raising(error):
    def plan(task, limits):
        raise error

    return plan


def test_a_solver_answers_as_it_does_alone():
    row = plan_row(KEY, PlanningTask(PROBLEM), "cp-sat", SolveLimits(20, workers=1, seed=3))
    alone = solve(PROBLEM, SolveLimits(20, workers=1, seed=3), solver="cp-sat")
    assert row.status == "optimal"
    assert row.objective == row.bound == alone.objective_values
    assert (row.case, row.planner, row.answered_by, row.seed) == (KEY, "cp-sat", "cp-sat", 3)
    assert row.plan is not None
    assert row.trace[-1].incumbent == row.objective[0]
    assert row.trace[-1].bound == row.bound[0]


def test_steps_are_left_out_where_a_planner_proves(named, monkeypatch):
    asked = []

    def told(problem, limits, *, solver, without):
        asked.append((solver, without))
        return dataclasses.replace(solve(problem, limits, solver="greedy"), log=steps(21))

    monkeypatch.setattr(solvers, "solve", told)
    task = PlanningTask(PROBLEM, without=("borders", "prices"))
    rows = [plan_row(KEY, task, name, SolveLimits()) for name in ("auto", "chain")]
    assert asked == [("auto", ("borders", "prices")), ("chain", ())]
    assert [row.without for row in rows] == [("borders", "prices"), ()]
    assert [row.log for row in rows] == [steps(21)] * 2
    assert rows[0].asked == "auto without borders, prices"
    assert rows[0].label == "auto without borders, prices (greedy)"
    failed = named(raising(ValueError("no")), without=("borders",), proves=True)
    assert (failed.status, failed.without) == ("failed", ("borders",))


def test_every_planner_gives_a_row_of_a_saved_problem():
    for name, spec in PLANNERS.items():
        row = plan_row(KEY, PlanningTask(PROBLEM), name, SolveLimits(20, workers=1))
        if spec.recomputes:
            assert row.status == "failed"
            assert row.reason.startswith("nothing may run again in the backward pass")
        elif spec.needs_model:
            assert row.status == "failed"
            assert row.reason.startswith(f"planner {name!r} reads the model")
        elif spec.host == "with":
            assert row.status == "failed"
            assert row.reason.startswith(f"planner {name!r} plans with a host alone")
        else:
            assert row.feasible, (name, row.reason)
            assert row.objective >= (15,)
            assert row.answered_by in (name, "ideal-dp", "cp-sat")


def test_progress_is_recorded_and_passed_on(named):
    told = []

    def plan(task, limits):
        for value in (30, 20, 20):
            limits.on_progress(Progress("mine", "bottleneck", value, None, 0.0))
            time.sleep(0.001)
        assignment = {op.name: "x" if i < 5 else "y" for i, op in enumerate(PROBLEM.operators)}
        return judged("mine", task.problem, PartitionPlan(assignment, ("x", "y")), "words")

    row = named(plan, SolveLimits(on_progress=told.append))
    assert [progress.incumbent for progress in told] == [30, 20, 20]
    assert [point.incumbent for point in row.trace] == [30, 20, 18]
    times_s = [point.elapsed_s for point in row.trace]
    assert times_s == sorted(times_s)
    assert row.status == "feasible"
    assert row.words == "words"


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (PartitionError("what is wrong"), "failed", "what is wrong"),
        (ValueError("first\nsecond"), "failed", "ValueError: first"),
        (AssertionError(), "failed", "AssertionError"),
        (SystemExit(3), "failed", "SystemExit: 3"),
        (MemoryError("no 3 GB left"), "out of memory", "MemoryError: no 3 GB left"),
        (TimeoutError("no answer within 3 s"), "timed out", "no answer within 3 s"),
    ],
)
def test_what_a_planner_raises_is_its_reason(named, error, status, reason):
    row = named(raising(error))
    assert (row.status, row.reason) == (status, reason)
    assert (row.planner, row.seed, row.feasible, row.plan) == ("mine", 7, False, None)
    assert row.wall_time_s > 0
    assert row.outcome.endswith(f": {reason}")


def test_a_library_that_is_missing(named):
    row = named(raising(ModuleNotFoundError("No module named 'accelerate'")), extra="hf")
    assert row.reason == (
        "needs the extra 'hf' (No module named 'accelerate'); "
        'install it: pip install "fxpartition[hf]"'
    )
    assert named(raising(ImportError("torn"))).reason == "ImportError: torn"


def test_an_interrupt_is_no_row(named):
    with pytest.raises(KeyboardInterrupt):
        named(raising(KeyboardInterrupt()))


def test_answers_without_a_plan(named):
    spills = named(lambda *_: PlannerAnswer(words="map", spilled_bytes=5, reason="to disk"))
    assert (spills.status, spills.spilled_bytes, spills.words) == ("spills", 5, "map")
    assert spills.reason == "to disk"
    none = named(lambda *_: PlannerAnswer(reason="found none"))
    assert (none.status, none.reason) == ("unknown", "found none")
