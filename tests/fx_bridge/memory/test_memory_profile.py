import functools
import json
import random

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from fx_bridge.capture.graph import capture, placeholder_values
from fx_bridge.digraph import to_digraph
from fx_bridge.memory.profile import memory_profile, peak_memory
from fx_bridge.memory.run import NothingToTrainError
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import colocation_groups
from solver import Device, PartitionError, evaluate, problem_from_digraph
from tests.support.cuda_memory import CUDA_MODELS, chain_plan, cuda_rows, stage_inputs
from tests.support.memory_models import INFERENCE_ONLY, MODELS, TRANSFORMERS, build
from tests.support.modules import module_with
from tests.support.problem_counts import nightly
from tests.support.random_modules import random_program
from tests.support.random_plans import random_plan
from tests.support.refusals import refused
from tests.support.split_checks import in_halves
from tests.support.stage_profiles import stage_profiles
from tests.support.storage_tracker import track_forward, track_training
from tests.support.training_peaks import phase_peaks, tracked_peaks

# Training of these is measured in every run; the nightly one takes all.
TRAINED = ["gpt2", "llama", "mixtral", "lstm", "convnet", "dropout", "encoder", "views", "tuples"]
TRAINED += ["casts", "tied", "grad-free"]
# Only the nightly run measures these.
SLOW = ("t5", "swin", "convnext", "bert", "resnet")
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 1e-3, foreach=False),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 1e-3, momentum=0.9, foreach=False),
    "adam": lambda parameters: torch.optim.Adam(parameters, 1e-3, foreach=False),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-3, foreach=False),
}


@functools.cache
def captured_model(name):
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    model, args, kwargs = build(name)
    captured = capture(model, args, kwargs)
    return captured, list(placeholder_values(captured, args, kwargs))


@pytest.mark.parametrize("name", [*nightly(SLOW), *(name for name in MODELS if name not in SLOW)])
def test_forward_equals_the_tracker_at_every_node(name):
    captured, inputs = captured_model(name)
    profile = memory_profile(captured, runner="interpreter")
    tracker = track_forward(captured.module, inputs, interpret=True)
    assert profile.peak_bytes == max(tracker.peaks.values())
    assert [(p.node, p.live_bytes) for p in profile.points] == tracker.after
    assert {p.node: p.peak_bytes for p in profile.points} == {
        label: size_bytes for label, size_bytes in tracker.peaks.items() if label != "end"
    }
    assert profile.made_up == ()


@pytest.mark.parametrize("name", ["gpt2", "lstm", "convnet", "views", "tuples", "cache", "casts"])
def test_forward_of_the_generated_code_equals_the_tracker(name):
    captured, inputs = captured_model(name)
    tracker = track_forward(captured.module, inputs, interpret=False)
    assert peak_memory(captured) == max(tracker.peaks.values())


def check_training(name, optimizer, *, masters=True, accumulate=False):
    captured, inputs = captured_model(name)
    settings = {"optimizer": optimizer, "master_weights": masters, "accumulating": accumulate}
    profile = memory_profile(captured, training=True, runner="interpreter", **settings)
    ways = {"optimizer": OPTIMIZERS[optimizer], "masters": masters, "accumulate": accumulate}
    tracker = track_training(captured.module, inputs, **ways)
    assert phase_peaks(profile) == tracked_peaks(tracker)
    return profile, tracker


@pytest.mark.parametrize("name", TRAINED)
def test_a_training_step_equals_the_tracker_in_every_phase(name):
    optimizer = list(OPTIMIZERS)[TRAINED.index(name) % len(OPTIMIZERS)]
    profile, tracker = check_training(name, optimizer)
    assert profile.points[-1].live_bytes == tracker.after[-1][1]


@pytest.mark.parametrize("name", ["convnet", "llama-bf16", "tied"])
def test_gradients_of_earlier_microbatches_are_there_from_the_start(name):
    check_training(name, "adamw", accumulate=True)


