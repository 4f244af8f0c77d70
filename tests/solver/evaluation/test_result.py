import pytest

from solver.evaluation.evaluate import evaluate
from solver.evaluation.result import SolveResult, SolveStatus
from solver.model.devices import Device
from solver.model.limits import SolveLimits
from solver.model.operators import Operator
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import Weight
from solver.search import rounds
from solver.search.schedule import SCHEDULES
from solver.search.solve import SOLVERS, solve
from tests.support.refusals import refused

PROBLEM = PartitionProblem(
    operators=(Operator("a", 3, weights=("w",)), Operator("b", 5, ("a",), weights=("v",))),
    devices=(Device("p", memory_bytes=10), Device("q", memory_bytes=10)),
    weights={"w": Weight(6), "v": Weight(6)},
    objective=("bottleneck", "devices"),
)
GOOD = PartitionPlan({"a": "p", "b": "q"}, ("p", "q"))
STILL = PROBLEM.replace(objective="transfer")
BAD = PartitionPlan({"a": "p", "b": "p"}, ("p",))


def result(status, plan=None, bounds=None, **changes):
    fields = {
        "solver": "test",
        "status": status,
        "plan": plan,
        "evaluation": None if plan is None else evaluate(PROBLEM, plan),
        "objective_bounds": bounds,
        "wall_time_s": 0.5,
    }
    return SolveResult(**{**fields, **changes})


# -- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"time_limit_s": 0}, ("time_limit_s is 0", "positive")),
        ({"time_limit_s": -1.5}, ("time_limit_s is -1.5", "positive")),
        ({"time_limit_s": float("nan")}, ("time_limit_s is nan", "positive")),
        ({"workers": 0}, ("workers is 0", "at least 1")),
        ({"workers": 1.0}, ("workers is 1.0", "whole number")),
        ({"workers": True}, ("workers is True", "whole number")),
        ({"workers": 100_000}, ("workers is 100000", "at most")),
        ({"time_limit_s": "5"}, ("time_limit_s is '5'", "positive")),
        ({"time_limit_s": True}, ("time_limit_s is True", "positive")),
        ({"time_limit_s": float("inf")}, ("time_limit_s is inf", "None for no limit")),
        ({"seed": "x"}, ("seed is 'x'", "whole number")),
        ({"seed": None}, ("seed is None", "whole number")),
        ({"seed": 2**40}, ("seed is 1099511627776", "at most")),
        ({"on_progress": 3}, ("on_progress is 3", "function")),
    ],
)
def test_wrong_limits_are_named_with_the_remedy(fields, parts):
    with refused(*parts):
        SolveLimits(**fields)


def test_workers_default_to_the_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert SolveLimits().worker_count == 6
    assert SolveLimits(workers=2).worker_count == 2
    monkeypatch.setattr("os.cpu_count", lambda: None)
    assert SolveLimits().worker_count == 3


def test_a_search_may_be_without_limit():
    assert SolveLimits(time_limit_s=None).time_limit_s is None


# -- results ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "objective", "bound", "gap"),
    [
        (result(SolveStatus.OPTIMAL, GOOD, (5, 2)), 5, 5, 0.0),
        (result(SolveStatus.FEASIBLE, GOOD, (4,)), 5, 4, 0.2),
        (result(SolveStatus.FEASIBLE, GOOD), 5, None, None),
        (result(SolveStatus.FEASIBLE, GOOD, ()), 5, None, None),
        (result(SolveStatus.FEASIBLE, GOOD, (0,), evaluation=evaluate(STILL, GOOD)), 0, 0, 0.0),
        (result(SolveStatus.UNKNOWN, BAD, (3,), reason="too large"), None, 3, None),
        (result(SolveStatus.INFEASIBLE), None, None, None),
        (result(SolveStatus.UNKNOWN), None, None, None),
    ],
)
def test_the_gap_is_relative_to_the_objective(found, objective, bound, gap):
    """Tests that an infeasible plan has no objective."""
    assert (found.objective, found.objective_bound) == (objective, bound)
    assert found.gap == (None if gap is None else pytest.approx(gap))
    assert (found.objective_values is None) == (objective is None)


@pytest.mark.parametrize(
    "build",
    [
        lambda: result(SolveStatus.FEASIBLE, BAD),
        lambda: result(SolveStatus.OPTIMAL, BAD, (5, 2)),
        lambda: result(SolveStatus.FEASIBLE),
        lambda: result(SolveStatus.OPTIMAL),
        lambda: result(SolveStatus.OPTIMAL, GOOD),
        lambda: result(SolveStatus.OPTIMAL, GOOD, (5,)),
        lambda: result(SolveStatus.OPTIMAL, GOOD, (5, 1)),
        lambda: result(SolveStatus.FEASIBLE, GOOD, (6,)),
        lambda: result(SolveStatus.INFEASIBLE, BAD),
        lambda: result(SolveStatus.INFEASIBLE, GOOD),
        lambda: result(SolveStatus.UNKNOWN, GOOD),
        lambda: result(SolveStatus.FEASIBLE, GOOD, evaluation=None),
        lambda: result(SolveStatus.UNKNOWN, None, evaluation=evaluate(PROBLEM, BAD)),
        lambda: result(SolveStatus.UNKNOWN, wall_time_s=-0.1),
    ],
)
def test_a_result_that_contradicts_itself_cannot_be_made(build):
    with pytest.raises(AssertionError):
        build()


def test_what_a_heuristic_answers_is_what_the_evaluator_says():
    good = solve(PROBLEM, solver="greedy")
    assert (good.solver, good.status) == ("greedy", SolveStatus.FEASIBLE)
    assert good.evaluation == evaluate(PROBLEM, GOOD)
    assert good.objective_bounds is None
    assert good.reason == ""
    one = PROBLEM.replace(devices=PROBLEM.devices[:1])
    bad = solve(one, solver="greedy")
    assert bad.status is SolveStatus.UNKNOWN
    assert bad.plan == BAD
    assert bad.reason == "device 'p' needs 12 bytes but has 10: 2 too few"


# -- names of solvers ---------------------------------------------------------------------------


def test_an_unknown_solver_is_named_beside_the_known_ones():
    with refused("solver 'gurobi' is unknown", *SOLVERS):
        solve(PROBLEM, solver="gurobi")


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_answers_and_names_the_method(name):
    found = solve(PROBLEM, SolveLimits(workers=1), solver=name)
    assert found.solver == ("ideal-dp" if name == "auto" else name)
    assert found.objective_values == (5, 2)
    assert found.wall_time_s >= 0


def test_auto_is_the_default_and_limits_are_passed_on(monkeypatch):
    calls = []
    answer = result(SolveStatus.FEASIBLE, GOOD)

    def spy(problem, limits, clock, solver, without):
        calls.append((problem, limits, solver, without))
        assert clock.left_s <= limits.time_limit_s
        return answer

    monkeypatch.setattr(rounds, "search", spy)
    limits = SolveLimits(seed=7)
    assert solve(PROBLEM, limits) is answer
    assert solve(PROBLEM, without=("greedy",)) is answer
    assert calls == [
        (PROBLEM, limits, "auto", ()),
        (PROBLEM, SolveLimits(), "auto", ("greedy",)),
    ]


def test_schedules_cannot_be_written():
    assert tuple(sorted(SCHEDULES)) == tuple(sorted(SOLVERS))
    with pytest.raises(TypeError):
        SCHEDULES["mine"] = ()
