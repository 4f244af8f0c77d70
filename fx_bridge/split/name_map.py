"""Places of the parts of a captured module in its split."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import fx, nn

from fx_bridge.storages.tensor_subclasses import named_tensors
from solver.model.checks import only_given


@dataclass(frozen=True, slots=True)
class NameMap:
    """Names in the captured module, each with all of its places in the split."""

    nodes: Mapping[str, tuple[str, ...]]
    """Every node of the captured graph. An operator runs in one place, ``"submod_1.linear"``; a
    ``get_attr`` node is in each stage that reads it, or nowhere if none does; graph inputs and the
    output are nodes of the root, ``"tokens"``."""
    tensors: Mapping[str, tuple[str, ...]]
    """Every parameter, buffer and constant, under each of its tied names: all places of the tensor,
    ``("submod_0.wte.weight", "submod_2.lm_head.weight")``. Empty if no operator reads it."""
    modules: Mapping[str, tuple[str, ...]]
    """Every submodule by its path: the places of its parts, or of the whole. Empty for one without
    tensors that is not called as a whole."""
    __repr__ = only_given


def name_map(source: fx.GraphModule, split: fx.GraphModule, stages: Sequence[str]) -> NameMap:
    """Return the places of the parts of `source` in `split`; `stages` are children of `split`."""
    children = {name: split.get_submodule(name) for name in stages}
    nodes: dict[str, list[str]] = {node.name: [] for node in source.graph.nodes}
    for prefix, module in (("", split), *((f"{name}.", child) for name, child in children.items())):
        assert isinstance(module, fx.GraphModule)
        for node in module.graph.nodes:
            # Placeholders of a stage are values of other stages, its output is a tuple.
            is_boundary = node.op in ("placeholder", "output")
            is_stage_call = not prefix and node.op in ("call_module", "call_function")
            if not is_stage_call and not (prefix and is_boundary):
                name = source.graph.output_node().name if node.op == "output" else node.name
                nodes[name].append(prefix + node.name)

    tensors: dict[int, list[str]] = {}
    modules: dict[str, list[str]] = {name: [] for name, _ in _submodules(source)}
    shared: dict[int, list[str]] = {}
    for name, module in _submodules(source):
        shared.setdefault(id(module), []).append(name)
    for node in split.graph.find_nodes(op="get_attr"):  # returned by the graph
        path = str(node.target)
        tensors.setdefault(id(attrgetter(path)(split)), []).append(path)
    for stage, child in children.items():
        for path, tensor in tensors_of(child):
            tensors.setdefault(id(tensor), []).append(f"{stage}.{path}")
        for path, module in _submodules(child):
            # Containers are new modules; a module called as a whole is the original one.
            for name in dict.fromkeys([path, *shared.get(id(module), ())]):
                if name in modules:
                    modules[name].append(f"{stage}.{path}")
    places_of = {name: tuple(tensors.get(id(t), ())) for name, t in tensors_of(source)}
    for name, module in _submodules(source):
        if not modules[name]:
            # Its tensors are tied, and registered under the names of another module.
            own = itertools.chain(module._parameters, module._buffers)
            places = (place for key in own for place in places_of.get(f"{name}.{key}", ()))
            modules[name] = list(dict.fromkeys(place.rpartition(".")[0] for place in places))
    return NameMap(
        nodes={name: tuple(places) for name, places in nodes.items()},
        tensors=places_of,
        modules={name: tuple(places) for name, places in modules.items()},
    )


def shared_tensors(stages: Mapping[str, nn.Module]) -> tuple[tuple[str, ...], ...]:
    """Return the qualified names of each tensor that several stages own."""
    places: dict[int, list[tuple[str, str]]] = {}
    for name, stage in stages.items():
        for path, tensor in tensors_of(stage):
            places.setdefault(id(tensor), []).append((name, path))
    several = (found for found in places.values() if len({name for name, _ in found}) > 1)
    return tuple(tuple(map(".".join, found)) for found in several)


def tensors_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters, buffers and constants of the graph, under all of their names."""
    yield from named_tensors(module).items()
    if not isinstance(module, fx.GraphModule):
        return
    for path in dict.fromkeys(str(n.target) for n in module.graph.find_nodes(op="get_attr")):
        prefix, _, name = path.rpartition(".")
        # Constants that torch.export lifted are neither parameters nor buffers.
        value = module.get_submodule(prefix).__dict__.get(name)
        if isinstance(value, torch.Tensor):
            yield path, value


def _submodules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, part in module.named_modules(remove_duplicate=False):
        if name:
            yield name, part
