"""The solver that picks a solver, and searches that repeat."""

from dataclasses import replace

import pytest

import solver.dp.ideal_program
from experiments.problems.generators import GeneratorSettings, generate_problem
from experiments.workloads.reader import load_instance
from solver import (
    Device,
    Interconnect,
    Link,
    SolveLimits,
    solve,
)
from solver.dp.ideal_program import IdealAnswer
from solver.evaluation.result import SolveStatus
from solver.presolve.dominance import simplify
from solver.presolve.instance import condense
from solver.search import branch_models, ideals, schedule
from tests.support.graphs import chain
from tests.support.search_states import bare_state

LIMITS = SolveLimits(workers=1)


def generated(kind, operators, width, *, unequal=False, seed=1):
    settings = GeneratorSettings(operators, width, seed=seed)
    return generate_problem(kind, settings, 4, slack_percent=15.0, unequal=unequal)


# -- which method answers --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "objective_ns"),
    [("layer.bert24_inference", 17_789_906), ("layer.bert24_training", 41_745_812)],
)
def test_few_ideals_go_to_the_program_over_ideals(name, objective_ns):
    result = solve(load_instance(f"published:{name}"), LIMITS)
    assert (result.solver, result.status) == ("ideal-dp", SolveStatus.OPTIMAL)
    assert result.objective == result.objective_bound == objective_ns


def test_latency_goes_to_constraint_programming():
    problem = generated("layered", 40, 2).replace(objective="latency")
    assert not solver.dp.ideal_program.can_win(problem)
    result = solve(problem, LIMITS)
    assert (result.solver, result.status) == ("cp-sat", SolveStatus.OPTIMAL)


def test_the_latency_of_a_long_chain_goes_to_the_program_over_ideals():
    """Tests what CP-SAT leaves open for minutes: two kinds of devices, most of them needed."""
    devices = [Device(f"fast{i}", 80, "fast") for i in range(8)]
    devices += [Device(f"slow{i}", 60, "slow") for i in range(8)]
    problem = chain(
        128,
        value_bytes=0,
        weight_bytes=7,
        of={f"op{i}": {"latency_ns": {"fast": 20, "slow": 18}} for i in range(128)},
        devices=devices,
        interconnect=Interconnect(Link(None, 3)),
        memory_model="weights",
        objective=("latency", "devices"),
    )
    result = solve(problem, LIMITS)
    assert (result.solver, result.status) == ("ideal-dp", SolveStatus.OPTIMAL)
    # Eight slow devices hold 64 units, six fast ones the rest: 13 borders, of two transfers each.
    assert result.objective_values == (64 * 18 + 64 * 20 + 13 * 6, 14)


def test_many_ideals_go_to_constraint_programming():
    problem = generated("layered", 60, 20)
    assert solver.dp.ideal_program.why_declined(problem) is None
    assert not solver.dp.ideal_program.can_win(problem)
    assert solve(problem, replace(LIMITS, time_limit_s=1.0)).solver == "cp-sat"


def test_many_operators_go_to_the_coarse_search(monkeypatch):
    problem = generated("layered", 40, 2)
    exact = solve(problem, LIMITS)
    assert (exact.solver, exact.status) == ("ideal-dp", SolveStatus.OPTIMAL)
    places = len(simplify(condense(problem)).units) * len(problem.devices)
    monkeypatch.setattr(schedule, "MOST_PLACES", places - 1)
    result = solve(problem, replace(LIMITS, time_limit_s=2.0, deterministic=True))
    assert result.solver == "coarse"
    assert result.objective_bound <= exact.objective <= result.objective
    monkeypatch.setattr(schedule, "MOST_PLACES", places)
    assert solve(problem, LIMITS).solver == "ideal-dp"


def test_fewer_operators_go_there_with_little_time():
    settings = GeneratorSettings(1500, 20, seed=1)
    problem = generate_problem("layered", settings, 32)
    assert 30_000 < len(problem.operators) * 32 < 200_000
    result = solve(problem, replace(LIMITS, time_limit_s=1.0))
    assert result.solver == "coarse"
    for limit_s in (None, 60.0, 1e306):
        state = bare_state(problem, replace(LIMITS, time_limit_s=limit_s))
        assert schedule.can_search_exactly(state)


