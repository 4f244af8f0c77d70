"""Plans of others beside the optimum: what is printed, what is proven, and with which exit code."""

import json

import pytest

from experiments.cli import main
from experiments.console.exit_codes import EXIT_NO_PLAN
from experiments.problems.plan_files import FORMATS
from fx_bridge import Costs
from fx_bridge.capture.graph import capture
from fx_bridge.costs.device_presets import DEVICE_SPECS
from fx_bridge.digraph import to_digraph
from fx_bridge.interop.read_plans import plan_from_device_map
from solver import PCIE, Device, PartitionPlan, evaluate, problem_from_digraph, save_plan, solve
from tests.support.dispatch_models import make

pytestmark = pytest.mark.usefixtures("captured_once")
DEVICES = "2x2KB"
MAP = {"positions": 0, "embed": 0, "blocks.0": 0, "blocks.1": 1, "blocks.2": 1, "head": 1}
MODEL = "tests.support.dispatch_models:make"


@pytest.fixture(scope="module")
def captured():
    return capture(*make())


@pytest.fixture
def write(tmp_path):
    def to_file(content, name="plan.json"):
        path = tmp_path / name
        path.write_text(json.dumps(content))
        return str(path)

    return to_file


def problem(captured, memory_bytes, count=2, **settings):
    devices = [Device(f"cuda:{index}", memory_bytes) for index in range(count)]
    graph = to_digraph(captured, costs=Costs(specs={"default": DEVICE_SPECS["default"]}))
    return problem_from_digraph(graph, devices, interconnect=PCIE, **settings)


def test_a_device_map_is_scored_against_the_optimum(captured, write, capsys, answer):
    given = problem(captured, 20_000)
    plan = plan_from_device_map(captured, given.devices, MAP)
    expected = evaluate(given, plan)
    best = solve(given)
    words = ["score", write(MAP), MODEL, "--devices", "2x20KB"]
    found = answer(words)
    assert found["format"] == "device-map"
    assert found["assignment"] == dict(plan.assignment)
    assert found["feasible"] is True and found["violations"] == []
    assert found["values"] == {
        "transfer": expected.transfer_bytes,
        "bottleneck": expected.bottleneck_ns,
        "latency": expected.latency_ns,
        "peak_memory": expected.peak_memory_permille,
    }
    assert [entry["memory_bytes"] for entry in found["devices"]] == [
        usage.memory_bytes for usage in expected.usage
    ]
    assert found["best"]["objective"] == best.objective
    assert found["gap"]["proven"] is True
    assert found["gap"]["least"] == found["gap"]["most"]
    assert found["gap"]["least"] == pytest.approx(expected.bottleneck_ns / best.objective - 1)

    assert main(words) == 0
    text = capsys.readouterr().out
    assert f"{found['gap']['least'] * 100:.2f} % above the proven optimum" in text
    for part in ("read as device-map", "capacity", "transfer 272 B", "latency", "peak memory"):
        assert part in text


def test_every_form_of_one_plan_has_one_score(captured, write, tmp_path, answer):
    given = problem(captured, 20_000)
    plan = plan_from_device_map(captured, given.devices, MAP)
    save_plan(plan, tmp_path / "saved.json")
    tags = {n: {"cuda:0": "early", "cuda:1": "late"}[d] for n, d in plan.assignment.items()}
    files = {
        "plan": str(tmp_path / "saved.json"),
        "device-map": write(MAP, "map.json"),
        "split-spec": write({"blocks.1": "beginning"}, "spec.json"),
        "tags": write(tags, "tags.json"),
    }
    assert set(files) == set(FORMATS)
    for form, path in files.items():
        words = ["score", path, MODEL, "--devices", "2x20KB"]
        found = answer(words)
        assert found["format"] == form
        assert found["assignment"] == dict(plan.assignment), form
        assert found["values"]["transfer"] == evaluate(given, plan).transfer_bytes
        if form == "tags":
            assert "'early' is cuda:0, 'late' is cuda:1" in found["notes"][0]


def test_a_later_objective_may_be_what_is_worse(captured, tmp_path, answer):
    """Equal in the devices used, worse in latency: the gap is that of the second."""
    given = problem(captured, 2**30, count=2)
    whole = PartitionPlan(dict.fromkeys(given.index_of, "cuda:0"), ("cuda:0",))
    save_plan(whole, tmp_path / "plan.json")
    words = ["score", str(tmp_path / "plan.json"), MODEL, "--devices", "2x1GiB"]
    found = answer([*words, "--objective", "devices,transfer"])
    assert found["gap"]["least"] == 0
    split = plan_from_device_map(captured, given.devices, MAP)
    save_plan(split, tmp_path / "plan.json")
    found = answer([*words, "--objective", "transfer,latency"])
    assert found["gap"]["objective"] == "transfer"
    assert found["gap"]["least"] is None and "the proven optimum is 0" in found["gap"]["text"]


