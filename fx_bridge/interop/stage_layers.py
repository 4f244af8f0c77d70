"""Stages of pipelines as numbers of layers: the part of a plan that most programs can express.

A stage may also have the *embedding*, which is before the first layer, or the *head*, which is
after the last one (:mod:`fx_bridge.interop.layered_model`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from solver import PartitionError, Stage
from solver.model.checks import only_given


@dataclass(frozen=True, slots=True)
class StageLayers:
    """The layers of a pipeline stage, by number."""

    device: str
    count: int  # of layers; those of the next stage follow
    has_embedding: bool = False  # runs the operators before the first layer
    has_head: bool = False  # runs those after the last one
    chunk: int = 0  # number among the stages of its device

    def __str__(self) -> str:
        return str(Stage(self.device, self.chunk))


@dataclass(frozen=True, slots=True)
class LayerNames:
    """The modules of a model by their paths, in execution order."""

    layers: tuple[str, ...]
    embedding: tuple[str, ...] = ()  # the outermost modules before the first layer
    head: tuple[str, ...] = ()  # and after it, outside of layers
    __repr__ = only_given


def is_host(device: str) -> bool:
    """Return True if a device is the host by its name, such as ``cpu:0``."""
    return device.partition(":")[0] == "cpu"


def check_stages(
    program: str,
    stages: Sequence[StageLayers],
    *,
    has_chunks: bool = False,
    bare_ends: bool = False,
) -> None:
    """Raise PartitionError unless a program can express stages.

    With `has_chunks`, devices may have several stages each, an equal number; with `bare_ends`, the
    embedding and the head may be stages without a layer.
    """
    devices = list(dict.fromkeys(stage.device for stage in stages))
    if not has_chunks and len(stages) > len(devices):
        raise PartitionError(
            f"the plan has several chunks on a device, and {program} has none; plan with "
            "chunks_per_device=1"
        )
    if [stage.device for stage in stages] != devices * (len(stages) // len(devices)):
        raise PartitionError(
            f"not all devices have as many chunks, and {program} gives each as many; plan with "
            "chunks_per_device=1"
        )
    for at, stage in enumerate(stages):
        for is_here, end, side in (
            (stage.has_embedding, 0, "before"),
            (stage.has_head, len(stages) - 1, "after"),
        ):
            if is_here and at != end:
                raise PartitionError(
                    f"what is {side} the layers is on {stage}, and {program} has it on "
                    f"{stages[end]}; pin it there"
                )
        if not stage.count and not bare_ends:
            raise PartitionError(
                f"{stage} has no layer, and {program}'s stages have one or more; plan for fewer "
                "devices, or keep the ends with a layer"
            )
