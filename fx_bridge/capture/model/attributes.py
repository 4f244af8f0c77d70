"""Give each stage the parameters, buffers and submodules that its graph reads.

``split_module`` flattens the names of modules (``a.b`` and ``a_b`` become one) and leaves
parameters at the root. Here a stage gets each attribute at its path in the captured module. Nothing
is copied.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx, nn


def paths_read_by(graph: fx.Graph) -> tuple[str, ...]:
    """Return the attribute paths that `graph` reads or calls, each once, in order of use."""
    return tuple(
        dict.fromkeys(
            str(node.target) for node in graph.nodes if node.op in ("get_attr", "call_module")
        )
    )


def stage_results(stage: nn.Module) -> tuple[fx.Node, ...]:
    """Return the nodes whose values a stage of a split returns, in order."""
    assert isinstance(stage, fx.GraphModule)
    return tuple(stage.graph.output_node().all_input_nodes)


def adopt(destination: nn.Module, source: nn.Module, paths: Iterable[str]) -> None:
    """Register the attributes of `source` at `paths` under the same paths in `destination`.

    Parameters, buffers (with their persistence), submodules and other attributes are shared. Plain
    containers are added as needed, with the ``training`` flags of their counterparts.
    """
    created = {id(destination)}
    # Modules before their contents: a path inside an adopted module is already there, and
    # writing it would change the captured module.
    for path in sorted(dict.fromkeys(paths), key=lambda path: path.count(".")):
        prefix, _, name = path.rpartition(".")
        owner: nn.Module | None = destination
        counterpart = source
        for atom in prefix.split(".") if prefix else ():
            counterpart = getattr(counterpart, atom)
            assert owner is not None
            child = owner._modules.get(atom)
            if child is None:
                child = nn.Module()
                child.training = counterpart.training
                owner._modules[atom] = child
                created.add(id(child))
            owner = child if id(child) in created else None
            if owner is None:
                break
        if owner is not None:
            _register(owner, counterpart, name)


def _register(owner: nn.Module, counterpart: nn.Module, name: str) -> None:
    value = getattr(counterpart, name)
    # register_parameter refuses the names of a GraphModule's own attributes.
    if name in counterpart._parameters:
        owner._parameters[name] = value
    elif name in counterpart._buffers:
        owner._buffers[name] = value
        owner._non_persistent_buffers_set.discard(name)
        if name in counterpart._non_persistent_buffers_set:
            owner._non_persistent_buffers_set.add(name)
    elif isinstance(value, nn.Module):
        owner._modules[name] = value
    else:
        setattr(owner, name, value)
