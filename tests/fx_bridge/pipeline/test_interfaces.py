"""What passes between positions, and that nothing else is needed.

The chain of positions runs in one process here (``chained.py``), every position on copies of
its weights and of what the one before sends; ``test_processes.py`` runs it across processes.
"""

import itertools
import random
import re

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from fx_bridge.capture.graph import capture, placeholder_values
from fx_bridge.equivalence.check import check_equivalence
from fx_bridge.pipeline.interfaces import stage_interfaces
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import colocation_groups
from fx_bridge.split.reader import stage_graph
from solver import PartitionError, PartitionPlan
from tests.support.chained import Chain, returned_weights
from tests.support.modules import module_with
from tests.support.problem_counts import counts, nightly
from tests.support.program_checks import ROUNDING
from tests.support.random_modules import random_program
from tests.support.random_plans import random_plan


def interfaces_of(captured, plan):
    split = split_by_plan(captured, plan)
    graph = stage_graph(split, captured)
    return stage_interfaces(graph, plan, returned_weights(split))


PLACES = {"sin": 0, "cos": 1, "mul": 1, "tanh": 2, "add": 4, "exp": 5}


def plan_at(places, ranks=3):
    """Return the plan that puts every operator at a position of a chain."""
    return PartitionPlan(
        {name: f"d{place % ranks}" for name, place in places.items()},
        tuple(sorted({f"d{place % ranks}" for place in places.values()})),
        {name: place // ranks for name, place in places.items()},
    )


@pytest.fixture(scope="module")
def captured():
    def forward(self, x, y):
        a = x.sin()
        b = a.cos() * self.weight
        c = b.tanh()
        d = c + a
        return d.exp(), b, self.weight, y

    model = module_with(forward, weight=nn.Parameter(torch.ones(4)))
    return capture(model, (torch.ones(2, 4), torch.ones(2)))


def test_values_travel_from_where_they_are_made_to_their_last_reader(captured):
    interfaces = interfaces_of(captured, plan_at(PLACES))
    # Returned: b from position 1, the weight from its only holder there.
    assert [set(position.sends) for position in interfaces.positions] == [
        {"sin"},
        {"sin", "mul", "weight"},
        {"sin", "mul", "weight", "tanh"},
        {"sin", "mul", "weight", "tanh"},
        {"mul", "weight", "add"},
        set(),
    ]
    for before, after in itertools.pairwise(interfaces.positions):
        assert after.receives == before.sends
    empty = interfaces.positions[3]
    assert (empty.stage, empty.rank, empty.chunk, empty.device) == (None, 0, 1, "d0")
    assert empty.relays == empty.receives == empty.sends
    assert [position.inputs for position in interfaces.positions] == [("x",), *[()] * 4, ("y",)]
    assert interfaces.rounds == 2
    assert [position.position for position in interfaces.of_rank(1)] == [1, 4]
    sent = [[interfaces.values[n].size_bytes for n in p.sends] for p in interfaces.positions]
    assert [*map(sum, sent)] == [32, 32 * 2 + 16, 32 * 3 + 16, 32 * 3 + 16, 32 * 2 + 16, 0]
    assert interfaces.shared_weights == ()


def test_weights_that_ranks_share_are_found():
    layers = [nn.Linear(4, 4, bias=False) for _ in range(3)]
    layers[1].weight = layers[2].weight = layers[0].weight
    captured = capture(nn.Sequential(*layers), (torch.ones(2, 4),))
    apart = interfaces_of(captured, plan_at({"linear": 0, "linear_1": 1, "linear_2": 2}))
    [shared] = apart.shared_weights
    assert shared.ranks == (0, 1, 2)
    assert shared.weight.size_bytes == 64
    one_rank = interfaces_of(captured, plan_at({"linear": 0, "linear_1": 0, "linear_2": 1}, 1))
    assert one_rank.shared_weights == ()


def test_what_is_no_tensor_does_not_travel():
    captured = capture(module_with(lambda self, x: x.chunk(2)[0].sin()), (torch.ones(2, 4),))
    plan = plan_at({"chunk": 0, "getitem": 1, "getitem_1": 1, "sin": 1})
    with pytest.raises(PartitionError, match=r"'chunk', of type list.*only tensors travel"):
        interfaces_of(captured, plan)
    graph = stage_graph(split_by_plan(captured, plan), captured)
    with pytest.raises(PartitionError, match="no operators, so there is no pipeline"):
        stage_interfaces(graph, PartitionPlan({}, ()))


class Kinds(nn.Module):
    """Masks, indices, transposed values, channels last, and values without a gradient."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(2, 3, 1)
        self.second = nn.Conv2d(3, 2, 1)
        self.scale = nn.Parameter(torch.rand(4))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        image = self.first(x.to(memory_format=torch.channels_last))
        mask, index = image > 0, image.argmax(1, keepdim=True)
        rows = image.flatten(2).transpose(1, 2) * self.scale.detach()[:3]
        wide = image[:, :1].expand(-1, 3, -1, -1)
        self.count.add_(1)
        out = self.second(image).gather(1, index.clamp(max=1)) * mask + wide
        return out, rows, self.count, {"x": x, "scale": self.scale, "one": 1}


def test_every_kind_of_tensor_keeps_values_layout_and_gradients():
    model, args = Kinds(), (torch.randn(2, 2, 3, 3),)
    captured = capture(model, args)
    groups = colocation_groups(captured)
    layouts = set()
    for seed in range(10):
        plan = random_plan(captured, groups, 2 + seed % 3, random.Random(seed), chunks=1)
        chain = Chain(split_by_plan(captured, plan))
        report = check_equivalence(model, chain, args, gradients=True)
        assert report.equal, (seed, report.differences)
        for [module] in chain.modules_in_order:
            layouts.update(module.passed[name].order for name in module.position.sends)
    assert (0, 2, 3, 1) in layouts
    assert (0, 1, 2, 3) in layouts


def check_random_chains(seeds, plans=3):
    """Compare chains with the random modules that they come from; return how many."""
    compared = 0
    for seed in seeds:
        program = random_program(seed)
        model, args, kwargs = program.build()
        # Pipelines compute gradients of weights alone.
        args, kwargs = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (args, kwargs))
        try:
            captured = capture(model, args, kwargs)
        except PartitionError:
            # Counted and explained in test_random_modules.py.
            continue
        if reshapes_its_inputs(captured, args, kwargs):
            continue
        gradients = has_gradients(model, args, kwargs)
        groups = colocation_groups(captured)
        for number in range(plans):
            rng = random.Random(100 * seed + number)
            plan = random_plan(captured, groups, 2, rng, chunks=1 + number)
            try:
                chain = Chain(split_by_plan(captured, plan))
            except PartitionError as error:
                assert re.search("only tensors travel", str(error)), program.source
                continue
            report = check_equivalence(model, chain, args, kwargs, gradients=gradients)
            differences = [t for t in report.differences if not re.match(r"(kw)?args", t)]
            for text in differences:
                # A value with gaps travels without, so that a kernel may round otherwise.
                amount = re.search(r"by at most (\S+)$", text)
                assert amount, (seed, number, differences, program.source)
                assert float(amount[1]) <= ROUNDING, (seed, number, differences)
            compared += 1
    return compared


def reshapes_its_inputs(captured, args, kwargs):
    """Whether the graph has sizes of inputs as they are after a call, as after unsqueeze_."""
    placeholders = captured.graph.find_nodes(op="placeholder")
    values = placeholder_values(captured, args, kwargs)
    return any(
        isinstance(found, torch.Tensor) and found.shape != given.shape
        for node, value in zip(placeholders, values, strict=False)
        for found, given in zip(
            pytree.tree_leaves(node.meta.get("val")), pytree.tree_leaves(value), strict=True
        )
    )


def has_gradients(model, args, kwargs):
    try:
        check_equivalence(model, model, args, kwargs, gradients=True)
    except PartitionError:
        return False
    return True


@counts(6, 16)
def test_chains_of_random_modules_compute_what_the_modules_do(count):
    assert check_random_chains(range(count)) > count * 5 // 2


@pytest.mark.parametrize("start", nightly(range(1000, 1600, 100)))
def test_many_chains_of_random_modules(start):
    assert check_random_chains(range(start, start + 100), plans=4) > 350
