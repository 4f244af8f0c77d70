"""What is exported for recomputation, against real runs in which operators run again."""

import re

import pytest
import torch
from torch import fx, nn
from torch.nn import functional

from fx_bridge import Costs, Training
from fx_bridge.capture.graph import capture
from fx_bridge.capture.layers import repeated_modules
from fx_bridge.costs.device_presets import DEVICE_SPECS
from fx_bridge.costs.recomputation import recomputation_regions
from fx_bridge.digraph import to_digraph
from fx_bridge.storages.tensor_subclasses import tensors_in
from solver import Device, problem_from_digraph
from solver.evaluation.recomputed_memory import RecomputedStage
from solver.model.recomputation import Recomputation
from tests.support.batch_models import GPT, hf
from tests.support.modules import module_with


class ResidualBlock(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.norm, self.last_norm = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.last_norm(self.second(self.relu(self.norm(self.first(x)))))
        y += x
        return self.relu(y)


def convolutional():
    model = module_with(
        lambda self, x: self.head(self.blocks(self.stem(x)).flatten(1)),
        stem=nn.Conv2d(3, 8, 3),
        blocks=nn.Sequential(ResidualBlock(), ResidualBlock()),
        head=nn.Linear(8 * 36, 4),
    )
    return model, lambda: (torch.randn(4, 3, 8, 8),)


def gpt2():
    model = hf("GPT2LMHeadModel", "GPT2Config", **GPT).train()
    return model, lambda: (torch.randint(0, 100, (2, 8)),)


def views(self, x):
    """Views of what is written, of a tuple, and of what is read before and after a write."""
    a, b = self.up(x).chunk(2, -1)
    gate = (a * 2).view(-1).sigmoid()
    y = torch.exp(b.sin()).t()
    before = y.cos()
    y[1:3].mul_(0.5)
    z = (y * before).t().contiguous().view(-1)
    values, order = z.view(x.shape).sort(-1)
    return (gate * z).tanh() + values.view(-1) + order.view(-1)


class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x):
        x = functional.dropout(self.up(x).sin(), 0.3)
        noise = torch.empty_like(x).normal_()
        x = x + noise * torch.rand_like(x)
        x = functional.dropout(x.cos(), 0.5, inplace=True)
        return functional.rrelu(x * torch.bernoulli(x.sigmoid()).exp(), training=True).exp()


def rows():
    return (torch.randn(4, 8),)


MODELS = {
    "convolutional": convolutional,
    "gpt2": gpt2,
    "views": lambda: (nn.Sequential(module_with(views, up=nn.Linear(8, 16))), rows),
    "noise": lambda: (nn.Sequential(*(Noise() for _ in range(2))), rows),
}


class Case:
    """A model with its graph and the problem of one device."""

    def __init__(self, model, inputs):
        self.inputs = inputs
        self.captured = capture(model, inputs())
        self.problem = problem_of(self.captured)
        self.stage_of = dict.fromkeys((op.name for op in self.problem.operators), 0)

    def named(self):
        return {op.name: op for op in self.problem.operators}

    def most(self):
        """The most operators that may run again together."""
        chosen = {op.name for op in self.problem.operators if op.backward.recomputable}
        while refused := Recomputation(self.problem, self.stage_of, chosen).violations():
            chosen -= {re.match(r"operator '(\w+)' cannot", text)[1] for text in refused}
        return chosen


def problem_of(captured, specs=("cpu",)):
    costs = Costs(specs={name: DEVICE_SPECS[name] for name in specs})
    graph = to_digraph(captured, costs=costs, training=Training())
    devices = [Device(name, device_class=name) for name in specs]
    return problem_from_digraph(graph, devices, memory_model="training", recompute="auto")


@pytest.fixture(scope="module")
def cases():
    """Models by name, captured when they are first asked for."""
    made = {}

    def case(name):
        if name not in made:
            torch.manual_seed(0)
            made[name] = Case(*MODELS[name]())
        return made[name]

    return case


@pytest.fixture(params=MODELS)
def case(request, cases):
    return cases(request.param)


class Watched(fx.Interpreter):
    """A run that keeps all values, and notes the state before operators with random numbers."""

    def __init__(self, case):
        super().__init__(case.captured.module, garbage_collect_values=False)
        self.operators = case.named()
        self.states, self.saved = {}, {}

    def run_node(self, node):
        if node.name in self.operators and self.operators[node.name].backward.rng_bytes:
            self.states[node.name] = torch.get_rng_state()
        packed = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: packed.append(tensor.detach()) or tensor, lambda tensor: tensor
        ):
            value = super().run_node(node)
        self.saved[node.name] = packed
        return value

    def start(self, *args):
        self.run(*args, enable_io_processing=False)
        return {node.name: value for node, value in self.env.items()}

    def run_again(self, names):
        """Run operators once more on the values that are there, and return what they made."""
        for node in self.module.graph.nodes:
            if node.name in names:
                if node.name in self.states:
                    torch.set_rng_state(self.states[node.name])
                with torch.no_grad():
                    self.env[node] = super().run_node(node)
        return {node.name: value for node, value in self.env.items()}


