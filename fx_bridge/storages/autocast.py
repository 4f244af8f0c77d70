"""The precision of a graph's capture: that of ``torch.autocast`` around it.

A graph captured under autocast holds the operators that the model calls, without the casts, which
every call makes anew. Only the sizes of its values show that autocast was on.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

_KEY = "autocast"


def autocast_dtypes(device_types: Iterable[str]) -> dict[str, torch.dtype]:
    """Return the dtype of autocast for each device type in which it is on."""
    return {
        each: torch.get_autocast_dtype(each)
        for each in device_types
        if torch.amp.is_autocast_available(each) and torch.is_autocast_enabled(each)
    }


def note_precision(module: fx.GraphModule) -> None:
    """Record the enabled autocast dtypes in a graph being captured, unless it has some already."""
    if found := autocast_dtypes(types_here()):
        module.meta.setdefault(_KEY, found)


def copy_precision(source: fx.GraphModule, target: fx.GraphModule) -> None:
    """Copy the record of autocast from `source` to `target`."""
    if _KEY in source.meta:
        target.meta[_KEY] = source.meta[_KEY]


def captured_precision(module: fx.GraphModule) -> dict[str, torch.dtype]:
    """Return the dtypes of autocast around the capture of `module`, by device type."""
    return dict(module.meta.get(_KEY, {}))


def home_type(graph: fx.Graph) -> str:
    """Return the device type of most values of a graph."""
    leaves = tree_leaves([node.meta.get("val") for node in graph.nodes])
    types = [leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return max(types, key=types.count, default="cpu")


def home_precision(module: fx.GraphModule) -> dict[str, torch.dtype]:
    """Return :func:`captured_precision` for the device type of most values alone."""
    home, found = home_type(module.graph), captured_precision(module)
    return {home: found[home]} if home in found else {}


@contextlib.contextmanager
def precision(dtypes: Mapping[str, torch.dtype]) -> Iterator[None]:
    """Enable autocast for the device types in `dtypes`, and disable it for all others."""
    types = {*types_here(), *dtypes}
    with contextlib.ExitStack() as stack:
        for each in sorted(types):
            if each in dtypes:
                stack.enter_context(torch.autocast(each, dtypes[each]))
            elif torch.amp.is_autocast_available(each) and torch.is_autocast_enabled(each):
                stack.enter_context(torch.autocast(each, enabled=False))
        yield


@functools.cache
def types_here() -> tuple[str, ...]:
    """Return the device types on which this machine can compute."""
    accelerator = torch.accelerator.current_accelerator()
    return ("cpu", accelerator.type) if accelerator is not None else ("cpu",)


def described(dtypes: Mapping[str, torch.dtype]) -> str:
    """Return code for `dtypes`, such as ``torch.autocast('cpu', torch.bfloat16)``."""
    return " and ".join(f"torch.autocast({each!r}, {dtype})" for each, dtype in dtypes.items())
