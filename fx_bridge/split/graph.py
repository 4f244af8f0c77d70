"""Stages of a split as data, read by :func:`fx_bridge.split.reader.stage_graph`.

``docs/splitting.md`` compares it with the ``DAG`` of torch's accelerator_partitioner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from fx_bridge.presentation.tables import table_lines
from solver import PartitionError
from solver.model.checks import only_given
from solver.model.quantities import MISSING, format_bytes
from solver.model.text import printable, shown


@dataclass(frozen=True, slots=True)
class StageValue:
    """A value that enters a stage, leaves one, or both.

    Attributes
    ----------
    name : str
        Its node: an operator or a graph input. With the suffix ``.written``, the final content of
        an input or weight that the stage `source` writes in place.
    source : int or None
        Position of the stage that computes it; None for a graph input.
    targets : tuple of int
        Positions of the other stages that read it, in order.
    is_output : bool
        True if the graph returns it.
    size_bytes : int
        numel x itemsize, of all tensors together; 0 for non-tensors.
    kind : str
        Its type: ``"Tensor"``, ``"tuple"``, ``"SymInt"``, …. Pipelines pass tensors alone.
    shape : tuple of int or None
        None for non-tensors; symbolic sizes at their hints.
    dtype : str or None
        torch's name, such as ``"float32"``; None for non-tensors.
    """

    name: str
    source: int | None
    targets: tuple[int, ...]
    is_output: bool
    size_bytes: int
    kind: str
    shape: tuple[int, ...] | None
    dtype: str | None
    __repr__ = only_given


@dataclass(frozen=True, slots=True)
class StageWeight:
    """A parameter, buffer or constant that a stage holds.

    Attributes
    ----------
    key : str
        Of its storage, as in the operator graph; tied names have one.
    names : tuple of str
        Its paths in the stage.
    size_bytes : int
        Bytes of the storage, which tied names share.
    stages : tuple of int
        Positions of all stages that hold a copy, this one included.
    """

    key: str
    names: tuple[str, ...]
    size_bytes: int
    stages: tuple[int, ...]
    __repr__ = only_given


@dataclass(frozen=True, slots=True)
class StageNode:
    """One stage.

    Attributes
    ----------
    position : int
        In the order in which stages run.
    name : str
        The child of the split, such as ``"submod_0"``.
    device : str
        As in the plan.
    chunk : int
        Earlier passes of data through the devices; 0 without interleaving.
    operators : tuple of str
        In execution order.
    weights : tuple of StageWeight
        One for each storage.
    inputs : tuple of str
        Names of its input values, in the order of its arguments.
    outputs : tuple of str
        Names of its results, in their order.
    weights_bytes : int
        Each storage once.
    received_bytes : int
        Bytes of `inputs`, those from the caller included.
    sent_bytes : int
        Bytes of `outputs`, each once for every other device that reads it: over all stages, the
        objective ``transfer`` (to which training adds the gradients in the reverse direction).
    peak_bytes : int or None
        Memory of the stage by itself, weights included, by the evaluator; None without a
        problem.
    parents, children : tuple of int
        Positions of the stages that it reads from, and that read from it.
    modules : str
        Modules of the model that it runs, in the notation of the module tree.
    """

    position: int
    name: str
    device: str
    chunk: int
    operators: tuple[str, ...]
    weights: tuple[StageWeight, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights_bytes: int
    received_bytes: int
    sent_bytes: int
    peak_bytes: int | None
    parents: tuple[int, ...]
    children: tuple[int, ...]
    modules: str = ""
    __repr__ = only_given


@dataclass(frozen=True)
class StageGraph:
    """The stages of a split and the values between them; printing it shows one table.

    Attributes
    ----------
    stages : tuple of StageNode
        In the order in which they run.
    values : tuple of StageValue
        Graph inputs first, then the results of stage after stage. Each name once.
    inputs : tuple of str
        The graph inputs, in the order of the graph, read or not.
    outputs : tuple of str
        Names of the values that the graph returns, each once. Weights returned unchanged are left
        out.
    """

    stages: tuple[StageNode, ...]
    values: tuple[StageValue, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    __repr__ = only_given

    @cached_property
    def value_of(self) -> Mapping[str, StageValue]:
        """The values by name."""
        return MappingProxyType({value.name: value for value in self.values})

    @property
    def transfer_bytes(self) -> int:
        """Bytes sent forward between devices, a value once per device that reads it."""
        return sum(stage.sent_bytes for stage in self.stages)

    def alive_between(self, position: int) -> tuple[StageValue, ...]:
        """Return the values that exist after stage `position` and are needed later.

        A pipeline in which only neighbours communicate passes exactly these: graph inputs and
        results of stages up to `position` that a later stage reads or the graph returns.
        `position` is from 0 to the number of stages - 2.

        Raises
        ------
        PartitionError
            If there is no stage after `position`.
        """
        last = len(self.stages) - 1
        if isinstance(position, bool) or not isinstance(position, int) or not 0 <= position < last:
            raise PartitionError(
                f"position is {shown(position)}, but the stages between which values pass are 0 to "
                f"{last}; write a number from 0 to {last - 1}"
                if last > 0
                else f"position is {shown(position)}, but there is only one stage"
            )
        return tuple(
            value
            for value in self.values
            if (value.source is None or value.source <= position)
            and (value.is_output or any(target > position for target in value.targets))
        )

    def __str__(self) -> str:
        header = ["stage", "device", "operators", "weights", "received", "sent", "peak", "reads"]
        rows = []
        for stage in self.stages:
            device = f"{stage.device} ({stage.chunk})" if stage.chunk else stage.device
            sources = [self.stages[parent].name for parent in stage.parents]
            if any(self.value_of[name].source is None for name in stage.inputs):
                sources.insert(0, "inputs")
            rows.append(
                [
                    stage.name,
                    device,
                    str(len(stage.operators)),
                    format_bytes(stage.weights_bytes),
                    format_bytes(stage.received_bytes),
                    format_bytes(stage.sent_bytes),
                    MISSING if stage.peak_bytes is None else format_bytes(stage.peak_bytes),
                    ", ".join(sources) or MISSING,
                ]
            )
        below = [[stage.modules] * bool(stage.modules) for stage in self.stages]
        lines = table_lines(header, rows, text=["device", "reads"], below=below)
        for position in range(len(self.stages) - 1):
            alive = self.alive_between(position)
            total_bytes = sum(value.size_bytes for value in alive)
            lines.append(
                f"between {self.stages[position].name} and {self.stages[position + 1].name}: "
                f"{format_bytes(total_bytes)} in {len(alive)} value{'s' * (len(alive) != 1)}"
            )
        return "\n".join(map(printable, lines))
