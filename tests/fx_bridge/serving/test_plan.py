"""The most tokens that fit where values count, and several plans of one capture."""

from dataclasses import replace

import pytest
import torch
from transformers.modeling_outputs import CausalLMOutputWithPast

from fx_bridge.options import Costs
from fx_bridge.serving import Request, ServingPlanner, plan_serving, serve_step
from fx_bridge.serving.graphs import ServingGraphs
from solver import Device, PartitionError, SolveStatus
from solver.model.job import SERVING_OBJECTIVES
from solver.serving.metrics import evaluate_phases
from tests.support.problem_counts import samples
from tests.support.serving_models import (
    BATCH,
    CONTEXT,
    PROMPT,
    model_of,
    narrow_llama,
    prompt,
    with_step,
    without_cache,
)

REQUEST = Request(batch=1, context=16, prompt=4, generate=2)
DEVICES = [Device("cpu:0", 80_000)]
LARGE = [Device("cpu:0", 10**7)]


def padded_llama():
    """A Llama with scratch memory for as many positions as the next power of two."""
    model = narrow_llama(layers=2)[0]

    class Padded(type(model)):
        def forward(self, input_ids, past_key_values, **given):
            out = super().forward(input_ids=input_ids, past_key_values=past_key_values, **given)
            positions = past_key_values.layers[0].keys.shape[2]
            scratch = out.logits.new_zeros(1 << (positions - 1).bit_length(), 64)
            return CausalLMOutputWithPast(logits=out.logits + scratch.sum(0))

    model.__class__ = Padded
    return model


@pytest.mark.parametrize("padded", samples([False, True], [True]))
def test_the_most_tokens_fit_a_graph_that_was_captured_with_them(padded, monkeypatch):
    captured = []
    capture = ServingGraphs._captured

    def noted(graphs, context):
        captured.append(context)
        return capture(graphs, context)

    monkeypatch.setattr(ServingGraphs, "_captured", noted)
    model = padded_llama() if padded else narrow_llama(layers=2)[0]
    found = plan_serving(model, REQUEST, devices=DEVICES, objective="context")
    assert found.solved.status is SolveStatus.OPTIMAL
    most = found.context
    assert captured[:2] == [16, 32] and captured[-2:] == [most, most + 1]
    # What grows in proportion is not captured in vain; a leap of what is padded is found.
    assert len(captured) == len(set(captured)) == (6 if padded else 4)
    graphs = ServingGraphs(model, REQUEST, devices=DEVICES)
    jobs = [found.asked.replace(phases=graphs.phases(at), others={}) for at in (most, most + 1)]
    broken = [[e.violations for e in evaluate_phases(job, found.plan).values()] for job in jobs]
    assert [any(violations) for violations in broken] == [False, True]


def test_one_planner_captures_once_for_all_objectives(monkeypatch):
    model, devices = model_of("Mixtral"), [Device("cpu:0", 300_000)]
    costs = {read: Costs(memory_model="weights", experts_read=read) for read in ("average", "all")}
    planner = ServingPlanner(model, REQUEST, devices=devices, costs=costs["average"])
    with monkeypatch.context() as patch:
        patch.delattr(ServingGraphs, "_captured")
        plans = {objective: planner.plan(objective) for objective in SERVING_OBJECTIVES}
    for objective, found in plans.items():
        assert found.solved.status is SolveStatus.OPTIMAL, objective
        assert found.experts_read == "average"
        assert found.graphs is plans["request"].graphs
    assert plans["context"].context > REQUEST.context
    other = ServingPlanner(model, REQUEST, devices=devices, costs=costs["all"]).plan("token")
    # All experts take memory whichever are read, and one token reads two of four.
    assert other.memory_bytes == plans["token"].memory_bytes
    assert other.metrics.token_ns > plans["token"].metrics.token_ns
    plain = ServingPlanner(narrow_llama(1)[0], REQUEST, devices=devices, costs=costs["all"])
    assert plain.plan("token").experts_read is None


def test_a_prompt_in_parts_is_refused_where_a_part_forgets_those_before():
    # Its layers read their state in calls of one token alone.
    model = model_of("Mamba")
    parts = replace(REQUEST, chunk=2)
    refusal = "a call of 2 tokens does not read 'caches.0.recurrent_states_0'.* leave chunk out"
    with pytest.raises(PartitionError, match=refusal):
        plan_serving(model, parts, devices=LARGE, objective="request")
    served = plan_serving(model, REQUEST, devices=LARGE, objective="request")
    placed = served.place("cpu:0")
    # Of four tokens: the first call begins a sequence, the second would go on.
    with pytest.raises(PartitionError, match="a call of 4 tokens does not read"):
        placed.generate(prompt()[:1, :8], 2)
    short = prompt()[:1, :4]
    assert torch.equal(placed.generate(short, 2), without_cache(model, short, 2)[0])
    step = serve_step(model, BATCH, CONTEXT, PROMPT)
    tokens, logits = without_cache(model, prompt(), 8)
    ours, scores = with_step(step, prompt(), 8, (PROMPT,))
    assert torch.equal(ours, tokens)
    torch.testing.assert_close(scores, logits, atol=3e-5, rtol=1e-5)
    plan_serving(model_of("Mamba2"), parts, devices=LARGE, objective="request")
