"""Recomputation as settings of Megatron-LM and of FlagScale: layers by number.

Both count the layers of a pipeline stage. Megatron's ``--recompute-granularity full`` recomputes
whole layers: all of them (``uniform``, in units of one or more), or the first ones of every stage
(``block``). ``selective`` recomputes parts of all layers, such as the core of attention. FlagScale
has a number for each stage. Based on the sources of 2025, without a test against the programs:
Megatron-LM ``transformer_config.py``, ``transformer_block.py`` and
``pipeline_parallel_layer_layout.py``, FlagScale ``arguments_fs.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Final

from fx_bridge.capture.attention import attention_cores
from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.interop.checkpoints import WholeModules
from fx_bridge.interop.layered_model import Layer, LayeredModel
from fx_bridge.interop.megatron_layout import write_layout
from fx_bridge.interop.nearest import suggesting_nearest
from fx_bridge.interop.stage_layers import LayerNames, StageLayers, check_stages
from fx_bridge.interop.words import order_setting
from fx_bridge.recomputation.decisions import problem_with_regions
from fx_bridge.split.checks import check_total
from solver import PartitionError, PartitionPlan, PartitionProblem
from solver.model.checks import check_natural
from solver.model.quantities import counted

_ADVICE: Final = "plan with recompute='layers'"


def megatron_arguments(
    captured: CapturedGraph, plan: PartitionPlan, *, problem: PartitionProblem | None = None
) -> list[str]:
    """Return a plan as arguments of Megatron-LM: the layers of stages, and the recomputed layers.

    Parameters
    ----------
    plan : PartitionPlan
        Its stages must be runs of whole layers, all of one list, with the modules before the first
        layer on the first stage and those after the last one on the last.
    problem : PartitionProblem, optional
        The problem of the plan. Needed only if the plan recomputes operators; else an error gives
        the cost of the nearest plan by it.

    Raises
    ------
    PartitionError
        In one line: the stage or layer that Megatron cannot express, and the nearest that it can.

    Examples
    --------
    >>> import torch
    >>> from fx_bridge.capture.graph import capture
    >>> layers = [torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in range(3)]
    >>> captured = capture(torch.nn.Sequential(*layers), (torch.ones(1, 4),))
    >>> devices = ["cuda:0"] * 4 + ["cuda:1"] * 2
    >>> names = [node.name for node in captured.operators]
    >>> plan = PartitionPlan(dict(zip(names, devices)), ("cuda:0", "cuda:1"))
    >>> print(*megatron_arguments(captured, plan))
    --pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*2|tL
    """
    again = _LayersAgain(captured, plan, problem, "Megatron", write_layout)
    words = write_layout(again.model.names, again.stages)
    options = again.same_for_all()
    if options is None:
        options = {"granularity": "full", "method": "block", "num_layers": again.first_of_all()}
    for name, value in options.items():
        words += [f"--recompute-{name.replace('_', '-')}", str(value)]
    return words


def flagscale_settings(
    captured: CapturedGraph,
    plan: PartitionPlan,
    microbatches: int,
    *,
    problem: PartitionProblem | None = None,
) -> dict[str, object]:
    """Return a plan as settings of FlagScale: the layers of stages, and the recomputed layers.

    Parameters
    ----------
    plan : PartitionPlan
        As for :func:`megatron_arguments`, with a layer or more on each stage, and one chunk.
    microbatches : int
        Microbatches of a step, which FlagScale repeats for each stage.
    problem : PartitionProblem, optional
        The problem of the plan. Needed only if the plan recomputes operators.

    Returns
    -------
    dict of str to object
        The settings below ``train: system:`` in FlagScale's YAML.

    Raises
    ------
    PartitionError
        In one line: the stage or layer that FlagScale cannot express, and the nearest that it can.
    """
    check_natural(microbatches, "microbatches")
    layers = _LayersAgain(
        captured, plan, problem, "FlagScale", lambda _, stages: check_stages("FlagScale", stages)
    )
    counts = [stage.count for stage in layers.stages]
    settings: dict[str, object] = {
        "pipeline_model_parallel_size": len(counts),
        "hetero": {"hetero_pipeline_layer_split": counts},
        **order_setting(layers.stages),
    }
    options = layers.same_for_all()
    if options is not None:
        return settings | {f"recompute_{name}": value for name, value in options.items()}
    again = layers.first_layers_again()
    # Each entry: number of stages, number of microbatches, value for these.
    return {
        **settings,
        "recompute_granularity": "full",
        "recompute_method": "block",
        "recompute_num_layers": max(again),
        "recompute_granularity_per_stage_micro_batch": [
            [1, microbatches, int(count > 0)] for count in again
        ],
        "recompute_method_per_stage_micro_batch": [[len(again), microbatches, 1]],
        "recompute_num_layers_per_stage_micro_batch": [[1, microbatches, n] for n in again],
    }


class _LayersAgain:
    """The layers of a plan's stages, which `write` can express, and those that run again."""

    def __init__(
        self,
        captured: CapturedGraph,
        plan: PartitionPlan,
        problem: PartitionProblem | None,
        program: str,
        write: Callable[[LayerNames, Sequence[StageLayers]], object],
    ) -> None:
        check_total(captured, plan)
        self._captured, self._plan, self._program = captured, plan, program
        self._modules: WholeModules | None = None
        if plan.recomputed:
            problem = problem_with_regions(captured, plan, problem)
            self._modules = WholeModules(captured, plan, problem)
        self.model = LayeredModel(captured, program)
        check = partial(write, self.model.names)
        with suggesting_nearest(self.model, plan, check, problem):
            self.stages, self._layers = self.model.stages_of(plan)
            check(self.stages)

    def same_for_all(self) -> dict[str, object] | None:
        """Return options that hold for all stages without counts; None if there are none."""
        if self._modules is None:
            return {}
        if self._runs_cores_again(self._modules):
            return {"granularity": "selective", "modules": "core_attn"}
        for unit in range(1, 1 + max(map(len, self._layers))):
            unit_of = {
                name: (stage, at // unit)
                for stage, layers in enumerate(self._layers)
                for at, layer in enumerate(layers)
                for name in layer.operators
            }
            if self._is_all(self._modules, unit_of):
                return {"granularity": "full", "method": "uniform", "num_layers": unit}
        return None

    def _is_all(self, modules: WholeModules, group_of: Mapping[str, Hashable]) -> bool:
        """Return True if each group runs again as a whole, and no other operator does."""
        again = {group_of[name] for name in self._plan.recomputed & group_of.keys()}
        return (
            self._plan.recomputed <= group_of.keys()
            and again == set(group_of.values())
            and modules.is_whole(group_of)
            and not any(modules.effects(group_of))
        )

    def _runs_cores_again(self, modules: WholeModules) -> bool:
        """Return True if the attention cores of all layers run again, and nothing else."""
        core_of = {
            name: at for at, core in enumerate(attention_cores(self._captured)) for name in core
        }
        inside = {name for own in self._layers for layer in own for name in layer.operators}
        have = (
            not core_of.keys().isdisjoint(layer.operators) for own in self._layers for layer in own
        )
        return all(have) and core_of.keys() <= inside and self._is_all(modules, core_of)

    def first_of_all(self) -> int:
        """Return the number of first layers that every stage runs again, or all if it has fewer."""
        again = self.first_layers_again()
        most = max(again)
        for stage, first, layers in zip(self.stages, again, self._layers, strict=True):
            if first < min(most, len(layers)):
                other = self.stages[again.index(most)]
                all_of_it = counted(len(layers), "layer")
                raise PartitionError(
                    f"{stage} runs {first} of {all_of_it} again and {other} {most}, and "
                    f"{self._program}'s block has one number for all stages; FlagScale has one for "
                    f"each, and the nearest of {self._program} is {most} of every stage"
                )
        return most

    def first_layers_again(self) -> list[int]:
        """Return the number of layers that each stage runs again, which must be its first ones."""
        for name in self.model.outside:
            if name in self._plan.recomputed:
                raise PartitionError(
                    f"operator {name!r} on {self._plan.stage_of(name)} is in no layer and runs "
                    f"again, and {self._program} runs only layers again; {_ADVICE}"
                )
        counts = []
        for stage, layers in zip(self.stages, self._layers, strict=True):
            runs = [self._runs_again(layer) for layer in layers]
            count = sum(runs)
            if not all(runs[:count]):
                again = layers[runs.index(True, runs.index(False))].path
                nearest = ", ".join(repr(layer.path) for layer in layers[:count])
                raise PartitionError(
                    f"{stage} runs layer {again!r} again but not "
                    f"{layers[runs.index(False)].path!r} before it, and {self._program} runs "
                    f"the first layers of a stage again; the nearest is {nearest}"
                )
            counts.append(count)
        return counts

    def _runs_again(self, layer: Layer) -> bool:
        """Return True if a layer runs again; PartitionError if only a part of it does."""
        again = self._plan.recomputed.intersection(layer.operators)
        if not again or self._modules is None:
            return False
        if not self._modules.is_whole(dict.fromkeys(layer.operators, layer.path)):
            raise PartitionError(
                f"{min(again)!r} of layer {layer.path!r} on "
                f"{self._plan.stage_of(layer.operators[0])} runs again but not all of it, and "
                f"{self._program} runs whole layers again, or the cores of attention of all; "
                f"{_ADVICE}"
            )
        self._modules.check_effects(layer.path, layer.operators)
        return True
