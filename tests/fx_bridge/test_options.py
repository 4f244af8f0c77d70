"""Groups of options: what they take, what they refuse and by which words, what they show."""

import copy
import dataclasses
import functools
import inspect
import pickle

import pytest
import torch
from torch import nn

from fx_bridge import (
    DEVICE_SPECS,
    Costs,
    Pipeline,
    Placement,
    Recompute,
    Search,
    Training,
    capture,
    partition_module,
    to_digraph,
)
from solver import PCIE, Device, Interconnect, PartitionError, SolveLimits
from tests.support.refusals import refused

small = functools.cache(lambda: capture(nn.Linear(4, 4), (torch.ones(2, 4),)))
GROUPS = (Training, Recompute, Pipeline, Placement, Costs, Search)

REFUSED = [
    (Training, {"optimizer": "lion"}, "write one of sgd, momentum, adam, adamw"),
    (Training, {"master_weights": 1}, "master_weights is 1; write True or False"),
    (Training, {"tied_weights": "both"}, "tied_weights is 'both'; write one of colocate, sum"),
    (Training, {"recompute": "h.0"}, "recompute is 'h.0'; write one of none, auto, layers, all"),
    (Training, {"recompute": []}, "recompute is empty; write 'none', or modules, such as ['h.0']"),
    (Training, {"recompute": ["h.0", 1]}, "recompute names 1; write a list of modules, such as"),
    (Training, {"regions": "h.*"}, "regions is 'h.*'; write a list of modules, such as ['h.*']"),
    (Recompute, {"rule": 3}, "recompute is 3; write one of none, auto, layers, all, or a list of"),
    (Recompute, {"always": "h.0"}, "always is 'h.0'; write a list of modules, such as ['h.0']"),
    (Recompute, {"never": [None]}, "never names None; write a list of modules, such as ['h.0']"),
    (Pipeline, {"schedule": "zero-bubble"}, "write one of gpipe, 1f1b"),
    (Pipeline, {"microbatches": 0}, "microbatches is 0; write at least 1"),
    (Pipeline, {"microbatches": True}, "microbatches is True; write a whole number"),
    (Pipeline, {"chunks_per_device": 0}, "chunks_per_device is 0; write at least 1"),
    (Pipeline, {"max_devices": 0}, "max_devices is 0; write a positive number, or None"),
    (Placement, {"pins": ["head"]}, "pins is ['head']; write a mapping"),
    (Placement, {"pins": {"head": 1.5}}, "pins['head'] is 1.5; write the name of a device"),
    (Placement, {"cut_after": "h.3"}, "cut_after is 'h.3'; write a list"),
    (Placement, {"keep_whole": "h.*"}, "keep_whole is 'h.*'; write a list"),
    (Placement, {"keep_whole": ["h+"]}, "keep_whole names 'h+'; write a list"),
    (Costs, {"interconnect": "pcie"}, "interconnect is 'pcie'; write Interconnect("),
    (Costs, {"memory_model": "all"}, "memory_model is 'all'; write one of inference, weights"),
    (Costs, {"memory_model": "training"}, "write training=Training() beside costs"),
    (Costs, {"specs": None}, "specs is a NoneType; give a mapping"),
    (Costs, {"specs": {"default": 3}}, "specs['default'] is 3; write a fx_bridge.DeviceSpec"),
    (Costs, {"latency_ns": 3}, "latency_ns is a int; give a mapping of operator to nanoseconds"),
    (Costs, {"latency_ns": {"a": {"t4": -1}}}, "latency_ns['a']['t4'] is -1; write a number"),
    (Costs, {"backward_latency_ns": {"a": 1}}, "is given without latency_ns; give both"),
    (Costs, {"workspace_bytes": 5}, "workspace_bytes is a int; give a mapping of operator to by"),
    (Costs, {"workspace_bytes": {"a": {"t4": 1}}}, "workspace_bytes['a'] is {'t4': 1}; write a w"),
    (Costs, {"backward_workspace_bytes": {"a": -1}}, "backward_workspace_bytes['a'] is -1; write"),
    (Costs, {"attention": "flesh"}, "attention is 'flesh'; write one or more of flash"),
    (Costs, {"experts_read": "few"}, "experts_read is 'few'; write one of average, most, all"),
    (Search, {"limits": 60}, "limits is 60; write SolveLimits("),
    (Search, {"solver": "magic"}, "solver 'magic' is unknown; write one of auto"),
    (Search, {"without": "greedy"}, "without is 'greedy'; write a collection of names"),
    (Search, {"without": ["prayer"]}, "step 'prayer' is unknown; write one of"),
]


