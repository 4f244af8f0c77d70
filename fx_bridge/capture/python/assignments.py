"""Assignments to tensors that run no operator: ``x.data = y``, ``x.requires_grad = False``.

A trace does not see them, so the graph would go on with the old value. Assignments of data are
refused; a tensor whose gradients are switched off is detached for its later readers.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any, Final, NoReturn
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, set_proxy_slot
from torch.overrides import TorchFunctionMode

from fx_bridge.capture.model.messages import describe, source_place
from fx_bridge.capture.python.data_reads import mark_read
from solver import PartitionError


class Assignments(TorchFunctionMode):
    """Carries out, notes or refuses assignments in the trace of one call of forward.

    `model` is named in messages. `state` has the traced parameters and buffers by name, and
    `inputs` the tensors among the inputs by path. `notes` are remarks about the graph for its user.
    """

    def __init__(
        self,
        model: nn.Module,
        state: Mapping[str, torch.Tensor],
        inputs: Mapping[str, torch.Tensor],
    ) -> None:
        super().__init__()
        self.notes: list[str] = []
        self._model = model
        self._state = {name: (tensor, tensor.requires_grad) for name, tensor in state.items()}
        self._names = {id(tensor): name for name, tensor in [*inputs.items(), *state.items()]}
        self._frozen: dict[int, Any] = {}
        """Proxies of tensors from before their requires_grad was set to False."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_dynamo_compiling():
            # Dynamo refuses them itself.
            return func(*args, **kwargs)
        if func == _GET_DATA:
            return self._get_data(*args)
        if func in SETTERS:
            if func == _SET_DATA:
                self._refuse_data(args[0])
            if func in _SET_GRAD and (name := self._names.get(id(args[0]))) is not None:
                note = f"forward assigns .grad of {name!r}, which the graph does not"
                self.notes += [note] if note not in self.notes else []
            if func in _SET_REQUIRES_GRAD:
                return self._set_requires_grad(func, *args, **kwargs)
        return func(*args, **kwargs)

    @contextlib.contextmanager
    def carried_out(self) -> Iterator[None]:
        """Carry out the assignments made in the block."""
        with (
            mock.patch.object(torch.utils, "swap_tensors", self._refuse_data),
            mock.patch.object(torch._C, "_InferenceMode", self._inference_mode),
            self,
        ):
            yield
        changed = [name for name, (t, before) in self._state.items() if t.requires_grad != before]
        if changed:
            self.notes.append(
                f"forward sets requires_grad of {', '.join(map(repr, changed[:_SHOWN]))}, which "
                "the graph does not; set it before the capture"
            )

    def settle(self, state: Mapping[str, torch.Tensor]) -> None:
        """Write the buffers that forward replaced, given the state after it; refuse parameters."""
        for name, (tensor, _) in self._state.items():
            found = state.get(name, tensor)
            if found is tensor:
                continue
            if isinstance(tensor, nn.Parameter):
                self._refuse(
                    f"forward puts another parameter in the place of {name!r}",
                    "write parameter.copy_(value) under torch.no_grad()",
                )
            # torch.export itself writes fake ones.
            if not isinstance(tensor, FakeTensor):
                tensor.copy_(found)

    def _get_data(self, tensor: torch.Tensor) -> torch.Tensor:
        read: torch.Tensor = _GET_DATA(tensor)
        slot = _slot(read)
        if slot is not None:
            mark_read(slot.proxy.node)
        return read

    def _refuse_data(self, tensor: torch.Tensor, other: torch.Tensor | None = None) -> NoReturn:
        name = self._names.get(id(tensor))
        self._refuse(
            f"forward assigns .data of {repr(name) if name else 'a tensor'}, as Module.to does",
            "write tensor.data.copy_(value), or assign a new tensor to a new name",
        )

    def _inference_mode(self, enabled: bool) -> Any:
        """Refuse a region of torch.inference_mode, which has no operator, unless it is none."""
        caller = sys._getframe(2).f_globals.get("__name__", "")
        if caller.startswith("torch._"):
            # Fake tensors are made, and conditions compiled, in regions of torch's own.
            return _INFERENCE_MODE(enabled)
        if enabled and not torch.is_grad_enabled():
            return contextlib.nullcontext()
        wanted = "no_grad" if enabled else "enable_grad"
        return self._refuse(
            f"forward uses torch.inference_mode({enabled})", f"write torch.{wanted}()"
        )

    def _set_requires_grad(self, func: Any, tensor: torch.Tensor, wanted: bool = True) -> Any:
        before, slot = tensor.requires_grad, _slot(tensor)
        made = tensor.detach() if before and not wanted and slot is not None else None
        result = func(tensor, wanted)
        if made is not None:
            self._frozen[id(tensor)] = slot
            stand_for(tensor, made)
        elif wanted and id(tensor) in self._frozen:
            _put(tensor, self._frozen.pop(id(tensor)))
        return result

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        frames = list(traceback.walk_stack(None))[::-1]
        where = " ".join(filter(None, (what, source_place(frames, self._model))))
        raise PartitionError(f"cannot capture {describe(self._model)}: {where}; {remedy}")


def _slot(tensor: torch.Tensor) -> Any:
    """Return the proxy slot of a tensor in the graph; None for one that is not traced."""
    mode = get_proxy_mode()
    return None if mode is None else get_proxy_slot(tensor, mode.tracer, None)


def stand_for(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Let `tensor` stand for the graph's value of `other` from now on."""
    slot = _slot(other)
    if slot is not None:
        _put(tensor, slot)


def _put(tensor: torch.Tensor, slot: Any) -> None:
    mode = get_proxy_mode()
    assert mode is not None
    set_proxy_slot(tensor, mode.tracer, slot)


_SHOWN: Final = 3
_INFERENCE_MODE: Final = torch._C._InferenceMode
_GET_DATA: Final = torch.Tensor.data.__get__  # type: ignore[attr-defined]
_SET_DATA: Final = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_SET_REQUIRES_GRAD: Final = (
    torch.Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
    torch.Tensor.requires_grad_,
)
_GRAD: Final[Any] = torch.Tensor.grad
_SET_GRAD: Final = (_GRAD.__set__, _GRAD.__delete__)
SETTERS: Final = frozenset((_SET_DATA, *_SET_REQUIRES_GRAD, *_SET_GRAD))
"""Functions of torch that change a tensor and run no operator."""
