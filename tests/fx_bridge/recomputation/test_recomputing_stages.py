"""Stages that run operators again: equal to others in values, and to the plan in all else."""

import copy
import functools
import pickle
from dataclasses import replace

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from fx_bridge.capture.graph import capture
from fx_bridge.placement.model import place
from fx_bridge.recomputation.stage import RecomputingStage
from fx_bridge.split.by_plan import split_by_plan
from solver import PartitionError, PartitionPlan
from tests.support import memory_models
from tests.support.modules import module_with
from tests.support.recomputed_stages import (
    check_stages,
    counted_again,
    loss_of,
    names_again,
    plan_between,
    random_decisions,
    trained,
    training_problem,
    with_regions,
)
from tests.support.training_models import MODELS as TRAINED
from tests.support.training_models import SLICED, Residual


class Dropouts(nn.Module):
    """A layer with masks, and attention whose kernel depends on them."""

    def __init__(self, width=16, heads=2):
        super().__init__()
        self.norm, self.drop, self.heads = nn.LayerNorm(width), nn.Dropout(0.2), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, steps, width = x.shape
        shape = batch, steps, 3, self.heads, width // self.heads
        q, k, v = self.qkv(self.norm(x)).view(shape).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(x.shape)))
        return x + self.drop(self.down(functional.gelu(self.up(self.norm(x)))))


class Mixed(nn.Module):
    """In-place writers, views, conjugates, and results that save themselves."""

    def __init__(self, width=12):
        super().__init__()
        self.first, self.second = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        left, right = torch.sigmoid(self.first(x)).chunk(2, -1)
        turned = torch.complex(left, right).conj().sin().imag.exp()
        y = self.norm(turned * right.tanh()).relu_()
        return x + functional.dropout(self.second(y).sigmoid_(), 0.3).exp()


class Written(nn.Module):
    """Operators that write in place and read what is written later, and into each other."""

    def __init__(self, width=12):
        super().__init__()
        self.first, self.gate = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.second = nn.Linear(2 * width, width)

    def forward(self, x):
        h, g = self.first(x), self.gate(x)
        h += g
        g.neg_()
        g += h[:, :1]
        return x + self.second(torch.tanh(h) * g.sin())


class Numbers(nn.Module):
    """Operators of whose Python numbers autograd makes tensors, which stay whatever runs again."""

    def __init__(self, width=12):
        super().__init__()
        self.first, self.second = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        y = 0.5 * self.first(x)
        y = 3 / (y.sigmoid() / 2.0 + 1).mul_(0.25)
        return x + (self.second(y.tanh() * True) * 2).exp()


class Biased(nn.Module):
    """Attention with a bias that has a gradient, so that another kernel runs than without one."""

    def __init__(self, width=16, heads=2, steps=6):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.randn(1, heads, steps, steps))

    def forward(self, x):
        batch, steps, _ = x.shape
        shape = batch, steps, 3, self.bias.shape[1], -1
        q, k, v = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4)
        bias = self.bias.expand(batch, -1, -1, -1)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape)).sin()


def repeated(layer, count, *shape):
    return lambda: (nn.Sequential(*(layer() for _ in range(count))), (torch.randn(shape),))


def residual():
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)
    layers = nn.Conv2d(3, 8, 3, padding=1), Residual(8), Residual(8)
    return nn.Sequential(*layers, *head), (torch.randn(2, 3, 8, 8),)


