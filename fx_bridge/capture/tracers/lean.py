"""Traces without work of torch that does not affect the graph.

torch generates code of a graph after each of some twenty passes over it, and runs none of it. It
finds the source lines of a node by way of its C++ frames, a millisecond each. The garbage collector
walks all nodes again and again.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
import weakref
from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

from torch import fx
from torch.fx.graph import _PyTreeCodeGen


@contextlib.contextmanager
def lean() -> Iterator[None]:
    """Generate code when it is first read, and find source lines quickly, in the block."""
    collects = gc.isenabled()
    gc.disable()
    try:
        with (
            mock.patch.object(fx.GraphModule, "recompile", _recompile_when_read),
            mock.patch.object(fx.proxy, "CapturedTraceback", _Frames),
        ):
            yield
    finally:
        if collects:
            gc.enable()


class _WhenRead:
    """A class attribute of one graph module that generates the module's code when first read."""

    def __init__(self, name: str, module: fx.GraphModule) -> None:
        self._name = name
        self._module = weakref.ref(module)

    def __get__(self, module: Any, owner: type) -> Any:
        made = self._module()
        assert made is not None
        for name in _MADE:
            delattr(owner, name)
        _RECOMPILE(made)
        return getattr(owner if module is None else module, self._name)


def _recompile_when_read(module: fx.GraphModule) -> None:
    codegen = module.graph._codegen
    if isinstance(codegen, _PyTreeCodeGen):
        module._in_spec = codegen.pytree_info.in_spec
        module._out_spec = codegen.pytree_info.out_spec
    for name in _MADE:
        setattr(type(module), name, _WhenRead(name, module))


_RECOMPILE: Final = fx.GraphModule.recompile
_MADE: Final = ("forward", "code", "__reduce__")


def stack_trace(tracer: Any) -> str:
    """Return the lines of forward that made a node of a trace, in the format of torch."""
    if not tracer.record_stack_traces:
        return ""
    frames = tracer._filter_traceback_frames(_Frames.extract().summary())
    return "".join(frames.format()).strip()


class _Frames:
    """The frames of calls of forward, outermost first, instead of all frames."""

    def __init__(self, frames: list[traceback.FrameSummary]) -> None:
        self._frames = frames

    @classmethod
    def extract(cls) -> _Frames:
        found = []
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            place = code.co_filename, code.co_name
            if (
                code.co_name == "forward"
                or place in fx.proxy._STACK_TRACE_ANCHORS
                or code.co_filename.endswith("torch/__init__.py")
            ):
                found.append(
                    traceback.FrameSummary(
                        code.co_filename, frame.f_lineno, code.co_name, lookup_line=False
                    )
                )
            frame = frame.f_back  # type: ignore[assignment]
        return cls(found[::-1])

    def summary(self) -> traceback.StackSummary:
        return traceback.StackSummary.from_list(self._frames)
