"""Equal numbers of layers on every device, the usual split by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from experiments.planners.balancers import partition_uniform
from experiments.planners.sequence import LayerSequence
from experiments.planners.task import PlannerAnswer, PlannerSpec, PlanningTask, judged
from solver import PartitionError, SolveLimits
from solver.model.quantities import counted
from solver.model.text import printable

if TYPE_CHECKING:
    import torch

    from fx_bridge.capture.graph import CapturedGraph

_NAME: Final = "uniform-layers"


def repeated_layers(module: torch.nn.Module, captured: CapturedGraph) -> list[tuple[str, ...]]:
    """Return the operators of every layer of a model, in execution order of the layers.

    Layers are the members of the outermost lists of modules (``ModuleList``, ``Sequential``) that
    have several members with operators, such as the blocks of an encoder or decoder.
    """
    from torch import nn

    from fx_bridge.capture.modules import module_operators

    operators = module_operators(captured)
    found: list[tuple[str, ...]] = []

    def collect(parent: nn.Module, prefix: str) -> None:
        children = [
            (f"{prefix}{name}", child)
            for name, child in parent.named_children()
            if operators.get(f"{prefix}{name}")
        ]
        if isinstance(parent, (nn.ModuleList, nn.Sequential)) and len(children) > 1:
            found.extend(operators[path] for path, _ in children)
            return
        for path, child in children:
            collect(child, f"{path}.")

    collect(module, "")
    place = {node.name: at for at, node in enumerate(captured.operators)}
    return sorted(found, key=lambda names: place[names[0]])


def _plan(task: PlanningTask, limits: SolveLimits) -> PlannerAnswer:
    loaded, captured = task.model(_NAME)
    blocks = repeated_layers(loaded.module, captured)
    if not blocks:
        raise PartitionError(
            f"model {printable(loaded.name)} has no list of layers: no ModuleList or Sequential "
            "with several modules"
        )
    layers = LayerSequence.of(task.problem)
    unit_of = layers.units.unit_of_operator
    index_of = task.problem.index_of
    # Operators before the first layer join it, and operators after a layer join that layer.
    first = [min(unit_of[index_of[name]] for name in names) for names in blocks]
    starts = sorted([0, *first[1:], len(layers)])
    ends = [starts[end] for end in partition_uniform(len(blocks), layers.stage_count)]
    most = -(-len(blocks) // layers.stage_count)
    words = f"{counted(len(blocks), 'layer')} in stages of at most {most}"
    return judged(_NAME, task.problem, layers.plan(ends), words)


UNIFORM_PLANNERS: Final = (
    PlannerSpec(
        _NAME,
        "equal numbers of the model's own layers; no times, no sizes",
        "the usual hand-made split of a ModuleList",
        _plan,
        needs_model=True,
    ),
)