@pytest.mark.nightly
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("masters", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", [name for name in MODELS if name not in INFERENCE_ONLY])
def test_every_way_to_train_equals_the_tracker(name, optimizer, masters, accumulate):
    check_training(name, optimizer, masters=masters, accumulate=accumulate)


def test_a_loss_is_part_of_the_step():
    captured, inputs = captured_model("tied")
    labels = torch.randint(0, 30, (2, 9))

    def loss(outputs):
        return nn.functional.cross_entropy(outputs[0].flatten(0, 1), labels.flatten())

    profile = memory_profile(captured, training=True, loss=loss, runner="interpreter")
    tracker = track_training(
        captured.module, inputs, optimizer=OPTIMIZERS["adamw"], loss=loss, masters=True
    )
    # Only the run itself knows of the labels: the estimator meets them as it goes.
    labels_bytes = labels.untyped_storage().nbytes()
    for phase, peak_bytes in tracked_peaks(tracker).items():
        assert abs(phase_peaks(profile)[phase] - peak_bytes) <= labels_bytes
    assert ("forward", "loss") in [(p.phase, p.node) for p in profile.points]


def test_torchs_optimisers_that_update_all_at_once_take_more():
    captured, inputs = captured_model("encoder")
    profile = memory_profile(captured, training=True, foreach=True, runner="interpreter")
    at_once = functools.partial(torch.optim.AdamW, lr=1e-3, foreach=True)
    tracker = track_training(captured.module, inputs, optimizer=at_once)
    assert phase_peaks(profile) == tracked_peaks(tracker)
    one_by_one = memory_profile(captured, training=True, runner="interpreter")
    assert phase_peaks(profile)["optimizer"] > phase_peaks(one_by_one)["optimizer"]


@pytest.mark.parametrize("seed", [*range(10), *nightly(range(100, 500))])
def test_random_graphs_equal_the_tracker(seed):
    """Compare a random program, and a step of it if there is something to train."""
    model, args, kwargs = random_program(seed).build()
    captured = capture(model, args, kwargs)
    inputs = list(placeholder_values(captured, args, kwargs))
    profile = memory_profile(captured, runner="interpreter")
    tracker = track_forward(captured.module, inputs, interpret=True)
    assert [(p.node, p.live_bytes) for p in profile.points] == tracker.after, seed
    assert profile.peak_bytes == max(tracker.peaks.values()), seed
    assert peak_memory(captured) == max(
        track_forward(captured.module, inputs, interpret=False).peaks.values()
    ), seed
    try:
        profile = memory_profile(captured, training=True, runner="interpreter")
    except NothingToTrainError:
        return
    tracker = track_training(captured.module, inputs, optimizer=OPTIMIZERS["adamw"], masters=True)
    # Without parameters there is no step of an optimiser.
    tracked = tracked_peaks(tracker)
    assert phase_peaks(profile) == {phase: tracked[phase] for phase in phase_peaks(profile)}, seed


def check_stages(name, seed):
    """Compare every stage of a random plan, alone, with the tracker and with the promise."""
    captured, _ = captured_model(name)
    _, args, kwargs = build(name)
    groups = colocation_groups(captured, training=False)
    plan = random_plan(captured, groups, 3, random.Random(seed))
    split = split_by_plan(captured, plan)
    inputs = stage_inputs(split, args, kwargs)
    devices = [Device(device) for device in plan.device_order]
    problem = problem_from_digraph(to_digraph(captured), devices)
    usage = {entry.device: entry for entry in evaluate(problem, plan).usage}
    for stage, profile in stage_profiles(split).items():
        module = capture(moved(split.get_submodule(stage))).module
        tracker = track_forward(module, list(inputs[stage]), interpret=False)
        held_bytes = max(tracker.peaks.values())
        assert profile.peak_bytes == held_bytes, (name, seed, stage)
        entry = usage[split.meta["stages"][stage]]
        assert entry.memory_bytes >= held_bytes, (name, seed, stage)


def moved(stage):
    """Make buffers that are views of weights of other stages weights of their own."""
    tensors = {id(tensor): tensor for tensor in (*stage.parameters(), *stage.buffers())}
    addresses = [tensor.untyped_storage()._cdata for tensor in tensors.values()]
    for path, buffer in list(stage.named_buffers(remove_duplicate=False)):
        if addresses.count(buffer.untyped_storage()._cdata) == 1:
            owner, _, name = path.rpartition(".")
            stage.get_submodule(owner)._buffers[name] = buffer.clone()
    return stage


SOME = ["mixtral", "convnet", "views", "tuples", "cache", "tied"]


@pytest.mark.parametrize("name", [*SOME, *nightly(name for name in MODELS if name not in SOME)])
def test_stages_alone_hold_no_more_than_promised(name):
    for seed in range(3 if name in SOME else 10):
        check_stages(name, seed)


def test_a_chain_of_stages_holds_exactly_what_is_promised():
    captured, _ = captured_model("gpt2")
    plan = chain_plan(captured, 3)
    problem = problem_from_digraph(
        to_digraph(captured), [Device(f"d{index}") for index in range(3)]
    )
    usage = {entry.device: entry for entry in evaluate(problem, plan).usage}
    split = split_by_plan(captured, plan)
    for stage, profile in stage_profiles(split).items():
        assert profile.peak_bytes == usage[split.meta["stages"][stage]].memory_bytes


@pytest.mark.parametrize("name", ["encoder", "tuples"])
def test_training_of_stages_alone_equals_the_tracker(name):
    captured, _ = captured_model(name)
    _, args, kwargs = build(name)
    split = split_by_plan(captured, chain_plan(captured, 3))
    inputs = stage_inputs(split, args, kwargs)
    profiles = stage_profiles(split, training=True, runner="interpreter", accumulating=True)
    for position, (stage, profile) in enumerate(profiles.items()):
        for tensor in inputs[stage]:
            tensor.requires_grad_(position > 0 and tensor.is_floating_point())
        module = capture(split.get_submodule(stage)).module
        tracker = track_training(
            module, list(inputs[stage]), optimizer=OPTIMIZERS["adamw"], accumulate=True
        )
        # A stage without parameters has no step.
        expected = {phase: tracked_peaks(tracker)[phase] for phase in phase_peaks(profile)}
        assert phase_peaks(profile) == expected, stage


def test_a_stage_that_is_not_trained_runs_forward_alone():
    captured, _ = captured_model("grad-free")
    split = in_halves(captured, 1)
    first, second = stage_profiles(split, training=True).values()
    assert {point.phase for point in first.points} == {"forward"}
    assert {point.phase for point in second.points} == {"forward", "backward", "optimizer"}


def test_later_stages_have_gradients_of_their_inputs():
    captured, _ = captured_model("tied")
    split = split_by_plan(captured, chain_plan(captured, 2))
    first, second = stage_profiles(split, training=True, optimizer="sgd").values()
    without = stage_profiles(split, training=True, optimizer="sgd", input_gradients=False)
    assert first == next(iter(without.values()))
    assert second.points[-1].live_bytes > list(without.values())[1].points[-1].live_bytes


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", CUDA_MODELS)
def test_stages_alone_take_what_cudas_allocator_says(name):
    pytest.importorskip("transformers")
    workspace_bytes = 64 * 2**20
    for stage, what, estimate, held in cuda_rows(name):
        assert abs(held - estimate) <= 0.05 * estimate + workspace_bytes, (stage, what)


@functools.cache
def small():
    model = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2, bias=False))
    return capture(model, (torch.ones(3, 4),))


