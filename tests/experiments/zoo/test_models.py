"""Tests of the model zoo and of naming models."""

import sys

import pytest
import torch

from experiments.zoo.builders import tensors
from experiments.zoo.building import ModelSpec, build_model
from experiments.zoo.configurations import ALL_CONFIGURATIONS, CONFIGURATIONS
from experiments.zoo.models import DEFAULT_MODELS, ZOO, captured_model, resolve_model
from solver import PartitionError
from tests.support.refusals import refused


def test_zoo_has_the_default_models():
    assert set(DEFAULT_MODELS) < set(ZOO)
    assert all(name == spec.name for name, spec in ZOO.items())
    without = [name for name, spec in ZOO.items() if not spec.has_weights]
    assert without == ["llama3-70b", "deepseek-v3"]


def test_published_configurations_can_be_named():
    captured = captured_model("configuration:dlrm-criteo")
    assert captured.operators
    spec = resolve_model("configuration:vgg-16")
    assert isinstance(spec, ModelSpec)
    assert not spec.has_weights


def test_the_branching_model_is_not_a_chain():
    operators = captured_model("tiny-branches").operators
    assert max(len(node.users) for node in operators) >= 3
    assert max(len(node.all_input_nodes) for node in operators) >= 3


@pytest.mark.parametrize(
    ("name", "size_bytes"), [("llama3-70b", 141_107_412_992), ("deepseek-v3", 1_342_052_808_704)]
)
def test_large_models_take_no_memory_for_weights(name, size_bytes):
    pytest.importorskip("transformers")
    loaded = build_model(ZOO[name])
    assert not loaded.has_weights
    sizes = (p.numel() * p.element_size() for p in loaded.module.parameters())
    assert sum(sizes) == size_bytes
    assert all(parameter.is_meta for parameter in loaded.module.parameters())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gtp2", "did you mean gpt2"),
        ("GPT2", "did you mean gpt2"),
        ("llama", "did you mean configuration:llama3-8b"),
        ("configuration:whisper", "'whisper' is unknown; did you mean whisper-small"),
        ("configuration:", "docs/coverage.md lists them"),
        ("zzzzz", "the zoo has gpt2"),
        ("meta-llama/Llama-3-8B", "did you mean configuration:llama3-8b?"),
        ("vit_b16", "did you mean vit-b16?"),
        ("", "the zoo has gpt2"),
        ("missing.json", "there is no file missing.json"),
        ("missing.json.gz", "there is no file missing.json.gz"),
        ("no_such_module:make", "cannot import no_such_module"),
        ("math:", "not an import string"),
        (":make", "not an import string"),
        ("a b:make", "not an import string"),
        ("math:sqroot", "did you mean 'sqrt'"),
        ("math:pi", "pi is a float"),
    ],
)
def test_unknown_names_say_what_comes_close(text, says):
    with refused(says):
        resolve_model(text)


def test_a_saved_problem_is_a_path_and_cannot_be_captured(tmp_path):
    path = tmp_path / "problem.json"
    path.write_text("{}")
    assert resolve_model(str(path)) == path
    with pytest.raises(PartitionError, match=r"problem\.json is a saved problem; name a model"):
        captured_model(str(path))


def test_without_transformers_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with refused('pip install "fxpartition[hf]"'):
        build_model(ZOO["gpt2"])


def test_an_exported_file_is_a_model_with_its_inputs(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    args = (torch.randn(2, 4),)
    torch.export.save(torch.export.export(model.eval(), args), tmp_path / "model.pt2")
    spec = resolve_model(str(tmp_path / "model.pt2"))
    assert isinstance(spec, ModelSpec)
    loaded = build_model(spec)
    assert loaded.has_weights
    assert torch.equal(loaded.module(*loaded.args, **loaded.kwargs), model(*args))
    with pytest.raises(PartitionError, match="there is no file"):
        build_model(resolve_model(str(tmp_path / "missing.pt2")))


def test_configurations_have_names_of_their_own_and_their_published_sizes():
    pytest.importorskip("transformers")
    assert len({each.name for each in ALL_CONFIGURATIONS}) == len(ALL_CONFIGURATIONS) >= 45
    published = {"gpt2-small": 124.4e6, "llama3-405b": 405.9e9, "resnet-50": 25.56e6}
    for name, count in published.items():
        model, args, kwargs = CONFIGURATIONS[name].build()
        assert all(p.is_meta for p in model.parameters())
        assert sum(p.numel() for p in model.parameters()) == pytest.approx(count, rel=1e-3)
        assert not args
        assert kwargs


def test_inputs_may_be_nested():
    made = tensors({"timestep": (1,)}, sample=(1, 4), more={"ids": (2, 3)})()
    assert made["timestep"].dtype.is_floating_point is False
    assert made["sample"].shape == (1, 4)
    assert made["more"]["ids"].shape == (2, 3)
