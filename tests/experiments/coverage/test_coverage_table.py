import contextlib
import json
import math
import pickle
import sys
import time
from dataclasses import replace

import pytest

from experiments.coverage import command as coverage
from experiments.coverage.worker import CoverageRow, Measurement, WorkerLimits, run_isolated
from experiments.zoo.builders import TEXT, Configuration, from_torch, from_transformers, tensors
from experiments.zoo.configurations import ALL_CONFIGURATIONS, CONFIGURATIONS
from experiments.zoo.small.configurations import SMALL_CONFIGURATIONS
from solver import PartitionError

# torch loads in functions alone: the processes that import this file should start fast.


def _mlp():
    import torch
    from torch import nn

    layers = [nn.Linear(64, 64) for _ in range(8)]
    return nn.Sequential(*layers), (torch.zeros(2, 64),)


def _data_dependent():
    import torch
    from torch import nn

    class Branch(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x - 1

    return Branch(), (torch.zeros(3),)


def _end_process():
    sys.exit(7)


def _never_return():
    time.sleep(3600)


def _take_memory():
    return bytearray(2**40)


TINY_GPT2 = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 1000}


def test_every_configuration_has_a_name_of_its_own_and_a_builder_that_can_be_sent():
    assert len({each.name for each in ALL_CONFIGURATIONS}) == len(ALL_CONFIGURATIONS)
    assert len(CONFIGURATIONS) >= 45
    assert not CONFIGURATIONS.keys() & SMALL_CONFIGURATIONS.keys()
    assert len(SMALL_CONFIGURATIONS) >= 60
    for each in (*ALL_CONFIGURATIONS, *SMALL_CONFIGURATIONS.values()):
        assert callable(pickle.loads(pickle.dumps(each)).build)


def test_the_named_configurations_have_their_published_sizes():
    pytest.importorskip("transformers")
    published = {"gpt2-small": 124.4e6, "llama3-405b": 405.9e9, "resnet-50": 25.56e6}
    for name, count in published.items():
        model, args, kwargs = CONFIGURATIONS[name].build()
        assert all(p.is_meta for p in model.parameters())
        assert sum(p.numel() for p in model.parameters()) == pytest.approx(count, rel=1e-3)
        assert not args
        assert kwargs


def test_a_model_is_captured_exported_and_split():
    row = Measurement(from_torch("mlp", _mlp), WorkerLimits()).run()
    assert (row.how, row.reason, row.split_reason) == ("export", "", "")
    assert row.operators == 8
    assert row.nodes == 8 + 16 + 1 + 1
    assert row.weights_bytes == 8 * (64 * 64 + 64) * 4
    assert row.made_up == ()
    assert (row.stages, row.ran) == (4, True)
    assert min(row.build_s, row.capture_s, row.export_s, row.split_s) >= 0


def test_a_small_model_is_run_and_its_outputs_and_gradients_are_compared():
    small = replace(from_torch("mlp", _mlp), device="cpu", trained=True)
    row = Measurement(small, WorkerLimits()).run()
    assert (row.reason, row.split_reason, row.stages, row.ran) == ("", "", 4, True)
    assert (row.equal, row.gradients_equal) == (True, True)
    inference = Measurement(replace(small, trained=False), WorkerLimits()).run()
    assert (inference.equal, inference.gradients_equal) == (True, None)


def test_stages_that_compute_something_else_are_a_row_with_the_reason(monkeypatch):
    from fx_bridge.split import by_plan as splitting

    def spoilt(captured, plan):
        split = split_by_plan(captured, plan)
        split.submod_2.register_forward_hook(lambda module, args, output: output + 1)
        return split

    split_by_plan = splitting.split_by_plan
    monkeypatch.setattr(splitting, "split_by_plan", spoilt)
    small = replace(from_torch("mlp", _mlp), device="cpu", trained=True)
    row = Measurement(small, WorkerLimits()).run()
    assert (row.equal, row.gradients_equal) == (False, False)
    assert row.split_reason.startswith("run: ")


