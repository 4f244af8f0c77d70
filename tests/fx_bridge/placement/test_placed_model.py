"""A placed model is the model: values, gradients, training, names, effects."""

import copy
import dataclasses
import random
import re

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import tests.support.program_checks as program_checks
from fx_bridge import Training
from fx_bridge.capture.graph import capture
from fx_bridge.checkpoint.stages import save_stages
from fx_bridge.equivalence.check import check_equivalence
from fx_bridge.partition import partition_module
from fx_bridge.placement.model import place, place_all
from fx_bridge.split.by_plan import split_by_plan
from solver import Device, PartitionError
from tests.support.modules import module_with
from tests.support.placement_models import MODELS, Tied, build, captured_and_split, split_at
from tests.support.problem_counts import nightly
from tests.support.program_checks import REFUSALS
from tests.support.random_modules import random_program
from tests.support.refusals import refused
from tests.support.split_checks import in_halves, in_one

CUTS = {
    "chain": (0.4, 0.7),
    "skips": (0.2, 0.5),
    "branches": ("linear_1", "linear_3", "mul"),
    "tied": ("linear", "linear_1"),
    "normed": ("conv2d_1", "mean"),
    "cached": ("mul", "add_"),
}
# All stages in one place, and places in host memory, between which values are copied.
ONE = {f"d{index}": "cpu" for index in range(4)}
APART = {f"d{index}": f"cpu:{index}" for index in range(4)}


def placed_model(name, mapping, **options):
    """A model, its inputs, and a split of a copy at ``CUTS``, in places."""
    model, args, kwargs = build(name)
    split = split_at(copy.deepcopy(model), args, kwargs, *CUTS[name])
    return model, args, kwargs, place_at(split, mapping, **options)


def place_at(split, mapping, **options):
    devices = {name: mapping[name] for name in split.meta["stages"].values()}
    return place(split, devices, **options)


def loss_of(outputs):
    leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
    return sum((leaf * leaf).mean() for leaf in leaves if leaf.requires_grad)


def losses_of_training(model, args, kwargs, steps=3):
    optimizer = torch.optim.AdamW(model.parameters(), 0.05)
    losses = []
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model(*copy.deepcopy(args), **copy.deepcopy(kwargs)))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("mapping", [ONE, APART], ids=["one place", "apart"])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_effects_and_gradients(name, mapping):
    model, args, kwargs = build(name)
    placed = place_at(split_at(model, args, kwargs, *CUTS[name]), mapping)
    report = check_equivalence(
        model, placed, args, kwargs, gradients=True, aliasing=mapping is ONE, gradient_rtol=0.0
    )
    assert report.equal, report.differences


@pytest.mark.parametrize("mapping", [ONE, APART], ids=["one place", "apart"])
@pytest.mark.parametrize("name", MODELS)
def test_steps_of_adamw(name, mapping):
    model, args, kwargs, placed = placed_model(name, mapping)
    expected = losses_of_training(model, args, kwargs)
    assert losses_of_training(placed, args, kwargs) == expected
    assert expected[0] != expected[-1]
    trained = placed.model_state_dict()
    assert trained.keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():
        assert torch.equal(trained[key], value), key


def check_placed(program, plans=1):
    """Place a random program in one place and apart; return whether it was compared."""
    case = program_checks._Case(program)
    try:
        captured = program_checks._captured(case)
    except PartitionError as error:
        assert any(re.search(pattern, str(error)) for pattern in REFUSALS.values()), error
        return False
    rng = random.Random(program.seed)
    for _ in range(plans):
        plan = program_checks._random_plan(captured, rng)
        split = split_by_plan(captured, plan)
        apart = {name: f"cpu:{index}" for index, name in enumerate(plan.device_order)}
        for what, mapping in (("one place", dict.fromkeys(apart, "cpu")), ("apart", apart)):
            placed = place(split, mapping)
            assert placed.state_dict().keys() == split.state_dict().keys()
            case.compare(f"{what}, {plan}", placed, aliasing=what == "one place")
    return True


@pytest.mark.parametrize(
    ("start", "count", "plans", "least"),
    [(3000, 8, 1, 8), *nightly((start, 100, 3, 80) for start in range(3100, 4100, 100))],
)
def test_random_programs(start, count, plans, least):
    programs = map(random_program, range(start, start + count))
    assert sum(check_placed(program, plans) for program in programs) >= least


def test_weights_that_are_there_are_shared_and_others_are_copies():
    model, args, kwargs = build("chain")
    split = split_at(model, args, kwargs, 0.5)
    placed = place(split, {"d0": "cpu", "d1": "cpu:1"})
    assert placed.submod_0.layers.get_submodule("0").weight is model.layers[0].weight
    assert placed.submod_1.head.weight is not model.head.weight
    assert split.submod_1.head.weight is model.head.weight
    apart = place(split, dict.fromkeys(("d0", "d1"), "cpu"), copy=True)
    own = {parameter.data_ptr() for parameter in apart.parameters()}
    assert own.isdisjoint(parameter.data_ptr() for parameter in model.parameters())