class Tied(nn.Module):
    """An embedding that is also the head, which another device then borrows."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)))

    def forward(self, tokens):
        logits = self.head(self.layers(self.embed(tokens)))
        return functional.log_softmax(logits.sigmoid(), -1).mean()


def hf(name):
    def build():
        model, args, kwargs = memory_models.build(name)
        return model.train(), (*args, *kwargs.values())

    return build


SMALL = {
    "dropouts": repeated(Dropouts, 2, 2, 6, 16),
    "mixed": repeated(Mixed, 2, 4, 12),
    "residual": residual,
    "biased": repeated(Biased, 2, 2, 6, 16),
    "numbers": repeated(Numbers, 2, 4, 12),
    "written": repeated(Written, 2, 4, 12),
    "stacked": SLICED["stacked"],
}
MODELS = {
    **SMALL,
    "tied": lambda: (Tied(), (torch.arange(12).reshape(3, 4),)),
    **TRAINED,
    **SLICED,
    **{name: hf(name) for name in ("gpt2", "llama", "vit", "mixtral")},
}

PROBLEMS = {}
"""Of captured modules, on one device: to make one takes seconds."""


@functools.cache
def captured_model(name, device="cpu"):
    torch.manual_seed(0)
    model, args = MODELS[name]()
    args = tuple(tensor.to(device) for tensor in args)
    return capture(model.to(device), args), args


def plan_of(captured, stages):
    """A plan of stages that begin where regions do."""
    if captured.module not in PROBLEMS:
        PROBLEMS[captured.module] = training_problem(captured, ["d0"], microbatches=4)
    problem = PROBLEMS[captured.module]
    devices = [replace(problem.devices[0], name=f"d{i}") for i in range(stages)]
    problem = problem.replace(devices=devices)
    regions = [op.backward.region for op in problem.operators]
    middle = sorted({*regions})[len({*regions}) // 2]
    starts = [problem.operators[regions.index(middle)].name] if stages > 1 else []
    return problem, plan_between(problem, starts)


def decided(captured, stages=1, seed=0, share=0.7):
    problem, plan = plan_of(captured, stages)
    plan = replace(plan, recomputed=random_decisions(problem, plan, seed, share))
    assert plan.recomputed or share < 0.7
    return problem, plan


@pytest.mark.parametrize("name", SMALL)
def test_stages_compute_and_hold_what_is_planned(name):
    captured, args = captured_model(name)
    ratios = []
    for stages, share in ((1, 0.5), (2, 1.0)):
        problem, plan = decided(captured, stages, share=share)
        ratios += check_stages(captured, problem, plan, args)
    # No tracker of tensors sees the states of generators.
    assert name != "residual" or max(ratios) < 1.2


@pytest.mark.nightly
@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_stages_compute_and_hold_what_is_planned_at_random(name, stages):
    captured, args = captured_model(name)
    for seed in range(10):
        problem, plan = decided(captured, stages, seed, share=(1 + seed) / 10)
        check_stages(captured, problem, plan, args)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", MODELS)
def test_stages_compute_and_hold_what_is_planned_on_cuda(name, request):
    torch.use_deterministic_algorithms(True)
    request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
    captured, args = captured_model(name, "cuda")
    for stages, seed in ((1, 0), (1, 1), (2, 2)):
        problem, plan = decided(captured, stages, seed, share=(3 + 3 * seed) / 10)
        check_stages(captured, problem, plan, args)


def test_autocast_of_the_forward_pass_is_entered_again():
    torch.manual_seed(0)
    model, args = SMALL["dropouts"]()
    with torch.autocast("cpu", torch.bfloat16):
        captured = capture(model, args)
    problem, plan = decided(captured, share=1.0)
    results = []
    for each in (plan, replace(plan, recomputed=())):
        split = split_by_plan(captured, each, problem=problem)
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(split(*args))
        gradients = torch.autograd.grad(loss, list(split.parameters()))
        results.append([loss, *gradients])
    assert all(map(torch.equal, *results))


@pytest.fixture(scope="module")
def mixed():
    captured, args = captured_model("mixed")
    problem, plan = decided(captured, stages=2, share=1.0)
    return captured, args, problem, plan, split_by_plan(captured, plan, problem=problem)


def test_a_stage_without_gradients_runs_as_it_was_generated(mixed):
    captured, args, _, plan, split = mixed
    split, plain = copy.deepcopy((split, split_by_plan(captured, replace(plan, recomputed=()))))
    assert split.submod_0.code == plain.submod_0.code
    results = []
    with counted_again() as names, torch.no_grad():
        for module in (split, plain):
            torch.manual_seed(2)
            results.append(module(*args))
    assert torch.equal(*results) and not names
    assert results[0].grad_fn is None


def test_placed_stages_run_operators_again(mixed):
    captured, args, problem, plan, split = mixed
    placed = place(split, {"d0": "cpu:0", "d1": "cpu:1"}, copy=True)
    assert isinstance(placed.submod_0, RecomputingStage)
    with counted_again() as names:
        torch.manual_seed(3)
        loss_of(placed(*args)).backward()
    assert sorted(names) == sorted(names_again(problem, plan))
    plain = copy.deepcopy(split_by_plan(captured, replace(plan, recomputed=())))
    torch.manual_seed(3)
    loss_of(plain(*args)).backward()
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter.grad, placed.get_parameter(name).grad), name


def test_weights_that_a_placed_stage_borrows_are_there_again():
    captured, args = captured_model("tied")
    problem, plan = decided(captured, stages=2, share=1.0)
    results = []
    for recomputed in (plan.recomputed, ()):
        changed = replace(plan, recomputed=recomputed)
        split = split_by_plan(captured, changed, problem=problem)
        placed = place(split, {"d0": "cpu:0", "d1": "cpu:1"}, copy=True)
        placed(*args).backward()
        results.append([p.grad for p in placed.parameters()])
    assert all(map(torch.equal, *results))


def test_a_compiled_split_runs_operators_again(mixed):
    _, args, problem, plan, split = mixed
    expected = trained(split, args)
    with counted_again() as names:
        found = trained(torch.compile(copy.deepcopy(split), backend="eager"), args)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert sorted(names) == sorted(2 * names_again(problem, plan))


def test_called_modules_run_again_with_their_own_weights_and_copies_of_their_buffers():
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)) for _ in range(2))
    )
    captured = capture(fx.GraphModule(model, _WithModules().trace(model)), (torch.randn(4, 6),))
    assert captured.graph.find_nodes(op="call_module")
    problem = with_regions(training_problem(captured, ["d0"]), [0, 0, 0, 1, 1, 1])
    plan = plan_between(problem, [])
    plan = replace(plan, recomputed=random_decisions(problem, plan, 0, 1.0))
    assert any("1" in name for name in plan.recomputed)
    check_stages(captured, problem, plan, (torch.randn(4, 6),))


class _WithModules(fx.Tracer):
    def is_leaf_module(self, module, path):
        return not isinstance(module, nn.Sequential)


def test_a_stage_is_exported_as_its_graph_is_and_not_pickled(mixed):
    _, args, _, _, split = mixed
    with pytest.raises(PartitionError, match="cannot be pickled"):
        pickle.dumps(split)
    stage = split.submod_0
    graphs = stage.graph, torch.export.export(stage, args).graph
    targets = [[n.target for n in graph.nodes if n.op == "call_function"] for graph in graphs]
    assert targets[0] == targets[1]


def test_a_plan_without_its_problem_or_with_what_cannot_run_again_is_refused(mixed):
    captured, _, problem, plan, _ = mixed
    with pytest.raises(PartitionError, match="has what that pass saves; give problem="):
        split_by_plan(captured, plan)
    other = problem.replace(
        operators=[replace(op, is_output=False) for op in problem.operators[:-1]], colocation=()
    )
    with pytest.raises(PartitionError, match="other operators than the graph"):
        split_by_plan(captured, plan, problem=other)
    last = problem.operators[-1].name
    with pytest.raises(PartitionError, match=r"cannot run again: .*; leave it out of recomputed"):
        split_by_plan(captured, replace(plan, recomputed={last}), problem=problem)


def test_what_reads_a_buffer_that_changes_is_refused():
    def counting(self, x):
        self.calls.add_(1)
        return (self.linear(x) * self.calls).sin()

    model = module_with(counting, linear=nn.Linear(4, 4), calls=nn.Buffer(torch.ones(4)))
    captured = capture(model, (torch.ones(2, 4),))
    problem, plan = plan_of(captured, 1)
    plan = replace(plan, recomputed={"mul"})
    with pytest.raises(PartitionError, match="'mul' cannot run again: it is not recomputable"):
        split_by_plan(captured, plan, problem=problem)


def test_stages_without_decisions_are_as_ever(mixed):
    captured, _, problem, plan, _ = mixed
    split = split_by_plan(captured, replace(plan, recomputed=()), problem=problem)
    assert not any(isinstance(part, RecomputingStage) for part in split.modules())
    assert PartitionPlan(plan.assignment, plan.device_order) == split.meta["plan"]
