"""Two calls of a model with their backward passes, beside those of its captured graph."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fx_bridge import CapturedGraph, capture


def captured_like_eager(make: Callable[[], nn.Module], *args: torch.Tensor) -> CapturedGraph:
    """Capture a model, and assert that its graph does in two calls what the model does.

    Outputs, inputs after the call, gradients, parameters and buffers are compared, and that
    the capture itself changes none of these.

    Parameters
    ----------
    make : callable
        Returns the same model each time: random numbers start from the same seed.
    args : torch.Tensor
        Inputs.
    """
    model, twin = _made(make), _made(make)
    before = _state(model)
    captured = capture(model, tuple(each.clone() for each in args))
    _assert_equal(before, _state(model), "capture")
    for call in range(2):
        _assert_equal(_step(twin, args), _step(captured.module, args), f"call {call}")
        _assert_equal(_state(twin), _state(model), f"state after call {call}")
    return captured


def _made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def _step(module: nn.Module, args: tuple[torch.Tensor, ...]) -> dict[str, Any]:
    own = [each.clone().requires_grad_(each.requires_grad) for each in args]
    output = module(*own)
    if output.requires_grad:
        output.square().sum().backward()
    tensors = {"output": output, **{f"input {n}": each for n, each in enumerate(own)}}
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _state(model: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found[name] = tensor.detach().clone(), tensor.requires_grad
        found[f"gradient of {name}"] = None if tensor.grad is None else tensor.grad.clone()
    return found


def _assert_equal(expected: dict[str, Any], found: dict[str, Any], where: str) -> None:
    assert expected.keys() == found.keys(), where
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=f"{where}: {name} differs")