def test_splits_that_first_read_a_parameter_on_different_devices_have_no_sum():
    model, (tokens,) = Tied(), (torch.arange(4),)
    captured, split = captured_and_split(model, (tokens,), {}, "linear")
    other = in_halves(captured, 1, ("d1", "d0"))
    devices = {"d0": "cpu:0", "d1": "cpu:1"}
    with pytest.raises(PartitionError, match="is first read on cpu:0 in one split"):
        place_all((split, other), devices, copy=True)
    placed = place_all((split, other), devices, copy=True, tied_weights="copy")
    with torch.no_grad():
        assert all(torch.equal(each(tokens), model(tokens)) for each in placed)
    one, two = place_all((split, split), devices, copy=True)
    one(tokens).sum().backward()
    assert all(p.grad is not None for p in two.parameters())  # They are those of the first.


USES = {
    "write": lambda self, y: y + self.cache.add_(1),
    "read": lambda self, y: y * self.cache,
    "read a part": lambda self, y: y[:, :2] * self.part,
    "return": lambda self, y: (y, self.cache, self.part),
    "read and return": lambda self, y: (y * self.cache, self.part),
}


@pytest.mark.parametrize("does", USES)
def test_what_one_split_writes_is_one_tensor_for_all(does):
    def forward(self, x, does):
        return USES[does](self, self.linear(x))

    cache, x = torch.zeros(4), torch.rand(2, 4)
    model = module_with(
        forward, linear=nn.Linear(4, 4), cache=nn.Buffer(cache), part=nn.Buffer(cache[:2])
    )
    graphs = [capture(model, (torch.ones(2, 4), name)) for name in ("write", does)]
    for devices in (("cpu:0", "cpu:0"), ("cpu", "cpu"), ("cpu:0", "cpu:1"), ("cpu", "cpu:1")):
        splits = [in_one(*each) for each in zip(graphs, devices, strict=True)]
        for turned in (False, True):
            apart = devices[0] != devices[1] and does != "return"
            given = splits[::-1] if turned else splits
            if apart:
                with pytest.raises(PartitionError, match=r"cache' is written in one split"):
                    place_all(given, tied_weights="copy")
                continue
            placed = place_all(given, tied_weights="copy", copy=True)
            write, other = placed[::-1] if turned else placed
            expected = copy.deepcopy(model)
            for _ in range(2):
                assert torch.equal(write(x, "write"), expected(x, "write"))
                found = pytree.tree_leaves(other(x, does))
                wanted = pytree.tree_leaves(expected(x, does))
                assert all(map(torch.equal, found, wanted))


def test_copies_of_tied_weights_are_not_trained():
    model, args, kwargs, placed = placed_model("tied", APART, tied_weights="copy")
    assert placed.meta["shared_tensors"] == ()
    with torch.no_grad():
        assert torch.equal(placed(*args), model(*args))
    with pytest.raises(PartitionError, match=r"'submod_2\.\w+\.weight' is a copy .*no_grad"):
        placed(*args)
    # In one place there is nothing to copy.
    *_, together = placed_model("tied", ONE, tied_weights="copy")
    assert check_equivalence(model, together, args, kwargs, gradients=True).equal


def test_states_go_back_and_forth_under_the_names_of_the_model():
    for options in ({}, {"tied_weights": "copy"}):
        model, args, _, placed = placed_model("tied", APART, **options)
        with torch.no_grad():
            for parameter in placed.parameters():
                parameter.add_(1.0)
        other = Tied()
        other.load_state_dict(placed.model_state_dict())
        with torch.no_grad():
            assert torch.equal(other(*args), placed(*args))
            placed.load_model_state_dict(model.state_dict())
            assert torch.equal(model(*args), placed(*args))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("body.bias"), r"weight 'body\.bias' is missing"),
        (lambda state: state.update(x=torch.ones(1)), r"no weight 'x'; give what model"),
        (
            lambda state: state.update({"body.bias": torch.ones(7)}),
            r"'body\.bias' has shape \(7,\) instead of \(6,\)",
        ),
    ],
)
def test_states_of_another_model_are_refused(change, message):
    model, *_, placed = placed_model("tied", APART)
    before = copy.deepcopy(placed.state_dict())
    state = {key: value + 1 for key, value in model.state_dict().items()}
    change(state)
    with pytest.raises(PartitionError, match=message):
        placed.load_model_state_dict(state)
    for key, value in placed.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize("options", [{}, {"tied_weights": "copy"}], ids=["sum", "copy"])
