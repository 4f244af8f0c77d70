"""A backend of torch.compile that plans and splits each compiled graph."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.convert_frame import ConvertFrame, ConvertFrameAssert
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.source import is_from_unspecialized_param_buffer_source
from torch._dynamo.utils import graph_break_reasons

from fx_bridge.capture.graph import COMPUTE_OPS, CapturedGraph
from fx_bridge.capture.tracers.lifted_weights import inputs_to_weights, is_weight
from fx_bridge.capture.tracers.values import complete
from fx_bridge.costs.backward import needs_gradients
from fx_bridge.options import (
    DEFAULT_COSTS,
    DEFAULT_PIPELINE,
    DEFAULT_PLACEMENT,
    DEFAULT_SEARCH,
    Costs,
    Placement,
    Search,
    Training,
)
from fx_bridge.partition import PartitionResult, Request
from solver import Device, PartitionError, Pipeline
from solver.model.text import shown

Compiled = Callable[..., Any]


def compile_backend(
    devices: Sequence[Device] | str,
    *,
    objective: str | Sequence[str] | None = None,
    training: Training | None = None,
    pipeline: Pipeline = DEFAULT_PIPELINE,
    placement: Placement = DEFAULT_PLACEMENT,
    costs: Costs = DEFAULT_COSTS,
    search: Search = DEFAULT_SEARCH,
    strict: bool = False,
) -> CompileBackend:
    """Return a backend for ``torch.compile`` that runs every graph as a split by its best plan.

    Parameters
    ----------
    devices : sequence of Device, or str
        Of every graph, as if it were alone on them; as of :func:`fx_bridge.partition_module`.
    objective, training, pipeline, placement, costs, search
        As of :func:`fx_bridge.partition_module`. A graph without gradients is always planned for
        inference.
    strict : bool
        Refuse calls of a model of which dynamo leaves a part out of its graphs, instead of
        warning once.

    Raises
    ------
    PartitionError
        If the devices or options are invalid. If no plan exists for a graph, its call raises the
        reason; no graph ever runs unplanned. With `strict`, calls raise the part that dynamo leaves
        out, and its reason.

    Warns
    -----
    UserWarning
        Once for each backend, in the call in which dynamo leaves a part of the model out of its
        graphs (``docs/splitting.md``), with dynamo's reason. That part runs as Python, unplanned.

    Notes
    -----
    Dynamo makes a graph for each part of the model between graph breaks, and new ones when sizes
    change; each is planned on all `devices`. The backend learns of omitted code through methods of
    torch 2.13 that are no public interface. The split runs on the model's device: the caller places
    its stages. Autograd works through it, and parameters are shared, so it sees an optimiser's
    updates.

    Examples
    --------
    >>> from solver import KiB
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    >>> pair = [Device("cuda:0", memory_bytes=20 * KiB), Device("cuda:1", memory_bytes=20 * KiB)]
    >>> backend = compile_backend(devices=pair)
    >>> torch.compile(model, backend=backend)(torch.ones(1, 64)).shape
    torch.Size([1, 64])
    >>> [len(result.plan.stages) for result in backend.results]
    [2]
    """
    request = Request(devices, objective, training, pipeline, placement, costs, search)
    return CompileBackend(request, strict=strict)


class CompileBackend:
    """A backend of torch.compile; :func:`compile_backend` makes it.

    Attributes
    ----------
    results : list of PartitionResult
        In the order of compilation, including those without a plan.
    """

    def __init__(self, request: Request, *, strict: bool = False) -> None:
        if not isinstance(strict, bool):
            raise PartitionError(f"strict is {shown(strict)}; write True or False")
        self._request = request
        self.results: list[PartitionResult] = []
        self._strict = strict
        self._has_warned = False
        _listen()

    def __call__(self, module: fx.GraphModule, example_inputs: Sequence[Any]) -> Compiled:
        """Plan and split `module`; return a function that runs the split."""
        if not isinstance(module, fx.GraphModule):
            raise PartitionError(
                f"the backend got a {type(module).__name__}; write "
                "torch.compile(model, backend=compile_backend(devices))"
            )
        if not any(node.op in COMPUTE_OPS for node in module.graph.nodes):
            return module.forward
        try:
            captured, weights = _capture(module, example_inputs)
            result = self._request_for(captured).plan(captured)
            self.results.append(result)
            return _SplitCall(result.split(), weights, example_inputs)
        except PartitionError as error:
            # If it were raised here, dynamo would wrap it, or run the model unplanned.
            return _failing(str(error))

    def leave_out(self, reason: str) -> None:
        """Warn that dynamo leaves a part of the model out of its graphs, or refuse it."""
        message = f"torch.compile leaves a part of the model out of its graphs ({reason})"
        if self._strict:
            raise PartitionError(
                f"{message}, which would run unplanned; change that line, or write strict=False"
            )
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{message}, which runs unplanned; strict=True refuses that", stacklevel=2
            )

    def _request_for(self, captured: CapturedGraph) -> Request:
        if self._request.training is not None and not needs_gradients(captured):
            # Such as a part between graph breaks that computes masks.
            return replace(self._request, training=None)
        return self._request


@functools.cache
def _listen() -> None:
    """Patch dynamo, once, to report the code that it leaves out to the backend.

    ``ConvertFrameAssert`` compiles a function or raises its reason; ``ConvertFrame`` around it
    suppresses the reason.
    """
    compile_or_raise: Any = ConvertFrameAssert.__call__
    compile_or_skip: Any = ConvertFrame.__call__
    attempts: list[list[TorchDynamoException]] = []

    @functools.wraps(compile_or_raise)
    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return compile_or_raise(self, *args, **kwargs)
        except TorchDynamoException as error:
            if attempts:
                attempts[-1].append(error)
            raise

    @functools.wraps(compile_or_skip)
    def reporting(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        backend = _backend_of(self)
        known = len(graph_break_reasons)
        attempts.append([])
        try:
            result = compile_or_skip(self, frame, *args, **kwargs)
        finally:
            errors = attempts.pop()
        breaks = graph_break_reasons[known:]
        if backend is not None and errors:
            stack = getattr(errors[0], "real_stack", ())
            backend.leave_out(_where(str(errors[0]), stack, frame.f_code))
        elif backend is not None and breaks:
            backend.leave_out(_where(breaks[0].reason, breaks[0].user_stack, frame.f_code))
        return result

    replaced: Any = ConvertFrameAssert
    replaced.__call__ = noting
    replaced = ConvertFrame
    replaced.__call__ = reporting


def _backend_of(converter: Any) -> CompileBackend | None:
    """Return the :class:`CompileBackend` for which dynamo compiles, if any."""
    found = converter
    while found is not None and not isinstance(found, CompileBackend):
        # Unwrap dynamo's wrapper, then that of torch.compile.
        inner = getattr(found, "_torchdynamo_orig_backend", None)
        found = inner or getattr(found, "compiler_fn", None)
    return found


def _where(reason: str, stack: Sequence[Any], code: Any) -> str:
    """Return the first line of a reason, with its line of the model."""
    place = f"{code.co_filename}:{code.co_firstlineno}"
    if stack:
        place = f"{stack[-1].filename}:{stack[-1].lineno}"
    return f"{reason.strip().splitlines()[0]} at {place}"


def _failing(message: str) -> Compiled:
    def fail(*_: Any) -> Any:
        raise PartitionError(message)

    return fail


def _capture(
    module: fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[CapturedGraph, dict[int, str]]:
    """Return dynamo's graph with its weights as attributes, and their paths by input position."""
    own, _, _ = complete(module, (), {})
    found: dict[fx.Node, tuple[str, torch.Tensor]] = {}
    position_of: dict[str, int] = {}
    # The nodes of the copy lack dynamo's sources.
    placeholders = zip(
        module.graph.find_nodes(op="placeholder"),
        own.graph.find_nodes(op="placeholder"),
        strict=True,
    )
    for position, (original, node) in enumerate(placeholders):
        # It keeps the inputs of this call alive.
        node.meta.pop("grapharg", None)
        value = example_inputs[position]
        source = getattr(original, "_dynamo_source", None)
        held = source is not None and is_from_unspecialized_param_buffer_source(source)
        if isinstance(value, torch.Tensor) and (held or is_weight(value)):
            found[node] = (_path(source) or node.name, value)
            position_of[node.name] = position
    paths = inputs_to_weights(own, found)
    weights = {position_of[name]: path for name, path in paths.items()}
    return CapturedGraph(own, "dynamo"), weights


