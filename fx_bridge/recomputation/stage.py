"""A stage of a split with operators that run again in the backward pass."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Final, NoReturn

import torch
from torch import fx
from torch.fx.graph import PythonCode
from torch.fx.node import map_arg

from fx_bridge.capture.model.mode import GraphOfOneMode
from fx_bridge.recomputation.decisions import Decisions
from fx_bridge.recomputation.region_run import Made, Recording, RegionRun
from fx_bridge.recomputation.steps import Segment, Step, segments_of
from solver import PartitionError

_KEY: Final = "recomputation"


class RecomputingStage(GraphOfOneMode):
    """A stage with the graph of any other stage that keeps fewer tensors (``docs/splitting.md``).

    Where gradients are recorded, it runs its graph node by node; elsewhere the generated code runs,
    and also under ``torch.export`` or a tracer, which see the graph unchanged. ``torch.compile``
    leaves the stage as it is. It cannot be pickled. ``meta["recomputation"]`` has the decisions.
    """

    # GraphModule gives every instance its own class.
    _generated: ClassVar[Callable[..., Any]]
    _segments: ClassVar[tuple[Segment, ...] | None]

    def recompile(self) -> PythonCode:
        """Generate code from the graph, as after every change of it."""
        code = super().recompile()
        cls = type(self)
        cls._generated, cls._segments = cls.forward, None

        @functools.wraps(cls.forward)
        def forward(self: RecomputingStage, *args: Any, **kwargs: Any) -> Any:
            return _call(self, args, kwargs)

        cls.forward = forward
        return code

    def __copy__(self) -> RecomputingStage:
        made = recomputing(self, self.meta[_KEY])
        made.meta = self.meta
        return made

    def __reduce__(self) -> NoReturn:
        raise PartitionError(
            "a stage whose operators run again cannot be pickled; save the plan and its problem, "
            "and split again"
        )


def recomputing(stage: fx.GraphModule, decisions: Decisions) -> RecomputingStage:
    """Return a stage that shares the state of `stage` and recomputes operators."""
    made = RecomputingStage.__new__(RecomputingStage)
    made.__dict__.update(stage.__dict__)
    made.meta = {**stage.meta, _KEY: decisions}
    made.graph = stage.graph
    return made


def _call(stage: RecomputingStage, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    generated = type(stage)._generated
    is_traced = any(isinstance(each, fx.Proxy) for each in (*args, *kwargs.values()))
    if is_traced or not torch.is_grad_enabled() or torch.compiler.is_exporting():
        return generated(stage, *args, **kwargs)
    if kwargs:
        args = inspect.signature(generated).bind(stage, *args, **kwargs).args[1:]
    return _run(stage, args)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _run(stage: RecomputingStage, args: tuple[Any, ...]) -> Any:
    cls = type(stage)
    if cls._segments is None:
        cls._segments = segments_of(stage.graph, stage.meta[_KEY])
    env: dict[fx.Node, Any] = {}
    env.update(zip(stage.graph.find_nodes(op="placeholder"), args, strict=True))
    made: Made = {}
    for segment in cls._segments:
        if not segment.again:
            for step in segment.steps:
                _run_step(stage, step, env, None)
            continue
        recording = Recording(RegionRun(segment.again), made)
        with recording.watching():
            for step in segment.steps:
                _run_step(stage, step, env, recording)
    return map_arg(stage.graph.output_node().args[0], env.__getitem__)


def _run_step(
    stage: RecomputingStage, step: Step, env: dict[fx.Node, Any], recording: Recording | None
) -> None:
    # A separate function, so that none of its values outlives the step.
    if recording is not None:
        recording.before(step, stage, env)
    value = step.run(stage, env)
    if recording is not None:
        recording.after(step, value)
    env[step.node] = value
    for read in step.dropped:
        del env[read]