@pytest.mark.parametrize(("group", "fields", "message"), REFUSED)
def test_a_wrong_field_is_named_in_one_line_with_what_to_write(group, fields, message):
    with refused(message) as error:
        group(**fields)
    (name,) = fields
    # A step is refused by its kind, a rule by what it is the rule of; all others by their field.
    assert name in str(error.value) or name in ("without", "rule")


def test_every_field_is_refused_something():
    tried = {(group, name) for group, fields, _ in REFUSED for name in fields}
    assert tried == {(group, e.name) for group in GROUPS for e in dataclasses.fields(group)}


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_is_frozen_and_shows_what_was_given(group):
    made = group()
    assert repr(made) == f"{group.__name__}()"
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made, dataclasses.fields(group)[0].name, None)


@pytest.mark.parametrize(
    "made",
    [
        Training("sgd", master_weights=False, tied_weights="sum", recompute="auto"),
        Training(recompute=["h.*"], regions=["h.*.mlp"]),
        Training(recompute=Recompute("layers", always=["h.0"], never=["h.3"])),
        Pipeline("gpipe", microbatches=4, chunks_per_device=2, max_devices=3),
        Placement({"head": ["a", "b"], "tail": 2}, ["body"], ["h.*"]),
        Costs(Interconnect(charging="relayed"), "weights", latency_ns={"a": {"t4": 3}, "b": 1}),
        Search(SolveLimits(time_limit_s=3), "chain", without=["ideals"]),
    ],
)
def test_a_group_is_pickled_copied_and_shown(made):
    assert pickle.loads(pickle.dumps(made)) == made == copy.deepcopy(made)
    shown = {"Interconnect": Interconnect, "SolveLimits": SolveLimits, "mappingproxy": dict}
    links = {"Link": type(PCIE.default)}
    known = {group.__name__: group for group in GROUPS} | shown | links
    assert eval(repr(made), known) == made


def test_a_group_keeps_what_it_was_given():
    pins, names = {"head": 0}, ["body"]
    made = Placement(pins, names, names)
    pins["tail"] = 1
    names.append("legs")
    assert made == Placement({"head": 0}, ["body"], ["body"])
    with pytest.raises(TypeError):
        made.pins["tail"] = 1
    assert Placement(None) == Placement()
    times = {"a": 1}
    costs = Costs(latency_ns=times)
    times["b"] = 2
    assert costs == Costs(latency_ns={"a": 1})


def test_a_call_has_at_most_ten_parameters():
    signature = inspect.signature(partition_module)
    assert len(signature.parameters) <= 10 and "mappingproxy" not in str(signature)


def test_what_training_holds_has_one_name():
    captured = small()
    with pytest.raises(PartitionError, match="training is True; write training=Training"):
        to_digraph(captured, training=True)
    with pytest.raises(PartitionError, match=r"costs is \{\}; write costs=Costs"):
        to_digraph(captured, costs={})
    result = partition_module(captured, devices=[Device("d")], training=Training())
    assert result.problem.memory_model == "training"
    for memory_model in ("weights", "inference"):
        costs = Costs(memory_model=memory_model)
        result = partition_module(captured, devices=[Device("d")], costs=costs)
        assert result.problem.memory_model == memory_model


def test_a_step_is_left_out_of_the_search_and_not_of_the_baseline():
    def steps(**search):
        result = partition_module(small(), devices=[Device("d")], search=Search(**search))
        assert result.solved.plan is not None
        return [{record.step for record in r.log} for r in (result.baseline, result.solved)]

    assert "ideals" in steps()[1]
    assert "ideals" not in steps(without=["ideals"])[1]
    assert "greedy" in steps(without=["greedy"])[0]


def test_kernels_of_attention_that_a_graph_has_are_kept():
    captured = small()
    assert Costs().with_kernels(captured) is captured
    math = Costs(attention="math").with_kernels(captured)
    assert math.attention == () and math.module is captured.module
    assert Costs(attention=["math"]).with_kernels(math) is math
    assert Costs().specs is DEVICE_SPECS
