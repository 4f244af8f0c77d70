"""Folders of Hugging Face, and stored types, planned from the shell."""

import json

import pytest

from experiments.cli import main
from experiments.console.exit_codes import EXIT_BAD_INPUT
from tests.support.safetensors_files import gptq, plain, saved_shapes, write_folder
from tests.support.serving_models import model_of

REQUEST = ["--prompt", "8", "--generate", "4", "--context", "16"]
MODEL = "tests.support.serving_models:small"


def answer(words, capsys):
    assert main(["serve", *words, *REQUEST, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(words, capsys):
    assert main(["serve", *words, "--devices", "1MB", *REQUEST]) == EXIT_BAD_INPUT
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    return told


@pytest.fixture
def folders(tmp_path):
    """A model in 16 bits, and quantised."""
    model = model_of("Llama")
    shapes = saved_shapes(model, tmp_path / "saved")
    for name, tensors, config in (
        ("whole", plain(shapes, "F16"), {}),
        ("packed", gptq(shapes), {"quantization_config": {"quant_method": "gptq"}}),
    ):
        write_folder(tmp_path / name, model, tensors, dtype="float16", **config)
    return tmp_path


def test_a_folder_is_planned_with_the_bytes_of_its_files(folders, capsys):
    # Layers, keys and values, heads, width, context, 16 bits; and frequencies, in no file.
    cache_bytes = 2 * 2 * 2 * 8 * 16 * 2 + 4 * 2
    held = {}
    for name in ("whole", "packed"):
        found = answer([str(folders / name), "--devices", "1MB", "--objective", "token"], capsys)
        tensors = (folders / name / "model.safetensors").read_bytes()
        data_bytes = len(tensors) - 8 - int.from_bytes(tensors[:8], "little")
        (held[name],) = found["memory_bytes"].values()
        assert held[name] == data_bytes + cache_bytes
    assert held["packed"] < held["whole"]
    # What is written of it is a plan of the model itself.
    words = [str(folders / "packed"), "--devices", "40KB,40KB", "--host", "1MB", "--usable", "1"]
    assert answer(words, capsys)["status"] == "optimal"


def test_plan_reads_folders_too(folders, capsys):
    words = ["plan", str(folders / "packed"), "--devices", "1MB", "--memory-model", "weights"]
    assert main([*words, "--json"]) == 0
    (stage,) = json.loads(capsys.readouterr().out)["devices"]
    assert stage["memory_bytes"] < 40_000


def test_types_of_weights_and_caches(folders, capsys):
    whole = answer([MODEL, "--devices", "1MB", "--objective", "token"], capsys)["memory_bytes"]
    held = {}
    for name in ("q8", "q4", "nf4"):
        words = [MODEL, "--devices", "1MB", "--objective", "token", "--weights", name]
        held[name] = answer([*words, "--cache-type", "fp8"], capsys)["memory_bytes"]["cuda:0"]
    assert held["q4"] < held["q8"] < held["nf4"] < whole["cuda:0"]
    words = [str(folders / "whole"), "--devices", "1MB", "--objective", "token", "--weights", "q4"]
    assert answer(words, capsys)["memory_bytes"]["cuda:0"] > held["q4"]


def test_what_cannot_be_read_is_told_in_one_line(folders, capsys):
    assert "quantised already ('gptq')" in refused(
        [str(folders / "packed"), "--weights", "q4"], capsys
    )
    assert "no weights are of type 'q9'" in refused([MODEL, "--weights", "q9"], capsys)
    assert "--cache-type is 'q9'" in refused([MODEL, "--cache-type", "q9"], capsys)
    assert "no language model of transformers" in refused(["mlp", "--weights", "q4"], capsys)
    assert "config.json" in refused([str(folders)], capsys)
    (folders / "whole" / "model.safetensors").unlink()
    told = refused([str(folders / "whole")], capsys)
    assert "it has no model.safetensors" in told and "--weights q4" in told
    assert answer([str(folders / "whole"), "--devices", "1MB", "--weights", "q4"], capsys)
