"""Values of a graph at another batch size, and the operator that rejects it."""

from __future__ import annotations

import sys
from typing import Any

from torch import fx, nn

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.equivalence.calls import first_line
from fx_bridge.storages.replay import Replay
from solver import PartitionError


def with_values(
    module: fx.GraphModule,
    captured: CapturedGraph,
    batch_size: int,
    replay: SizedReplay | None = None,
) -> fx.GraphModule:
    """Write the values of all nodes of `module`, computed from those of its placeholders.

    `replay` is one of `module` that has not run. A node that fails, but runs in `captured`, raises
    PartitionError.
    """
    replay = SizedReplay(module) if replay is None else replay
    replay.replay()
    # The nodes that fail in `captured` too take a run of their own.
    known = captured.storage_table.made_up if replay.made_up else ()
    unexpected = set(replay.made_up).difference(known)
    if unexpected:
        name = min(unexpected, key=replay.made_up.index)
        node = next(node for node in captured.graph.nodes if node.name == name)
        error = replay.failures.get(name)
        why = f" ({type(error).__name__}: {first_line(error)})" if error is not None else ""
        raise PartitionError(
            f"the model takes no batch of {batch_size}: {place(node)} does not run{why}"
        )
    for node, value in replay.values.items():
        if node.op != "get_attr" and not isinstance(value, nn.Module):
            node.meta["val"] = value
    return module


class SizedReplay(Replay):
    """A replay that records the errors of nodes."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.failures: dict[str, BaseException] = {}

    def record(self, node: fx.Node) -> None:
        """Record the error of a node, which is being handled."""
        error = sys.exc_info()[1]
        if error is not None:
            self.failures[node.name] = error

    def substitute(self, node: fx.Node) -> Any:
        """Return a value for a node that fails, and record its error."""
        self.record(node)
        return super().substitute(node)


def place(node: fx.Node) -> str:
    """Return a node's name with its module and its source line."""
    words = [f"operator {node.name!r}"]
    stack = node.meta.get("nn_module_stack")
    path = str(list(stack.values())[-1][0]) if stack else ""
    if path:
        words.append(f"in module {path!r}")
    trace = node.meta.get("stack_trace")
    lines = [line.strip() for line in str(trace or "").splitlines() if line.strip()]
    found = [n for n, line in enumerate(lines) if line.startswith("File ")]
    if found:
        file, _, rest = lines[found[-1]].removeprefix('File "').partition('", line ')
        number = rest.partition(",")[0]
        source = lines[found[-1] + 1] if found[-1] + 1 < len(lines) else ""
        words.append(f"at {file}:{number}, {source!r}")
    return " ".join(words)
