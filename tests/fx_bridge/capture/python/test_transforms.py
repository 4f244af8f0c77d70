import pytest
import torch
from torch import nn

from fx_bridge.capture.graph import capture
from solver import PartitionError
from tests.support.modules import module_with
from tests.support.split_checks import check_random_plans


def vmapped(self, x):
    return torch.vmap(lambda row: self.linear(row).sin())(x) + 1


def test_vmap_becomes_ordinary_operators():
    model, args = module_with(vmapped, linear=nn.Linear(2, 2)), (torch.ones(3, 2),)
    program = torch.export.export(model, args)
    for captured in (capture(model, args), capture(program)):
        assert not any("nesting" in node.name for node in captured.operators)
        assert captured.storage_table.made_up == ()
        assert torch.allclose(captured.module(*args), model(*args))


def twice(self, x):
    """Two regions, one in the other's place, with randomness and a result that is used twice."""
    y = torch.vmap(torch.vmap(lambda v: v * 2 + 1))(x)
    z = torch.vmap(lambda row: self.a(row).relu())(self.b(y))
    return y + z, z.sum()


def test_nested_and_repeated_regions():
    model = module_with(twice, a=nn.Linear(2, 2), b=nn.Linear(2, 2))
    args = (torch.randn(3, 2),)
    given = torch.export.export(model, args).module()
    before = [node.name for node in given.graph.nodes]
    captured = capture(given, args)
    assert sum(node.op == "call_module" for node in captured.operators) == 2
    assert [node.name for node in given.graph.nodes] == before
    # What backward needs of a region is found through it: inputs of linear and relu.
    saved = captured.trained.storage_table.saved["transform_1"]
    assert {storage.owner for storage in saved} == {"linear", "transform_1"}
    check_random_plans(model, args, captured=captured, plans=4)


def test_a_region_that_is_not_closed_is_refused():
    model = module_with(vmapped, linear=nn.Linear(2, 2))
    given = torch.export.export(model, (torch.ones(3, 2),)).module()
    for node in reversed(given.graph.nodes):
        if node.name.startswith("_vmap_decrement_nesting"):
            given.graph.erase_node(node)
    with pytest.raises(PartitionError, match="it does not close"):
        capture(given)
