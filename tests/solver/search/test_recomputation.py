"""What runs again, decided together with the partition, against brute force over all sets."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest

from solver import (
    SOLVERS,
    Device,
    Operator,
    PartitionPlan,
    PartitionProblem,
    SolveLimits,
    SolveStatus,
    evaluate,
    solve,
)
from solver.diagnosis.answer import MoreMemory
from solver.diagnosis.diagnose import diagnose
from solver.model.training import Backward
from solver.search.recomputation import may_run_everything_again
from tests.support.answers import check_proven
from tests.support.least_memory import least_memory, with_memory
from tests.support.oracle import brute_force, cost
from tests.support.problem_counts import nightly, samples
from tests.support.random_problems import recomputed_problem, to_instance
from tests.support.random_writes import written_problem
from tests.support.recompute_cases import SMALL, small_problem
from tests.support.search_states import state_of

# Nothing is asked of the clock: what is left open would be no answer.
LIMITS = SolveLimits(workers=1, time_limit_s=None)
BLOCK, DEEP = 40, pytest.mark.deep
QUICK = 25
"""Problems of the block of two devices that the default run looks at."""
SMALL_SIZE = {"min_operators": 3, "max_operators": 4}
# Brute force has to pay for chunks with fewer operators.
LEAST_SIZE = {"min_operators": 3, "max_operators": 3}
SETTINGS = {
    "any": {"min_operators": 3, "max_operators": 5},
    "relayed": {"relayed": True, **SMALL_SIZE},
    "steps": {"steps": True, **SMALL_SIZE},
    "chunks": {"draw_chunks": True, **LEAST_SIZE},
    "relayed chunks": {"relayed": True, "draw_chunks": True, **LEAST_SIZE},
}
# Two devices at most, of which one may be the host: a solver takes a third of the time.
TWO_DEVICES = {"most_devices": 2, "drawn_plans": 3}
LARGER = {"min_operators": 6, "max_operators": 7, "objective": ("bottleneck",)}
# With --deep the tests look at block 0 of each kind, and at these of two devices: 925 problems.
BLOCKS_OF_TWO = [*samples(range(1, 5), {1}), *nightly(range(5, 10))]
FIRST = [pytest.param(kind, 0, marks=() if kind == "any" else DEEP) for kind in SETTINGS]
NIGHTLY = itertools.product([*SETTINGS, "larger"], range(1_000, 1_100))


def check_exact(problem, label, solver="cp-sat"):
    """Tests that a solver answers as brute force does; returns what became of running again."""
    best = brute_force(to_instance(problem))
    without = brute_force(to_instance(problem.replace(recompute="none")))
    result = solve(problem, LIMITS, solver=solver)
    if not check_proven(result, best, label):
        assert without is None or problem.must_recompute
        return "infeasible"
    check_plan(problem, result.plan, label)
    if without is None:
        assert result.plan.recomputed, label
        return "only with"
    return "better with" if best[0] < without[0] else "no better"


def check_plan(problem, plan, label):
    """Tests that the independent evaluation of a plan is that of the solver."""
    expected = cost(
        to_instance(problem),
        plan.assignment,
        plan.device_order,
        plan.chunks,
        recomputed=plan.recomputed,
        with_step=True,
    )
    found = evaluate(problem, plan)
    assert not expected["violations"], label
    assert [usage.memory_bytes for usage in found.usage] == expected["memory"], label
    assert {name: found.value(name) for name in problem.objective} == {
        name: expected[name] for name in problem.objective
    }, label


def check_block(settings, block):
    seen = Counter()
    count = QUICK if block == 1 else BLOCK
    for seed in range(block * BLOCK, block * BLOCK + count):
        problem = recomputed_problem(seed, is_restricted=seed // 2 % 2 > 0, **settings)
        seen[check_exact(problem, f"seed {seed}, {settings}", ("cp-sat", "auto")[seed % 2])] += 1
    return seen


@pytest.mark.parametrize(("kind", "block"), FIRST + nightly(NIGHTLY))
def test_optima_are_those_of_brute_force_over_all_sets(kind, block):
    seen = check_block(LARGER if kind == "larger" else SETTINGS[kind], block)
    if block:
        return
    assert seen["infeasible"] >= 4, seen
    assert seen["only with"] >= 3, seen
    # Where plans fit without, a step is seldom shorter for what runs again.
    assert seen["better with"] >= (kind != "steps"), seen


@pytest.mark.parametrize("block", BLOCKS_OF_TWO)
@pytest.mark.parametrize("kind", SETTINGS)
def test_optima_on_two_devices_are_those_of_brute_force(kind, block):
    settings = SETTINGS[kind]
    if settings.get("draw_chunks"):
        settings = {**settings, "max_operators": 4}
    else:
        settings = {**settings, "min_operators": 4, "max_operators": 5}
    seen = check_block({**settings, **TWO_DEVICES}, block)
    assert seen["infeasible"] and seen["only with"], seen


@pytest.mark.parametrize("case", SMALL, ids=lambda case: f"seed {case['seed']}")
def test_published_optima_are_proven(case):
    """Tests optima over contiguous cuts on all devices; other plans can only be better."""
    values = []
    for answer in case["answers"]:
        problem = small_problem(case, answer["memory"])
        result = solve(problem, LIMITS)
        assert result.status is SolveStatus.OPTIMAL
        assert result.objective_bounds == result.objective_values
        assert result.objective <= answer["optimum"]
        check_plan(problem, result.plan, answer)
        values.append(result.objective)
        fixed = solve(problem.replace(recompute="none"), LIMITS)
        if answer["without"] is not None:
            assert fixed.objective <= answer["without"]
        assert fixed.plan is None or result.objective <= fixed.objective
    assert values == sorted(values, reverse=True)


@pytest.mark.nightly
@pytest.mark.parametrize("case", [case for case in SMALL if case["devices"] == 2])
def test_published_problems_have_no_better_plan_of_any_shape(case):
    answer = case["answers"][0]
    problem = small_problem(case, answer["memory"])
    assert solve(problem, LIMITS).objective_values == brute_force(to_instance(problem))[0]


# -- just enough memory --------------------------------------------------------------------


def decided_by_sets(count, *, first=0):
    """Random problems that need less memory if something runs again, and the two capacities."""
    settings = {"min_operators": 3, "max_operators": 5, "objective": ("bottleneck",)}
    found = []
    for seed in itertools.count(first):
        problem = recomputed_problem(seed, **settings)
        without = least_memory(problem.replace(recompute="none"))
        least = without and least_memory(problem)
        if least and least < without:
            found.append((problem, least, without))
        if len(found) == count:
            return found
    raise AssertionError("unreachable")


def check_capacities(count, first):
    seen = Counter()
    for number, (problem, least, without) in enumerate(decided_by_sets(count, first=first)):
        assert check_exact(with_memory(problem, least), (first, number)) == "only with"
        too_little = solve(with_memory(problem, least - 1), LIMITS)
        assert too_little.status is SolveStatus.INFEASIBLE
        # More memory never costs time; nor does it to be allowed what need not be.
        values = [
            solve(with_memory(problem, memory_bytes), LIMITS).objective
            for memory_bytes in (least, (least + without) // 2, without)
        ]
        assert values == sorted(values, reverse=True)
        seen[check_exact(with_memory(problem, without), (first, number))] += 1
        fixed = solve(with_memory(problem, without).replace(recompute="none"), LIMITS)
        assert values[-1] <= fixed.objective
    return seen


@pytest.mark.parametrize(
    ("count", "first"), [(4, 0), *nightly((12, 1_000 + 500 * block) for block in range(40))]
)
def test_the_least_memory_is_enough_and_one_byte_less_is_not(count, first):
    assert check_capacities(count, first)


# -- writes in place, and views on other stages ------------------------------------------------


def check_writes(seeds):
    """Tests solvers where memory is just enough, a byte too little, and somewhat more."""
    seen = Counter()
    for seed in seeds:
        problem = written_problem(seed)
        least = least_memory(problem)
        for number, memory_bytes in enumerate((least, least - 1, least + 1 + seed % 9)):
            found = "infeasible"
            if memory_bytes:
                solver = ("cp-sat", "auto")[(seed + number) % 2]
                limited = with_memory(problem, memory_bytes)
                found = check_exact(limited, f"seed {seed}, {memory_bytes} bytes", solver)
            assert (found == "infeasible") == (memory_bytes < least)
            seen[found] += 1
    return seen


BORDERS = [(0, 20), pytest.param(0, 2 * BLOCK, marks=DEEP)]
BORDERS += nightly((block * BLOCK, (block + 1) * BLOCK) for block in range(2, 125))


@pytest.mark.parametrize(("first", "end"), BORDERS)
def test_borders_of_feasibility_are_found_where_operators_write_in_place(first, end):
    seen = check_writes(range(first, end))
    assert first or seen["only with"] > end // 4, seen


# -- what else solvers promise ----------------------------------------------------------------


def test_deterministic_searches_answer_alike():
    limits = SolveLimits(workers=1, time_limit_s=20, deterministic=True)
    for seed in range(3):
        problem = recomputed_problem(seed, **SETTINGS["any"])
        first, second = (solve(problem, limits) for _ in range(2))
        assert first.status in (SolveStatus.OPTIMAL, SolveStatus.INFEASIBLE)
        assert (first.status, first.plan, first.log) == (second.status, second.plan, second.log)


# -- why nothing fits -------------------------------------------------------------------------


def test_what_is_too_little_is_told_to_the_byte():
    told = 0
    for problem, least, _ in decided_by_sets(4):
        diagnosis = diagnose(with_memory(problem, least - 1), SolveLimits(workers=1))
        assert diagnosis.is_proven
        for shortfall in diagnosis.shortfalls:
            assert shortfall.missing_bytes == 1
        for remedy in diagnosis.remedies:
            assert evaluate(remedy.problem, remedy.plan).feasible
            if not isinstance(remedy.change, MoreMemory):
                continue
            told += 1
            assert remedy.change.is_least
            if len(remedy.change.devices) == len(problem.devices):
                assert remedy.change.extra_bytes == 1
    assert told >= 4


def test_states_of_generators_count_among_the_bytes_that_may_be_missing():
    """Tests sizes that are multiples of eight but for what is noted to run again."""
    again = Backward(kept_bytes=8, saves=("a",), recomputable=True, rng_bytes=5)
    problem = PartitionProblem(
        [
            Operator("a", 1, storage_bytes=8, value_bytes=8, backward=again),
            Operator("b", 1, ("a",), storage_bytes=64, value_bytes=64, is_output=True),
        ],
        [Device("x", 60)],
        memory_model="training",
        schedule="gpipe",
        microbatches=4,
        recompute="auto",
    )
    least, without = least_memory(problem), least_memory(problem.replace(recompute="none"))
    assert without - 8 < least < without
    changes = [remedy.change for remedy in diagnose(problem, SolveLimits(workers=1)).remedies]
    assert MoreMemory(("x",), least - 60, least - 61) in changes


# -- what must run again -----------------------------------------------------------------------


@pytest.mark.parametrize(("case", "answer", "optimum"), [(1, 1, 135), (2, 0, 79)])
def test_regions_run_again_as_a_whole_where_that_is_asked_for(case, answer, optimum):
    """Tests that it costs more: the optima of operators are 129 and 42."""
    case = SMALL[case]
    problem = small_problem(case, case["answers"][answer]["memory"]).replace(recompute="layers")
    result = solve(problem, LIMITS)
    assert result.status is SolveStatus.OPTIMAL
    check_plan(problem, result.plan, case["seed"])
    assert result.objective == optimum > case["answers"][answer]["optimum"]


def test_what_must_run_again_does_though_all_would_fit():
    problem = small_problem(SMALL[0], None)
    operators = [
        replace(op, backward=replace(op.backward, must_recompute=True)) for op in problem.operators
    ]
    for rule in ("auto", "layers"):
        forced = problem.replace(operators=operators, recompute=rule)
        for solver in SOLVERS:
            result = solve(forced, LIMITS, solver=solver)
            if result.plan is not None:
                assert result.plan.recomputed
                check_plan(forced, result.plan, (rule, solver))
        assert result.objective > solve(problem, LIMITS).objective
    assert evaluate(problem.replace(recompute="none", operators=operators), result.plan).violations


def test_everything_runs_again_only_where_that_may_win_on_average():
    problem = small_problem(SMALL[1], None)
    best = solve(problem, LIMITS).plan
    assert not may_run_everything_again(state_of(problem, best))
    device = problem.devices[0].name
    on_one = PartitionPlan({op.name: device for op in problem.operators}, (device,))
    assert may_run_everything_again(state_of(problem, on_one))
    assert may_run_everything_again(state_of(problem))


# -- when nothing has to run again ------------------------------------------------------------


def proving_steps(problem):
    """Returns the steps of a search that proves its plan, in which nothing runs again."""
    result = solve(problem, LIMITS)
    assert result.status is SolveStatus.OPTIMAL and not result.plan.recomputed
    return [record.step for record in result.log]


@pytest.mark.parametrize("objective", ["bottleneck", "step"])
def test_room_for_the_best_plan_of_all_proves_it_without_a_model_of_the_choice(objective):
    problem = small_problem(SMALL[1], None).replace(objective=objective)
    fixed = solve(problem.replace(recompute="none"), LIMITS)
    most_bytes = max(usage.memory_bytes for usage in fixed.evaluation.usage)
    # Just as much is enough: no other search is asked.
    steps = proving_steps(with_memory(problem, most_bytes))
    assert steps[-1] == "without limits"
    assert ("contiguous" in steps) == (objective == "step")
    best = solve(with_memory(problem, most_bytes - 1), LIMITS)
    assert best.objective > fixed.objective