def _path(source: Any) -> str:
    """Return the dotted path of a weight in its model from dynamo's source, "" if unknown."""
    name = source.name if source else ""
    return ".".join(re.findall(r"\._(?:modules|parameters|buffers)\['([^']+)'\]", name))


class _SplitCall:
    """A call of a split with the inputs that are no weights."""

    def __init__(
        self, split: fx.GraphModule, weights: dict[int, str], example_inputs: Sequence[Any]
    ) -> None:
        self.split = split
        self.held = {position: example_inputs[position] for position in weights}
        self.slots = {position: _slots(split, path) for position, path in weights.items()}

    def __call__(self, *inputs: Any) -> Any:
        for position, tensor in self.held.items():
            if inputs[position] is not tensor:
                # Dynamo compiles once for all instances of a model, and parameters may be replaced.
                self.held[position] = inputs[position]
                for table, name in self.slots[position]:
                    table[name] = inputs[position]
        return self.split(*(v for n, v in enumerate(inputs) if n not in self.held))


def _slots(split: fx.GraphModule, path: str) -> list[tuple[dict[str, Any], str]]:
    """Return the tables of parameters and buffers with the weight at `path` of `split`."""
    slots: list[tuple[dict[str, Any], str]] = []
    prefix, _, name = path.rpartition(".")
    for holder in (split, *(split.get_submodule(stage) for stage in split.meta["stages"])):
        try:
            owner: nn.Module = holder.get_submodule(prefix)
        except AttributeError:
            continue
        for table in (owner._parameters, owner._buffers):
            if name in table:
                slots.append((table, name))
    return slots
