"""All that a model and its modules hold, to be compared before and after."""

import contextlib
import random

import numpy as np
import torch

from fx_bridge.storages.tensor_subclasses import parts_of

PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


@contextlib.contextmanager
def left_as_it_was(model):
    """Assert on exit that no bit of what modules hold, nor of random states, has changed."""
    before = state_of(model)
    yield
    after = state_of(model)
    assert before.keys() == after.keys()
    assert [place for place in before if before[place] != after[place]] == []


def state_of(model):
    """Return everything in the dicts of modules, by place, and the random states."""
    found = {
        "torch": torch.get_rng_state().tolist(),
        "random": random.getstate(),
        "numpy": str(np.random.get_state()[1:]) + np.random.get_state()[1].tobytes().hex(),
        "grad mode": torch.is_grad_enabled(),
    }
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            found[f"{path}.{name}"] = frozen(value, ())
    return found


def frozen(value, within):
    """Return what does not change with `value`: bits of tensors, members, identities of others."""
    if isinstance(value, PLAIN):
        return (type(value), value)
    if id(value) in within:
        return (id(value), "itself")
    inner = (*within, id(value))
    if isinstance(value, torch.Tensor):
        parts = [] if value.is_meta else [*parts_of(value).values()]
        gradient = value.grad if value.is_leaf else None
        bits = [(part._version, bits_of(part)) for part in parts]
        return (id(value), value.requires_grad, bits, frozen(gradient, inner))
    if isinstance(value, np.ndarray):
        return (id(value), value.tobytes())
    if isinstance(value, dict):
        return (id(value), [(frozen(k, inner), frozen(v, inner)) for k, v in value.items()])
    if isinstance(value, (list, tuple, set, frozenset)):
        return (id(value), [frozen(each, inner) for each in value])
    if hasattr(value, "__dict__") and not isinstance(value, (torch.nn.Module, type)):
        return (id(value), frozen(vars(value), inner))
    return id(value)


def bits_of(tensor):
    try:
        return hash(
            tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        )
    except RuntimeError:
        # Quantised tensors have integers of their own.
        return hash(tensor.int_repr().numpy().tobytes())
