"""Tests of comparisons: instances, rows, failures, other planners."""

import dataclasses

import pytest
import torch

from experiments.comparison import side_by_side
from experiments.comparison.records import (
    EXACT_PLANNERS,
    OWN_PLANNERS,
    CaseKey,
    PlannerRow,
    best_row,
)
from experiments.comparison.settings import CompareSettings
from experiments.comparison.side_by_side import run_comparison
from experiments.console.progress import ProgressLine
from experiments.planners.balancers import BALANCERS
from experiments.planners.registry import PLANNERS
from experiments.problems.devices import parse_devices
from experiments.problems.instances import derived_device_sets, one_device_bytes
from experiments.problems.recompute_request import RecomputeRequest
from experiments.problems.request import ProblemRequest
from experiments.zoo.building import ModelSpec
from experiments.zoo.models import ZOO
from fx_bridge import Placement
from solver import (
    Device,
    Interconnect,
    Link,
    PartitionError,
    Pipeline,
    SolveLimits,
    evaluate,
    problem_to_digraph,
    save_problem,
    solve,
)
from tests.support.graphs import chain
from tests.support.recompute_cases import SMALL, small_problem

LIMITS = SolveLimits(time_limit_s=20, workers=1)
SETTINGS = CompareSettings(planners=OWN_PLANNERS, limits=LIMITS)


def chain_problem(sizes=(40, 30, 20, 10), **settings):
    fields = {"devices": (Device("cuda:0", 200), Device("cuda:1", 200)), **settings}
    fields = {"interconnect": Interconnect(), **fields}
    times = [1000 * size for size in sizes]
    return chain(len(sizes), latency_ns=times, value_bytes=4, weight_bytes=sizes, **fields)


@pytest.fixture(scope="module")
def tiny():
    return run_comparison([ZOO["mlp"], ZOO["tiny-branches"]], SETTINGS)


def test_every_model_device_set_and_solver_is_a_row(tiny):
    keys = [(row.case.model, row.case.device_set, row.planner) for row in tiny.rows]
    assert keys == [
        (model, devices, solver)
        for model in ("mlp", "tiny-branches")
        for devices in ("equal", "unequal", "roomy")
        for solver in OWN_PLANNERS
    ]
    assert all(record.reason == "" for record in tiny.models)
    assert [record.captured_by for record in tiny.models] == ["export"] * 2


def test_the_exact_solver_is_proven_and_never_worse(tiny):
    for case in tiny.cases:
        rows = {row.planner: row for row in tiny.rows if row.case == case.key}
        exact = rows.pop("auto")
        assert exact.answered_by in ("ideal-dp", "cp-sat")
        assert exact.label == f"auto ({exact.answered_by})"
        assert exact.status == "optimal"
        assert exact.objective is not None
        assert exact.bound == exact.objective
        for row in rows.values():
            assert row.objective is None or row.objective >= exact.objective


def test_every_row_carries_the_evaluators_figures(tiny):
    problems = {case.key: case.problem for case in tiny.cases}
    for row in tiny.rows:
        problem = problems[row.case]
        if row.plan is None or problem is None:
            continue
        usage = evaluate(problem, row.plan).usage
        assert row.devices_used == len(row.plan.device_order)
        assert row.bottleneck_ns == max(each.load_ns for each in usage)
        assert row.peak_memory_permille == max(each.peak_memory_permille for each in usage)
        assert row.feasible == (not row.reason)


def test_the_split_of_the_best_plan_of_each_case_is_checked(tiny):
    assert [check.case for check in tiny.checks] == [case.key for case in tiny.cases]
    assert {check.planner for check in tiny.checks} == {"auto"}
    assert all(check.equal and check.max_abs_error == 0 for check in tiny.checks)


def test_splits_of_all_feasible_plans_are_checked_if_that_is_asked():
    settings = dataclasses.replace(SETTINGS, check_splits="all")
    found = run_comparison([ZOO["mlp"]], settings)
    feasible = [(row.case, row.planner) for row in found.rows if row.feasible]
    assert len(feasible) > len(found.cases)
    assert [(check.case, check.planner) for check in found.checks] == feasible
    assert all(check.equal for check in found.checks)


def test_what_was_found_is_told_after_each_model_but_the_last(tmp_path):
    paths = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    for path in paths:
        save_problem(chain_problem(), path)
    told = []
    found = run_comparison(paths, SETTINGS, between=told.append)
    assert [len(study.models) for study in told] == [1, 2]
    assert told[1].rows == found.rows[:6]
    assert len(found.rows) == 9
    # Saved problems bring their devices, and have no model whose split could be checked.
    assert {row.case.device_set for row in found.rows} == {"saved"} and not found.checks