def test_without_a_proof_the_gap_is_between_two_numbers(
    captured, write, monkeypatch, capsys, answer
):
    import dataclasses

    from experiments.commands import score as score_command
    from solver import SolveStatus

    solve_all = score_command.solve_all

    def unproven(*args):
        (result,) = solve_all(*args)
        bound = result.objective_bound * 8 // 10
        return [
            dataclasses.replace(
                result, status=SolveStatus.FEASIBLE, objective_bounds=(bound,), reason=""
            )
        ]

    monkeypatch.setattr(score_command, "solve_all", unproven)
    words = ["score", write(MAP), MODEL, "--devices", "2x20KB"]
    found = answer(words)
    value = found["values"]["bottleneck"]
    assert found["gap"]["proven"] is False
    assert found["gap"]["least"] == pytest.approx(value / found["best"]["objective"] - 1)
    assert found["gap"]["most"] == pytest.approx(value / found["best"]["objective_bound"] - 1)
    assert main(words) == 0
    assert "above the best possible (bound " in capsys.readouterr().out


def test_a_plan_that_breaks_limits_ends_with_one(captured, write, capsys, answer):
    words = ["score", write(MAP), MODEL, "--devices", DEVICES]
    found = answer(words, EXIT_NO_PLAN)
    assert found["feasible"] is False
    assert "device 'cuda:0' needs" in found["violations"][0]
    assert found["gap"]["least"] is None
    assert main(words) == EXIT_NO_PLAN
    text = capsys.readouterr().out
    assert "given: its plan breaks limits: device 'cuda:0' needs" in text
    assert "the plan breaks limits, so it has no gap" in text


def test_modules_that_the_plan_divides_are_told(captured, write, answer):
    words = ["score", write({"": 0, "blocks.1.down": 1}), MODEL, "--devices", "2x20KB"]
    found = answer(words)
    assert "would read" in found["notes"][0] and "(and 2 more)" in found["notes"][0]
    found = answer([*words, "--keep-whole", "blocks.*"], EXIT_NO_PLAN)
    assert "module 'blocks.1' is kept whole" in found["violations"][-1]


def test_data_that_comes_back_is_compared_with_plans_of_several_rounds(captured, write, answer):
    back = MAP | {"head": 0}
    words = ["score", write(back), MODEL, "--devices", "2x20KB"]
    found = answer(words)
    assert found["feasible"] is True
    assert max(found["chunks"].values()) == 1
    assert "plans with up to 2 stages on each" in found["notes"][0]
    found = answer([*words, "--chunks", "1"], EXIT_NO_PLAN)
    assert "has 2 chunks per device, but at most 1" in found["violations"][0]


def test_a_saved_problem_can_score_plans(captured, write, tmp_path, capsys, refuses, answer):
    saved = str(tmp_path / "problem.json")
    assert main(["export", MODEL, "--devices", "2x20KB", "--out", saved]) == 0
    plan = plan_from_device_map(captured, problem(captured, 20_000).devices, MAP)
    save_plan(plan, tmp_path / "plan.json")
    capsys.readouterr()
    found = answer(["score", str(tmp_path / "plan.json"), saved])
    assert found["assignment"] == dict(plan.assignment)
    path = write(MAP, "map.json")
    refuses(["score", path, saved, "--format", "device-map"], "give the model in the place of a")
    refuses(
        ["score", path, saved, "--keep-whole", "head"], "no modules; --keep-whole needs a model"
    )


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ([], [], "holds no plan; write a plan of fxpartition plan --out, a device map"),
        ({"one": "a", "two": "b"}, [], "has names of neither operators nor modules of the model"),
        ({"block.1": 0}, [], "the model has no module 'block.1'; did you mean 'blocks.1'"),
        ({"schema": "fxpartition.plan"}, [], "version"),
        ({"a": 0}, ["--format", "yaml"], "--format is 'yaml'; write one of plan, device-map"),
        ([1], ["--format", "tags"], "is no tags: it holds no object"),
    ],
)
def test_what_is_no_plan_is_refused(content, options, message, write, refuses):
    path = write(content)
    error = refuses(["score", path, MODEL, "--devices", "2x20KB", *options], message)
    if "--format" not in options or "yaml" not in options:
        assert "plan.json" in error


def test_plans_of_other_graphs_and_missing_files_are_refused(tmp_path, refuses):
    save_plan(PartitionPlan({"nothing": "cuda:0"}, ("cuda:0",)), tmp_path / "plan.json")
    words = ["score", str(tmp_path / "plan.json"), MODEL, "--devices", "2x20KB"]
    refuses(words, "plan.json: the plan has no device for operator")
    refuses(
        ["score", "missing.json", MODEL, "--devices", "2x20KB"],
        "there is no file missing.json; write",
    )


def test_more_tags_than_devices_are_refused(captured, write, refuses):
    tags = {node.name: f"tag {at // 9}" for at, node in enumerate(captured.operators)}
    refuses(["score", write(tags), MODEL, "--devices", "2x20KB"], "tags but 2 devices; give")
