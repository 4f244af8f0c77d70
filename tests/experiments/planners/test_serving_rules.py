"""What engines do by their own rules: layers and tokens counted by hand, on a small Llama."""

import functools
import random

import pytest

from experiments.planners.serving_rules import (
    SERVING_RULES,
    exo_counts,
    served_by_rules,
    sglang_counts,
    transformers_counts,
    vllm_counts,
)
from fx_bridge.interop.llama_cpp import stages_by_shares
from fx_bridge.options import Costs
from fx_bridge.serving import Request, plan_serving
from solver import PCIE, Device
from solver.model.job import SERVING_OBJECTIVES
from tests.support.llama_cpp_rule import devices_of_layers
from tests.support.serving_models import narrow_llama

LAYERS, BATCH = 5, 2
REQUEST = Request(BATCH, context=12, prompt=9, generate=3)
# In bytes, of float32 and 16 wide: what each part weighs, and a position of the cache of a layer.
LAYER = 4 * (4 * 16 * 16 + 3 * 16 * 16 + 2 * 16)
EMBEDDING, TABLE, HEAD = 4 * 64 * 16, 4 * 4, 4 * (64 * 16 + 16)
POSITION = BATCH * 4 * 2 * 16
MEMORY = (42_000, 40_000, 30_000)


@functools.cache
def llama():
    return narrow_llama(LAYERS)[0]


pytestmark = pytest.mark.usefixtures("captured_once")


@functools.cache
def served(memory, objective="context", host=None, memory_model="weights"):
    """The plan, what it gives, and what the rules give, by name."""
    devices = [Device(f"cuda:{at}", size) for at, size in enumerate(memory)]
    if host is not None:
        devices.append(Device("cpu:0", host, is_host=True))
    found = plan_serving(
        llama(),
        REQUEST,
        devices=devices,
        objective=objective,
        whole_layers=True,
        any_context=True,
        costs=Costs(memory_model=memory_model, interconnect=PCIE),
    )
    ours, answers = served_by_rules(found, llama())
    return found, ours, {answer.name: answer for answer in answers}


def tokens_by_hand(memory, counts, head):
    """The embedding on the first device, the head on that of a number."""
    positions = []
    for at, (size, count) in enumerate(zip(memory, counts, strict=True)):
        free = size - count * LAYER - (at == 0) * (EMBEDDING + TABLE) - (at == head) * HEAD
        assert free >= 0
        positions += [free // (count * POSITION)] if count else []
    return BATCH * min(positions)


@pytest.mark.parametrize(
    ("rule", "counts", "head"),
    [
        ("vllm", (2, 2, 1), 2),
        ("sglang", (1, 2, 2), 2),
        ("transformers", (1, 1, 3), 2),
        # Sixths from 0 on, beside 0.38 and 0.73 of the memory: the output is the last of them.
        ("llama.cpp", (3, 2, 0), 2),
        # 1.88, 1.79 and 1.34 layers.
        ("exo", (2, 2, 1), 2),
        # The first device has room for the embedding and five layers, but it keeps that of one.
        ("accelerate", (4, 1, 0), 1),
    ],
)
def test_layers_and_tokens_of_a_rule_are_as_by_hand(rule, counts, head):
    found, _, rules = served(MEMORY)
    answer = rules[rule]
    assert tuple(answer.layers.values()) == counts
    assert answer.tokens == tokens_by_hand(MEMORY, counts, head)
    assert answer.plan.assignment["embedding"] == "cuda:0"
    assert answer.plan.assignment[found.graphs[1].operators[-1].name] == f"cuda:{head}"


def test_rules_are_judged_like_the_plan_and_none_is_better():
    for objective in SERVING_OBJECTIVES:
        found, ours, rules = served(MEMORY, objective)
        assert found.solved.gap == 0
        assert set(rules) == {rule.name for rule in SERVING_RULES}
        if objective == "context":
            assert ours.tokens == found.solved.evaluation.most_tokens
        elif objective != "throughput":
            assert ours.metrics == found.metrics
        compared = [ours.times_better(answer, objective) for answer in rules.values()]
        assert any(compared)
        assert all(times is None or times >= 1 for times in compared)
        for answer in rules.values():
            fits = answer.tokens is not None and answer.tokens >= BATCH * REQUEST.context
            assert (answer.metrics is not None) == fits


def test_a_rule_whose_plan_does_not_fit_says_so():
    _, _, rules = served((30_000, 12_000))
    # Three and two layers, of which two and the head are more than the second device has.
    assert rules["vllm"].layers == {"cuda:0": 3, "cuda:1": 2}
    assert rules["vllm"].tokens is None and rules["vllm"].metrics is None
    assert "cuda:1" in rules["vllm"].reason
    assert rules["accelerate"].plan is None
    assert rules["accelerate"].reason.startswith("sends ")


def test_without_limits_any_context_fits_and_memory_divides_nothing():
    _, ours, rules = served((None, None), "token")
    assert ours.tokens is None and ours.metrics is not None
    assert rules["vllm"].tokens is None and rules["vllm"].metrics is not None
    for name in ("llama.cpp", "exo"):
        assert rules[name].plan is None
        assert "divides layers by memory" in rules[name].reason


def test_the_host_has_the_embedding_of_llama_cpp_alone():
    _, _, rules = served(MEMORY, host=100_000)
    places = {name: answer.plan.assignment["embedding"] for name, answer in rules.items()}
    assert places == dict.fromkeys(places, "cuda:0") | {"llama.cpp": "cpu:0"}
    assert rules["llama.cpp"].layers == {"cuda:0": 3, "cuda:1": 2, "cuda:2": 0, "cpu:0": 0}


def test_values_count_where_the_memory_model_has_them():
    _, _, lean = served(MEMORY)
    _, _, full = served(MEMORY, "token", memory_model="inference")
    assert 0 < full["exo"].tokens < lean["exo"].tokens


def test_counts_of_published_rules():
    assert vllm_counts(22, 4) == [5, 6, 6, 5]
    assert vllm_counts(5, 3) == [2, 2, 1]
    assert sglang_counts(22, 4) == [5, 5, 6, 6]
    assert transformers_counts(126, 16) == [7] * 15 + [21]
    assert exo_counts(32, [24, 12]) == [21, 11]
    assert exo_counts(4, [100, 1, 1]) == [2, 1, 1]
    for layers in range(4, 60):
        for rule in (vllm_counts, sglang_counts):
            counts = rule(layers, 4)
            assert sum(counts) == layers and max(counts) - min(counts) <= 1


def test_llama_cpp_without_a_host_is_its_own_rule():
    random.seed(0)
    for _ in range(300):
        layers, count = random.randint(1, 130), random.randint(1, 8)
        shares = [random.randint(1, 80_000_000_000) for _ in range(count)]
        names = [f"cuda:{at}" for at in range(count)]
        expected = devices_of_layers(layers, shares, layers + 1)
        stages = stages_by_shares(shares, layers, names)
        found = [stage.device for stage in stages for _ in range(stage.count)]
        assert found == [names[at] for at in expected[:-1]]
        assert [stage.device for stage in stages if stage.has_head] == [names[expected[-1]]]
        assert [stage.has_embedding for stage in stages] == [True] + [False] * (len(stages) - 1)
