import subprocess
import sys

import pytest
import torch
from torch import nn

from fx_bridge.capture.digest import first_difference, graph_digest, graph_lines
from fx_bridge.capture.graph import capture
from tests.support.modules import module_with

CODE = """
import torch
from torch import nn
from fx_bridge.capture.graph import capture
from fx_bridge.capture.digest import graph_digest
torch.manual_seed(5)
print(graph_digest(capture(nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1)), (torch.ones(2, 4),))))
"""


def model():
    return nn.Sequential(nn.Linear(4, 4), nn.Softmax(-1))


def test_another_process_finds_the_same_digest():
    here = graph_digest(capture(model(), (torch.ones(2, 4),)))
    there = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=True
    )
    assert there.stdout.strip() == here
    assert len(here) == 64


@pytest.mark.parametrize(
    ("other", "args"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.Softmax(0)), (torch.ones(2, 4),)),
        (nn.Sequential(nn.Linear(4, 4), nn.LogSoftmax(-1)), (torch.ones(2, 4),)),
        (nn.Sequential(nn.Linear(4, 4, bias=False), nn.Softmax(-1)), (torch.ones(2, 4),)),
        (model(), (torch.ones(3, 4),)),
        (model().double(), (torch.ones(2, 4).double(),)),
    ],
)
def test_another_graph_has_another_digest(other, args):
    assert graph_digest(capture(other, args)) != graph_digest(capture(model(), (torch.ones(2, 4),)))


def test_modules_count_with_their_settings_and_sizes():
    def traced(features, slope):
        layers = nn.Sequential(nn.Linear(4, features), nn.LeakyReLU(slope))
        return graph_digest(capture(torch.fx.symbolic_trace(layers), (torch.ones(2, 4),)))

    assert traced(4, 0.1) == traced(4, 0.1)
    assert len({traced(4, 0.1), traced(4, 0.2), traced(5, 0.1)}) == 3


def test_branches_count():
    def conditional(self, x):
        return torch.cond(x.sum() > 0, lambda y: y * self.factor, lambda y: y + 1, (x,))

    two, three = (module_with(conditional, factor=factor) for factor in (2, 3))
    digests = [graph_digest(capture(each, (torch.ones(2),))) for each in (two, three)]
    assert digests[0] != digests[1]


def test_devices_do_not_count():
    def positions(self, x):
        return self.linear(x) + torch.arange(4, device=x.device)

    model = module_with(positions, linear=nn.Linear(4, 4))
    here = capture(model, (torch.ones(2, 4),))
    there = capture(model.to("meta"), (torch.ones(2, 4),))
    assert "device=device" in graph_lines(here)["arange"]
    assert graph_lines(here) == graph_lines(there)
    assert graph_digest(here) == graph_digest(there)


def test_the_first_difference_is_told():
    lines = {"x": "placeholder x", "relu": "call", "add": "call"}
    assert first_difference(lines, lines) == ""
    for other, expected in (
        ({"x": "placeholder x", "relu": "other", "add": "call"}, "'relu' is 'call' there but"),
        ({"x": "placeholder x", "add": "call"}, "'relu' stands there where 'add' is here"),
        ({"x": "placeholder x", "relu": "call"}, "'add' is not here"),
        ({**lines, "mul": "call"}, "'mul' is not there"),
    ):
        assert expected in first_difference(lines, other)
