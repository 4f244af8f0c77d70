import itertools
import math
from fractions import Fraction
from typing import get_args

import pytest
import torch
from torch import fx, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from fx_bridge.capture.graph import capture
from fx_bridge.choices import ExpertsRead
from fx_bridge.costs.device_presets import DEVICE_SPECS
from fx_bridge.costs.device_specs import DeviceSpec
from fx_bridge.costs.expert_reads import average_read_bytes
from fx_bridge.costs.latency import measured_latency_ns, roofline_latency_ns
from fx_bridge.costs.operators import node_flops, node_moved_bytes
from solver import PartitionError
from tests.support.modules import module_with
from tests.support.refusals import refused

ATTENTION = module_with(lambda self, q, k, v: functional.scaled_dot_product_attention(q, k, v))


def total(model, *args):
    return sum(node_flops(capture(model, args)).values())


@pytest.mark.filterwarnings("ignore:The tensor attributes")
def test_flops_of_known_operators():
    assert node_flops(capture(nn.Linear(5, 7), (torch.ones(3, 5),))) == {"linear": 2 * 3 * 5 * 7}
    assert total(nn.Conv2d(3, 8, 3), torch.ones(2, 3, 10, 10)) == 2 * (2 * 8 * 8 * 8) * (3 * 3 * 3)
    q, k, v = torch.ones(2, 4, 6, 8), torch.ones(2, 4, 5, 8), torch.ones(2, 4, 5, 3)
    assert total(ATTENTION, q, k, v) == 2 * (2 * 4) * 6 * 5 * (8 + 3)
    assert total(ATTENTION, q, q, q) == 2 * (2 * 4) * 6 * 6 * (8 + 8)
    # Two layers, 10 steps of 3: input and recurrent matrix of four gates each.
    rows = total(nn.LSTM(5, 6, num_layers=2), torch.ones(10, 3, 5)) / (2 * 30 * 4 * 6)
    assert rows == (5 + 6) + (6 + 6)


@pytest.mark.parametrize("training", [True, False])
def test_flops_of_a_model_are_those_of_a_real_run(training):
    layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)
    model = nn.Sequential(nn.Linear(4, 16), layer, nn.Linear(16, 2)).train(training)
    x = torch.randn(2, 5, 4)
    counter = FlopCounterMode(display=False)
    with counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        model.train()(x)
    expected = counter.get_total_flops()
    assert total(model, x) == expected
    # A submodule that is called as a whole costs what is inside.
    flops = node_flops(capture(fx.symbolic_trace(model), (x,)))
    assert sum(flops.values()) == expected
    assert flops["_0"] == 2 * 2 * 5 * 4 * 16


def test_a_branch_costs_its_dearer_side_and_nothing_else_is_lost():
    def forward(self, x):
        y = x @ x
        branches = self.small.forward, self.large.forward
        return torch.cond(y.sum() > 0, *branches, (y,)) @ y.repeat(2, 1)

    large = nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 8))
    model = module_with(forward, small=nn.Linear(4, 8), large=large)
    flops = node_flops(capture(model, (torch.ones(4, 4),)))
    assert flops["cond"] == 2 * 4 * (4 * 16 + 16 * 8)
    assert flops["matmul"] == 2 * 4 * 4 * 4
    assert flops["matmul_1"] == 2 * 4 * 8 * 4


def test_moved_bytes():
    def forward(self, tokens, positions):
        rows = self.table(tokens)
        wide = rows.sum(0).expand(50, 8)
        scaled = wide * 2
        rows.mul_(3)
        self.cache.index_copy_(0, positions, rows)
        pair = scaled.max(1)
        return rows.view(-1), pair[0], torch.empty(1000) is None

    cache = nn.Buffer(torch.zeros(100, 8))
    model = module_with(forward, table=nn.Embedding(1000, 8), cache=cache)
    captured = capture(model, (torch.arange(4), torch.arange(4)))
    moved = node_moved_bytes(captured, captured.storage_table)
    # 4 rows out of 1000 are read and written, and the 4 indices read.
    assert moved["embedding"] == 2 * 4 * 8 * 4 + 4 * 8
    assert moved["expand"] == moved["view"] == moved["getitem"] == 0
    # What is expanded is read once.
    assert moved["mul"] == 8 * 4 + 50 * 8 * 4
    assert moved["mul_"] == 2 * 4 * 8 * 4
    assert moved["index_copy_"] == 2 * (4 * 8 * 4 + 4 * 8)
    assert moved["max_1"] == 50 * 8 * 4 + 50 * 4 + 50 * 8
    traced = capture(fx.symbolic_trace(nn.Sequential(nn.Embedding(1000, 8))), (torch.arange(4),))
    assert node_moved_bytes(traced, traced.storage_table)["_0"] == 2 * 4 * 8 * 4 + 4 * 8


