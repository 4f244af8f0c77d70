import operator
import re
from pathlib import Path

import pytest
import torch
from torch import fx, nn

from fx_bridge.batch.rules.dims import BatchDim, batch, reshaped
from fx_bridge.batch.table import batch_dimensions, check_microbatchable
from fx_bridge.capture.graph import capture
from solver import PartitionError
from tests.support.batch_checks import compare
from tests.support.batch_models import NAMES, captured_model
from tests.support.modules import module_with
from tests.support.problem_counts import nightly
from tests.support.refusals import refused


def of(function, *args, train=False, **kwargs):
    """The table of a function of tensors, which is checked by running halves of the batch."""

    def forward(self, *inputs):
        return function(*inputs)

    captured = capture(module_with(forward).train(train), args, kwargs)
    return captured, batch_dimensions(captured)


def output(captured, table):
    (read, *_) = captured.graph.output_node().all_input_nodes[-1:]
    return table[read.name]


def x(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


QUICK = ("gpt2", "vit", "lstm", "encoder", "branches", "layers", "loss")


@pytest.mark.parametrize(
    "name", [*QUICK, *nightly(sorted({*NAMES} - {*QUICK, "mixtral", "deepseek"}))]
)
def test_the_table_is_what_halves_of_the_batch_say(name):
    *_, graph = captured_model(name)
    table = batch_dimensions(graph)
    assert table.checked, table.note
    counts = compare(graph, table)
    assert counts["batch"] > 8
    check_microbatchable(graph, table)


def test_modules_and_methods_of_symbolic_trace_are_followed():
    def forward(self, x):
        y, _ = self.rows(self.norm(x))
        n = x.size(0)
        return y.reshape(n * 5, 4).view(n, -1), operator.getitem(y, (slice(None), -1))

    model = module_with(forward, norm=nn.LayerNorm(6), rows=nn.LSTM(6, 4, batch_first=True))
    captured = capture(fx.symbolic_trace(model.eval()), (x(4, 5, 6),))
    table = batch_dimensions(captured)
    assert not table.checked, "no model says what its sizes are"
    assert table["reshape"] == batch(0, 1, 5)
    assert table["rows"][1][0] == batch(1)


OPERATORS = (
    (lambda a: a.permute(2, 0, 1), (4, 3, 5), batch(1)),
    (lambda a: a.flatten(0, 1), (4, 3, 5), batch(0, 1, 3)),
    (lambda a: a.transpose(0, 1).flatten(0, 1), (4, 3, 5), batch(0, 3, 1)),
    (lambda a: a.permute(1, 0, 2).reshape(2, -1), (4, 2, 6), batch(1, 1, 6)),
    (lambda a: torch.cat([a, a * 2]), (4, 3), batch(0, 2, 1)),
    (lambda a: torch.cat([a, a * 2]).chunk(2)[1].exp(), (4, 3), batch(0)),
    (lambda a: torch.stack([a, a], 1), (4, 3), batch(0)),
    (lambda a: torch.stack([a, a]), (4, 3), batch(1)),
    (lambda a: a[None].expand(3, -1, 5), (4, 5), batch(1)),
    (lambda a: a.repeat(3, 1), (4, 5), batch(0, 3, 1)),
    (lambda a: a.repeat_interleave(3, 0), (4, 5), batch(0, 1, 3)),
    (lambda a: a.unbind(1)[0].sin(), (4, 5), batch(0)),
    (lambda a: a.split(2, 1)[1].sin(), (4, 5), batch(0)),
    (lambda a: torch.einsum("bij,bkj->kbi", a, a), (4, 3, 5), batch(1)),
    (lambda a: a.softmax(1).cumsum(1).sort(1)[0], (4, 5), batch(0)),
    (lambda a: a.sum((1, 2), keepdim=True), (4, 5, 6), batch(0)),
    (lambda a: a.new_zeros(a.size(0), 3), (4, 5), batch(0)),
    (lambda a: torch.arange(a.size(0)), (4, 5), BatchDim("index", 0)),
    (lambda a: a[torch.arange(a.size(0)), 2], (4, 5), batch(0)),
    (lambda a: torch.full((3,), 2.0), (4, 5), BatchDim("replicated")),
    (lambda a: a.sum(0) * 3, (4, 5), BatchDim("partial", reduction="sum")),
    (lambda a: a.mean(), (4, 5), BatchDim("partial", reduction="mean")),
    (lambda a: a.mean(0) + 1, (4, 5), BatchDim("partial", reduction="mean")),
    (lambda a: a.sum(0) / a.size(0), (4, 5), BatchDim("partial", reduction="mean")),
    (lambda a: a.amax(0), (4, 5), BatchDim("partial", reduction="max")),
    (lambda a: torch.linalg.inv(a), (4, 5, 5), batch(0)),
    (lambda a: a.new_ones(3, a.size(0)) @ a, (4, 5), BatchDim("partial", reduction="sum")),
    (lambda a: a.T @ a, (4, 5), BatchDim("partial", reduction="sum")),
)


# One graph for all with an input of the same shape.
@pytest.mark.parametrize("shape", dict.fromkeys(shape for _, shape, _ in OPERATORS), ids=str)
def test_operators(shape):
    functions, _, expected = zip(*(row for row in OPERATORS if row[1] == shape), strict=True)
    captured, table = of(lambda a: [function(a) for function in functions], x(*shape))
    compare(captured, table)
    (made,) = captured.graph.output_node().args
    assert [table[node.name] for node in made] == [*expected]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda a: a.softmax(0), "_softmax runs along the batch"),
        (lambda a: a.cumsum(0), "cumsum runs along the batch"),
        (lambda a: a.sort(0)[0], "sort runs along the batch"),
        (lambda a: a - a.mean(0), "gives samples a mean over the batch"),
        (lambda a: a @ a.T, "multiplies samples with each other"),
        (lambda a: a.flip(0), "reorders the samples"),
        (lambda a: a[1:], "takes some of the samples"),
        (lambda a: a[0], "takes single samples"),
        (lambda a: a.mean(0).exp(), "not linear"),
        (lambda a: a.sum(0) + 1, "not linear"),
        (lambda a: a.std(0), "reduces over the batch"),
        (lambda a: a * a.size(0), "batch size as a number"),
        (lambda a: a / a.norm(), "reduces over the batch"),
        (lambda a: a[:, None] - a[None], "pairs samples|joins every sample"),
        (lambda a: torch.arange(a.size(0)) * a[:, 0], "numbers of the samples"),
        (lambda a: a.roll(1, 0), "reorders the samples"),
        (lambda a: nn.functional.layer_norm(a, a.shape), "normalises over the batch"),
        (lambda a: torch.renorm(a, 2, 1, 3.0), "there is no rule for aten.renorm"),
    ],
)
def test_what_mixes_samples_is_refused_with_the_operator_named(function, words):
    captured, table = of(function, x(4, 5))
    compare(captured, table)
    state = output(captured, table)
    assert state.kind == "unknown"
    with refused(f"operator {state.origin!r}", path=Path(__file__).name) as error:
        check_microbatchable(captured, table)
    assert re.search(words, str(error.value))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda a: torch.ones(5, 4) @ a, "contracts the batch"),
        (lambda a: a[torch.tensor([3, 2, 1, 0])], "by their place in the batch"),
        (lambda a: a + torch.tensor([[1.0], [2], [3], [4]]), "gives each sample an entry of its"),
    ],
)
def test_what_fits_one_batch_size_alone_is_refused(function, words):
    captured, table = of(function, x(4, 5))
    with pytest.raises(PartitionError, match=words):
        check_microbatchable(captured, table)