def memory(tensor):
    return tensor.untyped_storage().data_ptr()


def test_backward_passes_save_what_autograd_saves_in_a_real_run(case):
    run = Watched(case)
    values = run.start(*case.captured.example_values)
    held = {memory(t) for t in case.captured.module.parameters()}
    held |= {memory(t) for t in case.captured.module.buffers()}
    owner = {}
    for op in case.problem.operators:
        if op.alias_of is None:
            owner |= {
                memory(t): op.name for t in tensors_in(values[op.name]) if memory(t) not in held
            }
    for op in case.problem.operators:
        found = {owner[memory(t)] for t in run.saved[op.name] if memory(t) in owner}
        assert set(op.backward.saves) == found, op.name
        assert all(name in case.stage_of for name in op.backward.saves)


def test_what_is_kept_is_what_someone_saves(case):
    saved = {name for op in case.problem.operators for name in op.backward.saves}
    assert saved == {op.name for op in case.problem.operators if op.backward.kept_bytes}
    assert saved


def test_what_runs_again_makes_the_same(case):
    module, most = case.captured.module, case.most()
    run = Watched(case)
    values = run.start(*case.captured.example_values)
    # Another microbatch comes first.
    Watched(case).start(*case.inputs())
    before = {name: tensor.clone() for name, tensor in module.named_buffers()}
    again = Recomputation(case.problem, case.stage_of, most).again
    chosen = [op.name for op, runs in zip(case.problem.operators, again, strict=True) if runs]
    made = run.run_again(chosen)
    assert most
    for name in most:
        for new, old in zip(tensors_in(made[name]), tensors_in(values[name]), strict=True):
            assert memory(new) != memory(old)
            assert torch.equal(new, old), name
    # Who runs batch normalisation again gives it a copy of its statistics.
    norms = [node for node in module.graph.nodes if "batch_norm" in str(node.target)]
    statistics = {str(read.target) for node in norms for read in node.args[3:5]}
    for name, tensor in module.named_buffers():
        assert name in statistics or torch.equal(tensor, before[name]), name


def test_regions_begin_at_layers_and_behind_the_last_and_never_descend(case):
    layers = [case.captured.modules.operators[path] for path in repeated_modules(case.captured)]
    firsts = sorted(case.problem.index_of[names[0]] for names in layers)
    lasts = [case.problem.index_of[names[-1]] + 1 for names in layers]
    behind = [last for last in lasts if max(lasts) == last < len(case.problem.operators)]
    regions = [op.backward.region for op in case.problem.operators]
    begins = [at for at in range(1, len(regions)) if regions[at] != regions[at - 1]]
    assert begins == [first for first in firsts if first] + behind
    assert regions == sorted(regions)
    assert regions[0] == 0
    assert regions[-1] == len(begins)


def test_a_layer_is_a_region_each_time_that_it_runs():
    block = ResidualBlock()
    captured = capture(nn.Sequential(block, block, block), (torch.randn(2, 8, 4, 4),))
    assert recomputation_regions(captured)[captured.operators[-1].name] == 2


@pytest.mark.parametrize("name", ["convolutional", "gpt2"])
def test_layers_run_again_but_for_what_the_next_one_needs(cases, name):
    case = cases(name)
    most = case.most()
    again = Recomputation(case.problem, case.stage_of, most)
    held = RecomputedStage(case.problem, list(range(len(case.problem.operators))), again)
    # Before the first and behind the last layer are regions, too.
    for region in range(1, case.problem.operators[-1].backward.region):
        members = [op for op in case.problem.operators if op.backward.region == region]
        (stream,) = (op for op in members if op.backward.kept_bytes and op.name not in most)
        readers = again.savers(case.problem.index_of[stream.name])
        assert max(case.problem.operators[v].backward.region for v in readers) == region + 1
        kept_bytes = sum(held.kept_bytes(case.problem.index_of[op.name]) for op in members)
        states_bytes = sum(op.backward.again_bytes for op in members)
        own_bytes = stream.storage_bytes + stream.backward.residual_bytes
        assert kept_bytes == own_bytes + states_bytes


def test_the_state_of_a_generator_is_that_of_the_device_class():
    captured = capture(Noise(), (torch.randn(4, 8),))
    sizes = {
        specs: {op.backward.rng_bytes for op in problem_of(captured, specs).operators}
        for specs in (("cpu",), ("a100-80gb",), ("a100-80gb", "cpu"), ("l4", "a100-80gb"))
    }
    assert torch.get_rng_state().nbytes == 5056
    assert list(sizes.values()) == [{0, 5056}, {0, 16}, {0, 5056}, {0, 16}]