@pytest.mark.parametrize("name", ["tied", "normed", "skips"])
def test_stage_files_give_a_model_without_weights_its_values(name, options, tmp_path):
    model, args, kwargs = build(name)
    captured, split = captured_and_split(model, args, kwargs, *CUTS[name])
    save_stages(split, captured, tmp_path)
    with torch.device("meta"):
        # Module.to would make two parameters of a tied one.
        empty = MODELS[name][0]()
    empty = split_at(empty, args, kwargs, *CUTS[name])
    for mapping in (ONE, APART):
        placed = place_at(empty, mapping, weights=tmp_path, **options)
        assert placed.state_dict().keys() == split.state_dict().keys()
        with torch.no_grad():
            report = check_equivalence(model, placed, args, kwargs)
        assert report.equal, report.differences
        if not options:
            assert check_equivalence(model, placed, args, kwargs, gradients=True).equal
    together = place_at(empty, ONE, weights=tmp_path)
    assert len(list(together.parameters())) == len(list(model.parameters()))


def test_stage_files_of_another_plan_are_refused(tmp_path):
    model, args, kwargs = build("chain")
    captured, split = captured_and_split(model, args, kwargs, 0.5)
    save_stages(split, captured, tmp_path)
    other = split_at(model, args, kwargs, 0.7)
    with pytest.raises(PartitionError, match="were written with another plan: operator"):
        place(other, {"d0": "cpu", "d1": "cpu"}, weights=tmp_path)
    with pytest.raises(PartitionError, match="take no values from files; leave weights out"):
        place(split, {"d0": "meta", "d1": "meta"}, weights=tmp_path)
    with pytest.raises(PartitionError, match=r"manifest\.json"):
        place(split, {"d0": "cpu", "d1": "cpu"}, weights=tmp_path / "nothing")


def test_dtypes_change_and_devices_do_not():
    model, args, kwargs = build("chain")
    split = split_at(model.eval(), args, kwargs, 0.5)
    placed = place(split, {"d0": "cpu", "d1": "cpu"}, copy=True)
    with pytest.raises(PartitionError, match=r"stay on their devices and cannot go to 'meta'"):
        placed.to("meta")
    with pytest.raises(PartitionError, match="place the split again"):
        placed.to_empty(device="meta")
    assert {p.dtype for p in placed.double().parameters()} == {torch.float64}
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", MODELS)
def test_the_meta_device(name):
    model, args, kwargs, placed = placed_model(name, dict.fromkeys(ONE, "meta"))
    assert {tensor.device.type for tensor in placed.state_dict().values()} == {"meta"}
    given = copy.deepcopy(args)
    found = pytree.tree_leaves(placed(*given, **kwargs))
    for a, b in zip(pytree.tree_leaves(model(*args, **kwargs)), found, strict=True):
        assert a is b or (b.is_meta and a.shape == b.shape and a.dtype == b.dtype)
    loss_of(placed(*args, **kwargs)).backward()
    assert all(parameter.grad is not None for parameter in placed.parameters())


def test_a_model_without_weights_runs_on_meta_alone():
    model, args, kwargs = build("chain")
    split = split_at(model.to("meta"), args, kwargs, 0.5)
    assert place(split, {"d0": "meta", "d1": "meta"})(*args).is_meta
    with refused("'layers.0.weight' is on the meta device ", " to put on 'cpu'"):
        place(split, {"d0": "cpu", "d1": "cpu"})


def test_results_go_where_they_are_wanted():
    model, args, kwargs, placed = placed_model("cached", APART, output_device="cpu:1")
    assert check_equivalence(model, placed, args, kwargs, gradients=True).equal


@pytest.mark.parametrize(("memory_model", "tied"), [("inference", "copy"), ("training", "sum")])
def test_tied_weights_are_treated_as_the_plan_has_it(memory_model, tied):
    model, args, kwargs = build("tied")
    training = Training() if memory_model == "training" else None
    devices = [Device("cpu"), Device("gpu0")]
    result = partition_module(model, args, devices=devices, training=training)
    captured, split = captured_and_split(model, args, kwargs, *CUTS["tied"])
    solved = dataclasses.replace(result.solved, plan=split.meta["plan"])
    result = dataclasses.replace(result, captured=captured, solved=solved)
    placed = result.place({name: APART[name] for name in split.meta["stages"].values()})
    assert len(placed.meta["shared_tensors"]) == (tied == "sum")


