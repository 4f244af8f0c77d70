"""The plug-in of vLLM, with packages that stand in for vLLM and as it loads its plug-ins."""

import importlib.metadata
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from experiments.cli import main
from experiments.console.exit_codes import EXIT_BAD_INPUT
from solver import PartitionError
from tests.support.paths import ROOT
from tests.support.refusals import refused

GROUP, VARIABLE = "vllm.general_plugins", "FXPARTITION_PLAN"
PARTITION = "VLLM_PP_LAYER_PARTITION"
MODEL = "tests.support.serving_models:narrow_llama"
START = {
    "to": "vllm",
    "arguments": ["CUDA_VISIBLE_DEVICES=0,1", f"{PARTITION}=1,3", "--pipeline-parallel-size", "2"],
    "layers": [1, 3],
    "architecture": "LlamaForCausalLM",
}


def load_general_plugins():
    """Load and call what is registered, as ``vllm/plugins/__init__.py`` does."""
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"][GROUP]
    for name, value in named.items():
        importlib.metadata.EntryPoint(name, value, GROUP).load()()


class EngineArgs:
    """The arguments of vLLM as far as the plug-in reads them."""

    def __init__(self, size=2, layers=4, architecture="LlamaForCausalLM"):
        load_general_plugins()  # its __post_init__ does
        self.pipeline_parallel_size = size
        self._model = SimpleNamespace(
            get_total_num_hidden_layers=lambda: layers, architectures=[architecture]
        )

    def create_model_config(self):
        return self._model


@pytest.fixture
def vllm(monkeypatch, tmp_path):
    """A module of vLLM in which the arguments are, and an environment of its own."""
    for name in (VARIABLE, PARTITION, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")  # restored at the end, whatever is set until then
        monkeypatch.delenv(name)
    own = type("EngineArgs", (EngineArgs,), {"create_model_config": EngineArgs.create_model_config})
    module = ModuleType("vllm.engine.arg_utils")
    module.EngineArgs = own
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return own


def given(monkeypatch, folder, **changed):
    path = folder / "plan.json"
    path.write_text(json.dumps({**START, **changed}))
    monkeypatch.setenv(VARIABLE, str(path))


def said_by(script, environment):
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    return done.stdout, done.stderr


def test_without_the_variable_nothing_is_imported_or_changed():
    script = (
        "import sys, fxpartition; fxpartition.start_vllm(); "
        "print(sorted({'torch', 'solver', 'fx_bridge', 'numpy'} & sys.modules.keys()))"
    )
    clean = {name: value for name, value in os.environ.items() if name != VARIABLE}
    for environment in (clean, {**clean, VARIABLE: ""}):
        assert said_by(script, environment) == ("[]\n", "")


def test_torch_is_not_imported_with_the_variable(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(START))
    script = (
        "import os, sys, fxpartition; fxpartition.start_vllm(); fxpartition.start_vllm(); "
        f"print(os.environ['{PARTITION}'], 'torch' in sys.modules)"
    )
    assert said_by(script, {**os.environ, VARIABLE: str(path)}) == ("1,3 False\n", "")


def test_what_hand_over_writes_sets_the_layers(vllm, monkeypatch, tmp_path, capsys):
    plan, start = str(tmp_path / "plan.json"), str(tmp_path / "vllm.json")
    planned = ["plan", MODEL, "--devices", "16KB,30KB", "--for", "vllm", "--out", plan]
    assert main(planned) == 0
    assert main(["hand-over", plan, MODEL, "--to", "vllm", "--out", start]) == 0
    written = json.loads(Path(start).read_text())
    layers = ",".join(map(str, written["layers"]))
    assert written["architecture"] == "LlamaForCausalLM"
    assert f"{PARTITION}={layers}" in written["arguments"]
    monkeypatch.setenv(VARIABLE, start)
    monkeypatch.setenv(*written["arguments"][0].split("="))
    assert vllm().create_model_config().architectures == ["LlamaForCausalLM"]
    assert os.environ[PARTITION] == layers
    capsys.readouterr()
    scored = ["score", "--format", "vllm", start, MODEL, "--devices", "16KB,30KB", "--json"]
    assert main(scored) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "vllm"
    monkeypatch.setenv(VARIABLE, plan)
    with pytest.raises(PartitionError, match="it has no arguments for vLLM; write it by fxpartit"):
        vllm()
    (tmp_path / "bad.json").write_text("{")
    assert main(["score", "--format", "vllm", str(tmp_path / "bad.json"), *scored[4:]]) == (
        EXIT_BAD_INPUT
    )


@pytest.mark.parametrize(
    ("engine", "visible", "message"),
    [
        ({}, None, None),
        ({}, "0,1,2", None),
        ({}, "GPU-8932f937,GPU-12ab", None),
        ({"size": 3}, None, "has 2 stages, and --pipeline-parallel-size is 3; write 2"),
        ({"layers": 5}, None, "of 4 layers, and this is LlamaForCausalLM of 5; hand over a plan"),
        (
            {"architecture": "Qwen3"},
            None,
            "is for LlamaForCausalLM of 4 layers, and this is Qwen3 of",
        ),
        ({}, "1,0", "on the GPUs 0,1, and vLLM sees 1,0; start it with CUDA_VISIBLE_DEVICES=0,1"),
    ],
)
def test_another_start_is_refused(vllm, monkeypatch, tmp_path, engine, visible, message):
    given(monkeypatch, tmp_path)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for _ in range(2):  # as processes load plug-ins several times
        made = vllm(**engine)
    assert os.environ[PARTITION] == "1,3"
    if message is None:
        assert made.create_model_config().architectures == ["LlamaForCausalLM"]
        return
    with refused(message, starts=f"{VARIABLE}="):
        made.create_model_config()


def test_stages_in_another_order_need_the_variable(vllm, monkeypatch, tmp_path):
    words = ["CUDA_VISIBLE_DEVICES=1,0", *START["arguments"][1:]]
    given(monkeypatch, tmp_path, arguments=words)
    with pytest.raises(PartitionError, match="and vLLM sees 0,1; start it with CUDA_VISIBLE_DEV"):
        vllm().create_model_config()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert vllm().create_model_config()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layers": []}, "a stage has no layer"),
        ({"layers": [0, 4]}, "a stage has no layer"),
        ({"layers": "1,3"}, "layers is not a list"),
        ({"to": "sglang"}, "to is 'sglang'"),
        ({"arguments": None}, "arguments is"),
    ],
)
def test_files_of_something_else_are_refused(vllm, monkeypatch, tmp_path, changed, message):
    given(monkeypatch, tmp_path, **changed)
    with refused(message, "--to vllm --out FILE.json"):
        vllm()
    assert PARTITION not in os.environ


def test_other_layers_in_the_environment_and_no_file_are_refused(vllm, monkeypatch, tmp_path):
    given(monkeypatch, tmp_path)
    monkeypatch.setenv(PARTITION, "2,2")
    with pytest.raises(PartitionError, match="has the layers 1,3, and VLLM_PP_LAYER_PARTITION is"):
        vllm()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none.json"))
    with pytest.raises(PartitionError, match=r"FXPARTITION_PLAN: cannot read .*none.json: No such"):
        vllm()
