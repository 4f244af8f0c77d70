"""Operators that must stay together when a captured graph is split, with the reasons.

Stages exchange copies of tensors and run one after the other, each as a whole. Operators whose
semantics would change must share a device: those that share a storage that is written in place, a
region of changed global state, a value that is not a tensor, a module that is called more than
once, a trained parameter, or the order of random numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import get_args

import networkx as nx
import torch
from torch import fx

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.choices import TiedReaders
from fx_bridge.split.keep_whole import whole_modules
from fx_bridge.storages.table import Storage, StorageTable
from solver import ColocationGroup
from solver.model.checks import check_choice


def colocation_groups(
    captured: CapturedGraph,
    *,
    training: bool = False,
    keep_whole: Sequence[str] = (),
    tied_weights: TiedReaders = "colocate",
) -> list[ColocationGroup]:
    """Return the sets of operators of `captured` that must share a device.

    Updates of parameters in `training` need all readers of one on one device, tied ones too, for
    copies on two devices would diverge after one step of the optimiser. With ``tied_weights="sum"``
    readers of a parameter may be anywhere, for pipelines add up the gradients of the copies
    (:mod:`fx_bridge.pipeline.tied_weights`); distinct parameters that share memory stay together.
    `keep_whole` has modules, each of which stays on one device
    (:mod:`fx_bridge.split.keep_whole`).

    Groups are in the order of their first operators; they may overlap. Every plan that respects
    them and whose stages form no cycle can be split. The last ones merge groups that would force a
    cycle of stages, so that the graph of merged groups is acyclic. Operators with random numbers
    are grouped only if no path leads from one to the next: with a path, every acyclic plan keeps
    their order. Linear in the size of the graph.
    """
    check_choice(tied_weights, get_args(TiedReaders), "tied_weights")
    table = captured.storage_table
    groups = [
        *_written_storages(captured, table),
        *_state_regions(captured),
        *_non_tensors(captured),
        *_inner_tensors(captured),
        *_views_of_weights(captured, table),
        *_shared_modules(captured),
        *_random_order(captured),
    ]
    if training:
        groups.extend(_trained_weights(captured, table, tied_weights))
    groups.extend(whole_modules(captured, keep_whole))
    order = {node.name: index for index, node in enumerate(captured.operators)}
    groups = _sorted(groups, order)
    return groups + _sorted(_cycles(captured, groups, order), order)


def inseparable_groups(captured: CapturedGraph) -> list[ColocationGroup]:
    """Return the groups without which a split has other results even in one process.

    These are the groups of :func:`colocation_groups` for storages written in place and for regions
    of changed global state.
    """
    order = {node.name: index for index, node in enumerate(captured.operators)}
    groups = [*_written_storages(captured, captured.storage_table), *_state_regions(captured)]
    return _sorted(groups, order)


def _sorted(groups: Iterable[ColocationGroup], order: Mapping[str, int]) -> list[ColocationGroup]:
    result = [
        ColocationGroup(tuple(sorted(group.operators, key=order.__getitem__)), group.reason)
        for group in groups
    ]
    result = [group for group in result if len(group.operators) > 1]
    return sorted(result, key=lambda group: order[group.operators[0]])


# -- effects that edges do not show --------------------------------------------------------


def _written_storages(captured: CapturedGraph, table: StorageTable) -> Iterator[ColocationGroup]:
    """Group the operators on a storage that is written in place.

    All operators on it up to the last write run in one stage, in the original order. A later
    reader may run in a later stage, because a stage passes its values on when it has ended, and
    then they are final. That does not hold for weights, which every stage reads at its own
    time and which live on to the next call, nor for graph inputs, which come from the caller:
    all operators on one of these form one group.
    """
    written = {storage for storages in table.writes.values() for storage in storages}
    touches: dict[Storage, list[fx.Node]] = {storage: [] for storage in written}
    weights = {storage.owner: storage for storage in written if storage.kind == "weight"}
    for node in captured.operators:
        touched = dict.fromkeys(table.touched(node))
        # Weights read inside a called submodule are not arguments of the node.
        keys = table.weights_read.get(node.name, ())
        touched.update(dict.fromkeys(weights[key] for key in keys if key in weights))
        for storage in touched:
            if storage in touches:
                touches[storage].append(node)
    for storage in sorted(written, key=lambda storage: (storage.kind, storage.key)):
        nodes = touches[storage]
        writers = [n for n, node in enumerate(nodes) if storage in table.writes.get(node.name, ())]
        if not writers:
            continue
        writer = nodes[writers[-1]].name
        if storage.kind == "weight":
            what = f"weight {storage.owner!r}"
        elif storage.kind == "input":
            what = f"graph input {storage.owner!r}"
        else:
            what = f"the value of {storage.owner!r}"
            nodes = nodes[: writers[-1] + 1]
        yield ColocationGroup(
            tuple(node.name for node in nodes), f"{writer!r} writes {what} in place"
        )


def _state_regions(captured: CapturedGraph) -> Iterator[ColocationGroup]:
    """Group the regions in which dynamo's graphs switch autocast or the grad mode."""
    operators = captured.operators
    position = {node: index for index, node in enumerate(operators)}
    outer_mode: bool | None = None
    since = 0
    for index, node in enumerate(operators):
        if node.op != "call_function":
            continue
        name = getattr(node.target, "__name__", "")
        if node.target is torch._C._set_grad_enabled:
            mode = bool(node.args[0])
            if outer_mode is None:
                outer_mode, since = not mode, index
            elif mode == outer_mode:
                yield _region(operators[since : index + 1], "the grad mode is switched")
                outer_mode = None
        elif name.startswith("_enter_"):
            exits = [user for user in node.users if getattr(user.target, "__name__", "") != name]
            end = max((position[user] for user in exits if user in position), default=None)
            last = len(operators) if end is None else end + 1
            yield _region(operators[index:last], f"{node.name!r} changes the global state")
    if outer_mode is not None:
        yield _region(operators[since:], "the grad mode is switched to the end")


