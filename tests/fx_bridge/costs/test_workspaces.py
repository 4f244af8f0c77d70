import pytest
import torch
from torch import nn

from fx_bridge import Costs, Training
from fx_bridge.capture.graph import capture
from fx_bridge.costs.backward import backward_costs
from fx_bridge.costs.workspaces import measure_workspaces
from fx_bridge.digraph import to_digraph
from fx_bridge.memory.profile import forward_workspaces
from solver import PartitionError
from tests.support.modules import module_with


def normalised():
    """Workspaces that reach the dispatcher, of known sizes."""
    return nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64))


class Wasteful(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        passing = torch.ones(1000)
        return x * passing[0]

    @staticmethod
    def backward(ctx, gradient):
        passing = torch.ones(3000)
        return gradient * passing[0]


@torch.fx.wrap
def wasteful(x):
    return Wasteful.apply(x)


def test_what_passes_within_an_operator_is_its_workspace_forward_and_backward():
    wastes = module_with(
        lambda self, x: wasteful(x * self.weight) + 1, weight=nn.Parameter(torch.ones(16))
    )
    captured = capture(torch.fx.symbolic_trace(wastes), (torch.ones(16),))
    found = measure_workspaces(captured, training=True)
    # Beside them numbers of one element, which a product makes of them.
    assert 4000 <= found.forward_bytes["wasteful"] < 4100
    assert 12_000 <= found.backward_bytes["wasteful"] < 12_100
    assert max(found.forward_bytes["mul"], found.forward_bytes["add"]) < 100
    assert max(found.backward_bytes["mul"], found.backward_bytes["add"]) < 200


def test_what_the_dispatcher_sees_is_found_too():
    captured = capture(normalised(), (torch.ones(8, 64),))
    found = measure_workspaces(captured).forward_bytes
    expected = forward_workspaces(captured)
    assert expected["layer_norm"] == 64
    assert found["layer_norm"] >= expected["layer_norm"]
    assert found["linear"] == expected.get("linear", 0) == 0


def test_everything_is_as_it_was():
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True)).train()
    captured = capture(model, (torch.randn(4, 8),))
    before = {name: tensor.clone() for name, tensor in captured.module.state_dict().items()}
    state = torch.get_rng_state()
    measure_workspaces(captured, training=True)
    after = captured.module.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(parameter.grad is None for parameter in captured.module.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_the_graph_takes_the_larger_of_what_is_found_and_what_is_known():
    captured = capture(normalised(), (torch.ones(8, 64),))
    names = [node.name for node in captured.operators]
    known = backward_costs(captured)["linear"].workspace_bytes
    found = dict.fromkeys(names, 5), dict.fromkeys(names, known + 7)
    costs = Costs(workspace_bytes=found[0], backward_workspace_bytes=found[1])
    graph = to_digraph(captured, training=Training(), costs=costs)
    assert graph.nodes["linear"]["workspace_bytes"] == 5
    assert graph.nodes["linear"]["backward"]["workspace_bytes"] == known + 7
    most = forward_workspaces(captured)["layer_norm"]
    graph = to_digraph(captured, costs=Costs(workspace_bytes=dict.fromkeys(names, most - 1)))
    assert graph.nodes["layer_norm"]["workspace_bytes"] == most


def test_models_without_data_are_refused():
    captured = capture(nn.Linear(4, 4, device="meta"), (torch.ones(2, 4),))
    with pytest.raises(PartitionError, match="meta device"):
        measure_workspaces(captured)