def test_batch_norm_in_training_mode_is_refused_and_instance_norm_is_not():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    with pytest.raises(PartitionError, match=r"module '1'.*in training mode normalises"):
        check_microbatchable(capture(model.train(), (x(4, 3, 8, 8),)))
    check_microbatchable(capture(model.eval(), (x(4, 3, 8, 8),)))
    bare = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))
    with pytest.raises(PartitionError, match=r"module '1'.*normalises over the batch"):
        check_microbatchable(capture(bare.train(), (x(4, 3, 8, 8),)))
    check_microbatchable(capture(nn.InstanceNorm2d(3).train(), (x(4, 3, 8, 8),)))


def test_what_is_kept_for_the_next_call_is_refused():
    def forward(self, a):
        self.kept[1] = a.mean(0)
        return a * 2

    model = module_with(forward, kept=nn.Buffer(torch.zeros(8, 5)))
    with pytest.raises(PartitionError, match="writes to a parameter or buffer"):
        check_microbatchable(capture(model, (x(4, 5),)))


def test_outputs_that_count_samples_or_depend_on_data_are_refused():
    with pytest.raises(PartitionError, match="counts the samples"):
        check_microbatchable(of(lambda a: torch.arange(a.size(0)), x(4, 5))[0])
    with pytest.raises(PartitionError, match=r"may mix samples.*depends on the data"):
        check_microbatchable(of(lambda a: a[a > 0] * 2, x(4, 5))[0])


