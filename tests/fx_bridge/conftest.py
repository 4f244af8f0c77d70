"""Fixtures of several rooms."""

import warnings

import pytest
import torch


@pytest.fixture
def _group(tmp_path):
    """Let the test's process be a process group of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
        )
    yield
    torch.distributed.destroy_process_group()