def test_a_profile_says_who_is_alive_at_the_peak():
    profile = memory_profile(small())
    # Weights (4 x 8 + 8 + 16), the input, and what the sigmoid reads and makes.
    assert profile.peak_bytes == 4 * (56 + 12 + 24 + 24)
    assert (profile.peak_point.phase, profile.peak_point.node) == ("forward", "sigmoid")
    assert [(s.kind, s.owner, s.size_bytes) for s in profile.alive_at_peak] == [
        ("weight", "0.weight", 128),
        ("activation", "linear", 96),
        ("activation", "sigmoid", 96),
        ("weight", "2.weight", 64),
        ("input", "input_1", 48),
        ("weight", "0.bias", 32),
    ]
    alive = {"linear": 96, "sigmoid": 96, "linear_1": 24, "output": 24}
    assert [(p.node, p.live_bytes - 272) for p in profile.points] == [*alive.items()]


def test_a_profile_is_plain_data():
    profile = memory_profile(small(), training=True)
    data = json.loads(json.dumps(profile.to_dict()))
    assert data["peak_bytes"] == profile.peak_bytes == peak_memory(small(), training=True)
    assert data["points"][data["peak_index"]]["node"] == data["peak_node"]
    assert f"peak {profile.peak_bytes:,} bytes" in str(profile)
    assert profile == memory_profile(small(), training=True)


