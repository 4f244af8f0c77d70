"""The graph of a placed model: that of the split, with transfers between the stage calls.

``placed.code`` shows every transfer, its destination and its place in the order of issue.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from fx_bridge.capture.python.custom_backward import lost_backward
from fx_bridge.placement.placing import Placing
from fx_bridge.placement.streaming import call_streamed
from fx_bridge.placement.transfers import (
    call_with_weights,
    check_apart,
    check_untrained,
    copy_back,
    move,
    receive,
    send_to_host,
    without_backward,
)


def placed_graph(
    placing: Placing, output_device: torch.device | None, streamed: Collection[str]
) -> fx.Graph:
    """Return the graph of a placed model, with the stage names of its split.

    Results stay where they are made if `output_device` is None. The stages in `streamed` run on
    copies of weights in host memory. ``docs/placement.md``, "What runs when", has the order of
    issue.
    """
    return _Writer(placing, output_device, streamed, placing.elsewhere()).write()


@dataclass(slots=True)
class _Writer:
    placing: Placing
    output_device: torch.device | None
    streamed: Collection[str]
    elsewhere: Mapping[str, Mapping[str, str]]
    """Paths of each stage's parameters of other devices, with their names in the placed model."""
    graph: fx.Graph = field(default_factory=fx.Graph)
    made: dict[fx.Node, fx.Node] = field(default_factory=dict)
    """Node of this graph with the value of each node of the split's graph."""
    device_of: dict[fx.Node, torch.device | None] = field(default_factory=dict)
    """Device on which the value of a node of the split's graph is made; None: the caller's."""
    arrivals: dict[tuple[fx.Node, torch.device], fx.Node] = field(default_factory=dict)
    sent: dict[tuple[fx.Node, torch.device], fx.Node] = field(default_factory=dict)
    """Pending copies to the host."""
    borrowed: dict[tuple[str, torch.device], fx.Node] = field(default_factory=dict)

    def write(self) -> fx.Graph:
        calls, returned = [], self.placing.returned
        for node in self.placing.split.graph.nodes:
            if node.op == "placeholder":
                self._copy(node, None)
            elif node.op == "get_attr":
                self._copy(node, self.placing.device_at(returned[str(node.target)]))
            elif node.op == "call_module":
                calls.append(node)
        for call in _issue_order(calls, self.placing.device_of):
            self._call(call)
        self._write_back()
        self._output()
        self.graph.set_codegen(copy.copy(self.placing.split.graph._codegen))
        return self.graph

    def _copy(self, node: fx.Node, device: torch.device | None) -> fx.Node:
        made = self.graph.node_copy(node, self.made.__getitem__)
        self.made[node], self.device_of[node] = made, device
        return made

    def _call(self, call: fx.Node) -> None:
        name = str(call.target)
        device = self.placing.device_of[name]
        arguments = tuple(map_arg(call.args, lambda read: self._at(read, device)))
        borrowed = self.elsewhere.get(name, {})
        if self.placing.tied_weights == "copy":
            for path in borrowed:
                own = f"{name}.{path}"
                self.graph.call_function(check_untrained, (self.graph.get_attr(own), own))
            borrowed = {}
        if borrowed or name in self.streamed:
            stage = self.graph.get_attr(name)
            weights = {path: self._borrowed(owner, device) for path, owner in borrowed.items()}
            function = call_streamed if name in self.streamed else call_with_weights
            self.made[call] = self.graph.call_function(function, (stage, weights, list(arguments)))
        else:
            self.made[call] = self.graph.create_node(
                "call_module", name, arguments, name=call.name, type_expr=call.type
            )
        self.made[call].meta = call.meta.copy()
        self.device_of[call] = device
        elements = [user for user in call.users if user.op == "call_function"]
        for node in elements:
            self._copy(node, device)
        for node in [call, *elements]:
            self._depart(node, device)

    def _borrowed(self, name: str, device: torch.device) -> fx.Node:
        """Return a parameter of another device on `device`; gradients are sent back."""
        key = name, device
        if key not in self.borrowed:
            weight = self.graph.get_attr(name)
            self.borrowed[key] = self._function(
                move, (weight, device), f"{weight.name}_on_{_suffix(device)}"
            )
        return self.borrowed[key]

    def _at(self, node: fx.Node, device: torch.device) -> fx.Node:
        """Return the value of `node` on `device`."""
        if self.device_of[node] == device or self._stays(node):
            return self.made[node]
        key = node, device
        if key not in self.arrivals:
            name = f"{node.name}_on_{_suffix(device)}"
            if key in self.sent:
                arrived = self._function(receive, (self.sent[key],), name)
            else:
                arrived = self._function(move, (self.made[node], device), name)
            arrived.meta = node.meta.copy()
            self.arrivals[key] = arrived
        return self.arrivals[key]

    def _function(self, function: Any, arguments: tuple[Any, ...], name: str) -> fx.Node:
        return self.graph.create_node("call_function", function, arguments, name=name)

    def _depart(self, node: fx.Node, source: torch.device) -> None:
        """Send the value of `node` to all devices that read it."""
        readers = [user for user in node.users if user.op in ("call_module", "output")]
        for user in readers:
            if user.op == "output":
                device = self.output_device or source
            else:
                device = self.placing.device_of[str(user.target)]
            if device == source or self._stays(node):
                continue
            if device.type != "cpu":
                self._at(node, device)
            elif (node, device) not in self.sent:
                self.sent[node, device] = self._function(
                    send_to_host, (self.made[node], device), f"{node.name}_sent"
                )

    def _stays(self, node: fx.Node) -> bool:
        """Return True if the model itself has the value off its home: lengths on the host, say."""
        tensors = [v for v in tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)]
        home = self.placing.placed.home
        return bool(tensors) and all(tensor.device != home for tensor in tensors)

    def _write_back(self) -> None:
        """Copy inputs that a stage has written in place to the caller's tensors."""
        split = self.placing.split
        names = split.meta.get("written_inputs", ())
        written = [
            (self.made[node], arrived)
            for (node, _), arrived in self.arrivals.items()
            if node.op == "placeholder" and node.name in names
        ]
        inputs = [self.made[node] for node in split.graph.find_nodes(op="placeholder")]
        if written and len(inputs) > 1:
            originals, arrivals = map(list, zip(*written, strict=True))
            self.graph.call_function(check_apart, (originals, arrivals, inputs))
        for original, arrived in written:
            self.graph.call_function(copy_back, (original, arrived))

    def _output(self) -> None:
        output = self.placing.split.graph.output_node()
        lost = lost_backward(self.placing.split)

        def result(read: fx.Node) -> fx.Node:
            made = self.made[read]
            if self.output_device is not None and self.device_of[read] is not None:
                made = self._at(read, self.output_device)
            return self._function(without_backward, (made, lost), read.name) if lost else made

        made = self.graph.output(map_arg(output.args[0], result), output.type)
        made.meta = output.meta.copy()


def _suffix(device: torch.device) -> str:
    return device.type if device.index is None else f"{device.type}_{device.index}"


def _issue_order(
    calls: Sequence[fx.Node], devices: Mapping[str, torch.device]
) -> Sequence[fx.Node]:
    """Return stage calls, given in stage order, in the order of issue."""
    host = [call for call in calls if devices[str(call.target)].type == "cpu"]
    others = [call for call in calls if call not in host]
    order: list[fx.Node] = []
    while host or others:
        # An accelerator's next stage waits only for earlier stages. Once all earlier ones on
        # accelerators have been issued, it waits for one on the host.
        ready = others and all(parent in order for parent in _parents(others[0]))
        order.append(others.pop(0) if ready else host.pop(0))
    return order


def _parents(call: fx.Node) -> list[fx.Node]:
    parents = []
    for read in call.all_input_nodes:
        # A single result is the value of the call itself, several are its elements.
        source = read.args[0] if read.op == "call_function" else read
        if isinstance(source, fx.Node) and source.op == "call_module":
            parents.append(source)
    return parents
