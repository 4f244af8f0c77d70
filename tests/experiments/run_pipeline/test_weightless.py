from pathlib import Path

import pytest
import torch
from torch import nn

from experiments.run_pipeline.weightless import build_weightless, give_memory
from experiments.zoo.building import ModelSpec, build_model
from experiments.zoo.models import ZOO
from fx_bridge.capture.digest import first_difference, graph_lines
from fx_bridge.capture.graph import capture
from tests.support.refusals import refused


@pytest.mark.parametrize(
    "name",
    [
        "mlp",
        "tiny-branches",
        "tiny-gpt2",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("bert-base", "t5-base", "vit-b16", "resnet-50")
        ),
    ],
)
def test_the_graph_is_that_of_the_model_with_weights(name):
    if ZOO[name].extra is not None:
        pytest.importorskip("transformers")
    loaded = build_model(ZOO[name])
    expected = capture(loaded.module, loaded.args, loaded.kwargs)
    found = capture(build_weightless(ZOO[name]).module, loaded.args, loaded.kwargs)
    assert first_difference(graph_lines(expected), graph_lines(found)) == ""


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_weights_take_no_memory():
    def large():
        return nn.Sequential(*(nn.Linear(8192, 8192) for _ in range(8))), (torch.ones(1, 8192),)

    before_bytes = resident_bytes()
    module = build_weightless(ModelSpec("large", "2 GB", large)).module
    captured = capture(module, (torch.ones(1, 8192),))
    assert len(captured.storage_table.weights) == 16
    assert not any(parameter.is_meta for parameter in module.parameters())
    assert sum(parameter.nbytes for parameter in module.parameters()) > 2 << 30
    assert resident_bytes() - before_bytes < 1 << 28


def test_ties_overlaps_strides_and_flags_stay():
    with torch.device("meta"):
        module = nn.Module()
        module.a = nn.Parameter(torch.empty(4, 6).t(), requires_grad=False)
        module.b = module.a
        flat = torch.empty(10)
        module.register_buffer("left", flat[:6], persistent=False)
        module.register_buffer("right", flat[4:])
    module.register_buffer("real", torch.ones(2))
    give_memory(module)
    assert module.a is module.b and not module.a.requires_grad and module.a.stride() == (1, 6)
    assert module.left.device.type == "cpu" and module.real.tolist() == [1, 1]
    module.left[5] = 3.0
    assert module.right[1] == 3.0
    assert "left" not in module.state_dict()


def test_a_factory_that_needs_numbers_is_refused_in_one_line():
    def needy():
        return nn.Linear(int(torch.tensor(3)), 3), (torch.ones(1, 3),)

    with refused("cannot be built"):
        build_weightless(ModelSpec("needy", "reads a number", needy))
