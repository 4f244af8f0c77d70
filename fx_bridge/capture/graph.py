"""Captures of models as FX graphs in which every value has a shape, dtype and device.

The default is ``torch.export`` in non-strict mode. Models that it refuses are captured in other
ways (:mod:`fx_bridge.capture.fallbacks`); `how` and `note` of a graph say in which, and why. The
given model is never changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from fx_bridge.capture.fallbacks import Attempt, Capture, attempt
from fx_bridge.capture.model.caches import register_caches
from fx_bridge.capture.model.call import example_call, named_leaves, note_inputs
from fx_bridge.capture.model.checks import check_constants, check_content, check_model
from fx_bridge.capture.model.generated_names import keep_names_apart
from fx_bridge.capture.model.inputs import flat_inputs
from fx_bridge.capture.model.messages import describe, refusing
from fx_bridge.capture.modules import Modules, modules_of, registered_paths
from fx_bridge.capture.python.surroundings import answers_now
from fx_bridge.capture.random_numbers import random_operators
from fx_bridge.capture.tracers.export import program_graph
from fx_bridge.capture.tracers.lean import lean
from fx_bridge.capture.tracers.values import complete
from fx_bridge.choices import checked_kernels
from fx_bridge.equivalence.calls import checked_inputs
from fx_bridge.storages.autocast import note_precision
from fx_bridge.storages.device_kernels import DeviceKernels
from fx_bridge.storages.table import StorageTable, storage_table
from fx_bridge.storages.tensor_subclasses import is_wrapper, named_tensors
from solver import PartitionError
from solver.model.checks import as_mapping, check_natural, did_you_mean, only_given
from solver.model.text import shown

COMPUTE_OPS: Final = frozenset({"call_function", "call_method", "call_module"})
"""``fx.Node.op`` of the nodes that become operators."""


@dataclass(frozen=True)
class CapturedGraph:
    """A model as one FX graph.

    Attributes
    ----------
    module : torch.fx.GraphModule
        Runs like the model. Every placeholder, ``get_attr`` of a tensor and compute node has
        ``meta["val"]``: fake tensors (or sizes, None, containers of these) of the right shape,
        dtype and device. Parameters and buffers are the model's own objects, read through
        ``get_attr`` or held by submodules that ``call_module`` runs.
    how : str
        ``"export"``, ``"make_fx"`` (forward differentiates), ``"graph_module"`` or
        ``"exported_program"`` (given, or read from a file).
    note : str
        Reasons for a fallback and for any other deviation from the request; empty without any.
    args, kwargs : tuple, mapping
        The example inputs, empty for a model that came with its values. Symbolic sizes have their
        sizes as hints.
    source : torch.nn.Module or None
        The model, if a module was captured: :mod:`fx_bridge.batch.resize` captures it at another
        batch size to find the dependences on the batch.
    constants : tuple of str
        Inputs with fixed values, as given to :func:`capture`.
    check : bool
        True if the graph was compared with the model; so are further captures of the model.
    asked : mapping of str to object
        Queries of forward to its surroundings, such as ``"torch.is_grad_enabled()"``, with their
        answers (:mod:`fx_bridge.capture.python.surroundings`).
    in_training : frozenset of str
        Paths of the modules of `source` that were in training mode.
    device_type, attention : optional
        Kernels for which the graph is costed; see :meth:`with_kernels`.
    weight_bytes : mapping of str to int
        Bytes of weights as they will be stored, by name; see :meth:`with_weight_bytes`.
    trains : bool
        True if it is costed for training: autograd may choose other kernels, whose values have
        other storages.
    """

    module: fx.GraphModule
    how: Capture
    note: str = ""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    source: nn.Module | None = field(default=None, repr=False, compare=False)
    constants: tuple[str, ...] = ()
    check: bool = False
    asked: Mapping[str, Any] = field(default_factory=dict, compare=False)
    in_training: frozenset[str] = frozenset()
    device_type: str | None = None
    attention: tuple[str, ...] | None = None
    trains: bool = False
    weight_bytes: Mapping[str, int] = field(default_factory=dict)
    __repr__ = only_given

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", tuple(self.args))
        for name in ("kwargs", "weight_bytes"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def with_kernels(
        self, device_type: str | None = None, attention: str | Sequence[str] | None = None
    ) -> CapturedGraph:
        """Return this graph, costed as if these kernels ran it.

        Parameters
        ----------
        device_type : {"cpu", "cuda"}, optional
            Device whose kernels composite operators run. Defaults to that of the model; a model on
            the meta device counts as on CUDA.
        attention : str or sequence of str, optional
            One or more of ``"flash"``, ``"efficient"``, ``"efficient_sm70"``, ``"cudnn"``,
            ``"cpu"`` and ``"math"``: the first whose conditions a call meets runs it, and
            ``"math"`` if none does. Defaults to those of the device.

        Raises
        ------
        PartitionError
            If a name is unknown.
        """
        kernels = DeviceKernels(device_type, checked_kernels(attention))
        return self._costed(device_type=kernels.device_type, attention=kernels.attention)

    def with_weight_bytes(self, weight_bytes: Mapping[str, int]) -> CapturedGraph:
        """Return this graph, costed as if weights were stored in other numbers of bytes.

        So a quantised model is planned from the graph of its configuration: memory and the time to
        read weights are those of the given bytes, by the name of a parameter or buffer. Others stay
        as they were, and of tied names the largest number holds.

        Raises
        ------
        PartitionError
            If a name is unknown, its tensor is a quantised one, or a number is no natural one.
        """
        known: dict[str, torch.Tensor] = {}
        for own in (self.model, self.module):
            known |= named_tensors(own)
        for name, size_bytes in as_mapping(weight_bytes, "weight_bytes").items():
            check_natural(size_bytes, f"weight_bytes[{shown(name)}]")
            if name not in known or is_wrapper(known[name]):
                hint = did_you_mean(name, known, "give names of parameters and buffers")
                why = "quantised, and has its bytes" if name in known else f"no weight; {hint}"
                raise PartitionError(f"weight_bytes has {shown(name)}, which is {why}")
        return self._costed(weight_bytes={**self.weight_bytes, **weight_bytes})

    @property
    def trained(self) -> CapturedGraph:
        """The same graph, costed for training."""
        return self._costed(trains=True)

    def _costed(self, **changes: Any) -> CapturedGraph:
        """Return the same graph with other cost fields, sharing the storage tables."""
        if all(getattr(self, name) == value for name, value in changes.items()):
            # The same object keeps its cached properties.
            return self
        made = replace(self, **changes)
        made.__dict__["_tables"] = self._tables
        return made

    @cached_property
    def _tables(self) -> dict[tuple[object, ...], StorageTable]:
        return {}

    @property
    def kernels(self) -> DeviceKernels:
        """The kernels for which it is costed."""
        return DeviceKernels(self.device_type, self.attention)

    @property
    def graph(self) -> fx.Graph:
        """The graph of `module`."""
        return self.module.graph

    @cached_property
    def storage_table(self) -> StorageTable:
        """Storages of all values, computed on first use."""
        given = frozenset(self.weight_bytes.items())
        key = (*self.kernels.on(self.module), self.trains, given)
        if key not in self._tables:
            graph = self.module, self.kernels, self.example_values, self.weight_bytes
            self._tables[key] = storage_table(*graph, trains=self.trains)
        return self._tables[key]

    @property
    def model(self) -> nn.Module:
        """The captured model, or the given graph."""
        return self.module if self.source is None else self.source

    @cached_property
    def modules(self) -> Modules:
        """Modules with their operators, found on first use."""
        paths = registered_paths(self.model, with_graphs=self.source is not None)
        return modules_of(self.operators, paths)

    @cached_property
    def random_operators(self) -> tuple[fx.Node, ...]:
        """Operators that draw random numbers, found on first use."""
        return random_operators(self.operators, self.module)

    @property
    def example_values(self) -> tuple[Any, ...]:
        """Values of the placeholders in the example call; empty if the call does not fit."""
        try:
            return tuple(placeholder_values(self, self.args, self.kwargs))
        except PartitionError:
            return ()

    @property
    def operators(self) -> tuple[fx.Node, ...]:
        """Compute nodes in execution order: function, method and module calls."""
        return tuple(node for node in self.graph.nodes if node.op in COMPUTE_OPS)


def check_captured(captured: object, verb: str, example: str) -> None:
    """Raise PartitionError, with an example of what to write, unless it is a captured graph."""
    if not isinstance(captured, CapturedGraph):
        raise PartitionError(
            f"cannot {verb} {describe(captured)}; capture the model first: {example}"
        )


def capture(
    model: nn.Module | fx.GraphModule | ExportedProgram | str | os.PathLike[str] | CapturedGraph,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    constants: Sequence[str] = (),
    check: bool = False,
) -> CapturedGraph:
    """Capture `model` as one FX graph with values.

    Parameters
    ----------
    model : nn.Module, fx.GraphModule, torch.export.ExportedProgram, path or CapturedGraph
        A module whose parameters are on the meta device needs no memory for its weights. A
        ``GraphModule`` of any origin (``symbolic_trace``, ``make_fx``, ``aot_export_module``) is
        used as is; its example inputs that are ``nn.Parameter`` or ``nn.Buffer`` become attributes
        of the captured module, which takes only the others. A path names a ``.pt2`` file of
        ``torch.export.save``, which unpickles: read only trusted ones. A captured graph is
        returned.
    args : sequence
        Example positional inputs; tensors are moved to the meta device if all weights are there.
        Needed for a module, and for a ``GraphModule`` without values.
    kwargs : mapping of str, optional
        Example keyword inputs.
    dynamic_shapes : optional
        As ``torch.export.export`` takes it. For modules only.
    constants : sequence of str
        Input tensors that forward reads as numbers, such as ``"image_grid_thw"``: names of
        arguments, or paths of tensors in them, such as ``"batch['sizes']"``. The graph is for
        their values; calls of the split or placed model with others are refused. On the meta
        device these inputs still need values. For modules only.
    check : bool
        Run the model and its graph once on the example inputs, and compare their results to the
        bit, with gradients if the model is in training mode. If they differ, as with a library
        that runs other kernels in a trace, the next way of capturing is tried. For modules with
        weights only.

    Raises
    ------
    PartitionError
        In one line: the obstacle to the capture, its place, and the remedy.

    Examples
    --------
    >>> import torch
    >>> captured = capture(torch.nn.Linear(8, 4), (torch.ones(2, 8),))
    >>> captured.how, [node.name for node in captured.operators]
    ('export', ['linear'])
    """
    keywords = checked_inputs(args, kwargs)
    fixed = check_constants(constants)
    known = (nn.Module, ExportedProgram, str, os.PathLike, CapturedGraph)
    with refusing(model), lean():
        check_model(model, known, dynamic_shapes, fixed, check)
        if isinstance(model, CapturedGraph):
            if args or keywords:
                raise PartitionError("a captured graph has its inputs; leave out args and kwargs")
            return model
        register_caches()
        if isinstance(model, nn.Module):
            captured = _from_module(model, tuple(args), keywords, dynamic_shapes, fixed, check)
        else:
            module, inputs = program_graph(model)
            if args or keywords:
                inputs = tuple(args), keywords
                flat_inputs(module.graph, *inputs)
            captured = CapturedGraph(module, "exported_program", "", *inputs)
        check_content(captured.operators, captured.graph, model)
        note_precision(captured.module)
        keep_names_apart(captured.module)
        return captured


def placeholder_values(
    captured: CapturedGraph, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
) -> tuple[Any, ...]:
    """Return the value of every placeholder, in order, for a call of the captured module.

    They suit ``fx.Interpreter(captured.module).run(*values, enable_io_processing=False)``. Raise
    PartitionError if the inputs do not fit the module.
    """
    return flat_inputs(captured.graph, tuple(args), dict(kwargs or {}))


def _from_module(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    constants: tuple[str, ...],
    check: bool,
) -> CapturedGraph:
    if isinstance(model, fx.GraphModule):
        module, inputs, note = complete(model, args, kwargs)
        return CapturedGraph(module, "graph_module", note, *inputs)
    args, kwargs, fixed = example_call(model, args, kwargs, constants)
    made = attempt(Attempt(model, args, kwargs, dynamic_shapes, fixed, check))
    captured = CapturedGraph(
        made.module,
        made.how,
        made.note,
        args,
        kwargs,
        source=model,
        constants=constants,
        check=check,
        in_training=frozenset(path for path, part in model.named_modules() if part.training),
    )
    values = captured.example_values
    path_of = {id(leaf): path for path, leaf in named_leaves(model, args, kwargs)} if fixed else {}
    note_inputs(captured.graph, values, path_of, fixed)
    weights = dict(model.named_parameters(remove_duplicate=False))
    return replace(captured, asked=answers_now(made.asked, values, weights))
