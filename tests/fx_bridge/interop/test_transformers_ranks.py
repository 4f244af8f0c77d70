"""Pipelines of transformers with the layers of a plan: three processes, and what is refused."""

import multiprocessing
import sys

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from fx_bridge.capture.graph import capture
from fx_bridge.interop import engine_words, layers_by_rank, plan_from_words
from solver import Device, PartitionError
from tests.support.batch_models import small_gpt2
from tests.support.refusals import refused
from tests.support.serving_models import narrow_llama

pipeline_parallel = pytest.importorskip(
    "transformers.distributed.pipeline_parallel", reason="transformers 5.23 has pipeline stages"
)
DEVICES = [Device(f"cuda:{at}") for at in range(3)]
COUNTS = [1, 4, 2]


def run(rank, model, tokens, counts, init, answers):
    """Put the layers and the logits of a rank, or what it raises."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=3)
    mesh = init_device_mesh("cpu", (3,), mesh_dim_names=("pp",))
    try:
        with layers_by_rank(counts):
            pipeline_parallel.apply_pipeline_parallelism(model, mesh)
        absent = pipeline_parallel.PipelineIdentityLayer
        own = [n for n, layer in enumerate(model.model.layers) if not isinstance(layer, absent)]
        with torch.no_grad():
            answers.put((rank, own, model(input_ids=tokens, use_cache=False).logits.tolist()))
    except PartitionError as error:
        answers.put((rank, str(error), None))
    dist.destroy_process_group()


def answers_of(folder, model, tokens, counts):
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    init = f"file://{folder / 'store'}"
    ranks = [
        context.Process(target=run, args=(rank, model, tokens, counts, init, answers))
        for rank in range(3)
    ]
    for process in ranks:
        process.start()
    try:
        return sorted(answers.get(timeout=120) for _ in ranks)
    finally:
        for process in ranks:
            process.kill()


def test_three_ranks_are_the_model_to_the_bit(tmp_path):
    model, _ = narrow_llama(7)
    tokens = torch.arange(12).reshape(2, 6)
    captured = capture(model, (), {"input_ids": tokens})
    plan = plan_from_words(captured, DEVICES, "1,4,2", "vllm")
    words = engine_words(captured, plan, "transformers")
    assert words == {"pp_size": 3, "layers": COUNTS}
    assert plan_from_words(captured, DEVICES, str(words), "transformers") == plan
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits.tolist()
    found = answers_of(tmp_path, model, tokens, words["layers"])
    assert found == [(0, [0], logits), (1, [1, 2, 3, 4], logits), (2, [5, 6], logits)]


def test_another_model_and_another_number_of_ranks_are_refused(tmp_path):
    model, (tokens,) = narrow_llama(7)
    for counts, said in (([3, 4], "7 layers on 2 ranks"), ([1, 1, 4], "6 layers on 3 ranks")):
        folder = tmp_path / str(len(counts))
        folder.mkdir()
        message = f"the plan has {said}, and this is a model of 7 layers on 3; plan for these"
        assert answers_of(folder, model, tokens, counts) == [
            (rank, message, None) for rank in range(3)
        ]


def test_stages_are_those_of_transformers_again():
    own = pipeline_parallel.PipelineStage
    with pytest.raises(ZeroDivisionError), layers_by_rank(COUNTS):
        assert issubclass(pipeline_parallel.PipelineStage, own)
        assert pipeline_parallel.PipelineStage is not own
        raise ZeroDivisionError
    assert pipeline_parallel.PipelineStage is own


def test_modules_that_it_does_not_divide_are_refused():
    model, (tokens,) = small_gpt2()
    captured = capture(model, (tokens,))
    plan = plan_from_words(captured, DEVICES, "2,3", "vllm")
    with refused(
        "transformers divides embed_tokens, layers, norm and lm_head of a model, and this one has ",
        "transformer.wte, transformer.wpe, transformer.drop, transformer.h.0, ..., ",
        "transformer.ln_f, lm_head; hand it over as a device map",
    ):
        engine_words(captured, plan, "transformers")


def test_an_older_transformers_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, pipeline_parallel.__name__, None)
    with refused("the installed transformers has no pipeline"), layers_by_rank(COUNTS):
        pass
