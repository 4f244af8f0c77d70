"""Models in GGUF files, planned from the shell without torch."""

import json
import random
import shlex
import subprocess
import sys

import pytest

from experiments.cli import main
from experiments.console.exit_codes import EXIT_NO_PLAN
from fx_bridge.files.gguf_header import read_gguf
from fx_bridge.files.gguf_layers import gguf_model
from solver import load_plan
from tests.support.documents import told_keys
from tests.support.gguf_files import write_gguf
from tests.support.gguf_models import write_small
from tests.support.llama_cpp_models import MODELS, write_model
from tests.support.problem_counts import samples

UNLIKE = ["--devices", "24GB@rtx-3090,12GB@rtx-3060"]
LONG = ["--time-limit", "30", "--deterministic"]
MACHINES = {
    "one card": ["--devices", "24GB@rtx-4090"],
    "unlike cards": UNLIKE,
    "small card, host": ["--devices", "8GB@rtx-4060", "--host", "64GB@ddr5-5600"],
}


@pytest.mark.parametrize(
    ("devices", "least"),
    [("6144MiB,4096MiB", 15_616), ("4096MiB,6144MiB", 14_592), ("7168MiB,2048MiB", 7_168)],
)
def test_contexts_are_longer_than_those_of_fit(tmp_path, devices, least, answer):
    """Fits by the estimate of llama.cpp itself: 13,568, 13,568 and 5,888 tokens."""
    path = write_model(tmp_path, "llama", "Q8_0")
    words = ["serve", path, "--devices", devices, "--usable", 1, "--objective", "context", *LONG]
    found = answer(words)
    assert found["status"] == "optimal" and found["context"] == found["bound"] >= least
    assert found["token_ns"] is None
    assert all(rule["tokens"] < found["context"] for rule in found["rules"])
    assert found["words"][3:5] == ["-c", str(found["context"])]
    assert all(use["free_bytes"] >= 0 for use in found["devices"])


