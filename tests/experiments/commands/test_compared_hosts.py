"""Problems with a host: compare, sweep and report have the same answers, those of the solver."""

import math

import pytest

from experiments.cli import main
from experiments.problems.devices import parse_devices
from experiments.problems.hosts import host_job
from experiments.problems.request import ProblemRequest, read_saved_problem
from solver import (
    Device,
    Link,
    Operator,
    PartitionPlan,
    PartitionProblem,
    SolveLimits,
    Weight,
    save_problem,
    solve_job,
)
from solver.io.json_files import plan_from_json
from solver.model.devices import PCIE, STAGING_HOST
from solver.offload.evaluate import evaluate_offload
from solver.offload.instance import OffloadInstance

HOST = "4kB@cpu"
DEVICES = ("2kB@rtx-4090", "linked.toml")
LINKED = """
[[devices]]
name = "gpu"
memory = "2kB"
class = "rtx-4090"
[[links]]
source = "host"
target = "gpu"
bandwidth = "1GB/s"
"""
SWEEP = f"""
models = ["saved.json"]
devices = {list(DEVICES)}
host = "{HOST}"
[limits]
time_limit_s = 5
workers = 1
deterministic = true
"""
SEARCH = ("--time-limit", "5", "--workers", "1", "--deterministic")
COMPARE = ("compare", "saved.json", "--host", HOST, "--devices", DEVICES[0], *SEARCH)
RULES = {
    "accelerate-auto": "feasible",
    "diffusers-model": "unknown",
    "diffusers-sequential": "feasible",
    "diffusers-block": "unknown",
    "diffusers-block-stream": "unknown",
    "diffusers-leaf-stream": "feasible",
}


@pytest.fixture
def saved(tmp_path, monkeypatch):
    """A chain of six operators, one without weights, too large for a device of 2 kB."""
    monkeypatch.chdir(tmp_path)
    names = [f"op{at}" for at in range(6)]
    operators = [
        Operator(
            name,
            {"rtx-4090": 300, "cpu": 900},
            tuple(names[:at][-1:]),
            weights=() if at == 2 else (name,),
        )
        for at, name in enumerate(names)
    ]
    weights = {name: Weight(768) for name in names if name != "op2"}
    devices = (Device("own", device_class="rtx-4090"),)
    save_problem(PartitionProblem(tuple(operators), devices, weights=weights), "saved.json")
    (tmp_path / "linked.toml").write_text(LINKED)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    return tmp_path / "saved.json"


def job_on(saved, devices):
    """The job of the saved problem on some devices."""
    request = ProblemRequest(devices=parse_devices(devices), host=HOST)
    return host_job(read_saved_problem(saved, request), HOST)


@pytest.mark.parametrize("road", ["compare", "sweep"])
def test_all_commands_have_the_answers_of_the_solver(saved, answer, road):
    words = [*COMPARE, "--devices", DEVICES[1], "--out", "report"]
    if road == "sweep":
        assert main(["sweep", "sweep.toml", "--out", "r.sqlite", "--jobs", "1"]) == 0
        words = ["report", "r.sqlite", "--out", "report"]
    study = answer(words)
    # What is written has the same answers, and files of their plans.
    written = answer(["report", "report/results.json"])
    assert written["rows"] == study["rows"]
    assert [case["host"] for case in study["cases"]] == [HOST, HOST]
    for devices in DEVICES:
        rows = [row for row in study["rows"] if row["case"]["device_set"] == devices]
        assert all(row["case"]["objective"] == ["latency"] for row in rows)
        status_of = {row["planner"]: row["status"] for row in rows}
        assert [*status_of] == ["greedy", "auto", *RULES]
        assert RULES.items() <= status_of.items()
        job = job_on(saved, devices)
        for row in rows:
            if row["planner"] in RULES:
                assert row["plan"] is None
                assert row["words"].endswith("host")
                continue
            found = solve_job(job, SolveLimits(5, 1, deterministic=True), solver=row["planner"])
            assert row["objective"] == [math.ceil(found.objective)]
            assert row["status"] == found.status.value
            plan = plan_from_json(row["plan"])
            assert isinstance(plan, PartitionPlan)
            cost = evaluate_offload(OffloadInstance.of(job), plan)
            assert math.ceil(cost.objective[0]) == row["objective"][0]


def test_units_and_links_of_a_job(saved):
    job = job_on(saved, DEVICES[0])
    assert [*job.units.values()] == [("op0",), ("op1", "op2"), ("op3",), ("op4",), ("op5",)]
    assert set(job.padding_bytes.values()) == {0}
    interconnect = job.phases["forward"].interconnect
    assert interconnect.link(STAGING_HOST, "cuda:0") == PCIE.default
    interconnect = job_on(saved, DEVICES[1]).phases["forward"].interconnect
    assert interconnect.link(STAGING_HOST, "gpu") == interconnect.link("gpu", STAGING_HOST)
    assert interconnect.link("gpu", STAGING_HOST) == Link(10**9)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--objective", "bottleneck"), "--objective is for plans without a host"),
        (("--memory-model", "inference"), "--memory-model is for plans without a host"),
        (("--chunks", "2"), "--chunks is for plans without a host"),
        (("--max-devices", "1"), "--max-devices is for plans without a host"),
        (("--host", "1GB,2GB"), "--host '1GB,2GB' names several"),
    ],
)
def test_options_that_a_host_excludes(saved, refuses, words, says):
    refuses([*COMPARE, *words], says)


@pytest.mark.parametrize(
    ("planner", "host", "why"),
    [
        ("chain", (), "planner 'chain' plans without a host; write others, or --host"),
        ("diffusers-block", None, "plans with a host alone; write others, or --host"),
    ],
)
def test_planners_for_other_problems_say_so(saved, answer, planner, host, why):
    command = COMPARE if host is not None else ("compare", "saved.json", *SEARCH)
    (row,) = answer([*command, "--planner", planner])["rows"]
    assert row["status"] == "failed"
    assert row["reason"].endswith(why)
