import pytest
import torch
from torch import nn
from torch.distributed.pipelining.microbatch import merge_chunks, split_args_kwargs_into_chunks
from torch.utils import _pytree as pytree

from fx_bridge.batch.microbatches import chunk_specs, pipeline_specs
from fx_bridge.capture.graph import capture
from solver import PartitionError
from tests.support.batch_models import captured_model
from tests.support.modules import module_with
from tests.support.problem_counts import nightly


def in_microbatches(captured, args, kwargs, count):
    """Outputs of a model run on `count` microbatches, split and merged by torch's functions."""
    specs = chunk_specs(captured, count)
    parts = split_args_kwargs_into_chunks(args, kwargs, count, specs.args, dict(specs.kwargs))
    small = captured
    if captured.source is not None:
        small = capture(captured.source, parts[0][0], parts[1][0])
    with torch.no_grad():
        return merge_chunks(
            [small.module(*a, **k) for a, k in zip(*parts, strict=True)], specs.outputs
        )


@pytest.mark.parametrize(
    "name",
    [
        *("gpt2-mask", "lstm", "branches", "layers", "loss", "encoder"),
        *nightly(["t5", "resnet", "whisper"]),
    ],
)
def test_microbatches_give_what_the_whole_batch_does(name):
    _, args, kwargs, graph = captured_model(name)
    with torch.no_grad():
        expected = graph.module(*args, **kwargs)
    for count in (1, 2, 4) if name in ("layers", "loss") else (2,):
        found = in_microbatches(graph, args, kwargs, count)
        assert pytree.tree_structure(found) == pytree.tree_structure(expected)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_a_graph_without_its_model_is_no_certain_one():
    program = capture(torch.export.export(nn.Linear(3, 3), (torch.ones(4, 3),)))
    with pytest.raises(PartitionError, match=r"not certain .* capture the model itself"):
        chunk_specs(program, 2)
    assert str(pipeline_specs(program, 2).outputs) == "TensorChunkSpec(0)"


def test_inputs_without_a_batch_and_nested_ones_are_told_apart():
    def model(self, x, pair, *, table, scale):
        return {"y": (x + pair["a"]) * scale + table, "table": table * 2, "n": None}

    x = torch.randn(4, 3)
    args, kwargs = (x, {"a": x + 1}), {"scale": 2.0, "table": torch.randn(3)}
    captured = capture(module_with(model), args, kwargs)
    specs = chunk_specs(captured, 2)
    assert str(specs.args[1]["a"]) == "TensorChunkSpec(0)"
    assert type(specs.kwargs["table"]).__name__ == "_Replicate"
    found = in_microbatches(captured, args, kwargs, 2)
    torch.testing.assert_close(found, captured.module(*args, **kwargs))


@pytest.mark.parametrize(
    ("microbatches", "words"),
    [(3, "has no 3 equal microbatches"), (0, "microbatches is 0"), (True, "microbatches is True")],
)
def test_nonsense_is_refused(microbatches, words):
    captured = capture(nn.Linear(3, 3), (torch.ones(4, 3),))
    with pytest.raises(PartitionError, match=words):
        chunk_specs(captured, microbatches)


def test_experts_sort_the_tokens_of_all_samples_and_a_pipeline_takes_each_microbatch_by_itself():
    *_, captured = captured_model("mixtral")
    with pytest.raises(PartitionError, match=r"operator 'sort'.* runs along the batch"):
        chunk_specs(captured, 2)
    assert "TensorChunkSpec(0)" in str(pipeline_specs(captured, 2).outputs)


def test_a_returned_batch_size_is_no_output_of_microbatches():
    model = module_with(lambda self, x, of_samples: (x.sin(), x.size(0 if of_samples else 1)))
    x = torch.ones(6, 4)
    with pytest.raises(PartitionError, match="returns the number 6, which is another for another"):
        chunk_specs(capture(model, (x, True)), 3)
    with pytest.raises(PartitionError, match="returns the number 2, which is another for another"):
        pipeline_specs(capture(model, (x[:2], True)), 3)
    outputs = [model(part, False) for part in x.chunk(3)]
    specs = chunk_specs(capture(model, (x, False)), 3)
    assert merge_chunks(outputs, specs.outputs)[1] == 4


def test_a_pipeline_runs_each_microbatch_by_itself():
    def mixing(self, x, table):
        y = self.norm(x)
        return y, y.square().mean(), x.mean(), table * 2, x.argsort(0), self.norm.running_mean

    torch.manual_seed(0)
    x, table = torch.randn(6, 3), torch.randn(5)
    model = module_with(mixing, norm=nn.BatchNorm1d(3))
    captured = capture(model, (x[:2], table))
    specs = pipeline_specs(captured, 3)
    parts, _ = split_args_kwargs_into_chunks((x, table), {}, 3, specs.args, {})
    outputs = [pytree.tree_map(torch.clone, captured.module(*part)) for part in parts]
    found = merge_chunks(outputs, specs.outputs)
    assert torch.equal(found[0], torch.cat([output[0] for output in outputs]))
    # Nobody knows how the mean of what was normalised is merged.
    assert found[1] == [output[1] for output in outputs]
    torch.testing.assert_close(found[2], x.mean())
    assert torch.equal(found[3], table * 2)
    assert torch.equal(found[5], outputs[-1][5])
    with pytest.raises(PartitionError, match="mixes samples"):
        chunk_specs(capture(model, (x, table)), 3)