@pytest.mark.parametrize("autocast", ["call", "capture and call"])
def test_a_model_is_called_under_autocast_after_a_capture_outside_and_inside(autocast):
    small = replace(from_torch("mlp", _mlp), device="cpu", autocast=autocast)
    row = Measurement(small, WorkerLimits()).run()
    assert (row.equal, row.split_reason) == (True, "")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if each.package is None else pytest.mark.nightly)
        for name, each in SMALL_CONFIGURATIONS.items()
    ],
)
def test_small_models_run_on_their_inputs_and_are_the_same_every_time_and_after_a_capture(name):
    import torch
    from torch.utils import _pytree as pytree

    from fx_bridge import capture
    from tests.support.model_state import left_as_it_was

    small = SMALL_CONFIGURATIONS[name]
    if name == "packed-int8-mlp" and "x86" not in torch.backends.quantized.supported_engines:
        pytest.skip("torch has no quantised kernels here")
    if small.package is not None:
        pytest.importorskip(small.package)
    outputs = []
    for is_captured in (False, True):
        model, args, kwargs = small.build()
        assert not model.training
        if is_captured:
            with left_as_it_was(model), contextlib.suppress(PartitionError):
                capture(model, args, kwargs, constants=small.constants)
        torch.manual_seed(1)
        with torch.set_grad_enabled(small.trained):
            outputs.append(model(*args, **kwargs))
    # A capture lets pytrees look into caches.
    one, other = (
        [leaf for leaf in pytree.tree_leaves(each) if isinstance(leaf, torch.Tensor)]
        for each in outputs
    )
    assert all(map(torch.equal, one, other))
    assert len(one) == len(other) > 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_published_models_are_as_before_after_a_capture(name):
    from fx_bridge import capture
    from tests.support.model_state import left_as_it_was

    package = CONFIGURATIONS[name].package
    if package is not None:
        pytest.importorskip(package)
    model, args, kwargs = CONFIGURATIONS[name].build()
    with left_as_it_was(model), contextlib.suppress(PartitionError):
        capture(model, args, kwargs, constants=CONFIGURATIONS[name].constants)


def test_a_model_of_transformers_is_captured_exported_and_split():
    pytest.importorskip("transformers")
    configuration = from_transformers(
        "decoder", "tiny-gpt2", "GPT2LMHeadModel", TEXT, dtype="bfloat16", **TINY_GPT2
    )
    row = Measurement(configuration, WorkerLimits()).run()
    assert (row.how, row.reason, row.split_reason, row.stages) == ("export", "", "", 4)
    # The head is tied to the embedding, and counted once.
    layer = 12 * 64 * 64 + 13 * 64
    assert row.weights_bytes == 2 * (1000 * 64 + 1024 * 64 + 2 * layer + 2 * 64)


def test_a_worker_sends_its_row():
    row = run_isolated(from_torch("mlp", _mlp), WorkerLimits())
    assert (row.how, row.operators, row.stages, row.reason) == ("export", 8, 4, "")
    assert row.peak_memory_bytes > 50 * 2**20


def test_a_model_that_cannot_be_captured_says_where():
    row = Measurement(from_torch("branch", _data_dependent), WorkerLimits()).run()
    assert row.reason.startswith("capture: cannot capture Branch")
    assert "x.sum() > 0" in row.reason
    assert "\n" not in row.reason
    assert row.build_s is not None
    assert row.capture_s is None
    assert (row.how, row.stages) == ("", 0)


@pytest.mark.parametrize(
    ("build", "limits", "reason"),
    [
        (_end_process, WorkerLimits(), "build: its process ended: exit code 7"),
        (_never_return, WorkerLimits(1.0), "build: not done after 1 s; give --time-limit more"),
    ],
)
def test_a_model_that_ends_its_process_or_hangs_is_a_row(build, limits, reason):
    row = run_isolated(Configuration("bad", "test", build), limits)
    assert row.reason == reason


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces the address space")
def test_a_model_that_takes_too_much_memory_is_a_row():
    row = run_isolated(Configuration("bad", "test", _take_memory), WorkerLimits())
    assert row.reason == "build: needs more than 12 GiB of memory"


