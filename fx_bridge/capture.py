"""From a model to an FX graph in which every value is known by shape, dtype and device.

The default is ``torch.export`` in non-strict mode. What it refuses is tried in strict mode
and then with ``symbolic_trace``; :attr:`CapturedGraph.how` and :attr:`CapturedGraph.note`
say which one it was, and why. The model that is given is never changed.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import operator
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from fx_bridge.replay import Replay
from solver import PartitionError

if TYPE_CHECKING:
    from fx_bridge.storage import StorageTable

Capture = Literal["export", "export-strict", "symbolic_trace", "graph_module", "exported_program"]

COMPUTE_OPS: Final = frozenset({"call_function", "call_method", "call_module"})
"""``fx.Node.op`` of the nodes that become operators."""

_TORCH_DIRECTORY: Final = str(Path(torch.__file__).parent)
_HERE: Final = str(Path(__file__).parent)


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
        ``"export"``, ``"export-strict"``, ``"symbolic_trace"``, ``"graph_module"`` or
        ``"exported_program"``.
    note : str
        Why a fallback was used; empty when none was.
    args, kwargs : tuple, mapping
        The example inputs that were given, empty for a model that came with its values.
    """

    module: fx.GraphModule
    how: Capture
    note: str = ""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "kwargs", MappingProxyType(dict(self.kwargs)))

    @property
    def graph(self) -> fx.Graph:
        """The graph of `module`."""
        return self.module.graph

    @cached_property
    def storage_table(self) -> StorageTable:
        """Where every value lives; found out when it is first asked for."""
        from fx_bridge.storage import storage_table

        return storage_table(self)

    @property
    def operators(self) -> tuple[fx.Node, ...]:
        """The compute nodes in execution order: function, method and module calls."""
        return tuple(node for node in self.graph.nodes if node.op in COMPUTE_OPS)


def capture(
    model: nn.Module | fx.GraphModule | ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
) -> CapturedGraph:
    """Capture `model` as one FX graph with values.

    Parameters
    ----------
    model : nn.Module, fx.GraphModule or torch.export.ExportedProgram
        A module whose parameters are on the meta device needs no memory for its weights. A
        ``GraphModule`` is taken as it is.
    args : sequence
        Example positional inputs; tensors are moved to the meta device when all of the
        model's weights are there. Needed for a module, and for a ``GraphModule`` without values.
    kwargs : mapping of str, optional
        Example keyword inputs.

    Returns
    -------
    CapturedGraph

    Raises
    ------
    PartitionError
        In one line: what cannot be captured, where, and what to do.

    Examples
    --------
    >>> captured = capture(torch.nn.Linear(8, 4), (torch.ones(2, 8),))
    >>> captured.how, [node.name for node in captured.operators]
    ('export', ['linear'])
    """
    keywords = checked_inputs(args, kwargs)
    if isinstance(model, ExportedProgram):
        captured = _from_exported_program(model)
    elif isinstance(model, fx.GraphModule):
        captured = _from_graph_module(model, tuple(args), keywords)
    elif isinstance(model, nn.Module):
        captured = _from_module(model, tuple(args), keywords)
    else:
        hint = "; give an instance, not the class" if isinstance(model, type) else ""
        raise PartitionError(
            f"cannot capture {_describe(model)}: give a torch.nn.Module, a torch.fx.GraphModule "
            f"or a torch.export.ExportedProgram{hint}"
        )
    if not captured.operators:
        raise PartitionError(
            f"the graph of {_describe(model)} has no operators, so there is nothing to place; "
            "give a model that computes something"
        )
    return captured


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


