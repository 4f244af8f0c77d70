"""Tests of the names that options can say."""

import torch

from fx_bridge.choices import DTYPES, FUSED_KERNELS
from fx_bridge.storages import attention


def test_dtypes_are_those_of_torch():
    known = {str(value) for value in vars(torch).values() if type(value) is torch.dtype}
    assert {f"torch.{name}" for name in DTYPES} == known


def test_every_kernel_that_can_be_said_has_its_conditions():
    assert tuple(attention._TAKES) == FUSED_KERNELS
