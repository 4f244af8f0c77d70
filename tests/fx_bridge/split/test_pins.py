import functools

import pytest
import torch
from torch import nn

from fx_bridge import Placement, Search, Training
from fx_bridge.capture.graph import capture
from fx_bridge.digraph import to_digraph
from fx_bridge.equivalence.check import check_equivalence
from fx_bridge.partition import partition_module
from fx_bridge.split.pins import with_hand_made
from solver import Device, PartitionError, SolveLimits, SolveStatus, problem_from_digraph
from tests.support.modules import module_with
from tests.support.refusals import refused

LIMITS = SolveLimits(workers=1, time_limit_s=30)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, 2 * width)
        self.linear2 = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.linear2(torch.relu(self.linear1(self.norm(x))))


class Stack(nn.Module):
    """A mask that is computed first and read last; blocks; a head."""

    def __init__(self, blocks=4, width=8):
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(blocks))
        self.idle = nn.Identity()
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        mask = x > 0
        for layer in self.layers:
            x = layer(x)
        return self.head(self.idle(torch.where(mask, x, 0.0)))


def devices(count):
    return [Device(f"cuda:{i}") for i in range(count)]


@functools.cache
def stack():
    return capture(Stack(), (torch.randn(5, 8),))


def partition(model=None, args=None, count=3, **options):
    if model is None:
        model, args = stack(), ()
    args = (torch.randn(5, 8),) if args is None else args
    names = {name: options.pop(name) for name in ("pins", "cut_after") if name in options}
    options |= {"devices": devices(count), "placement": Placement(**names)}
    result = partition_module(model, args, search=Search(limits=LIMITS), **options)
    assert result.solved.status is SolveStatus.OPTIMAL
    return result


def stages_of(result, path):
    index = result.plan.stage_index
    return {index[name] for name in result.captured.modules.operators[path]}


def devices_of(result, path):
    assignment = result.plan.assignment
    return {assignment[name] for name in result.captured.modules.operators[path]}


def test_blocks_between_cuts_are_on_stages_of_their_own():
    model, args = Stack(), (torch.randn(5, 8),)
    result = partition(model, args, cut_after=["layers.0", "layers.2"])
    assert [stages_of(result, f"layers.{i}") for i in range(4)] == [{0}, {1}, {1}, {2}]
    # It runs first, so it is on the first stage, though the last one reads it.
    index = result.plan.stage_index
    assert [stage for name, stage in index.items() if name.startswith("gt")] == [0]
    assert check_equivalence(model, result.split(), args).equal


def test_a_cut_may_be_inside_a_layer():
    model, args = Stack(), (torch.randn(5, 8),)
    result = partition(model, args, count=2, cut_after=["layers.1.linear1"])
    assert stages_of(result, "layers.1.norm") == stages_of(result, "layers.1.linear1") == {0}
    assert stages_of(result, "layers.1.linear2") == stages_of(result, "layers.2") == {1}
    split = result.split()
    assert {name for name, _ in split.submod_0.named_parameters()} >= {"layers.1.linear1.weight"}
    assert {name for name, _ in split.submod_1.named_parameters()} >= {"layers.1.linear2.weight"}
    assert check_equivalence(model, split, args).equal


def test_modules_are_pinned_to_devices_and_stages():
    pins = {"head": "cuda:2", "layers.1": 0, "layers.3.linear2": 1}
    result = partition(pins=pins, cut_after=["layers.1"])
    assert stages_of(result, "layers.1") == {0}
    assert stages_of(result, "layers.3.linear2") == {1}
    assert devices_of(result, "head") == {"cuda:2"}


def test_a_pin_may_leave_a_choice_of_devices():
    result = partition(pins={"layers": ["cuda:0", "cuda:1"], "linear_8": ["cuda:2"]})
    assert devices_of(result, "layers") <= {"cuda:0", "cuda:1"}
    assert devices_of(result, "head") == {"cuda:2"}


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_cut_after_a_module_comes_after_the_elements_of_its_tuple(symbolic):
    def forward(self, x):
        a, b = self.divide(self.first(x))
        return self.last(a) + b

    divide = module_with(lambda self, x: torch.split(x, 4, dim=-1))
    model = module_with(forward, first=nn.Linear(8, 8), divide=divide, last=nn.Linear(4, 4))
    traced = torch.fx.symbolic_trace(model) if symbolic else model
    args = (torch.randn(5, 8),)
    name = "split" if symbolic else "divide"
    result = partition(traced, args, count=2, cut_after=[name])
    assert check_equivalence(model, result.split(), args).equal
    stage = result.plan.stage_index
    assert {stage[name] for name in stage if name.startswith(("getitem", "split"))} == {0}


def test_a_cut_between_a_buffer_s_reader_and_writer_is_refused_by_its_name():
    def forward(self, x):
        x = self.last(self.first(x) + self.seen)
        self.seen.add_(1)
        return x

    layers = {name: nn.Linear(8, 8) for name in ("first", "last")}
    model = module_with(forward, seen=nn.Buffer(torch.zeros(8)), **layers)
    with refused("cut after 'linear_1' divides", "'seen'", "in place"):
        partition(model, count=2, cut_after=["last"])


def test_a_cut_between_readers_of_a_trained_weight_is_refused_by_its_name():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    assert partition(model, count=2, cut_after=["1"]).plan.device_order
    with refused("cut after 'relu' divides", "weight", "is trained"):
        partition(model, count=2, cut_after=["1"], training=Training())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pins": {"heat": 0}}, r"pin 'heat': there is no such module or .* did you mean 'head'"),
        ({"cut_after": ["xyz"]}, "cut after 'xyz': .*; the first ones are 'layers', 'layers.0'"),
        ({"cut_after": ["idle"]}, "cut after 'idle': no operator runs in this module"),
        ({"cut_after": ["head"]}, "cut after 'linear_8': no operator runs behind it"),
        ({"pins": {"head": "cuda:7"}}, "pin 'head': there is no device 'cuda:7'; the devices are"),
        ({"pins": {"head": []}}, "pin 'head': it names no device; the devices are cuda:0"),
        ({"pins": {"layers": 1, "layers.2": 0}}, "pin 'layers.2': operator .* stage 1 by another"),
        ({"pins": {"head": 3}}, "pinned to stage 3, but 3 devices with 1 chunk each allow 3"),
    ],
)
def test_wrong_names_and_pins_are_refused_in_one_line(options, message):
    with pytest.raises(PartitionError, match=message) as caught:
        partition(**options)
    assert "\n" not in str(caught.value)


def test_without_the_model_operators_have_names():
    problem = problem_from_digraph(to_digraph(stack()), devices(2))
    named = with_hand_made(problem, None, pins={"linear_8": 1}, cut_after=["linear_1"])
    assert named.cuts == ("linear_1",)
    assert named.stage_pins == {"linear_8": 1}
    assert with_hand_made(problem, None) is problem
    with pytest.raises(PartitionError, match=r"cut after 'layers\.0': there is no such module or"):
        with_hand_made(problem, None, cut_after=["layers.0"])


def test_a_device_s_name_may_be_a_number_and_still_be_a_device():
    pins = Placement(pins={"head": "0"})
    pair = [Device("0"), Device("1")]
    result = partition_module(stack(), devices=pair, search=Search(LIMITS), placement=pins)
    assert devices_of(result, "head") == {"0"}