def test_a_branch_on_the_whole_batch_is_refused():
    captured, table = of(lambda a: torch.cond(a.sum() > 0, torch.sin, torch.cos, (a,)), x(4, 5))
    with pytest.raises(PartitionError, match="takes a branch by a value of the whole batch"):
        check_microbatchable(captured, table)


def test_what_is_written_in_place_is_known_to_all_views():
    def function(a):
        kept = a.new_zeros(3, 5)
        row = kept[0]
        kept.add_(a.sum(0))
        filled = a.new_zeros(a.size(0), 5)
        filled[:, 1:3] = a[:, :2]
        return row * 1, filled * 2

    captured, table = of(function, x(4, 5))
    compare(captured, table)
    one, two = (table[n.name] for n in captured.graph.output_node().all_input_nodes)
    assert one.kind in ("partial", "unknown")
    assert two == batch(0)


def test_a_model_that_fixes_its_batch_has_rules_alone_and_says_why():
    captured = capture(module_with(lambda self, a: a.reshape(4, 10).relu()), (x(4, 2, 5),))
    table = batch_dimensions(captured)
    assert not table.checked
    assert "no batch of" in table.note
    assert table["relu"] == batch(0)
    with pytest.raises(PartitionError, match=r"not certain.*no batch of"):
        check_microbatchable(captured, table)


def test_the_batch_is_found_or_given():
    captured = capture(nn.Bilinear(3, 3, 2), (x(4, 3), x(4, 3)))
    assert batch_dimensions(captured).batch_size == 4
    with pytest.raises(PartitionError, match="no input has that many rows"):
        batch_dimensions(captured, batch_size=5)
    with pytest.raises(PartitionError, match="is empty"):
        batch_dimensions(capture(nn.Linear(3, 3), (torch.ones(0, 3),)))
    with pytest.raises(PartitionError, match="there is no batch"):
        batch_dimensions(of(lambda a: a + 1, torch.tensor(1.0))[0])


def test_a_reshape_finds_the_batch_in_every_factorisation():
    for outer, size, inner in [(1, 7, 6), (2, 7, 3), (6, 7, 1)]:
        state = batch(0, outer, inner)
        flat = [outer * size * inner]
        found = reshaped(state, flat, [outer, size, inner], size)
        assert found == batch(1)
        assert reshaped(found, [outer, size, inner], flat, size) == state
    # Half of the samples are in each row.
    assert reshaped(batch(0), [4, 3], [2, 6], 4) is None


def test_a_table_of_something_else_is_refused():
    captured = capture(nn.Linear(2, 2), (torch.ones(4, 2),))
    other = batch_dimensions(capture(nn.Sequential(nn.ReLU(), nn.Tanh()), (torch.ones(4, 2),)))
    with pytest.raises(PartitionError, match="table is of another graph"):
        check_microbatchable(captured, other)
    with pytest.raises(PartitionError, match="table is a int; leave it out"):
        check_microbatchable(captured, 3)
    with pytest.raises(PartitionError, match="batch_size is '4'; write a whole number"):
        batch_dimensions(captured, batch_size="4")
    assert check_microbatchable(captured, batch_dimensions(captured)).batch_size == 4
