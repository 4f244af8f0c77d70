import json
import math
from dataclasses import dataclass

import pytest
import torch

from fx_bridge.checkpoint.inputs import flat_tensors, with_tensors
from solver import PartitionError


def round_trip(inputs):
    structure, tensors = flat_tensors(inputs)
    return with_tensors(json.loads(json.dumps(structure)), tensors)


def test_inputs_come_back_as_they_were():
    shared = torch.arange(6).reshape(2, 3).t()
    inputs = (
        (shared, None, [1, 2.5, True, "text", ()], torch.tensor(3.0)),
        {"mask": torch.tensor([True]), "again": {"deep": (shared, -math.inf)}, "type": torch.int8},
    )
    found = round_trip(inputs)
    assert torch.equal(found[0][0], shared) and found[1]["again"]["deep"][0] is found[0][0]
    assert found[0][1:3] == inputs[0][1:3] and type(found[0][2][2]) is bool
    assert found[1]["again"]["deep"][1] == -math.inf and found[1]["type"] is torch.int8
    assert found[0][3].shape == () and found[1]["mask"].dtype is torch.bool
    assert math.isnan(round_trip(math.nan))


@dataclass
class Pair:
    first: int


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((Pair(1),), r"inputs\[0\] is a Pair"),
        ({"a": [{3: 4}]}, r"inputs\['a'\]\[0\] is a dict"),
        ((torch.ones(1, device="meta"),), r"inputs\[0\] is on the meta device"),
        ((torch.ones(1, dtype=torch.complex128),), r"inputs\[0\] is complex128"),
        ((1j,), r"inputs\[0\] is a complex"),
    ],
)
def test_what_cannot_be_saved_is_named(inputs, message):
    with pytest.raises(PartitionError, match=message):
        flat_tensors(inputs)


@pytest.mark.parametrize(
    ("structure", "message"),
    [
        ({"tensor": "input_1"}, "no tensor 'input_1'"),
        ({"tensor": 1}, "tensor is 1"),
        ({"tuple": 1}, "tuple is 1"),
        ([1], "has no kind"),
        ({}, "exactly one"),
        ({"object": "os.system"}, "no kind of input"),
        ({"dtype": "ones"}, "no kind of input"),
        ({"float": "1.0"}, "no kind of input"),
        ({"dict": [1]}, "dict is not an object"),
    ],
)
def test_what_is_not_valid_is_named(structure, message):
    with pytest.raises(PartitionError, match=message):
        with_tensors(structure, {})