def placeholder_values(
    captured: CapturedGraph, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> tuple[Any, ...]:
    """Return the value of every placeholder, in their order, for a call of the captured module.

    Parameters
    ----------
    captured : CapturedGraph
    args : sequence
    kwargs : mapping of str, optional
        As the module itself takes them.

    Returns
    -------
    tuple
        Ready for ``fx.Interpreter(captured.module).run(*values, enable_io_processing=False)``.

    Raises
    ------
    PartitionError
        If the inputs do not fit the module.
    """
    return _placeholder_values(captured.graph, tuple(args), dict(kwargs or {}))


# -- the three kinds of model --------------------------------------------------------------


def _from_exported_program(program: ExportedProgram) -> CapturedGraph:
    args, kwargs = program.example_inputs or ((), {})
    return CapturedGraph(
        _unlift(program), "exported_program", args=tuple(args or ()), kwargs=kwargs or {}
    )


def _from_graph_module(
    module: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> CapturedGraph:
    _check_graph(module)
    if args or kwargs:
        # Values in the graph need no inputs, but those that are given are called with later.
        _placeholder_values(module.graph, args, kwargs)
    own = _copy(module)
    for node in own.graph.nodes:
        # Dynamo's name for it. Left in place, it makes split_module see cycles where sizes
        # are symbolic.
        example = node.meta.pop("example_value", None)
        if "val" not in node.meta and example is not None:
            node.meta["val"] = example
    missing = [node for node in own.graph.nodes if _lacks_value(own, node)]
    if missing:
        args, kwargs = _on_device_of(own, args, kwargs)
        if not args and not kwargs and _needs_inputs(own.graph):
            raise PartitionError(
                f"node {missing[0].name!r} of the GraphModule has no meta['val'] and there are no "
                "example inputs to compute it; pass args, such as capture(module, (tokens,))"
            )
        try:
            with _quiet():
                _propagate(own, args, kwargs)
        except PartitionError:
            raise
        except Exception as error:
            raise PartitionError(
                f"the GraphModule has no values and running it on the example inputs failed "
                f"{_where(error, own)}; pass inputs that it accepts"
            ) from error
    return CapturedGraph(own, "graph_module", args=args, kwargs=kwargs)


def _check_graph(module: fx.GraphModule) -> None:
    if not module.graph.find_nodes(op="output"):
        raise PartitionError(
            "the graph of the GraphModule has no output node; write graph.output(node)"
        )
    transform = _functorch_node(module.graph)
    if transform is not None:
        raise PartitionError(
            f"node {transform.name!r} of the GraphModule opens a transform such as torch.vmap, "
            "whose values cannot be placed; give the module itself, or an ExportedProgram of it"
        )
    for node in module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            try:
                operator.attrgetter(str(node.target))(module)
            except AttributeError:
                raise PartitionError(
                    f"node {node.name!r} of the GraphModule reads {node.target!r}, which it does "
                    "not have; add it, or erase the node"
                ) from None


def _from_module(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CapturedGraph:
    if isinstance(model, torch.jit.ScriptModule):
        raise PartitionError(
            f"cannot capture {_describe(model)}: it is TorchScript; give the Python module"
        )
    _check_call(model, args, kwargs)
    args, kwargs = _on_device_of(model, args, kwargs)
    failures: dict[str, str] = {}
    ways: dict[Capture, Callable[[], fx.GraphModule]] = {
        "export": lambda: _export(model, args, kwargs, strict=False),
        "export-strict": lambda: _export(model, args, kwargs, strict=True),
        "symbolic_trace": lambda: _symbolic_trace(model, args, kwargs),
    }
    cause: Exception | None = None
    for how, way in ways.items():
        try:
            with _quiet():
                module = way()
            return CapturedGraph(module, how, "; ".join(failures.values()), args, kwargs)
        except Exception as error:
            # The same complaint three times over says no more than once.
            failures.setdefault(first_line(error), f"{how} failed {_where(error, model)}")
            cause = cause or error
    if "DataDependent" in type(cause).__name__:
        remedy = (
            "rewrite that line so that it does not depend on the values of tensors, or give an "
            "ExportedProgram or a GraphModule"
        )
    elif "which is not a known type" in str(cause):
        # Most often a transformers model that returns its cache.
        remedy = (
            "let the model return only tensors in tuples, lists and dicts (a transformers model: "
            "use_cache=False), or register that type with torch.utils._pytree"
        )
    else:
        remedy = "check that the model runs on these inputs, or give an ExportedProgram of it"
    raise PartitionError(
        f"cannot capture {_describe(model)}: {'; '.join(failures.values())}; {remedy}"
    ) from cause


def _export(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, strict: bool
) -> fx.GraphModule:
    module = _unlift(torch.export.export(model, args, kwargs, strict=strict))
    _copy_training(model, module)
    return module


def _unlift(program: ExportedProgram) -> fx.GraphModule:
    if _functorch_node(program.graph) is not None:
        with warnings.catch_warnings():
            # torch's own deprecations, met while it copies the structure of the inputs.
            warnings.simplefilter("ignore", FutureWarning)
            # Functionalising runs the transform, and leaves batched operators.
            program = program.run_decompositions({})
    # A guards function would be a call_module node that cannot be pickled.
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    return module


def _functorch_node(graph: fx.Graph) -> fx.Node | None:
    """Return the first node that opens a region of torch.vmap or the like.

    What is computed inside one are no tensors of their own: they have no storage, and exist
    for as long as the region is open.
    """
    nodes: Iterator[fx.Node] = iter(graph.nodes)
    for node in nodes:
        name = getattr(node.target, "__name__", "")
        if node.op == "call_function" and name.endswith("_increment_nesting"):
            return node
    return None


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    """Return a module with a graph of its own and the same parameters and submodules."""
    with warnings.catch_warnings():
        # torch's own deprecations, met while it copies the structure of the inputs.
        warnings.simplefilter("ignore", FutureWarning)
        graph = copy.deepcopy(module.graph)
    own = fx.GraphModule(module, graph, type(module).__name__)
    own.meta.update(module.meta)
    _copy_training(module, own)
    return own


def _copy_training(source: nn.Module, target: nn.Module) -> None:
    """Restore the flags of the modules that a graph keeps; making one sets them to True."""
    flags = {name: module.training for name, module in source.named_modules()}
    for name, module in target.named_modules():
        module.training = flags.get(name, source.training)


def _symbolic_trace(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> fx.GraphModule:
    """Trace with the defaults of all parameters that the example leaves out.

    Otherwise ``if mask is None`` would see a proxy and take the wrong branch.
    """
    parameters = inspect.signature(model.forward).parameters
    given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    defaults = {
        name: parameter.default
        for name, parameter in parameters.items()
        if name not in given and parameter.default is not parameter.empty
    }
    traced = fx.symbolic_trace(model, concrete_args=defaults or None)
    # Tracing renames such a placeholder, and asserts that it has its default.
    for name in defaults:
        for node in list(traced.graph.nodes):
            if node.op != "placeholder" or node.target != f"{name}_1":
                continue
            node.target = name
            for user in list(node.users):
                for check in list(user.users):
                    traced.graph.erase_node(check)
                traced.graph.erase_node(user)
    traced.recompile()
    _copy_training(model, traced)
    _propagate(traced, args, kwargs)
    return traced


def _propagate(module: fx.GraphModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Write ``meta["val"]`` into the nodes of `module` by running it on fake tensors."""
    replay = Replay(module, must_run=True)
    given = pytree.tree_map_only(
        torch.Tensor, replay.fake, _placeholder_values(module.graph, args, kwargs)
    )
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for position, node in enumerate(placeholders):
        starred = str(node.target).startswith("*") and not str(node.target).startswith("**")
        node.meta["val"] = list(given[position:]) if starred else given[position]
    replay.replay()
    for node, value in replay.values.items():
        if not isinstance(value, nn.Module):
            node.meta["val"] = value


def _placeholder_values(
    graph: fx.Graph, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    info = getattr(graph._codegen, "pytree_info", None)
    spec = getattr(info, "in_spec", None)
    if spec is not None:
        if kwargs and spec.num_children == 2 and spec.type is tuple:
            # Flattened in the order of the example's keywords, not of this call's.
            names = spec.child(1).context
            kwargs = {name: kwargs[name] for name in names if name in kwargs} | kwargs
        leaves, given = pytree.tree_flatten((args, kwargs))
        if given != spec:
            raise PartitionError(
                f"the inputs have the structure {given} but the captured graph takes {spec}; "
                "pass inputs shaped like the example"
            )
        return tuple(leaves)
    parameters: list[inspect.Parameter] = []
    for node in graph.nodes:
        if node.op != "placeholder":
            continue
        name = str(node.target)
        kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
        if name.startswith("*"):
            stars = len(name) - len(name.lstrip("*"))
            kind = inspect.Parameter.VAR_POSITIONAL if stars == 1 else inspect.Parameter.VAR_KEYWORD
        elif any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
            kind = inspect.Parameter.KEYWORD_ONLY
        default = node.args[0] if node.args else inspect.Parameter.empty
        parameters.append(inspect.Parameter(name.lstrip("*"), kind, default=default))
    try:
        bound = inspect.Signature(parameters).bind(*args, **kwargs)
    except (TypeError, ValueError) as error:
        raise PartitionError(
            f"the inputs do not fit the graph: {error}; its placeholders are "
            f"{', '.join(p.name for p in parameters) or 'none'}"
        ) from None
    bound.apply_defaults()
    values: list[Any] = []
    for parameter in parameters:
        value = bound.arguments[parameter.name]
        # The interpreter collects all that is left for a *args placeholder.
        values.extend(value if parameter.kind is parameter.VAR_POSITIONAL else [value])
    return tuple(values)


# -- checks and messages -------------------------------------------------------------------


def _lacks_value(module: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "output" or "val" in node.meta:
        return False
    if node.op == "get_attr":
        # Branches of torch.cond and other submodules have no value of their own; a tensor's
        # value can be had from the tensor.
        return False
    # Asserts and other statements return None, which exporters do not always write down.
    return node.op == "placeholder" or bool(node.users)


def _needs_inputs(graph: fx.Graph) -> bool:
    return any(
        node.op == "placeholder" and not node.args and not str(node.target).startswith("*")
        for node in graph.nodes
    )


def _check_call(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise PartitionError(
            f"the example inputs do not fit {_describe(model)}: {error}; pass args and kwargs "
            "as the model is called"
        ) from None


def _tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _on_device_of(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Move example inputs to the meta device for a model that is wholly there."""
    devices = {tensor.device.type for tensor in _tensors(module)}
    if devices != {"meta"}:
        return args, kwargs
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs)
    )
    return args, kwargs


def _describe(model: object) -> str:
    return model.__name__ if isinstance(model, type) else type(model).__name__


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message that is not empty, cut to 200 characters."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:200]


def _where(error: BaseException, model: nn.Module) -> str:
    """Say in one line where and why capture failed: module, and last line that is not torch's."""
    names = {id(module): name for name, module in model.named_modules() if name}
    module = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) in names:
            module = f"in module {names[id(owner)]!r} "
    place = ""
    for summary in traceback.extract_tb(error.__traceback__):
        if not summary.filename.startswith((_TORCH_DIRECTORY, _HERE, "<")) and summary.line:
            place = f"at {summary.filename}:{summary.lineno}, {summary.line!r}, "
    return f"{module}{place}({type(error).__name__}: {first_line(error)})".replace(", (", " (")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from logging and printing what a failed attempt raises anyway."""
    before = logging.root.manager.disable
    # Torch sets up its handlers late, so there is none yet to put a filter on.
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            # Where warnings are errors, one of torch's would pass for a failure.
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
