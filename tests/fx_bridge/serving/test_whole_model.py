"""Plans of steps as plans of the models that they were made of."""

from dataclasses import replace

import pytest
import torch

from fx_bridge.capture.graph import capture
from fx_bridge.equivalence.check import check_equivalence
from fx_bridge.interop.layered_model import LayeredModel
from fx_bridge.options import Costs, Search
from fx_bridge.serving.halves import half_layers
from fx_bridge.serving.phases import same_operators
from fx_bridge.serving.planner import plan_serving
from fx_bridge.serving.request import Request
from fx_bridge.split.by_plan import split_by_plan
from solver import Device, SolveLimits
from solver.model.job import Host
from solver.offload.evaluate import evaluate_offload
from tests.support.problem_counts import samples
from tests.support.serving_models import model_of

INPUTS = (torch.ones(1, 8, dtype=torch.long),)


def served(model, whole_layers):
    size_bytes = sum(p.nbytes for p in model.parameters())
    return plan_serving(
        model,
        Request(1, 40, 16, 8, chunk=9),
        devices=[Device(f"cuda:{i}", size_bytes * 5 // 8) for i in range(2)],
        objective="token",
        whole_layers=whole_layers,
        costs=Costs(memory_model="weights"),
        search=Search(SolveLimits(5, workers=1)),
    )


@pytest.mark.parametrize("whole_layers", [True, False])
@pytest.mark.parametrize("family", samples(["Llama", "GPT2", "GptOss"], {"Llama"}))
def test_modules_are_where_they_serve(family, whole_layers):
    model = model_of(family)
    found = served(model, whole_layers)
    captured = capture(model, INPUTS)
    plan = found.plan_of_model(captured)
    assert plan.device_order == found.plan.device_order
    same = same_operators(next(iter(found.graphs.values())), captured)
    assert 0.8 * len(captured.operators) < len(same) < len(captured.operators)
    assert all(plan.assignment[own] == found.plan.assignment[name] for own, name in same.items())
    assert check_equivalence(model, split_by_plan(captured, plan), INPUTS).equal
    if whole_layers:
        layers = LayeredModel(captured, "vllm").stages_of(plan)[0]
        assert [stage.count for stage in layers] == [len(own) for own in found.layers.values()]


@pytest.mark.parametrize("family", samples(["Llama", "Mixtral"], {"Llama"}))
def test_modules_are_streamed_and_on_the_host_where_they_serve(family):
    model = model_of(family)
    places = {"devices": [Device("cuda:0", 200_000, "rtx-4090")], "host": Host(None, "cpu")}
    found = plan_serving(model, Request(1, 40, 16, 8), search=Search(SolveLimits(0.1)), **places)
    modes = ["resident", "streamed", "host", "streamed", "streamed", "resident"]
    given = found.instance.plan([0] * len(modes), modes)
    found = replace(found, solved=replace(found.solved, plan=given))
    captured = capture(model, INPUTS)
    plan = found.plan_of_model(captured)
    assert check_equivalence(model, split_by_plan(captured, plan), INPUTS).equal
    mode_of = {}
    for half, mode in zip(half_layers(found.graphs[1]).values(), modes, strict=True):
        mode_of |= dict.fromkeys(half.operators, mode)
    for own, name in same_operators(found.graphs[1], captured).items():
        assert (plan.assignment[own] == "host") == (mode_of[name] == "host")
        assert (plan.mode_of.get(own) == "streamed") == (mode_of[name] == "streamed")
    assert evaluate_offload(found.instance, given).feasible