def test_where_none_is_named_torchs_planner_comes_last_and_has_five_seconds(monkeypatch):
    asked = []

    def note(key, task, planner, limits):
        asked.append((planner, limits.time_limit_s))
        return PlannerRow(key, planner, "unknown")

    monkeypatch.setattr(side_by_side, "plan_row", note)
    run_comparison([ZOO["mlp"]], CompareSettings(limits=LIMITS))
    assert asked[-1] == ("torch-size-based", 5.0)
    assert {limit_s for planner, limit_s in asked if planner != "torch-size-based"} == {20}
    named = CompareSettings(planners=("torch-size-based",), limits=LIMITS)
    run_comparison([ZOO["mlp"]], named)
    assert asked[-1] == ("torch-size-based", 20)


def boom():
    raise RuntimeError("no such luck\nand more")


class DataDependent(torch.nn.Module):
    def forward(self, value):
        return value if value.sum() > 0 else -value


def test_a_model_that_fails_is_a_record_and_the_run_goes_on():
    sources = [
        ModelSpec("broken", "cannot be built", boom),
        ModelSpec("odd", "cannot be captured", lambda: (DataDependent(), (torch.ones(1),))),
        ZOO["mlp"],
    ]
    found = run_comparison(sources, SETTINGS)
    broken, odd, fine = found.models
    assert broken.reason == "model 'broken' cannot be built: RuntimeError: no such luck"
    assert odd.reason
    assert "\n" not in odd.reason and not fine.reason
    assert {row.case.model for row in found.rows} == {"mlp"}
    assert len(found.rows) == 9


def test_peers_are_asked_and_those_that_read_the_model_only_where_there_is_one(tmp_path):
    path = tmp_path / "problem.json"
    save_problem(chain_problem(), path)
    found = run_comparison([ZOO["mlp"], path], CompareSettings(limits=LIMITS))
    asked = {
        model: {row.planner for row in found.rows if row.case.model == model}
        for model in ("mlp", str(path))
    }
    assert asked[str(path)] == {*OWN_PLANNERS, *(spec.name for spec in BALANCERS)}
    others = {name for name, spec in PLANNERS.items() if spec.recomputes or spec.host == "with"}
    assert asked["mlp"] == {*PLANNERS} - {"ideal-dp", "cp-sat", "coarse"} - others
    roomy = [row for row in found.rows if row.case[:2] == ("mlp", "roomy")]
    best = best_row(roomy)
    assert best is not None
    assert (best.planner, best.status) == ("auto", "optimal")
    assert {"pipedream", "torchgpipe-time", "uniform-layers", "torch-size-based"} <= {
        row.planner for row in roomy if row.feasible
    }


def test_a_split_that_raises_is_a_row(monkeypatch):
    from fx_bridge.split import by_plan as splitting

    def fail(*_, **__):
        raise PartitionError("cannot split")

    monkeypatch.setattr(splitting, "split_by_plan", fail)
    found = run_comparison([ZOO["mlp"]], SETTINGS)
    checks = found.checks
    assert checks
    assert all(not check.equal and check.reason == "cannot split" for check in checks)


def test_interruption_is_not_swallowed():
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_comparison([ModelSpec("slow", "interrupted", interrupt)], SETTINGS)


def test_a_case_is_named_by_what_its_problem_minimises_and_holds(tmp_path):
    path = tmp_path / "problem.json"
    save_problem(chain_problem(objective="latency", memory_model="weights"), path)
    for request, objective in (
        (ProblemRequest(), "latency"),
        (ProblemRequest(objective=("transfer",)), "transfer"),
    ):
        found = run_comparison([path], dataclasses.replace(SETTINGS, request=request))
        (case,) = found.cases
        assert case.key == CaseKey(str(path), "saved", (objective,), "weights")


def test_what_is_asked_holds_for_every_case():
    request = ProblemRequest(
        pipeline=Pipeline("gpipe", microbatches=3), placement=Placement(pins={"8": "cuda:0"})
    )
    settings = dataclasses.replace(SETTINGS, request=request, planners=("chain",))
    found = run_comparison([ZOO["mlp"]], settings)
    assert [case.key.device_set for case in found.cases] == ["equal", "unequal", "roomy"]
    for case in found.cases:
        problem = case.problem
        assert case.key.objective == problem.objective == ("step",)
        assert (problem.schedule, problem.microbatches) == ("gpipe", 3)
        pinned = problem.operators[problem.index_of["linear_4"]]
        assert pinned.allowed_devices == frozenset({"cuda:0"})


def test_options_that_make_no_sense_for_a_model_are_its_reason():
    settings = dataclasses.replace(SETTINGS, request=ProblemRequest(with_host=False))
    (record,) = run_comparison([ZOO["mlp"]], settings).models
    assert "--no-host are for published workloads" in record.reason