def _reads_a_value():
    import torch
    from torch import nn

    class Checked(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))

        def forward(self, x):
            torch._check((x == x).all().item())
            return self.layers(x)

    return Checked(), (torch.zeros(2, 8),)


def test_stages_that_need_values_of_tensors_are_not_run():
    row = Measurement(from_torch("checked", _reads_a_value), WorkerLimits()).run()
    assert (row.reason, row.split_reason) == ("", "")
    assert row.made_up == ("item",)
    assert row.stages > 1
    assert not row.ran
    assert any("needs values of tensors" in line for line in coverage.remarks([row]))


def test_a_missing_package_says_what_to_install():
    configuration = Configuration("bad", "test", _end_process, "no_such_package")
    row = Measurement(configuration, WorkerLimits()).run()
    assert row.reason == "build: no_such_package is not installed; pip install no_such_package"


@pytest.mark.parametrize("time_s", [0.0, -1.0, math.inf, math.nan])
def test_a_time_limit_that_never_ends_a_model_is_refused(time_s):
    with pytest.raises(PartitionError, match="time limit"):
        WorkerLimits(time_s)


def test_inputs_may_be_nested():
    made = tensors({"timestep": (1,)}, sample=(1, 4), more={"ids": (2, 3)})()
    assert made["timestep"].dtype.is_floating_point is False
    assert made["sample"].shape == (1, 4)
    assert made["more"]["ids"].shape == (2, 3)


def test_models_are_chosen_by_name_and_family():
    assert [each.name for each in coverage.select(["gpt2-*"])] == [
        "gpt2-small",
        "gpt2-medium",
        "gpt2-xl",
    ]
    vision = coverage.select(["vision", "resnet-50"])
    assert {each.family for each in vision} == {"vision"}
    assert len(coverage.select([])) == len(CONFIGURATIONS) + len(SMALL_CONFIGURATIONS)
    with pytest.raises(PartitionError, match="did you mean llama2-7b"):
        coverage.select(["lama2-7b"])
    with pytest.raises(PartitionError, match="'nothing-like-it'; --list names all"):
        coverage.select(["nothing-like-it"])


def test_an_interrupted_run_leaves_what_is_done(monkeypatch, tmp_path, capsys):
    def stop_at_the_second(configuration, limits):
        if configuration.name != "gpt2-small":
            raise KeyboardInterrupt
        return CoverageRow(configuration.name, configuration.family, reason="capture: no\x1b[1m")

    monkeypatch.setattr(coverage, "run_isolated", stop_at_the_second)
    path = tmp_path / "rows.json"
    assert coverage.main(["--only", "gpt2*", "--json", str(path)]) == 130
    assert [row["model"] for row in json.loads(path.read_text())["rows"]] == ["gpt2-small"]
    printed = capsys.readouterr().out
    assert "gpt2-small: capture: no\\x1b[1m" in printed
    assert "0 of 1 model captured and exported" in printed


def test_reasons_are_shortened():
    reason = "capture: at /home/me/lib/python3.12/site-packages/some/model.py:3, " + "why " * 200
    line = coverage.remarks([CoverageRow("model", "test", reason=reason)])[0]
    assert line.startswith("model: capture: at some/model.py:3, why why")
    assert line.endswith("why ...")
    assert len(line) < 420


@pytest.mark.parametrize(
    "arguments",
    [
        ["--only", "nothing-like-it"],
        ["--time-limit", "soon"],
        ["--json", "no/such/folder/x.json"],
    ],
)
def test_bad_options_are_one_line(capsys, arguments):
    assert coverage.main(arguments) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1


def test_the_models_can_be_listed(capsys):
    assert coverage.main(["--only", "flux-12b", "--list"]) == 0
    assert capsys.readouterr().out.split() == ["flux-12b", "diffusion", "diffusers"]


@pytest.mark.nightly
def test_at_least_forty_models_are_captured_and_exported():
    pytest.importorskip("transformers")
    rows = []
    coverage.run(list(CONFIGURATIONS.values()), WorkerLimits(), rows)
    exported = [row for row in rows if not row.reason]
    assert len(exported) >= 40, coverage.remarks(rows)
    assert all(row.stages > 1 for row in exported), coverage.remarks(rows)
