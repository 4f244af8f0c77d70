import pytest
import torch

from fx_bridge.batch.microbatches import pipeline_specs
from fx_bridge.capture.graph import capture
from fx_bridge.pipeline.step_inputs import BatchSplitter
from fx_bridge.split.guards import CapturedCalls
from solver import PartitionError
from tests.support.modules import module_with

CPU = torch.device("cpu")


def forward(self, x, pair, *, table, rows, scale=2.0):
    return x * pair["a"] + table * scale + rows.sum(1, keepdim=True) + pair["b"][0]


def inputs(count):
    pair = {"a": torch.randn(count, 3), "b": [torch.randn(count, 3), None]}
    named = {"table": torch.randn(3), "rows": torch.randn(count, 2), "scale": 0.5}
    return (torch.randn(count, 3), pair), named


@pytest.fixture(scope="module")
def captured():
    args, kwargs = inputs(2)
    return capture(module_with(forward), args, kwargs)


def splitter(captured, microbatches, names=None, training=True):
    specs = pipeline_specs(captured, microbatches) if microbatches > 1 else None
    every = [node.name for node in captured.graph.find_nodes(op="placeholder")]
    return BatchSplitter(captured, names or every, specs, CPU, training=training)


def test_a_batch_is_split_where_each_input_holds_it(captured):
    args, kwargs = inputs(6)
    parts = splitter(captured, 3).inputs(args, kwargs)
    whole = {"x": args[0], "pair_a": args[1]["a"], "pair_b_0": args[1]["b"][0]}
    for number, part in enumerate(parts):
        rows = slice(2 * number, 2 * number + 2)
        assert all(torch.equal(part[name], batch[rows]) for name, batch in whole.items())
        assert torch.equal(part["table"], kwargs["table"]) and part["scale"] == 0.5
    found = [captured.module(*args_of(part)[0], **args_of(part)[1]) for part in parts]
    assert torch.equal(torch.cat(found), forward(None, *args, **kwargs))


def args_of(part):
    pair = {"a": part["pair_a"], "b": [part["pair_b_0"], None]}
    return (part["x"], pair), {name: part[name] for name in ("table", "rows", "scale")}


def test_a_rank_takes_what_it_reads(captured):
    args, kwargs = inputs(4)
    parts = splitter(captured, 2, ["table"]).inputs(args, kwargs)
    assert [list(part) for part in parts] == [["table"], ["table"]]
    specs = pipeline_specs(captured, 2)
    nothing = BatchSplitter(captured, [], specs, CPU, training=True)
    assert nothing.inputs((), {}) == [{}, {}]


def test_inputs_of_other_sizes_are_refused(captured):
    args, kwargs = inputs(4)
    with pytest.raises(PartitionError, match=r"takes \[10, 3\], 5 microbatches along dimension 0"):
        splitter(captured, 5).inputs(args, kwargs)
    with pytest.raises(PartitionError, match=r"input 'table' has shape \[4\]"):
        splitter(captured, 2).inputs(args, kwargs | {"table": torch.ones(4)})
    with pytest.raises(PartitionError, match="missing a required argument: 'table'"):
        splitter(captured, 2).inputs(args, {})
    differentiable = args[0].clone().requires_grad_()
    with pytest.raises(PartitionError, match="input 'x' requires a gradient"):
        splitter(captured, 2).inputs((differentiable, args[1]), kwargs)
    splitter(captured, 2, training=False).inputs((differentiable, args[1]), kwargs)


def test_targets_are_structures_of_tensors(captured):
    target = {"a": torch.arange(4), "b": (torch.arange(8).view(4, 2), "mean", None)}
    parts = splitter(captured, 2).targets(target)
    assert parts[1]["a"].tolist() == [2, 3]
    assert parts[0]["b"][0].tolist() == [[0, 1], [2, 3]]
    assert parts[1]["b"][1:] == ("mean", None)
    assert splitter(captured, 2).targets(None) == [None, None]
    for wrong in (torch.arange(3), torch.tensor(1)):
        with pytest.raises(PartitionError, match="has no 2 equal parts"):
            splitter(captured, 2).targets(wrong)


def test_numbers_and_settings_that_forward_goes_by_are_those_of_the_capture():
    def asking(self, x, pair, *, table, rows, scale=2.0):
        y = forward(self, x, pair, table=table, rows=rows, scale=scale)
        return y if torch.is_grad_enabled() else y * 2

    args, kwargs = inputs(2)
    captured = capture(model := module_with(asking), args, kwargs)
    every = [node.name for node in captured.graph.find_nodes(op="placeholder")]
    calls = CapturedCalls(captured)
    splitter = BatchSplitter(captured, every, None, CPU, training=True, calls=calls)
    (part,) = splitter.inputs(args, {**kwargs, "scale": 0.5})
    assert part["scale"] == 0.5
    with pytest.raises(PartitionError, match=r"'scale' was 0\.5 .* but is 2\.0 now"):
        splitter.inputs(args, {name: kwargs[name] for name in ("table", "rows")})
    with torch.no_grad(), pytest.raises(PartitionError, match=r"forward asks for torch\.is_grad"):
        splitter.inputs(args, kwargs)
    assert captured.source is model
