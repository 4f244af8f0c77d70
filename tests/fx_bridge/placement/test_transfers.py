"""Moving values: what arrives is there when it is read, and what is there is not moved."""

import pytest
import torch
from torch import nn

from fx_bridge.capture.graph import capture
from fx_bridge.placement.model import place
from fx_bridge.placement.transfers import (
    Sent,
    call_with_weights,
    check_untrained,
    copy_back,
    move,
    receive,
    send_to_host,
)
from fx_bridge.split.by_plan import split_by_plan
from solver import PartitionError, PartitionPlan
from tests.support.modules import module_with

HOST = torch.device("cpu")


def test_containers_are_moved_leaf_by_leaf():
    tensor = torch.ones(2)
    moved = move((tensor, None, [3, {"a": tensor}]), torch.device("meta"))
    assert moved[0].is_meta
    assert moved[2][1]["a"].is_meta
    assert moved[1:2] + tuple(moved[2][:1]) == (None, 3)
    assert move(tensor, HOST) is tensor


def test_gradients_come_back_but_not_from_the_meta_device():
    tensor = torch.ones(2, requires_grad=True)
    (move(tensor, torch.device("cpu:1")) * 3).sum().backward()
    assert tensor.grad.tolist() == [3, 3]
    on_meta = move(tensor, torch.device("meta"))
    assert on_meta.requires_grad
    on_meta.sum().backward()
    assert tensor.grad.tolist() == [3, 3]


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


def test_what_was_on_the_host_already_is_not_waited_for():
    sent = send_to_host([torch.ones(2)], torch.device("cpu:1"))
    assert sent.events == ()
    assert receive(sent)[0].tolist() == [1, 1]


def test_writing_back():
    theirs, kept, ours = torch.zeros(2), torch.zeros(2), torch.ones(2)
    copy_back([theirs, kept, 3], [ours, ours.to("meta"), 3])
    assert theirs.tolist() == [1, 1]
    assert kept.tolist() == [0, 0]


def test_a_stage_is_called_with_other_weights_and_keeps_its_own():
    linear = nn.Linear(2, 2)
    own = linear.weight
    lent = torch.zeros(2, 2, requires_grad=True)
    result = call_with_weights(linear, {"weight": lent}, [torch.ones(1, 2)])
    assert torch.equal(result[0], linear.bias)
    result.sum().backward()
    assert lent.grad is not None
    assert linear.weight is own
    assert own.grad is None


def test_copies_are_not_trained():
    weight = nn.Parameter(torch.ones(2))
    with torch.no_grad():
        check_untrained(weight, "w")
    check_untrained(torch.ones(2), "w")
    with pytest.raises(PartitionError, match="'w' is a copy of a weight on another device"):
        check_untrained(weight, "w")


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


def writes_one(self, x, y):
    x.add_(1)
    return self.linear(y)


def test_inputs_that_share_memory_with_a_written_one_are_refused():
    model = module_with(writes_one, linear=nn.Linear(4, 4))
    rows = torch.zeros(6, 4)
    captured = capture(model, (rows[:3].clone(), rows[3:].clone()))
    plan = PartitionPlan({node.name: "a" for node in captured.operators}, ("a",))
    split = split_by_plan(captured, plan)
    placed = place(split, {"a": "cpu:0"})
    for x, y in ((rows[:3], rows[1:4]), (rows[:3], rows[:3]), (rows[:3],) * 2):
        with pytest.raises(PartitionError, match="two inputs share memory") as error:
            placed(x, y)
        assert "\n" not in str(error.value)
        assert not rows.any()
    with torch.no_grad():
        # Rows that do not overlap, and a stage where the inputs are.
        assert torch.equal(placed(rows[:3], rows[3:]), model.linear(rows[3:]))
        assert torch.equal(rows.sum(1), torch.tensor([4.0, 4, 4, 0, 0, 0]))
        result = place(split, {"a": "cpu"})(rows[:3], rows[1:4])
    assert torch.equal(result, model.linear(rows[1:4]))