def test_torch_is_not_loaded(tmp_path):
    path = write_model(tmp_path, "llama", "Q4_K", layers=4)
    words = ["serve", str(path), *UNLIKE, "--objective", "token"]
    code = (
        f"import sys; from experiments.cli import main; code = main({words!r}); "
        "print(code, 'torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[-1] == "0 False"


def test_lines_of_the_plan_and_of_older_builds_are_scored(tmp_path, capsys):
    path = write_model(tmp_path, "llama", "Q4_K", layers=6)
    words = ["serve", str(path), *UNLIKE, "--objective", "token", "--cache-type-k", "q8_0", *LONG]
    assert main([*words, "--words", "-ts 3,4 -ngl 7"]) == 0
    lines = capsys.readouterr().out.splitlines()
    given = next(text for text in lines if text.startswith("given: token"))
    # Older builds have no value behind -fa.
    for line, says in (("-fa -ngl 7 -ts 3,4", given), (lines[0], "a proven optimum")):
        assert main([*words, "--words", line]) == 0
        assert says in capsys.readouterr().out


def test_a_line_has_devices_in_an_order_of_its_own(tmp_path, answer):
    path = write_model(tmp_path, "llama", "Q4_K", layers=6)
    words = ["serve", path, *UNLIKE, "--objective", "token", *LONG, "--words"]
    lines = ("-ts 3,4", "-dev CUDA0,CUDA1 -ts 3,4", "-dev CUDA1,CUDA0 -ts 3,4")
    given = [answer([*words, line])["given"] for line in lines]
    named, first, second = (each["value"] for each in given)
    assert named == first != second and not any(each["violations"] for each in given)
    divided = answer([*words, r"-ts 3,4 -ot blk\.2\.ffn_down=CUDA1"])["given"]
    assert divided["value"] not in (first, None) and not divided["notes"]


def test_all_keys_of_the_answer_are_told(tmp_path, answer):
    path = write_small(tmp_path / "m.gguf", random.Random(3), 2)
    words = ["serve", path, *UNLIKE, "--prompt", 16, "--generate", 16, "--context", 256]
    found = answer([*words, "--words", "-ts 3,4 -ngl 2"])
    usual = told_keys("### `serve`") - {"reason", "diagnosis", "modes"}
    assert set(found) == usual | told_keys("### `serve` of a file")


def test_smaller_caches_have_longer_contexts(tmp_path, answer):
    path = write_model(tmp_path, "llama", "Q8_0")
    words = ["serve", path, "--devices", "10GB", "--objective", "context", *LONG]
    full = answer(words)["context"]
    small = answer([*words, "--cache-type", "q8_0"])
    assert 1.7 * full < small["context"] < 2 * full
    each = ["--cache-type-k", "q8_0", "--cache-type-v", "q8_0"]
    assert answer([*words, *each])["words"] == small["words"]
    mixed = answer([*words, "--cache-type", "q8_0", "--cache-type-v", "f16"])
    assert full < mixed["context"] < small["context"]


@pytest.mark.parametrize("case", ["llama Q8_0", "qwen3moe Q4_K", "gpt-oss MXFP4", "gemma3 Q4_K"])
def test_lines_of_ik_llama_cpp_are_scored_as_the_plan(tmp_path, case, answer):
    path = write_model(tmp_path, *case.split())
    words = ["serve", path, "--devices", "9GB@rtx-4060", "--host", "64GB@ddr5-5600", *LONG]
    words += ["--for", "ik_llama.cpp"]
    found = answer(words)
    assert found["status"] == "optimal" and found["since"] == "2025-10-28"
    assert "rules" not in found
    assert set(found["words"][7::2]) <= {"-dev", "-ngl", "-ot"}
    (use,) = found["devices"]
    assert use["free_bytes"] >= 0
    # A head that is the embedding cannot be placed apart from it.
    if case.startswith("gemma3"):
        assert len(use["layers"]) == 48
        small = ["1GB@rtx-4060" if word == "9GB@rtx-4060" else word for word in words]
        assert "no whole layer on the host" in answer(small, EXIT_NO_PLAN)["reason"]
    given = answer([*words, "--words", shlex.join(found["words"])])["given"]
    assert given["value"] == found["bound"] and not given["violations"] + given["notes"]


def test_ik_llama_cpp_copies_experts_for_larger_batches(tmp_path, answer):
    """A token reads 8 of 128 experts: those of 512 tokens are copied, as 32 rows of others."""
    path = write_model(tmp_path, "qwen3moe", "Q4_K")
    words = ["serve", path, *MACHINES["small card, host"], *LONG, "--objective", "token"]
    first_ns = {
        (engine, prompt): answer([*words, "--for", engine, "--prompt", prompt])["first_token_ns"]
        for engine in ("llama.cpp", "ik_llama.cpp")
        for prompt in (508, 512)
    }
    assert first_ns["llama.cpp", 512] == first_ns["ik_llama.cpp", 512]
    assert first_ns["llama.cpp", 508] < first_ns["ik_llama.cpp", 508]


def test_predictions_are_near_what_was_measured(tmp_path, answer):
    """Two equal cards and 70B in Q4_K_M: 16.6 and 19.2 tokens a second (docs/gguf.md)."""
    path = write_model(tmp_path, "llama", "Q4_K", layers=80, width=8192, feed=28672, count=64)
    for card, measured in (("rtx-3090", 16.6), ("rtx-4090", 19.2)):
        words = ["serve", path, "--devices", f"2x24GB@{card}", "--objective", "token"]
        found = answer([*words, "--context", 2048, *LONG])
        assert found["tokens_per_s"] == pytest.approx(measured, rel=0.15)


KINDS = dict.fromkeys(MODELS, ("Q8_0", "Q4_K", "F16", "Q3_K", "F32"))
KINDS["gpt-oss"] = ("Q8_0", "MXFP4", "F16", "F32")  # its rows are no multiples of 256
CASES = [f"{name} {kind}" for name, kinds in KINDS.items() for kind in kinds]
QUICK_CASES = ("llama Q4_K", "gemma3 Q8_0", "deepseek2 Q4_K", "mamba F16")


@pytest.mark.parametrize("case", samples(CASES, QUICK_CASES))
@pytest.mark.parametrize("machine", MACHINES)
def test_every_kind_of_model_is_planned_within_the_limits(tmp_path, case, machine, capsys):
    name, kind = case.split()
    path = write_model(tmp_path, name, kind)
    for objective in ("token", "context"):
        words = ["serve", path, *MACHINES[machine], "--objective", objective, "--time-limit", 10]
        code = main([*map(str, words), "--json"])
        found = json.loads(capsys.readouterr().out)
        if code == EXIT_NO_PLAN:
            assert found["status"] == "infeasible" and "give" in found["reason"]
            assert all(rule["reason"] for rule in found["rules"])
            continue
        assert code == 0 and found["bound"] is not None
        assert all(use["free_bytes"] >= 0 for use in found["devices"])
        for rule in found["rules"]:
            if not rule["reason"] and objective == "context":
                assert rule["tokens"] <= found["context"]
            elif not rule["reason"]:
                assert found["token_ns"] <= rule["token_ns"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--devices", "24GB"], "speed of device 'cuda:0' is not known"),
        (["--devices", "24GB@rtx-3090,64GB@cpu"], "write it as --host"),
        ([*UNLIKE, "--cache-type-k", "q9"], "--cache-type-k"),
        ([*UNLIKE, "--cache-type", "fp8"], "--cache-type is 'fp8'; write one of f16"),
        ([*UNLIKE, "--cache-type-v", "fp8"], "--cache-type-v is 'fp8'; write one of f16"),
        ([*UNLIKE, "--weights", "q4"], "--weights has no meaning for a .gguf file"),
        ([*UNLIKE, "--pin", "a=cuda:0"], "--pin has no meaning for a .gguf file"),
        ([*UNLIKE, "--first-token", "1s"], "--first-token has no meaning"),
        ([*UNLIKE, "--out", "plan.html"], "as --out plan.json"),
        ([*UNLIKE, "--steps"], "--steps has no meaning"),
        ([*UNLIKE, "--solver", "greedy"], "--solver has no meaning"),
        ([*UNLIKE, "--for", "vllm"], "write --for llama.cpp or ik_llama.cpp"),
        ([*UNLIKE, "--for", "ik_llama.cpp"], "-ts divides bytes"),
        (["--devices", "8GB@rtx-4060", "--for", "ik_llama.cpp", "--check"], "leave it out"),
        (["--devices", "8GB@rtx-4060", "--for", "ik_llama.cpp", "--rules"], "leave --rules out"),
        ([*UNLIKE, "--objective", "all"], "write one"),
        ([*UNLIKE, "--host-link", "25GB/s"], "add such as --host"),
        ([*UNLIKE, "--words", "-ngl x"], "-ngl"),
        ([], "there are no devices"),
        ([*UNLIKE, "--context", "100"], "do not fit a context"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_line(tmp_path, options, says, refuses):
    path = write_small(tmp_path / "m.gguf", random.Random(1), 2)
    refuses(["serve", path, *options], says)


def test_files_that_are_no_language_models_are_refused_in_one_line(tmp_path, refuses):
    lost = tmp_path / "lost.gguf"
    refuses(["serve", lost, *UNLIKE], "there is no file")
    text = tmp_path / "text.gguf"
    text.write_text("not a model", encoding="utf-8")
    refuses(["serve", text, *UNLIKE], "does not begin with GGUF")
    keys = {"general.architecture": "clip", "clip.block_count": 1, "clip.embedding_length": 256}
    path = write_gguf(tmp_path / "mmproj.gguf", keys, [("v.blk.0.attn_q.weight", "F16", (4, 4))])
    refuses(["serve", path, *UNLIKE], "projector")
    models = ["serve", "tests.support.serving_models:small", "--devices", "1GB"]
    refuses([*models, "--cache-type-v", "q8_0"], "about a .gguf file")
    refuses([*models, "--for", "ik_llama.cpp"], "is for a .gguf file")


def test_a_context_beyond_that_of_the_training_is_noted_and_the_plan_is_written(tmp_path, capsys):
    path = write_small(tmp_path / "m.gguf", random.Random(3), 2)
    trained = gguf_model(read_gguf(path)).longest_context
    words = ["serve", str(path), *UNLIKE, "--objective", "token", "--context", str(4 * trained)]
    words += ["--prompt", "16", "--generate", "16", "--out", str(tmp_path / "plan.json")]
    assert main(words) == 0
    assert f"; the model was trained for {trained}\n" in capsys.readouterr().out
    assert "blk.0" in load_plan(tmp_path / "plan.json").assignment


def test_a_training_shorter_than_a_step_of_contexts_has_one_step(tmp_path, answer):
    model = MODELS["llama"]("Q8_0", layers=2, width=512, feed=512, count=4, kv=4, vocabulary=64)
    path = write_gguf(
        tmp_path / "m.gguf", model.metadata | {"llama.context_length": 100}, model.tensors
    )
    found = answer(["serve", path, "--devices", "1GB", "--objective", "context"])
    assert (found["context"], found["status"]) == (256, "optimal")
    assert [rule["tokens"] for rule in found["rules"]] == [256, 256]


def test_a_host_too_small_for_the_embedding_is_named(tmp_path, capsys):
    words = ["serve", str(write_model(tmp_path, "llama", "Q8_0")), "--devices", "24GB@rtx-3090"]
    assert main([*words, "--host", "500MB"]) == EXIT_NO_PLAN
    first = capsys.readouterr().out.splitlines()[0]
    assert "infeasible; the embedding, on the host, is 558.2 MB" in first
    assert first.endswith("give a larger --host")


def test_a_name_that_begins_with_a_dash_is_no_option_in_the_line(tmp_path, monkeypatch, answer):
    write_small(tmp_path / "-m.gguf", random.Random(3), 2)
    monkeypatch.chdir(tmp_path)
    words = ["serve", "./-m.gguf", "--devices", "1GB", "--objective", "context"]
    assert answer(words)["words"][1:3] == ["-m", "./-m.gguf"]


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """Put a program on the path that counts some bytes more on CUDA0 than a file says."""
    program, count = tmp_path / "llama-fit-params", tmp_path / "count"
    program.write_text(
        "#!/usr/bin/env python3\nimport pathlib, sys\n"
        f"count = pathlib.Path({str(count)!r})\n"
        "sizes = count.read_text().split(',') if count.exists() else ['1']\n"
        "count.write_text(','.join(sizes[1:] or sizes))\n"
        "print('CUDA0', sizes[0], 0, 0, '\\nHost 1 0 0 ')\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return count


def test_plans_are_corrected_by_the_count_of_the_engine(tmp_path, engine, answer, refuses):
    path = write_model(tmp_path, "llama", "Q8_0")
    words = ["serve", path, "--devices", "10GiB", "--usable", 1, "--objective", "context", *LONG]
    free = answer([*words, "--check"])
    assert free == {**answer(words), "wall_time_s": free["wall_time_s"]}
    # 100 MiB more than there are, and then as many as there are.
    engine.write_text(f"{10 * 1024 + 99},1000")
    less = answer([*words, "--check"])
    # Proven is what was proven with all memory.
    assert (less["status"], less["bound"]) == ("feasible", free["bound"])
    # A token takes 32 layers x 4 KiB of caches: 100 MiB are those of 800, without their buffers.
    assert 512 <= free["context"] - less["context"] <= 1024
    engine.write_text("99999")
    refuses([*words, "--check"], "counts more than cuda:0 has")
