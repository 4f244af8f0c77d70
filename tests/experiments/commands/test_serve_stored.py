"""Folders of Hugging Face, and stored types, planned from the shell."""

import shutil

import pytest

from tests.support.safetensors_files import QUANTISED, plain, saved_shapes, write_folder
from tests.support.serving_models import model_of

pytestmark = pytest.mark.usefixtures("captured_once")
MODEL = "tests.support.serving_models:small"
SERVE = ["serve", "--prompt", "8", "--generate", "4", "--context", "16", "--devices", "1MB"]
TOKEN = [*SERVE, "--objective", "token"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model in 16 bits, quantised, and without its tensors."""
    folder, model = tmp_path_factory.mktemp("folders"), model_of("Llama")
    shapes = saved_shapes(model, folder / "saved")
    for name, tensors, config in (
        ("whole", plain(shapes, "F16"), {}),
        ("packed", QUANTISED["gptq"](shapes), {"quantization_config": {"quant_method": "gptq"}}),
    ):
        write_folder(folder / name, model, tensors, dtype="float16", **config)
    shutil.copytree(folder / "whole", folder / "bare", ignore=lambda *_: ["model.safetensors"])
    return folder


def test_a_folder_is_planned_with_the_bytes_of_its_files(folders, answer):
    # Layers, keys and values, heads, width, context, 16 bits; and frequencies, in no file.
    cache_bytes = 2 * 2 * 2 * 8 * 16 * 2 + 4 * 2
    held = {}
    for name in ("whole", "packed"):
        tensors = (folders / name / "model.safetensors").read_bytes()
        data_bytes = len(tensors) - 8 - int.from_bytes(tensors[:8], "little")
        (held[name],) = answer([*TOKEN, folders / name])["memory_bytes"].values()
        assert held[name] == data_bytes + cache_bytes
    assert held["packed"] < held["whole"]
    # What is written of it is a plan of the model itself.
    words = [folders / "packed", "--devices", "40KB,40KB", "--host", "1MB", "--usable", "1"]
    assert answer([*SERVE, *words])["status"] == "optimal"


def test_plan_reads_folders_too(folders, answer):
    words = ["plan", folders / "packed", "--devices", "1MB", "--memory-model", "weights"]
    (stage,) = answer(words)["devices"]
    assert stage["memory_bytes"] < 40_000


def test_types_of_weights_and_caches(folders, answer):
    def held(*words):
        return answer([*TOKEN, *words])["memory_bytes"]["cuda:0"]

    q8, q4, nf4 = (
        held(MODEL, "--weights", name, "--cache-type", "fp8") for name in ("q8", "q4", "nf4")
    )
    assert q4 < q8 < nf4 < held(MODEL)
    assert held(folders / "whole", "--weights", "q4") > q4


def test_what_cannot_be_read_is_told_in_one_line(folders, answer, refuses):
    for words, says in (
        ([folders / "packed", "--weights", "q4"], "quantised already ('gptq')"),
        ([MODEL, "--weights", "q9"], "no weights are of type 'q9'"),
        ([MODEL, "--cache-type", "q9"], "--cache-type is 'q9'"),
        (["mlp", "--weights", "q4"], "no language model of transformers"),
        ([folders], "config.json"),
    ):
        refuses([*SERVE, *words], says)
    assert "--weights q4" in refuses([*SERVE, folders / "bare"], "it has no model.safetensors")
    assert answer([*SERVE, folders / "bare", "--weights", "q4"])
