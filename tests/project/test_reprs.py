"""What a prompt shows of any public object: one line, whatever it holds."""

import importlib
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from itertools import islice

import pytest
import torch

from fx_bridge import (
    Pipeline,
    Placement,
    Training,
    batch_dimensions,
    check_equivalence,
    chunk_specs,
    memory_profile,
    partition_module,
    stage_graph,
)
from solver.model.checks import only_given

PACKAGES = ("solver", "fx_bridge", "fx_bridge.serving", "fx_bridge.interop")


def public_dataclasses():
    every = {}
    for name in PACKAGES:
        package = importlib.import_module(name)
        every |= {f"{name}.{key}": getattr(package, key) for key in package.__all__}
    return {
        key: item for key, item in every.items() if isinstance(item, type) and is_dataclass(item)
    }


@pytest.mark.parametrize("kind", public_dataclasses().values(), ids=public_dataclasses())
def test_every_public_dataclass_says_no_more_than_a_line(kind):
    assert kind.__repr__ is only_given


def assert_short(item, seen):
    """Follow fields and the first items of collections to all dataclasses of the project."""
    if id(item) in seen:
        return
    seen[id(item)] = item
    if isinstance(item, Mapping):
        item = item.values()
    if is_dataclass(item) and type(item).__module__.startswith(("solver", "fx_bridge")):
        text = repr(item)
        assert len(text) <= 200 and text.isprintable(), (type(item), text)
        assert text.startswith(f"{type(item).__name__}(")
        for entry in fields(item):
            assert_short(getattr(item, entry.name), seen)
    elif isinstance(item, Collection) and not isinstance(item, (str, bytes, torch.Tensor)):
        for part in islice(item, 3):
            assert_short(part, seen)


def test_what_is_made_of_a_long_model_is_shown_in_a_line():
    names = ["x" * 150, *map(str, range(20))]
    layers = {name: torch.nn.Linear(8, 8) for name in names}
    model = torch.nn.Sequential()
    for name, layer in layers.items():
        model.add_module(name, layer)
    args = (torch.ones(4, 8),)
    result = partition_module(
        model,
        args,
        devices="4x1MB,4x2MB,2x3MB",
        training=Training("sgd", recompute="auto"),
        pipeline=Pipeline("1f1b", microbatches=2),
        placement=Placement(pins={key: ["cuda:0", "cuda:1"] for key in names[1:]}),
    )
    split = result.split()
    made = (
        result,
        stage_graph(split, result.captured),
        split.meta["name_map"],
        batch_dimensions(result.captured),
        chunk_specs(result.captured, 2),
        check_equivalence(model, split, args),
        memory_profile(result.captured),
        result.captured.storage_table,
    )
    seen = {}
    assert_short(made, seen)
    assert {type(item).__name__ for item in seen.values()} > {
        "PartitionResult", "PartitionProblem", "PartitionPlan", "Evaluation", "SolveResult",
        "CapturedGraph", "StageGraph", "NameMap", "Operator", "Device",
    }  # fmt: skip
    for module in (split, result.place("cpu")):
        assert repr(module).startswith(("SplitModel(", "PlacedModel("))
        assert len(repr(module)) <= 200