NO_ACCELERATOR = pytest.mark.skipif(torch.accelerator.is_available(), reason="has one")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": {}}, r"^device 'd0' of the plan is no device .* devices=\{'d0': '\S+'\}$"),
        ({"devices": {"d0": "cpu", "d1": 3}}, "'3', which is to be device 'd1' .* is a int; give"),
        ({"devices": {"d2": "cpu"}}, "the plan has no device 'd2'; its devices are 'd0', 'd1'"),
        (
            {"devices": {"d0": "meta", "d1": "cpu"}},
            "meta device make no values for those on 'cpu'; ",
        ),
        ({"tied_weights": "add"}, "tied_weights is 'add'; write one of 'sum', 'copy'"),
        ({"copy": 1}, "copy is 1; write True or False"),
        ({"output_device": "gpu"}, "output_device is 'gpu', but this machine has cpu"),
        ({"output_device": "meta"}, "output_device is 'meta', but the stages are not on the meta"),
        pytest.param(
            {"devices": {"d0": "cpu", "d1": "cuda:1"}},
            r"^'cuda:1', which is to be device 'd1' of the plan, is not on this machine, which has "
            r"cpu; give devices=\{'d1': 'cpu'\}$",
            marks=NO_ACCELERATOR,
        ),
    ],
)
def test_what_cannot_be_placed_is_refused(options, message):
    model, args, kwargs = build("chain")
    split = split_at(model, args, kwargs, 0.5)
    with pytest.raises(PartitionError, match=message) as caught:
        place(split, **{"devices": {"d0": "cpu", "d1": "cpu"}, **options})
    assert "\n" not in str(caught.value)


def test_what_is_no_split_is_refused():
    model, args, kwargs = build("chain")
    split = split_at(model, args, kwargs, 0.5)
    with pytest.raises(PartitionError, match="Chain has no stages to place; give what split_by"):
        place(model)
    with pytest.raises(PartitionError, match="the model is placed already; place the split that"):
        place(place(split, {"d0": "cpu", "d1": "cpu"}))
    split.submod_1.to("meta")
    with pytest.raises(PartitionError, match=r"the model is on several devices: .* capture it"):
        place(split, {"d0": "cpu", "d1": "cpu"})


gpu = pytest.mark.gpu
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
ON_CUDA = [
    pytest.param(["cpu", "cuda:0"], marks=[gpu, needs_cuda], id="host and accelerator"),
    pytest.param(["cuda:0", "cpu"], marks=[gpu, needs_cuda], id="accelerator and host"),
    pytest.param(["cuda:0", "cuda:1"], marks=[gpu, needs_two], id="two accelerators"),
]


def widened(tensor):
    wide = tensor.detach().double().requires_grad_(tensor.requires_grad)
    return wide if tensor.is_floating_point() else tensor


@pytest.mark.parametrize("devices", ON_CUDA)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "chain"])
def test_cuda(name, devices):
    """The host and accelerators round differently: close, in float64."""
    model, args, kwargs = build(name)
    model.double()
    args, kwargs = pytree.tree_map_only(torch.Tensor, widened, (args, kwargs))
    split = split_at(copy.deepcopy(model), args, kwargs, *CUTS[name])
    placed = place_at(split, {f"d{index}": devices[index % len(devices)] for index in range(4)})
    theirs, ours = (copy.deepcopy((args, kwargs)) for _ in range(2))
    expected = model(*theirs[0], **theirs[1])
    found = placed(*ours[0], **ours[1])
    for a, b in zip(
        pytree.tree_leaves((expected, theirs)), pytree.tree_leaves((found, ours)), strict=True
    ):
        assert a is b is None or a.device == b.device == torch.device("cpu")
        torch.testing.assert_close(a, b)
    loss_of(expected).backward()
    loss_of(found).backward()
    named = dict(model.named_parameters())
    names = placed.meta["name_map"].tensors
    for key, parameter in named.items():
        torch.testing.assert_close(
            placed.get_parameter(names[key][0]).grad.cpu(), parameter.grad, msg=key
        )
    assert {str(p.device) for p in placed.parameters()} <= set(devices)


@gpu
@needs_cuda
def test_a_model_on_an_accelerator_gets_its_results_there():
    model, args, kwargs = build("cached")
    args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.cuda, (args, kwargs))
    model.cuda()
    split = split_at(model, args, kwargs, *CUTS["cached"])
    placed = place(split, {"d0": "cuda:0", "d1": "cpu", "d2": "cuda:0"})
    found = pytree.tree_leaves(placed(*args, **kwargs))
    assert {str(leaf.device) for leaf in found if leaf is not None} == {"cuda:0"}


@gpu
@needs_cuda
def test_the_host_does_not_read_what_has_not_arrived():
    """A long queue on the accelerator: what the host reads too early would be old memory."""

    def slow(self, x):
        for _ in range(50):
            x = torch.tanh(x @ x)
        return x.sum() * 2 + 1, x

    args = (torch.randn(1500, 1500) / 40,)
    split = split_at(module_with(slow), args, {}, "sum_1")
    placed = place(split, {"d0": "cuda:0", "d1": "cpu"})
    for _ in range(5):
        total, x = placed(*args)
        torch.testing.assert_close(total, x.sum() * 2 + 1)