def test_gradients_that_the_model_happens_to_have_do_not_count():
    captured = small.__wrapped__()
    before = memory_profile(captured, training=True)
    captured.module(torch.ones(3, 4)).sum().backward()
    assert memory_profile(captured, training=True) == before


def test_models_on_the_meta_device():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10**6))
    captured = capture(model, (torch.empty(2, 1024, device="meta"),))
    weights_bytes = sum(p.nbytes for p in model.parameters())
    profile = memory_profile(captured, training=True, optimizer="adamw")
    assert profile.peak_point.phase == "optimizer"
    assert profile.points[-1].live_bytes >= 4 * weights_bytes


def test_a_joint_graph_with_its_parameters_as_inputs():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    parameters = dict(model.named_parameters())

    def joint(parameters, x):
        loss = torch.func.functional_call(model, parameters, (x,)).sum()
        return [loss, *torch.autograd.grad(loss, list(parameters.values()))]

    x = torch.ones(3, 4)
    graph = make_fx(joint, tracing_mode="fake")(parameters, x)
    graph.graph._codegen = fx.graph.CodeGen()
    graph.recompile()
    captured = capture(graph)
    profile = memory_profile(captured, runner="interpreter")
    inputs = [*(p.detach() for p in parameters.values()), x]
    tracker = track_forward(captured.module, inputs, interpret=True)
    assert profile.peak_bytes == max(tracker.peaks.values())
    assert [(p.node, p.live_bytes) for p in profile.points] == tracker.after


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"runner": "jit"}, "runner is 'jit'; write one of code, interpreter"),
        ({"training": True, "optimizer": "lion"}, "write one of sgd, momentum, adam, adamw"),
        ({"training": True, "optimizer": 3}, "write one of sgd, momentum, adam, adamw"),
        ({"training": True, "loss": lambda out: out}, "a tensor of shape (3, 2); let it return"),
        ({"training": True, "loss": lambda out: 1.0}, "loss returned a float"),
        ({"training": True, "loss": lambda out: out.detach().sum()}, "that requires no gradient"),
        ({"optimizer": "lion"}, "optimizer is 'lion'; write one of sgd, momentum, adam, adamw"),
        ({"training": "yes"}, "training is 'yes'; write True or False"),
        ({"training": True, "loss": 3}, "a function from the outputs to a number"),
        ({"loss": torch.sum}, "give training=True"),
    ],
)
def test_bad_settings_are_refused_in_one_line(settings, message):
    with refused(message):
        memory_profile(small(), **settings)


def test_what_cannot_be_profiled_is_refused():
    frozen = capture(nn.Linear(2, 2).requires_grad_(False), (torch.ones(1, 2),))
    with pytest.raises(PartitionError, match="no output of the graph requires a gradient"):
        memory_profile(frozen, training=True)


def test_gradients_pass_an_operator_that_cannot_run_on_fakes():
    def forward(self, x):
        return self.second(self.choose(self.first(x), x[:, 0] > 0)).sin()

    sizes, layers = [], {name: nn.Linear(8, 8) for name in ("first", "second")}
    for choose, made_up in (
        (lambda h, mask: h[mask], "index"),
        (lambda h, mask: h[mask.nonzero().squeeze(1)], "nonzero"),
    ):
        captured = capture(module_with(forward, choose=choose, **layers), (torch.randn(4, 8),))
        profile = memory_profile(captured, training=True, optimizer="adamw")
        assert made_up in profile.made_up
        sizes.append(profile.peak_bytes)
    assert sizes[0] == sizes[1]