@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_rows_read_as_many_experts_as_they_can_choose(rows):
    weight = nn.Parameter(torch.zeros(4, 32, 16, dtype=torch.bfloat16))
    experts = module_with(
        lambda self, x, e: torch._grouped_mm(x, self.weight, offs=e), weight=weight
    )
    inputs = torch.zeros(rows, 32, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.int32)
    captured = capture(experts, inputs)
    assert node_flops(captured)["_grouped_mm"] == 2 * rows * 32 * 16
    other = rows * 32 * 2 + 4 * 4 + rows * 16 * 2
    table, moved = captured.storage_table, {}
    for read in get_args(ExpertsRead):
        moved[read] = node_moved_bytes(captured, table, read)["_grouped_mm"] - other
    assert moved["most"] == min(rows, 4) * 32 * 16 * 2
    assert moved["all"] == 4 * 32 * 16 * 2
    # Of rows that are routed one by one.
    assert moved["average"] == average_read_bytes(4 * 32 * 16 * 2, 4, 1, rows)


@pytest.mark.parametrize(
    ("experts", "chosen", "tokens"),
    [(e, k, t) for e in (1, 2, 3, 4, 5) for k in (1, 2, 3) if k <= e for t in (1, 2, 3)],
)
def test_experts_read_on_average_are_those_of_all_routings(experts, chosen, tokens):
    each = list(itertools.combinations(range(experts), chosen))
    routings = list(itertools.product(each, repeat=tokens))
    read = sum(len(set(itertools.chain(*routing))) for routing in routings)
    for size_bytes in (experts, 1000 * experts):
        average_bytes = Fraction(size_bytes * read, len(routings) * experts)
        found = average_read_bytes(size_bytes, experts, chosen, tokens)
        assert found == math.ceil(average_bytes)
        assert found <= min(tokens * chosen, experts) * size_bytes // experts
    assert average_read_bytes(10**15, experts, chosen, 10**9) == 10**15


def test_roofline_is_the_slower_of_computing_and_moving():
    spec = DeviceSpec("d", {"float32": 10**9, "bfloat16": 4 * 10**9}, 10**9, launch_overhead_ns=7)
    assert spec.latency_ns(0, 0, "float32") == 0
    assert spec.latency_ns(1, 1, "float32") == 7
    assert spec.latency_ns(100, 50, "float32") == 100
    assert spec.latency_ns(100, 50, "bfloat16") == 50
    assert spec.latency_ns(101, 0, "bfloat16") == 26
    # A dtype without a rate of its own is no faster than the slowest.
    assert spec.latency_ns(100, 0, "int8") == 100
    assert DeviceSpec("d", 10**9, 1).flops_per_s_of("anything") == 10**9


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("flaot32", "'flaot32'; did you mean float32"),
        ("bf16", "'bf16'; did you mean bfloat16"),
        ("torch.int8", "'torch.int8'; did you mean"),
        (torch.float32, "torch.float32; did you mean float32"),
        ("nonsense", "'nonsense'; write names such as float32"),
    ],
)
def test_rates_of_no_dtype_are_refused(name, says):
    with refused(f"device spec 'd': flops_per_s: there is no dtype {says}"):
        DeviceSpec("d", {"bfloat16": 2, name: 1}, 1)


def test_roofline_of_a_graph_uses_the_dtype_that_is_computed_in():
    specs = {"x": DeviceSpec("x", {"float32": 10**6, "bfloat16": 10**9}, 10**15)}
    for dtype, rate in ((torch.float32, 10**6), (torch.bfloat16, 10**9)):
        captured = capture(nn.Linear(8, 8, dtype=dtype), (torch.ones(4, 8, dtype=dtype),))
        assert roofline_latency_ns(captured, specs)["linear"] == {"x": 512 * 10**9 // rate}


@pytest.mark.parametrize("name", DEVICE_SPECS)
def test_presets_are_named_by_their_key_and_lower_precision_is_no_slower(name):
    spec = DEVICE_SPECS[name]
    assert spec.name == name
    order = ("float64", "float32", "bfloat16", "int8")
    rates = [spec.flops_per_s_of(dtype) for dtype in order if dtype in spec.flops_per_s]
    assert rates == sorted(rates)


@pytest.mark.parametrize(
    ("flops", "bandwidth", "overhead"),
    [(0, 1, 0), (1, 0, 0), ({"float32": 1.5}, 1, 0), ({}, 1, 0), (1, 1, -1), (True, 1, 0)],
)
def test_specs_that_make_no_sense_are_refused(flops, bandwidth, overhead):
    refusal = r"device spec 'd': .* (positive whole number|not negative)"
    with pytest.raises(PartitionError, match=refusal):
        DeviceSpec("d", flops, bandwidth, overhead)


def test_what_cannot_be_measured_says_so():
    captured = capture(nn.Linear(4, 4, device="meta"), (torch.ones(2, 4),))
    with pytest.raises(PartitionError, match="meta device"):
        measured_latency_ns(captured)
    with pytest.raises(PartitionError, match="repeats is 0"):
        measured_latency_ns(captured, repeats=0)
