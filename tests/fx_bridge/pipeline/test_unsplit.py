import random
from dataclasses import replace

import pytest
import torch
from torch import fx, nn

from fx_bridge.batch.table import batch_dimensions
from fx_bridge.capture.graph import capture
from fx_bridge.equivalence.check import check_equivalence
from fx_bridge.pipeline.unsplit import captured_of
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import colocation_groups
from fx_bridge.split.reader import stage_graph
from solver import PartitionError
from tests.support.random_modules import random_program
from tests.support.random_plans import random_plan


@pytest.mark.parametrize("seed", range(12))
def test_what_was_split_is_whole_again(seed):
    model, args, kwargs = random_program(seed).build()
    captured = capture(model, args, kwargs)
    groups = colocation_groups(captured)
    plan = random_plan(captured, groups, 2, random.Random(seed), chunks=1 + seed % 3)
    split = split_by_plan(captured, plan)
    found = captured_of(split)
    found.graph.lint()
    names = {node.name for node in captured.operators}
    assert {node.name for node in found.operators} == names
    stages = [plan.stage_index[node.name] for node in found.operators]
    assert stages == sorted(stages)
    again, before = stage_graph(split, found), stage_graph(split, captured)
    assert again.values == before.values
    for stage, other in zip(again.stages, before.stages, strict=True):
        # The split does not know the names of tied weights under which nothing reads them.
        assert [w.names for w in stage.weights] == [w.names for w in other.weights]
        # Words are in the order of operators, which a split changes.
        assert bool(stage.modules) == bool(other.modules)
        left_out = {"weights": (), "modules": ""}
        assert replace(stage, **left_out) == replace(other, **left_out)
    report = check_equivalence(model, found.module, args, kwargs)
    assert report.equal, report.differences


def test_weights_and_what_is_known_of_the_batch_are_those_of_the_captured_graph():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    captured = capture(model, (torch.ones(3, 4),))
    plan = random_plan(captured, [], 3, random.Random(0))
    found = captured_of(split_by_plan(captured, plan))
    assert len(found.storage_table.weights) == len(captured.storage_table.weights) == 3
    assert found.module.get_parameter("2.weight") is model[0].weight
    dimensions = batch_dimensions(found)
    assert str(dimensions["linear_1"]) == "batch in dimension 0"


def test_a_module_without_stages_is_refused():
    for module in (nn.Linear(2, 2), fx.symbolic_trace(nn.Linear(2, 2))):
        with pytest.raises(PartitionError, match="the module has no stages; give what split_by"):
            captured_of(module)