def test_no_answer_is_worse_than_the_best_cut_however_short_the_time():
    problem = generated("layered", 1000, 20).replace(objective="bottleneck")
    limits = replace(LIMITS, time_limit_s=0.5)
    result = solve(problem, limits, solver="cp-sat")
    assert result.objective <= solve(problem, limits, solver="chain").objective


def test_what_cannot_fit_by_its_bytes_is_refused_with_the_reason():
    problem = generated("layered", 40, 2)
    small = tuple(replace(device, memory_bytes=1) for device in problem.devices)
    result = solve(problem.replace(devices=small), LIMITS)
    assert (result.solver, result.status) == ("auto", SolveStatus.INFEASIBLE)
    assert "alone needs at least" in result.reason
    assert "but the largest device for it has 1 B" in result.reason


def test_what_the_program_over_ideals_leaves_open_is_searched_on(monkeypatch):
    problem = generated("layered", 40, 2)
    known, calls = solve(problem, LIMITS), []

    def undecided(asked, clock, improve):
        calls.append((asked, clock.left_s))
        return IdealAnswer(known.plan, bound=1)

    monkeypatch.setattr(ideals, "solve_ideals", undecided)
    result = solve(problem, LIMITS)
    assert (result.solver, result.status) == ("cp-sat", SolveStatus.OPTIMAL)
    assert result.objective == known.objective
    ((asked, left_s),) = calls
    assert asked is problem
    # It gets a part of the time only, so that a search is left for what it cannot do.
    assert left_s < LIMITS.time_limit_s


def test_the_limits_of_both_methods_together_are_those_asked_for(monkeypatch):
    asked = []

    def undecided(problem, clock, improve):
        asked.append((improve.keywords["seed"], clock))
        return IdealAnswer(reason="too many")

    def model(question, limits, clock, report):
        asked.append((limits, clock))
        return run_model(question, limits, clock, report)

    run_model = branch_models.run_model
    monkeypatch.setattr(ideals, "solve_ideals", undecided)
    monkeypatch.setattr(branch_models, "run_model", model)
    problem = generated("layered", 40, 2)
    limits = SolveLimits(time_limit_s=60.0, workers=2, seed=5)
    solve(problem, limits)
    (seed, own), *models = asked
    assert seed == 5
    assert own.left_s <= 60.0
    assert models
    assert all(each is limits and clock.left_s <= 60.0 for each, clock in models)
    asked.clear()
    # Deterministic limits count work, and what a clock says has no part in them.
    solve(problem, SolveLimits(time_limit_s=3.0, deterministic=True))
    assert len(asked) > 1
    assert all(clock.is_deterministic and clock.spent_s <= 3.0 for _, clock in asked)


# -- searches that repeat --------------------------------------------------------------------

REPEATED = [
    ("proven", generated("layered", 40, 5)),
    ("open", generated("layered", 50, 8, unequal=True)),
    ("open", generated("series-parallel", 50, 8, unequal=True)),
]


@pytest.mark.parametrize(("outcome", "problem"), REPEATED, ids=("layered", "unequal", "series"))
@pytest.mark.parametrize(
    ("open_s", "all_workers"),
    [(0.15, (1, 3)), pytest.param(0.3, (1, 1, 2, 4), marks=pytest.mark.nightly)],
)
def test_a_deterministic_search_gives_one_plan_on_any_number_of_workers(
    outcome, problem, open_s, all_workers
):
    limit_s = 0.3 if outcome == "proven" else open_s
    found = [
        solve(problem, SolveLimits(limit_s, workers, deterministic=True), solver="cp-sat")
        for workers in all_workers
    ]
    # Where the optimum is not proven, where a search stops decides which plan it gives.
    wanted = SolveStatus.OPTIMAL if outcome == "proven" else SolveStatus.FEASIBLE
    assert [result.status for result in found] == [wanted] * len(found)
    first = found[0]
    for result in found[1:]:
        assert result.plan == first.plan
        assert result.objective_bounds == first.objective_bounds


def test_the_choice_of_a_method_is_repeated_too():
    limits = SolveLimits(0.5, deterministic=True)
    for problem, name in (
        (generated("layered", 40, 2), "ideal-dp"),
        (generated("layered", 60, 20), "cp-sat"),
    ):
        found = [solve(problem, replace(limits, workers=workers)) for workers in (1, 2)]
        assert [result.solver for result in found] == [name, name]
        assert found[0].plan == found[1].plan
