"""Inputs of a call of a module, and the first line of its error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from solver import PartitionError


def checked_inputs(args: object, kwargs: object) -> dict[str, Any]:
    """Return the keyword inputs; raise PartitionError unless both can be inputs of a call."""
    if isinstance(args, (torch.Tensor, str)) or not isinstance(args, Sequence):
        raise PartitionError(
            f"args is a {type(args).__name__}; give a tuple of inputs, such as (tokens,)"
        )
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping):
        raise PartitionError(
            f"kwargs is a {type(kwargs).__name__}; give a dict of inputs, such as {{'mask': mask}}"
        )
    for name in kwargs:
        if not isinstance(name, str):
            raise PartitionError(f"kwargs has the key {name!r}; write names, such as 'mask'")
    return dict(kwargs)


def first_line(error: BaseException) -> str:
    """Return the first nonempty line of an error's message, cut to 200 characters."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:200]
