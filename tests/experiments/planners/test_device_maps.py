"""accelerate's and transformers' device maps as plans."""

import functools

import accelerate
import pytest
import torch
import transformers
from accelerate.utils import get_balanced_memory
from torch import nn

from experiments.planners.device_maps import DEVICE_MAP_PLANNERS, map_in_words, weights_by_place
from experiments.planners.task import PlanningTask
from experiments.zoo.building import LoadedModel
from fx_bridge.capture.graph import capture
from fx_bridge.digraph import to_digraph
from fx_bridge.interop.read_plans import plan_from_device_map
from solver import Device, SolveLimits, problem_from_digraph
from tests.support.planning import task_of

MEMORY = (20_000, 20_000, 24_000)
PLANNERS = {spec.name: spec.plan for spec in DEVICE_MAP_PLANNERS}


@functools.cache
def llama(tied):
    """A LLaMA of four narrow layers, of some 7 kB each, and its capture."""
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        use_cache=False,
        tie_word_embeddings=tied,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    loaded = LoadedModel("llama", model, (), {"input_ids": torch.zeros((1, 4), dtype=torch.long)})
    captured = capture(model, (), loaded.kwargs)
    return loaded, captured, to_digraph(captured)


def made(*memory_bytes, tied=False, **settings):
    loaded, captured, graph = llama(tied)
    devices = [Device(f"card{i}", size) for i, size in enumerate(memory_bytes)]
    problem = problem_from_digraph(graph, devices, memory_model="weights", **settings)
    return PlanningTask(problem, loaded, captured)


@pytest.fixture(scope="module")
def task():
    return made(*MEMORY)


def test_accelerates_own_map_is_the_plan(task):
    model = task.loaded.module
    memory = dict(enumerate(MEMORY))
    whole = ["LlamaDecoderLayer"]
    balanced = get_balanced_memory(model, dict(memory), no_split_module_classes=whole)
    for name, limits in (("accelerate", memory), ("accelerate-balanced", balanced)):
        theirs = accelerate.infer_auto_device_map(
            model, max_memory=dict(limits), no_split_module_classes=whole
        )
        answer = PLANNERS[name](task, SolveLimits())
        assert answer.words.startswith(map_in_words(theirs))
        numbered = [Device(f"cuda:{i}") for i in range(3)]
        expected = plan_from_device_map(task.captured, numbered, theirs)
        assert {
            op: at.replace("card", "cuda:") for op, at in answer.result.plan.assignment.items()
        } == (expected.assignment)
        assert answer.result.plan.chunks == expected.chunks


def test_transformers_is_asked_as_from_pretrained_asks():
    roomy = made(90_000, 90_000, 90_000)
    sequential = PLANNERS["transformers-sequential"](roomy, SolveLimits())
    automatic = PLANNERS["transformers-auto"](roomy, SolveLimits())
    assert sequential.words == "the whole model -> 0"
    assert sequential.result.status.value == "feasible"
    assert len(automatic.result.plan.device_order) == 3
    assert automatic.result.solver == "transformers-auto"


def test_what_goes_to_disk_is_no_plan():
    task = made(9_000, 9_000)
    answer = PLANNERS["transformers-sequential"](task, SolveLimits())
    theirs = accelerate.infer_auto_device_map(
        task.loaded.module,
        max_memory={0: 9_000, 1: 9_000},
        no_split_module_classes=["LlamaDecoderLayer"],
    )
    spilled = [name for name, place in theirs.items() if place == "disk"]
    assert answer.result is None
    assert answer.words.endswith("-> disk")
    assert answer.spilled_bytes == sum(
        tensor.nbytes
        for name in spilled
        for tensor in (
            *task.loaded.module.get_submodule(name).parameters(),
            *task.loaded.module.get_submodule(name).buffers(),
        )
    )
    assert answer.reason == f"sends {answer.spilled_bytes / 1000:.4g} kB of weights to disk"


def test_data_that_comes_back_takes_a_chunk_and_the_evaluator_says_so():
    # The embedding of the first layer is the last one's too.
    tied = made(*MEMORY, tied=True)
    answer = PLANNERS["transformers-auto"](tied, SolveLimits())
    assert "data comes back to devices" in answer.words
    assert "chunks per device, but at most 1 may be used" in answer.result.reason
    assert answer.result.evaluation.transfer_bytes > 0
    chunks = 1 + max(answer.result.plan.chunks.values())
    allowed = made(*MEMORY, tied=True, chunks_per_device=chunks)
    assert PLANNERS["transformers-auto"](allowed, SolveLimits()).result.status.value == "feasible"


def test_a_module_that_transformers_does_not_know(task):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    plain = task_of(model, (torch.ones(1, 4),), [Device("x"), Device("y")])
    with pytest.raises(AttributeError, match="_no_split_modules"):
        PLANNERS["transformers-auto"](plain, SolveLimits())
    answer = PLANNERS["accelerate"](plain, SolveLimits())
    assert answer.words == "the whole model -> 0"
    assert answer.result.plan.device_order == ("x",)


def test_weights_belong_to_the_longest_name():
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    model[1][1].weight = model[0].weight
    held = weights_by_place(model, {"0": 0, "1": 1, "1.0.bias": "disk"})
    # The tied weight counts on both devices.
    assert held == {0: 16 + 8, 1: 16 + 16 + 8, "disk": 8}