def _region(nodes: Sequence[fx.Node], reason: str) -> ColocationGroup:
    return ColocationGroup(
        tuple(node.name for node in nodes),
        f"{reason} between {nodes[0].name!r} and {nodes[-1].name!r}",
    )


# -- values that cannot be sent, and weights that must not be copied -----------------------


def _non_tensors(captured: CapturedGraph) -> Iterator[ColocationGroup]:
    for node in captured.operators:
        if "val" not in node.meta or isinstance(node.meta["val"], torch.Tensor):
            continue
        readers = [user.name for user in node.users if user.op != "output"]
        kind = type(node.meta["val"]).__name__
        yield ColocationGroup(
            (node.name, *readers),
            f"the value of {node.name!r} is of type {kind}, and only tensors travel between stages",
        )


def _inner_tensors(captured: CapturedGraph) -> Iterator[ColocationGroup]:
    for node in captured.operators:
        if node.target is torch.ops.export.access_subclass_inner_tensor.default:
            # Otherwise a device could hold the weight for another to read.
            yield ColocationGroup(
                (node.name, *(user.name for user in node.users if user.op != "output")),
                f"{node.name!r} is a part of a weight, for who reads it",
            )


def _views_of_weights(captured: CapturedGraph, table: StorageTable) -> Iterator[ColocationGroup]:
    for node in captured.operators:
        storages = table.storages[node.name]
        if len(node.users) == 1 and storages and all(s.kind == "weight" for s in storages):
            (reader,) = node.users
            if reader.op != "output" and node.name not in table.writes:
                yield ColocationGroup(
                    (node.name, reader.name),
                    f"{node.name!r} is a view of a weight, for {reader.name!r} alone",
                )


def _shared_modules(captured: CapturedGraph) -> Iterator[ColocationGroup]:
    callers: dict[int, list[fx.Node]] = {}
    for node in captured.operators:
        if node.op == "call_module":
            module = attrgetter(str(node.target))(captured.module)
            # A module without parameters and buffers may be copied.
            if any(True for _ in itertools.chain(module.parameters(), module.buffers())):
                callers.setdefault(id(module), []).append(node)
    for nodes in callers.values():
        yield ColocationGroup(
            tuple(node.name for node in nodes),
            f"submodule {str(nodes[0].target)!r} is called more than once",
        )


def _trained_weights(
    captured: CapturedGraph, table: StorageTable, tied_weights: TiedReaders
) -> Iterator[ColocationGroup]:
    readers: dict[str, list[str]] = {}
    for node in captured.operators:
        for key in table.weights_read.get(node.name, ()):
            trained = table.weights[key].trainable
            if len(trained) > 1 or (trained and tied_weights == "colocate"):
                readers.setdefault(key, []).append(node.name)
    for key, names in readers.items():
        tied = " = ".join(repr(name) for name in table.weights[key].names)
        yield ColocationGroup(
            tuple(names), f"parameter {tied} is trained, and its copies would diverge"
        )


# -- random numbers ------------------------------------------------------------------------


def _random_order(captured: CapturedGraph) -> Iterator[ColocationGroup]:
    operators = captured.operators
    position = {node: index for index, node in enumerate(operators)}
    for first, second in itertools.pairwise(captured.random_operators):
        reached = {first}
        for node in operators[position[first] + 1 : position[second] + 1]:
            if not reached.isdisjoint(node.all_input_nodes):
                reached.add(node)
        if second not in reached:
            yield ColocationGroup(
                (first.name, second.name),
                f"{first.name!r} draws random numbers before {second.name!r}",
            )


# -- cycles --------------------------------------------------------------------------------


def _cycles(
    captured: CapturedGraph, groups: Sequence[ColocationGroup], order: Mapping[str, int]
) -> Iterator[ColocationGroup]:
    """Merge the groups that would force a cycle of stages, with the operators between them."""
    forest: nx.utils.UnionFind[str] = nx.utils.UnionFind(order)
    for group in groups:
        forest.union(*group.operators)
    leader = {name: forest[name] for name in order}
    contracted = nx.DiGraph()
    contracted.add_nodes_from(leader.values())
    contracted.add_edges_from(
        (leader[source.name], leader[node.name])
        for node in captured.operators
        for source in node.all_input_nodes
        if source.name in leader and leader[source.name] != leader[node.name]
    )
    members: dict[str, list[str]] = {}
    for name in order:
        members.setdefault(leader[name], []).append(name)
    for component in nx.strongly_connected_components(contracted):
        if len(component) == 1:
            continue
        names = tuple(name for unit in component for name in members[unit])
        first = min(names, key=order.__getitem__)
        reasons = [group.reason for group in groups if leader[group.operators[0]] in component]
        causes = "; ".join(reasons[:2]) + ("; …" if len(reasons) > 2 else "")
        yield ColocationGroup(
            names,
            f"all from {first!r} on lies between operators that must share a device, and would "
            f"close a cycle of stages ({causes})",
        )
