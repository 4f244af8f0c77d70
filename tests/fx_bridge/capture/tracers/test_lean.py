"""What a trace leaves out, and that nothing else is missing."""

import contextlib
import copy
import gc
import pickle
import sys

import pytest
import torch
from torch import fx, nn

from fx_bridge import capture
from fx_bridge.capture.tracers.lean import lean
from fx_bridge.capture.tracers.repeated_functions import RepeatedFunctions
from tests.support.modules import module_with
from tests.support.traced_graphs import node_lines

X = torch.ones(2, 4)


def rectified(self, x):
    return self.relu(self.linear(x))


def changed():
    """Return a module whose graph was changed, without code for it."""
    module = fx.symbolic_trace(module_with(rectified, linear=nn.Linear(4, 4), relu=nn.ReLU()))
    with lean():
        for node in module.graph.find_nodes(op="call_module", target="relu"):
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
        module.recompile()
    return module


@pytest.mark.parametrize(
    "use",
    [
        lambda module: module(X),
        lambda module: module.forward(X),
        lambda module: copy.deepcopy(module)(X),
        lambda module: pickle.loads(pickle.dumps(module))(X),
        lambda module: fx.symbolic_trace(module)(X),
        lambda module: type(module).forward(module, X),
        lambda module: fx.Interpreter(module).run(X),
    ],
)
def test_code_is_made_when_it_is_read(use):
    module = changed()
    torch.testing.assert_close(use(module), module.linear(X), rtol=0, atol=0)


def test_the_garbage_collector_is_as_before():
    for switch, is_on in ((gc.disable, False), (gc.enable, True)):
        switch()
        with contextlib.suppress(ValueError), lean():
            assert not gc.isenabled()
            raise ValueError
        assert gc.isenabled() == is_on


def test_source_lines_are_those_of_torch(monkeypatch):
    class Inner(nn.Module):
        def forward(self, x):
            return torch.relu(
                x + 1,
            )

    model = nn.Sequential(nn.Linear(4, 4), Inner(), Inner())
    found = node_lines(capture(model, (X,)))
    assert "torch.relu(" in found[-2]
    everything = lambda *_: contextlib.nullcontext()  # noqa: E731
    monkeypatch.setattr(sys.modules["fx_bridge.capture.graph"], "lean", everything)
    monkeypatch.setattr(RepeatedFunctions, "around", everything)
    assert node_lines(capture(model, (X,))) == found
