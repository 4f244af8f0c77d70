"""Plans handed over from the shell, and scored again."""

import json
from pathlib import Path
from typing import get_args

import pytest

from experiments.cli import main
from experiments.console.exit_codes import EXIT_BAD_INPUT
from experiments.problems.plan_files import EngineName
from fx_bridge.interop.checkpoints import plan_with_checkpoints
from solver import PartitionPlan, load_plan, save_plan
from solver.model.quantities import format_value
from tests.support.decoders import captured_decoder, plan_of_layers
from tests.support.problem_counts import samples

pytestmark = pytest.mark.usefixtures("captured_once")
SMALL = "tests.support.decoders:small"


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """A plan of the five-layer model that divides no layer, over two devices."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    words = ["plan", "mlp", "--devices", "2x500KB", "--solver", "chain", "--out", str(path)]
    assert main(words) == 0
    assert len(load_plan(path).device_order) == 2
    return str(path)


@pytest.mark.parametrize(
    ("program", "form"), [("accelerate", "device-map"), ("split-spec", "split-spec")]
)
def test_what_is_handed_over_has_the_same_score(plan, program, form, tmp_path, capsys, answer):
    out = str(tmp_path / "out.json")
    assert main(["hand-over", plan, "mlp", "--to", program, "--out", out]) == 0
    assert f"wrote {out}" in capsys.readouterr().out
    scores = []
    for path in (plan, out):
        scores.append(answer(["score", path, "mlp", "--devices", "2x500KB"]))
    assert [score["format"] for score in scores] == ["plan", form]
    assert scores[0]["assignment"] == scores[1]["assignment"]
    assert scores[0]["values"] == scores[1]["values"]


@pytest.fixture(scope="module")
def swapped(tmp_path_factory):
    """A plan of whole layers whose first stages are on the second device, and devices unlike."""
    _, captured, _ = captured_decoder(4)
    plan = plan_of_layers(captured, [1, 3])
    other = {"cuda:0": "cuda:1", "cuda:1": "cuda:0"}
    assignment = {name: other[device] for name, device in plan.assignment.items()}
    path = tmp_path_factory.mktemp("plans") / "swapped.json"
    save_plan(PartitionPlan(assignment, ("cuda:1", "cuda:0")), path)
    return str(path), ["--devices", "6KB@h100-sxm,2KB@l4"]


@pytest.mark.parametrize(
    "program",
    samples(
        # The embedding of llama.cpp is on the host, and transformers knows names of its own alone.
        ["split-spec", *sorted({*get_args(EngineName)} - {"llama.cpp", "transformers"})],
        {"split-spec", "vllm"},
    ),
)
def test_what_is_handed_over_is_on_the_devices_of_the_plan(
    program, swapped, tmp_path, capsys, answer
):
    """Tests a plan that breaks a limit in any other order of the devices."""
    plan, devices = swapped
    expected = answer(["score", plan, SMALL, *devices])
    out = str(tmp_path / "out")
    words = ["hand-over", plan, SMALL, "--to", program, "--out", out]
    assert answer(words)["devices"] == ["cuda:1", "cuda:0"]
    form = [] if program == "split-spec" else ["--format", program]
    found = answer(["score", out, SMALL, *devices, *form])
    assert found["assignment"] == expected["assignment"]
    assert found["device_order"] == ["cuda:1", "cuda:0"]
    assert found["values"] == expected["values"]
    assert found["notes"] == []
    assert main(words) == 0
    told = capsys.readouterr()
    assert told.out.endswith("; CUDA_VISIBLE_DEVICES=1,0\n")
    assert "another stage" not in told.err


def test_flagscale_says_its_devices(swapped, tmp_path, capsys):
    plan, _ = swapped
    out = str(tmp_path / "flagscale")
    words = ["hand-over", plan, SMALL, "--to", "flagscale", "--microbatches", "4", "--out", out]
    assert main(words) == 0
    _, *stages, last = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in stages] == ["cuda:1", "cuda:0"]
    assert all("layers" in line for line in stages)
    assert last == "stages run on cuda:1, cuda:0; CUDA_VISIBLE_DEVICES=1,0"
    assert json.loads(Path(out).read_text())["CUDA_VISIBLE_DEVICES"] == "1,0"


def test_it_is_noted_if_nothing_says_where_stages_run(swapped, tmp_path, answer):
    (tmp_path / "spec.json").write_text('{"layers.1": "beginning"}')
    for given in ([str(tmp_path / "spec.json")], ["1,3", "--format", "tensorrt-llm"]):
        (note,) = answer(["score", *given, SMALL, "--devices", "6KB@h100-sxm,6KB@l4"])["notes"]
        assert note == "no devices are named, so that stages run on cuda:0, cuda:1"


def test_operators_that_the_words_have_elsewhere_are_noted(tmp_path, capsys):
    """A mask is in no words, which have it with the embedding."""
    model = "tests.support.batch_models:small_llama"
    plan, out = str(tmp_path / "plan.json"), str(tmp_path / "words")
    options = ["--devices", "3x180KB", "--for", "vllm", "--objective", "transfer"]
    assert main(["plan", model, *options, "--out", plan]) == 0
    capsys.readouterr()
    assert main(["hand-over", plan, model, "--to", "vllm", "--out", out]) == 0
    assert capsys.readouterr().err.startswith("note: ")


@pytest.fixture
def again(tmp_path):
    """Makes the file of a plan for two devices in which some of four layers run again."""

    def saved(*modules):
        _, captured, problem = captured_decoder(4)
        plan = plan_of_layers(captured, [1, 3])
        path = tmp_path / "again.json"
        save_plan(plan_with_checkpoints(captured, plan, modules, problem=problem), path)
        return str(path)

    return saved


def test_modules_that_run_again_are_handed_over(again, tmp_path, capsys):
    out = str(tmp_path / "modules.json")
    words = ["hand-over", again("layers.2", "layers.3"), SMALL, "--to", "checkpoint-wrapper"]
    assert main([*words, "--out", out]) == 0
    assert f"wrote {out}: 2 modules" in capsys.readouterr().out
    assert json.loads(Path(out).read_text()) == ["layers.2", "layers.3"]


@pytest.mark.parametrize(
    ("model", "engine", "devices"),
    [
        ("small_gpt2", "vllm", "2x300KB"),
        pytest.param("small_gpt2", "llama.cpp", "2x200KB,300KB@cpu", marks=pytest.mark.deep),
        pytest.param("small_llama", "megatron", "3x180KB", marks=pytest.mark.deep),
        pytest.param("small_llama", "llama.cpp", "2x120KB,200KB@cpu", marks=pytest.mark.deep),
    ],
)
def test_what_an_engine_is_told_is_a_proven_optimum(model, engine, devices, tmp_path, capsys):
    model = f"tests.support.batch_models:{model}"
    plan, out = str(tmp_path / "plan.json"), str(tmp_path / "words")
    options = ["--devices", devices, "--for", engine, "--objective", "transfer"]
    assert main(["plan", model, *options, "--out", plan]) == 0
    assert main(["hand-over", plan, model, "--to", engine, "--out", out]) == 0
    assert f"wrote {out}: " in capsys.readouterr().out
    words = Path(out).read_text()
    for given in (out, words):
        # In front of the words, for they may begin with a dash.
        assert main(["score", "--format", engine, *options, "--json", "--", given, model]) == 0
        score = json.loads(capsys.readouterr().out)
        assert score["format"] == engine and "it is a proven optimum" in score["gap"]["text"]
        assert len(score["device_order"]) > 1
        assert score["gap"]["proven"] and score["gap"]["least"] == 0
    assert main(["score", "--format", engine, "7,8,9", model, *options]) == EXIT_BAD_INPUT


def test_a_refusal_says_what_the_nearest_plan_costs(tmp_path, answer, refuses):
    model, devices = "tests.support.batch_models:small_gpt2", ["--devices", "2x400KB"]
    plan, out = str(tmp_path / "plan.json"), str(tmp_path / "words")
    pins = ["--pin", "transformer.h.0.attn=cuda:0", "--pin", "transformer.h.0.mlp=cuda:1"]
    assert main(["plan", model, *devices, *pins, "--out", plan]) == 0
    words = ["hand-over", plan, model, "--to", "vllm", "--out", out]
    score = answer(["score", "--format", "vllm", "1,4", model, *devices])
    cost = f"its bottleneck is {format_value('bottleneck', score['values']['bottleneck'])}, "
    refuses([*words, *devices], f"; the nearest is 1,4 layers on cuda:0,cuda:1; {cost}")
    refuses([*words, "--devices", "2x100KB"], "; it breaks a limit: device 'cuda:0' needs")
    refuses(words, "fxpartition score prints its cost")


def test_words_need_a_model(tmp_path, refuses):
    saved = str(tmp_path / "problem.json")
    assert main(["export", "mlp", "--devices", "2x500KB", "--out", saved]) == 0
    refuses(["score", "--format", "vllm", "1,1", saved], "words for vllm count the layers of a")
    refuses(["plan", saved, "--for", "vllm"], "which knows no layers; --for needs a model")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mlp", "--to", "flagscale"], "a number for each microbatch; add --microbatches"),
        (["mlp", "--to", "megatron", "--microbatches", "4"], "--microbatches is about flagscale"),
        (["mlp", "--to", "split-spec", "--devices", "2x1MB"], "--devices is about engines"),
        (["mlp", "--to", "onnx"], "--to is 'onnx'; write one of accelerate, split-spec, checkp"),
        (["mlp", "--to", "split-spec", "--tied-first"], "--tied-first is about device maps"),
        (["missing.json", "--to", "split-spec"], "there is no file missing.json"),
    ],
)
def test_wrong_words_are_refused(plan, words, message, tmp_path, refuses):
    refuses(["hand-over", plan, *words, "--out", str(tmp_path / "out")], message)


def test_a_saved_problem_and_another_graph_are_refused(plan, tmp_path, capsys, refuses):
    saved, other = str(tmp_path / "problem.json"), str(tmp_path / "other.json")
    assert main(["export", "mlp", "--devices", "2x500KB", "--out", saved]) == 0
    capsys.readouterr()
    words = ["--to", "accelerate", "--out", str(tmp_path / "out.json")]
    refuses(["hand-over", plan, saved, *words], "is a saved problem; name a model that can")
    save_plan(PartitionPlan({"nothing": "cuda:0"}, ("cuda:0",)), other)
    refuses(["hand-over", other, "mlp", *words], "the plan has no device for operator")
