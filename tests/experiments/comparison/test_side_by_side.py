"""Tests of comparisons: instances, rows, failures, other planners."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.comparison import side_by_side
from experiments.comparison.records import (
    EXACT_PLANNERS,
    OWN_PLANNERS,
    CaseKey,
    PlannerRow,
    Study,
    best_row,
)
from experiments.comparison.settings import CompareSettings
from experiments.comparison.side_by_side import run_comparison
from experiments.console.progress import ProgressLine
from experiments.planners import registry
from experiments.planners.balancers import BALANCERS
from experiments.planners.registry import PLANNERS
from experiments.problems.devices import DeviceSet, parse_devices
from experiments.problems.instances import derived_device_sets, one_device_bytes
from experiments.problems.recompute_request import RecomputeRequest
from experiments.problems.request import ProblemRequest
from experiments.zoo.building import ModelSpec
from experiments.zoo.models import ZOO
from fx_bridge import Placement, Training
from solver import (
    Device,
    Interconnect,
    Link,
    PartitionError,
    PartitionProblem,
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
def tiny() -> Study:
    return run_comparison([ZOO["mlp"], ZOO["tiny-branches"]], SETTINGS)


def test_every_model_device_set_and_solver_is_a_row(tiny: Study) -> None:
    keys = [(row.case.model, row.case.device_set, row.planner) for row in tiny.rows]
    assert keys == [
        (model, devices, solver)
        for model in ("mlp", "tiny-branches")
        for devices in ("equal", "unequal", "roomy")
        for solver in OWN_PLANNERS
    ]
    assert all(record.reason == "" for record in tiny.models)
    assert [record.captured_by for record in tiny.models] == ["export"] * 2


def test_the_exact_solver_is_proven_and_never_worse(tiny: Study) -> None:
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


def test_the_trace_of_a_search_ends_with_its_answer(tiny: Study) -> None:
    """Tests that times and bounds only grow, incumbents only fall, and all end at the optimum."""
    traced = [row for row in tiny.rows if row.planner == "auto"]
    for row in traced:
        assert row.trace
        assert row.objective is not None
        times_s = [point.elapsed_s for point in row.trace]
        assert times_s == sorted(times_s)
        values = [point.incumbent for point in row.trace if point.incumbent is not None]
        bounds = [point.bound for point in row.trace if point.bound is not None]
        assert values == sorted(values, reverse=True)
        assert bounds == sorted(bounds)
        assert values[-1] == row.objective[0]
        assert all(bound <= row.objective[0] for bound in bounds)


def test_every_row_carries_the_evaluators_figures(tiny: Study) -> None:
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


def test_the_split_of_the_best_plan_of_each_case_is_checked(tiny: Study) -> None:
    assert [check.case for check in tiny.checks] == [case.key for case in tiny.cases]
    assert {check.planner for check in tiny.checks} == {"auto"}
    assert all(check.equal and check.max_abs_error == 0 for check in tiny.checks)


def test_splits_of_all_feasible_plans_are_checked_if_that_is_asked() -> None:
    settings = dataclasses.replace(SETTINGS, check_splits="all")
    found = run_comparison([ZOO["mlp"]], settings)
    feasible = [(row.case, row.planner) for row in found.rows if row.feasible]
    assert len(feasible) > len(found.cases)
    assert [(check.case, check.planner) for check in found.checks] == feasible
    assert all(check.equal for check in found.checks)


def test_what_was_found_is_told_after_each_model_but_the_last(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.json", "b.json", "c.json")]
    for path in paths:
        save_problem(chain_problem(), path)
    told: list[Study] = []
    found = run_comparison(paths, SETTINGS, between=told.append)
    assert [len(study.models) for study in told] == [1, 2]
    assert told[1].rows == found.rows[:6]
    assert len(found.rows) == 9
    # Saved problems bring their devices, and have no model whose split could be checked.
    assert {row.case.device_set for row in found.rows} == {"saved"} and not found.checks


def test_where_none_is_named_torchs_planner_comes_last_and_has_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, float | None]] = []

    def note(key: CaseKey, task: object, planner: str, limits: SolveLimits) -> PlannerRow:
        asked.append((planner, limits.time_limit_s))
        return PlannerRow(key, planner, "unknown")

    monkeypatch.setattr(side_by_side, "plan_row", note)
    run_comparison([ZOO["mlp"]], CompareSettings(limits=LIMITS))
    assert asked[-1] == ("torch-size-based", 5.0)
    assert {limit_s for planner, limit_s in asked if planner != "torch-size-based"} == {20}
    named = CompareSettings(planners=("torch-size-based",), limits=LIMITS)
    run_comparison([ZOO["mlp"]], named)
    assert asked[-1] == ("torch-size-based", 20)


def test_the_graph_is_described(tiny: Study) -> None:
    record = tiny.models[0]
    assert record.captured_by == "export"
    assert record.operators == 9
    assert record.nodes == 10
    assert record.weight_bytes == 4 * sum(
        a * b + b for a, b in ((64, 256), (256, 256), (256, 128), (128, 64), (64, 10))
    )
    assert record.one_device_bytes > record.weight_bytes
    assert record.capture_s > 0
    assert record.graph_s > 0


def boom() -> Any:
    raise RuntimeError("no such luck\nand more")


class DataDependent(torch.nn.Module):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value if value.sum() > 0 else -value


def test_a_model_that_fails_is_a_record_and_the_run_goes_on() -> None:
    sources = [
        ModelSpec("broken", "cannot be built", boom),
        ModelSpec("odd", "cannot be captured", lambda: (DataDependent(), (torch.ones(1),))),
        ZOO["mlp"],
    ]
    found = run_comparison(sources, SETTINGS)
    broken, odd, fine = found.models
    assert broken.reason == "model 'broken' cannot be built: RuntimeError: no such luck"
    assert odd.reason
    assert "\n" not in odd.reason
    assert not fine.reason
    assert {row.case.model for row in found.rows} == {"mlp"}
    assert len(found.rows) == 9


def test_a_planner_that_raises_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("oops")

    failing = dataclasses.replace(PLANNERS["chain"], plan=fail)
    monkeypatch.setattr(registry, "PLANNERS", {**PLANNERS, "chain": failing})
    found = run_comparison([ZOO["mlp"]], SETTINGS)
    failed = [row for row in found.rows if row.status == "failed"]
    assert {row.planner for row in failed} == {"chain"}
    assert failed[0].reason == "ZeroDivisionError: oops"
    assert not failed[0].feasible
    assert sum(row.feasible for row in found.rows) >= 2


def test_peers_are_asked_and_those_that_read_the_model_only_where_there_is_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "problem.json"
    save_problem(chain_problem(), path)
    found = run_comparison([ZOO["mlp"], path], CompareSettings(limits=LIMITS))
    asked = {
        model: {row.planner for row in found.rows if row.case.model == model}
        for model in ("mlp", str(path))
    }
    assert asked[str(path)] == {*OWN_PLANNERS, *(spec.name for spec in BALANCERS)}
    of_training = {name for name, spec in PLANNERS.items() if spec.recomputes}
    assert asked["mlp"] == {*PLANNERS} - {"ideal-dp", "cp-sat", "coarse"} - of_training
    roomy = [row for row in found.rows if row.case[:2] == ("mlp", "roomy")]
    best = best_row(roomy)
    assert best is not None
    assert (best.planner, best.status) == ("auto", "optimal")
    assert {"pipedream", "torchgpipe-time", "uniform-layers", "torch-size-based"} <= {
        row.planner for row in roomy if row.feasible
    }


def test_a_split_that_raises_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    from fx_bridge.split import by_plan as splitting

    def fail(*_: Any, **__: Any) -> None:
        raise PartitionError("cannot split")

    monkeypatch.setattr(splitting, "split_by_plan", fail)
    found = run_comparison([ZOO["mlp"]], SETTINGS)
    checks = found.checks
    assert checks
    assert all(not check.equal and check.reason == "cannot split" for check in checks)


def test_interruption_is_not_swallowed() -> None:
    def interrupt() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_comparison([ModelSpec("slow", "interrupted", interrupt)], SETTINGS)


def test_a_saved_problem_keeps_its_own_limits_on_stages(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    devices = tuple(Device(f"cuda:{i}", 80) for i in range(3))
    own = chain_problem(devices=devices, chunks_per_device=2, max_devices=2)
    save_problem(own, path)

    def answer(**changes: Any) -> tuple[PartitionProblem, PlannerRow]:
        settings = dataclasses.replace(SETTINGS, request=ProblemRequest(**changes))
        found = run_comparison([path], settings)
        row = next(row for row in found.rows if row.planner == "auto")
        assert row.status == "optimal"
        (case,) = found.cases
        assert case.problem is not None
        return case.problem, row

    problem, kept = answer()
    assert (problem.chunks_per_device, problem.max_devices) == (2, 2)
    # 40 + 10 and 30 + 20 beat 40 and the rest, which is the best with one chunk.
    assert (kept.bottleneck_ns, kept.devices_used) == (solve(own, LIMITS).objective, 2)
    problem, one_chunk = answer(pipeline=Pipeline(chunks_per_device=1))
    assert (problem.chunks_per_device, problem.max_devices) == (1, 2)
    assert one_chunk.bottleneck_ns == solve(own.replace(chunks_per_device=1), LIMITS).objective
    problem, more = answer(pipeline=Pipeline(max_devices=3))
    assert (problem.chunks_per_device, problem.max_devices) == (2, 3)
    assert more.bottleneck_ns == solve(own.replace(max_devices=3), LIMITS).objective
    assert len({kept.bottleneck_ns, one_chunk.bottleneck_ns, more.bottleneck_ns}) == 3


def test_a_saved_problem_keeps_what_no_option_changes(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    save_problem(chain_problem(objective="latency", memory_model="weights"), path)
    link = Interconnect(default=Link(1, 5))
    for request, objective, memory_model, interconnect in (
        (ProblemRequest(), "latency", "weights", Interconnect()),
        (ProblemRequest(objective=("transfer",)), "transfer", "weights", Interconnect()),
        (ProblemRequest(interconnect=link), "latency", "weights", link),
        (ProblemRequest(memory_model="inference"), "latency", "inference", Interconnect()),
    ):
        found = run_comparison([path], dataclasses.replace(SETTINGS, request=request))
        (case,) = found.cases
        assert case.key == CaseKey(str(path), "saved", (objective,), memory_model)
        assert case.problem is not None
        assert case.problem.interconnect == interconnect


def test_what_is_asked_holds_for_every_case() -> None:
    request = ProblemRequest(
        memory_model="training",
        training=Training("sgd"),
        pipeline=Pipeline("gpipe", microbatches=3),
        placement=Placement(pins={"8": "cuda:0"}, cut_after=["4"], keep_whole=["0+2"]),
    )
    settings = dataclasses.replace(SETTINGS, request=request, planners=("chain",))
    found = run_comparison([ZOO["mlp"]], settings)
    (record,) = found.models
    assert record.reason == ""
    assert [case.key.device_set for case in found.cases] == ["equal", "unequal", "roomy"]
    for case in found.cases:
        problem = case.problem
        assert problem is not None
        assert case.key.objective == problem.objective == ("step",)
        assert (problem.schedule, problem.microbatches) == ("gpipe", 3)
        assert problem.is_training
        assert problem.interconnect.charging == "relayed"
        assert problem.cuts
        by_name = {op.name: op for op in problem.operators}
        assert by_name["linear_4"].allowed_devices == frozenset({"cuda:0"})
        unit = next(unit for unit in problem.units if "linear" in unit)
        assert {"linear", "relu", "linear_1"} <= set(unit)
    # SGD without momentum keeps no state: its weights and gradients are all.
    adamw = dataclasses.replace(settings, request=dataclasses.replace(request, training=None))
    (larger,) = run_comparison([ZOO["mlp"]], adamw).models
    assert record.one_device_bytes < larger.one_device_bytes


def test_options_that_make_no_sense_for_a_model_are_its_reason() -> None:
    for request, says in (
        (ProblemRequest(with_host=False), "--no-host are for published workloads"),
        (ProblemRequest(training=Training("sgd")), "write --memory-model training"),
        (ProblemRequest(pipeline=Pipeline(microbatches=3)), "--microbatches changes nothing here"),
        (ProblemRequest(placement=Placement({"nine": 0})), "pin 'nine': there is no such module o"),
    ):
        settings = dataclasses.replace(SETTINGS, request=request)
        (record,) = run_comparison([ZOO["mlp"]], settings).models
        assert says in record.reason


def test_given_devices_replace_derived_ones(tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    save_problem(chain_problem(), path)
    named = {text: parse_devices(text) for text in ("3x70B", "9B")}
    found = run_comparison([path], dataclasses.replace(SETTINGS, device_sets=named))
    by_set = {(row.case.device_set, row.planner): row for row in found.rows}
    assert by_set["3x70B", "auto"].status == "optimal"
    assert by_set["9B", "auto"].status == "infeasible"
    assert by_set["9B", "auto"].reason
    assert by_set["9B", "auto"].objective is None


def test_the_best_row_prefers_the_exact_solver_among_equals() -> None:
    def row(planner: str, value: int | None) -> PlannerRow:
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
def test_derived_devices_bind_and_have_a_plan(memory_model: str) -> None:
    problem = chain_problem((40, 10, 20, 10, 15, 5, 30, 20), memory_model=memory_model)
    sets = derived_device_sets(
        problem_to_digraph(problem),
        equal_devices=4,
        slack_permille=1150,
        memory_model=memory_model,
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


def test_one_big_weight_gets_the_room_that_it_needs() -> None:
    problem = chain_problem((100, 1, 1, 1))
    sets = derived_device_sets(problem_to_digraph(problem), equal_devices=4, slack_permille=1150)
    assert all((device.memory_bytes or 0) >= 100 for device in sets["equal"].devices)


def test_memory_on_one_device_ignores_pins_and_cuts() -> None:
    problem = chain_problem()
    first = dataclasses.replace(problem.operators[0], allowed_devices=frozenset({"cuda:1"}))
    pinned = problem.replace(operators=(first, *problem.operators[1:]))
    assert one_device_bytes(pinned) == one_device_bytes(problem) == 100 + 8
    staged = dataclasses.replace(problem.operators[0], stage=0)
    cut = problem.replace(operators=(staged, *problem.operators[1:]), cuts=("op1",))
    assert one_device_bytes(cut) == 100 + 8


def test_settings_name_an_unknown_solver() -> None:
    with pytest.raises(PartitionError, match="planner 'fast' is unknown; did you mean auto"):
        CompareSettings(planners=("fast",))


def test_progress_is_plain_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
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


def test_a_device_set_without_file_has_no_links() -> None:
    assert DeviceSet((Device("a"),)).interconnect is None


def test_rules_for_what_runs_again_are_asked_where_something_may(tmp_path: Path) -> None:
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
