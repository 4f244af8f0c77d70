"""Where accelerate runs operators, against accelerate itself on the devices cpu and meta.

The second device is meta: it needs no hardware, and torch refuses to mix it with others as it
refuses to mix GPUs. Values cannot come back from it, so maps go from cpu to meta.
"""

import random

import pytest
import torch
from torch import nn

from fx_bridge.capture.graph import capture
from fx_bridge.interop.accelerate_dispatch import run_by_device_map, tensor_names
from tests.support.dispatch_models import KINDS, TOKENS, Net, Record, kind_of


def dispatched(accelerate, model, mapping):
    """The model with its weights where a checkpoint would be loaded to, and accelerate's hooks."""
    for name, parameter in list(model.named_parameters()):
        if name in mapping:
            owner = model.get_submodule(name.rpartition(".")[0])
            setattr(owner, name.rpartition(".")[2], nn.Parameter(parameter.to(mapping[name])))
    model = accelerate.dispatch_model(model, mapping, main_device="cpu", force_hooks=True)
    # What is on meta cannot go back to where the inputs were.
    model._hf_hook.io_same_device = False
    return model


def random_map(draws, count):
    """A map of whole blocks and of divided ones, from cpu to meta in the order they run."""
    entries = ["embed"]
    for index in range(count):
        inner = ["norm", "up", "down", "scale"] if draws.random() < 0.5 else [None]
        entries += [f"blocks.{index}.{n}" if n else f"blocks.{index}" for n in inner]
    entries.append("head")
    cut = draws.randrange(1, len(entries) + 1)
    mapping = {entry: "cpu" if at < cut else "meta" for at, entry in enumerate(entries)}
    for index in range(count):
        if f"blocks.{index}.scale" in mapping and draws.random() < 0.5:
            mapping[f"blocks.{index}.scale"] = draws.choice(["cpu", "meta"])
    return mapping | {"positions": "cpu"}


@pytest.mark.filterwarnings("ignore")
def test_operators_run_where_accelerate_runs_them():
    accelerate = pytest.importorskip("accelerate")
    captured = capture(Net(), TOKENS)
    ended, finished = 0, 0
    for seed in range(60):
        mapping = random_map(random.Random(seed), 3)
        run = run_by_device_map(captured, mapping, "cpu")
        nodes = [node for node in captured.operators if kind_of(node) in KINDS]
        expected = [(kind_of(node), run.assignment[node.name]) for node in nodes]
        model = dispatched(accelerate, Net(), mapping)
        with torch.no_grad(), Record() as record:
            if run.mixed:
                with pytest.raises(RuntimeError, match=r"expected device|same device"):
                    model(*TOKENS)
                expected = expected[: [n.name for n in nodes].index(run.mixed[0].operator)]
                ended += 1
            else:
                model(*TOKENS)
                finished += 1
        assert record.calls == expected, mapping
    assert ended > 10 and finished > 10


def test_what_goes_between_modules_is_said():
    captured = capture(Net(1), TOKENS)
    mapping = {"embed": "a", "blocks.0.down": "a", "blocks.0": "b", "head": "b"}
    run = run_by_device_map(captured, mapping, "a")
    mixed = run.mixed[0]
    assert mixed.module == "blocks.0"
    assert mixed.reads == (("dropout", "a"), ("blocks_0_scale", "b"))
    whole = {"embed": "a", "blocks.0": "b", "head": "b"}
    run = run_by_device_map(captured, whole, "a")
    assert run.mixed == ()
    assert {run.assignment[n] for n in captured.modules.operators["blocks.0"]} == {"b"}
    assert run.assignment["relu_1"] == "b", "after the head"
    assert run.assignment["arange"] == "a", "with the inputs"


def test_tied_tensors_have_all_their_names():
    model = Net(1)
    model.head = nn.Linear(8, 10, bias=False)
    model.head.weight = model.embed.weight
    names = tensor_names(capture(model, TOKENS))
    assert {"embed.weight", "head.weight", "positions"} <= set(names)


def test_a_conversion_of_nothing_is_its_input_outside_of_its_module():
    """The sum reads what went into the norm, though the graph says what the norm converted."""
    captured = capture(Net(1), TOKENS)
    (read,) = (n for n in captured.operators if n.name == "to")
    total = next(user for user in read.users if kind_of(user) == "add")
    mapping = {"embed": "cpu", "blocks.0": "cpu", "blocks.0.norm": "cuda:0", "head": "cpu"}
    run = run_by_device_map(captured, mapping, "cpu")
    assert run.assignment["to"] == run.assignment["layer_norm"] == "cuda:0"
    assert run.assignment[total.name] == "cpu"
    assert run.mixed == ()
