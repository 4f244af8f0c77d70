"""Restore the Python state of a model after a trace of its forward, and report its changes."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import os
import random
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from unittest import mock

import torch
from torch import nn
from torch.utils import _pytree as pytree

from fx_bridge.python_state.holders import (
    MISSING,
    Entries,
    Members,
    Status,
    Values,
    is_same,
    same_state,
)
from fx_bridge.python_state.outside_values import OUTSIDE, noting, outside_reads
from fx_bridge.python_state.reachable import Reachable, Slot
from fx_bridge.python_state.stand_ins import Memo, Replayed, memoised
from solver.model.quantities import counted

_T = TypeVar("_T")
_SHOWN: Final = 3
_SWITCHES: Final[tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...]] = (
    (torch.is_grad_enabled, torch._C._set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
)


@dataclass(slots=True)
class Changes:
    """Effects of forward that the graph lacks, known after the block of `during`."""

    attributes: list[str] = field(default_factory=list)
    """Attributes assigned to another value, and containers, arrays, iterators and the like with
    other contents. Buffers are excluded: the graph writes them."""
    tensors: list[Values] = field(default_factory=list)  # written tensors that are no buffers
    inputs: list[str] = field(default_factory=list)
    """Inputs whose lists, dicts or sets were changed."""
    drawn: list[str] = field(default_factory=list)
    """Generators of Python and NumPy from which forward drew."""
    read: set[str] = field(default_factory=set)
    """Functions called whose result differs between calls, such as a clock."""
    seeds: bool = False  # True if forward set the state of torch's random number generator
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """Context of the run."""

    def run(self, call: Callable[[], _T]) -> _T:
        """Return the result of a call that changes no context variable of its caller."""
        return self.context.run(call)

    def note(self, writes: Callable[[torch.Tensor], bool]) -> str:
        """Return remarks for the user of a graph on changes that it does not make; or ""."""
        notes: list[str] = []
        lost = [each.label for each in self.tensors if not writes(each.tensor)]
        changed = list(dict.fromkeys(filter(None, (*self.attributes, *lost))))
        if changed:
            them = "it a buffer" if len(changed) == 1 else "them buffers"
            notes.append(
                f"forward changes {_listed(changed)}, which the graph does not; make {them} if "
                "later calls read what an earlier one left"
            )
        if self.inputs:
            named = ", ".join(map(repr, self.inputs))
            notes.append(
                f"forward changes what the caller's {named} holds, which the graph does not; "
                "return it instead, and go on with what a call returns"
            )
        if self.drawn:
            notes.append(
                f"forward draws random numbers from {_listed(list(dict.fromkeys(self.drawn)))}, "
                "which are in the graph as they were drawn; draw them with torch, or pass them"
            )
        if self.read:
            notes.append(
                f"forward calls {_listed(sorted(self.read))}, whose result is in the graph as it "
                "was; pass it as an input"
            )
        if self.seeds:
            notes.append(
                "forward sets the state of the random number generator, which the graph does "
                "not, so random numbers differ; set it before the call"
            )
        return "; ".join(notes)


class PythonState:
    """A snapshot of the state that a model's Python code, or the inputs of a call, can reach.

    Tracing runs forward, which may count its calls, keep a value, or register hooks and remember
    that it has. All of that is restored. If only the hooks were kept, the next call would register
    them again; a table made in tracing has no values.
    """

    def __init__(self, model: nn.Module, inputs: object = ()) -> None:
        self._model = model
        self._reached = Reachable(model, inputs)

    @contextlib.contextmanager
    def during(self, *, watch: bool = True, watch_inputs: bool = False) -> Iterator[Changes]:
        """Restore the state on exit; yield its changes, complete after the block.

        With `watch`, record assignments, and keep the run out of memoised functions and iterators;
        not for runs whose changes are not told. With `watch_inputs`, record changes of inputs, by
        hooks on the model; not for a trace that includes hooks.
        """
        changes = Changes()
        elsewhere = _Elsewhere(self._reached.generators)
        assigned: dict[int, dict[str, Any]] = {}
        stand_ins: list[tuple[Slot, Any, Memo | Replayed | None]] = []
        try:
            with contextlib.ExitStack() as stack:
                if watch:
                    stack.enter_context(_assignments(self._reached.registered, assigned))
                    stack.enter_context(outside_reads(changes.read))
                    stand_ins += (_stood_in(slot, changes.read) for slot in self._reached.slots)
                if watch_inputs:
                    stack.enter_context(_kept_inputs(self._model, changes.inputs))
                yield changes
        finally:
            for slot, value, _ in stand_ins:
                slot.holder.replace(slot.name, value, slot.value)
            self._compare(changes, assigned)
            elsewhere.compare(changes)
            for holder in (*self._reached.holders, *elsewhere.all):
                holder.put_back()
            for slot, _, stand_in in stand_ins:
                if stand_in is not None and stand_in.is_used:
                    changes.attributes.append(slot.label)
                if isinstance(stand_in, Replayed):
                    restored = stand_in.restored(slot.value)
                    slot.holder.replace(slot.name, slot.value, restored, keep=True)

    def _compare(self, changes: Changes, assigned: dict[int, dict[str, Any]]) -> None:
        modules = {
            id(holder): {
                name: value
                for name, value in assigned.get(id(module), {}).items()
                if name not in self._reached.registered[id(module)]
            }
            for module, holder in self._reached.modules
        }
        for holder in self._reached.holders:
            if not holder.label:
                continue
            if isinstance(holder, Values):
                changes.tensors += [holder] if holder.changed() else []
            elif isinstance(holder, Entries):
                changes.attributes += holder.changed(modules.get(id(holder), {}))
            else:
                changes.attributes += holder.changed()
        for variable, label, before in self._reached.variables:
            if not is_same(before, changes.context.get(variable, MISSING)):
                changes.attributes.append(label)


class _Elsewhere:
    """State of the process: random generators, environment, switches of torch."""

    def __init__(self, generators: list[Status]) -> None:
        self.seeds = [*_torch_generators()]
        self.draws = [*_other_generators(), *generators]
        self.environment = Status("os.environ", lambda: dict(os.environ), _set_environment)
        switches = [Status("", get, put) for get, put in _SWITCHES]
        self.all = [*self.seeds, *self.draws, self.environment, *switches]

    def compare(self, changes: Changes) -> None:
        changes.seeds = any(each.changed() for each in self.seeds)
        changes.drawn += [label for each in self.draws for label in each.changed()]
        changes.attributes += self.environment.changed()


def _stood_in(slot: Slot, read: set[str]) -> tuple[Slot, Any, Memo | Replayed | None]:
    """Put a stand-in into a slot, and return the slot, its new value and the stand-in, if any."""
    stand_in: Memo | Replayed | None = None
    if slot.value not in OUTSIDE:
        is_memo = memoised(slot.value) is not None
        stand_in = Memo(slot.value) if is_memo else Replayed(slot.value)
    value: Any = noting(slot.value, read) if stand_in is None else stand_in.value
    slot.holder.replace(slot.name, slot.value, value)
    return slot, value, stand_in


def _torch_generators() -> Iterator[Status]:
    yield Status("torch", torch.get_rng_state, torch.set_rng_state, torch.equal)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for index in range(torch.cuda.device_count()):
            get = functools.partial(torch.cuda.get_rng_state, index)
            put = functools.partial(torch.cuda.set_rng_state, device=index)
            yield Status(f"cuda:{index}", get, put, torch.equal)


def _other_generators() -> Iterator[Status]:
    yield Status("random", random.getstate, random.setstate)
    numpy: Any = sys.modules.get("numpy.random")
    if numpy is not None:
        get = functools.partial(numpy.get_state, legacy=False)
        yield Status("numpy.random", get, numpy.set_state, same_state)


def _set_environment(before: dict[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _listed(names: list[str]) -> str:
    others = len(names) - _SHOWN
    named = ", ".join(map(repr, names[:_SHOWN]))
    return named + (f" and {counted(others, 'other')}" if others > 0 else "")


@contextlib.contextmanager
def _assignments(known: Collection[int], assigned: dict[int, dict[str, Any]]) -> Iterator[None]:
    """Collect assignments to attributes of modules, by module and name.

    torch.export itself undoes some of them before they can be seen. A buffer that forward registers
    is an attribute meanwhile: torch.export would let the graph write it to an input.
    """
    register = nn.Module.register_buffer

    def noted(method: Callable[..., None]) -> Callable[..., None]:
        names = [*inspect.signature(method).parameters][1:]

        def put(module: nn.Module, *args: Any, **kwargs: Any) -> None:
            name, value = ({**dict(zip(names, args, strict=False)), **kwargs}[n] for n in names)
            assigned.setdefault(id(module), {})[name] = value
            method(module, *args, **kwargs)

        return put

    def register_buffer(
        module: nn.Module, name: str, tensor: torch.Tensor | None, persistent: bool = True
    ) -> None:
        if name in module._buffers or tensor is None or id(module) not in known:
            register(module, name, tensor, persistent)
        else:
            assigned.setdefault(id(module), {})[name] = vars(module)[name] = tensor

    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(nn.Module, "register_buffer", register_buffer))
        for name in ("__setattr__", "register_parameter", "add_module"):
            method = noted(getattr(nn.Module, name))
            stack.enter_context(mock.patch.object(nn.Module, name, method))
        yield


@contextlib.contextmanager
def _kept_inputs(model: nn.Module, changed: list[str]) -> Iterator[None]:
    """Collect the inputs of calls of `model` whose containers changed.

    torch.export passes copies of the caller's containers, so the caller's show nothing.
    """
    before: dict[str, tuple[Any, list[Entries | Members], list[Any], Any]] = {}

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        names = [*inspect.signature(module.forward).parameters]
        named = {**dict(zip(names, args, strict=False)), **kwargs}
        for name, value in named.items():
            # Caches are containers too, with the leaves of their pytree as contents.
            before[name] = value, _containers(value), *pytree.tree_flatten(value)

    def compare(*_: Any) -> None:
        for name, (value, contents, leaves, structure) in before.items():
            found, given = pytree.tree_flatten(value)
            same = given == structure and all(a is b for a, b in zip(found, leaves, strict=True))
            if (not same or any(each.changed() for each in contents)) and name not in changed:
                changed.append(name)

    handles = [
        model.register_forward_pre_hook(note, with_kwargs=True),
        model.register_forward_hook(compare),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _containers(value: Any) -> list[Entries | Members]:
    """Return the containers in an input, nested ones included, with their contents."""
    found: dict[int, Entries | Members] = {}
    waiting = [value]
    while waiting:
        each: Any = waiting.pop()
        if id(each) in found or not isinstance(each, (dict, list, set, deque)):
            continue
        if isinstance(each, dict):
            found[id(each)] = Entries(each, "input")
            waiting += each.values()
        else:
            found[id(each)] = Members(each, "input")
            waiting += each
    return list(found.values())
