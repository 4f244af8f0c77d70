import pytest
import torch
from torch import nn

from fx_bridge.capture.graph import capture
from fx_bridge.pipeline.p2p import passed_values
from solver import PartitionError
from tests.support.modules import module_with


def forward(self, x):
    made = x @ self.weight.t()
    turned = made.t()
    image = x.reshape(2, 1, 2, 2).contiguous(memory_format=torch.channels_last) * self.frozen[0]
    wide = made[:, :1].expand(2, 5)
    return made, turned, image, wide, made.detach(), made.argmax(1), self.weight.t()


NAMES = ("matmul", "t_1", "mul", "expand", "detach", "argmax", "t")


def values(*, training):
    weight = nn.Parameter(torch.rand(3, 4))
    frozen = nn.Parameter(torch.rand(4), requires_grad=False)
    model = module_with(forward, weight=weight, frozen=frozen)
    captured = capture(model, (torch.rand(2, 4),))
    names = [node.name for node in captured.graph.output_node().args[0]]
    passed = passed_values(captured, names, training=training)
    return [passed[name] for name in names], captured.module(torch.rand(2, 4))


def test_values_are_sent_contiguous_and_received_as_they_lay():
    passed, tensors = values(training=True)
    for value, tensor in zip(passed, tensors, strict=True):
        sent = value.packed(tensor)
        example = value.example()
        assert sent.is_contiguous() and (sent.shape, sent.dtype) == (example.shape, example.dtype)
        received = value.unpacked(sent)
        assert torch.equal(received, tensor)
        if tensor.numel() == tensor.untyped_storage().nbytes() // tensor.itemsize:
            assert received.stride() == tensor.stride()
    # Filled up: no two elements are one.
    assert passed[3].packed(tensors[3]).untyped_storage().nbytes() == 10 * 4


def test_gradients_come_back_where_one_is_needed():
    passed, tensors = values(training=True)
    needs = [value.requires_grad for value in passed]
    assert needs == [tensor.requires_grad for tensor in tensors]
    assert needs == [True, True, False, True, False, False, True]
    assert not any(value.requires_grad for value in values(training=False)[0])


def test_only_what_lives_in_a_weight_or_an_input_is_copied():
    passed, tensors = values(training=True)
    assert [value.is_shared for value in passed] == [False] * 6 + [True]
    turned, weight = (index for index, name in enumerate(NAMES) if name in ("t_1", "t"))
    for index, is_same in ((turned, True), (weight, False)):
        sent = passed[index].packed(tensors[index])
        assert (sent.data_ptr() == tensors[index].data_ptr()) is is_same
        sent.sum().backward(retain_graph=True)


def test_what_is_not_as_expected_is_refused():
    [first, *_], [tensor, *_] = values(training=True)
    for wrong in (tensor[:1], tensor.double()):
        with pytest.raises(PartitionError, match=r"is a torch.*, but was torch.float32 of shape"):
            first.packed(wrong)
    frozen, tensors = values(training=False)
    with pytest.raises(PartitionError, match="needs a gradient, and did not when the pipeline"):
        frozen[0].packed(tensors[0])
    with torch.no_grad():
        # A weight is trained, whatever a pipeline without a loss does with it.
        assert not frozen[-1].packed(tensors[-1]).requires_grad


def test_sparse_values_do_not_travel():
    model = module_with(lambda self, x: x.to_sparse().coalesce())
    captured = capture(model, (torch.eye(3),))
    names = [node.name for node in captured.operators]
    with pytest.raises(PartitionError, match="is a sparse tensor, which does not travel"):
        passed_values(captured, names[-1:], training=False)
