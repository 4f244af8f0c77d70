"""Moving values: what arrives is there when it is read, and what is there is not moved."""

import pytest
import torch
from torch import nn

from fx_bridge.capture.graph import capture
from fx_bridge.placement.model import place
from fx_bridge.placement.transfers import Sent, receive, send_to_host
from tests.support.modules import module_with
from tests.support.refusals import refused
from tests.support.split_checks import in_one

HOST = torch.device("cpu")


def test_receiving_waits_for_every_copy():
    waited = []

    class Event:
        def __init__(self, name):
            self.name = name

        def synchronize(self):
            waited.append(self.name)

    value = (torch.ones(2), torch.ones(3))
    assert receive(Sent(value, (Event("first"), Event("second")))) is value
    assert waited == ["first", "second"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_cuda_sends_without_waiting():
    tensor = torch.randn(1000, 1000, device="cuda")
    for _ in range(20):
        tensor = torch.tanh(tensor @ tensor)
    sent = send_to_host((tensor, 1), HOST)
    assert len(sent.events) == 1
    assert sent.value[0].is_pinned()
    assert torch.equal(receive(sent)[0], tensor.cpu())


def test_inputs_that_share_memory_with_a_written_one_are_refused():
    def writes_one(self, x, y):
        x.add_(1)
        return self.linear(y)

    model, rows = module_with(writes_one, linear=nn.Linear(4, 4)), torch.zeros(6, 4)
    split = in_one(capture(model, (rows[:3].clone(), rows[3:].clone())), "a")
    placed = place(split, {"a": "cpu:0"})
    for x, y in ((rows[:3], rows[1:4]), (rows[:3], rows[:3]), (rows[:3],) * 2):
        with refused("two inputs share memory"):
            placed(x, y)
        assert not rows.any()
    with torch.no_grad():
        # Rows that do not overlap, and a stage where the inputs are.
        assert torch.equal(placed(rows[:3], rows[3:]), model.linear(rows[3:]))
        assert torch.equal(rows.sum(1), torch.tensor([4.0, 4, 4, 0, 0, 0]))
        result = place(split, {"a": "cpu"})(rows[:3], rows[1:4])
    assert torch.equal(result, model.linear(rows[1:4]))