def test_given_devices_replace_derived_ones(tmp_path):
    path = tmp_path / "problem.json"
    save_problem(chain_problem(), path)
    named = {text: parse_devices(text) for text in ("3x70B", "9B")}
    found = run_comparison([path], dataclasses.replace(SETTINGS, device_sets=named))
    by_set = {(row.case.device_set, row.planner): row for row in found.rows}
    assert by_set["3x70B", "auto"].status == "optimal"
    assert by_set["9B", "auto"].status == "infeasible"
    assert by_set["9B", "auto"].reason
    assert by_set["9B", "auto"].objective is None


def test_the_best_row_prefers_the_exact_solver_among_equals():
    def row(planner, value):
        return PlannerRow(
            case=CaseKey("m", "d", ("bottleneck",), "inference"),
            planner=planner,
            status="feasible",
            objective=None if value is None else (value,),
            feasible=value is not None,
        )

    for exact in EXACT_PLANNERS:
        rows = [row("chain", 5), row(exact, 5), row("greedy", None)]
        assert best_row(rows) is rows[1]
        assert best_row([row("chain", 4), row(exact, 5)]) == row("chain", 4)
    assert best_row([row("greedy", None)]) is None


@pytest.mark.parametrize("memory_model", ["weights", "inference"])
def test_derived_devices_bind_and_have_a_plan(memory_model):
    problem = chain_problem((40, 10, 20, 10, 15, 5, 30, 20), memory_model=memory_model)
    sets = derived_device_sets(
        problem_to_digraph(problem), equal_devices=4, slack_permille=1150, memory_model=memory_model
    )
    assert [*sets] == ["equal", "unequal", "roomy"]
    need = one_device_bytes(problem)
    equal, unequal, roomy = (each.devices for each in sets.values())
    assert [device.memory_bytes for device in roomy] == [need] * 4
    for devices in (equal, unequal):
        capacities = [device.memory_bytes or 0 for device in devices]
        assert sum(capacities) >= need * 1.15
        assert max(capacities) < need, "one device must not hold the whole model"
        result = solve(problem.replace(devices=devices), LIMITS)
        assert result.plan is not None
    assert len({device.memory_bytes for device in equal}) == 1
    shares = [device.memory_bytes or 0 for device in unequal]
    assert shares == sorted(shares, reverse=True)
    assert len(set(shares)) == 4


def test_one_big_weight_gets_the_room_that_it_needs():
    problem = chain_problem((100, 1, 1, 1))
    sets = derived_device_sets(problem_to_digraph(problem), equal_devices=4, slack_permille=1150)
    assert all((device.memory_bytes or 0) >= 100 for device in sets["equal"].devices)


def test_memory_on_one_device_ignores_links_pins_and_cuts():
    linked = Interconnect(links={("cuda:0", "cuda:1"): Link(10**9)})
    problem = chain_problem(interconnect=linked)
    first = dataclasses.replace(problem.operators[0], allowed_devices=frozenset({"cuda:1"}))
    pinned = problem.replace(operators=(first, *problem.operators[1:]))
    assert one_device_bytes(pinned) == one_device_bytes(problem) == 100 + 8
    staged = dataclasses.replace(problem.operators[0], stage=0)
    cut = problem.replace(operators=(staged, *problem.operators[1:]), cuts=("op1",))
    assert one_device_bytes(cut) == 100 + 8


def test_progress_is_plain_lines_where_there_is_no_terminal(capsys, tmp_path):
    path = tmp_path / "problem.json"
    save_problem(chain_problem(), path)
    with ProgressLine() as progress:
        run_comparison([path], SETTINGS, progress)
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 3
    assert all("\x1b" not in line for line in lines)
    assert "auto (ideal-dp) optimal, bottleneck" in lines[2]


def test_rules_for_what_runs_again_are_asked_where_something_may(tmp_path):
    path = tmp_path / "small.json"
    save_problem(small_problem(SMALL[0], 2208), path)
    rules = {"recompute-none", "recompute-all", "recompute-every-nth"}
    rules |= {"two-steps-layers", "two-steps-operators"}
    for rule, expected in (("auto", rules), ("none", set())):
        request = ProblemRequest(recompute=RecomputeRequest(rule))
        study = run_comparison([path], CompareSettings(request, limits=LIMITS))
        asked = {row.planner: row for row in study.rows if PLANNERS[row.planner].recomputes}
        assert set(asked) == expected
        ours = next(row for row in study.rows if row.planner == "auto")
        assert ours.status == ("optimal" if expected else "infeasible")
        assert all(row.status in ("feasible", "unknown") for row in asked.values())
        assert all(row.objective >= ours.objective for row in asked.values() if row.feasible)


@pytest.mark.parametrize("unknown", [{"planners": ("nope",)}, {"without": ("nope",)}], ids=str)
def test_names_of_planners_and_steps_are_checked_before_anything_runs(unknown):
    with pytest.raises(PartitionError, match="'nope'"):
        CompareSettings(**unknown)
