import math
from types import SimpleNamespace

import pytest
import torch

from experiments.run_pipeline.rank_steps import _distance, _relative_tolerance, model_loss
from solver import PartitionError


def tensor(*numbers):
    return torch.tensor(numbers, requires_grad=True)


def test_a_models_own_loss_is_taken():
    loss = tensor(3.0)[0]
    assert model_loss(loss) is loss
    assert model_loss({"logits": tensor(1.0, 2.0), "loss": loss}) is loss
    assert model_loss(SimpleNamespace(loss=loss, logits=tensor(1.0))) is loss


def test_any_other_outputs_have_a_generic_loss():
    outputs = (
        tensor(1.0, 3.0),
        {"ids": torch.tensor([7])},
        [torch.tensor([5.0]), tensor(2.0, 2.0)],
    )
    assert model_loss(outputs).item() == 5 + 4
    with pytest.raises(PartitionError, match="no output of the model has a gradient"):
        model_loss(torch.tensor([1.0]))


def test_distances_count_what_is_not_a_number():
    nan, inf = math.nan, math.inf
    pairs = [([1.0, 2.0], [1.0, 2.5], 0.5), ([nan, inf], [nan, inf], 0.0), ([nan], [1.0], inf)]
    pairs += [([1.0], [nan], inf), ([inf], [-inf], inf)]
    for here, there, expected in pairs:
        assert _distance(torch.tensor(here), torch.tensor(there)) == expected


def test_coarse_numbers_may_differ_more():
    single, half = torch.ones(2), torch.ones(2, dtype=torch.bfloat16)
    assert _relative_tolerance([single, torch.arange(3)]) == 1e-4
    assert _relative_tolerance([single, half]) == 8 * 2**-7
