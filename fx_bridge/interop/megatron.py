"""What runs again in the words of Megatron-LM and of FlagScale: layers by number.

Both count the layers of a pipeline stage. Megatron's ``--recompute-granularity full`` runs whole
layers again: all of them (``uniform``, in units of one or more), or the first ones of every stage
(``block``). ``selective`` runs parts of all layers again, such as the core of attention. FlagScale
has a number for each stage. Written after the sources of 2025: of Megatron-LM
``transformer_config.py``, ``transformer_block.py`` and ``pipeline_parallel_layer_layout.py``, of
FlagScale ``arguments_fs.py``. Neither was run.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fx_bridge.capture.attention import attention_cores
from fx_bridge.capture.graph import CapturedGraph, check_captured
from fx_bridge.capture.layers import layer_calls, repeated_modules
from fx_bridge.capture.modules import ModuleCall
from fx_bridge.interop.checkpoints import WholeModules
from fx_bridge.recomputation.decisions import problem_with_regions
from fx_bridge.split.checks import check_total
from solver import PartitionError, PartitionPlan, PartitionProblem
from solver.model.checks import check_natural
from solver.model.quantities import counted

_ADVICE: Final = "plan with recompute='layers'"


def megatron_arguments(
    captured: CapturedGraph, plan: PartitionPlan, *, problem: PartitionProblem | None = None
) -> list[str]:
    """Return a plan as arguments of Megatron-LM: the layers of stages, and what runs again.

    Parameters
    ----------
    plan : PartitionPlan
        Its stages must be runs of whole layers, all of one list, with what is before the first
        layer on the first stage and what is after the last one on the last.
    problem : PartitionProblem, optional
        Which the plan is a plan of. Needed only if something runs again.

    Raises
    ------
    PartitionError
        In one line: which stage or layer Megatron has no words for, and the nearest that it has.

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
    stages = _StagesOfLayers(captured, plan, problem, "Megatron")
    counts = [len(layers) for layers in stages.layers]
    parts = [f"t*{count}" if count > 1 else "t" * count for count in counts]
    words = ["--pipeline-model-parallel-size", str(len(plan.device_order))]
    words += ["--pipeline-model-parallel-layout", f"E{'|'.join(parts)}L"]
    options = stages.same_for_all()
    if options is None:
        options = {"granularity": "full", "method": "block", "num_layers": stages.first_of_all()}
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
    """Return a plan as settings of FlagScale: the layers of stages, and how many run again.

    Parameters
    ----------
    plan : PartitionPlan
        As :func:`megatron_arguments` takes it, with a layer or more on each stage, and one chunk.
    microbatches : int
        Of a step, which FlagScale wants to be told for each stage.
    problem : PartitionProblem, optional
        Which the plan is a plan of. Needed only if something runs again.

    Returns
    -------
    dict of str to object
        What belongs below ``train: system:`` in FlagScale's YAML.

    Raises
    ------
    PartitionError
        In one line: which stage or layer FlagScale has no words for, and the nearest that it has.
    """
    check_natural(microbatches, "microbatches")
    stages = _StagesOfLayers(captured, plan, problem, "FlagScale")
    counts = [len(layers) for layers in stages.layers]
    if plan.chunks:
        raise PartitionError(
            "the plan has several chunks on a device, and FlagScale's hetero_pipeline_layer_split "
            "has none; plan with chunks_per_device=1"
        )
    for stage, count in zip(plan.stages, counts, strict=True):
        if not count:
            raise PartitionError(
                f"{stage} has no layer, and FlagScale's stages have one or more; plan for fewer "
                "devices"
            )
    settings: dict[str, object] = {
        "pipeline_model_parallel_size": len(counts),
        "hetero": {"hetero_pipeline_layer_split": counts},
    }
    options = stages.same_for_all()
    if options is not None:
        return settings | {f"recompute_{name}": value for name, value in options.items()}
    again = stages.first_layers_again()
    # Each entry: of how many stages, then of how many microbatches, and what for these.
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


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer: its call, and its operators in execution order."""

    call: ModuleCall
    operators: tuple[str, ...]


class _StagesOfLayers:
    """The layers of every stage of a plan, and which of them run again.

    Attributes
    ----------
    layers : list of list of _Layer
        By stage, in execution order.
    """

    def __init__(
        self,
        captured: CapturedGraph,
        plan: PartitionPlan,
        problem: PartitionProblem | None,
        program: str,
    ) -> None:
        check_captured(captured, "read the layers of", "megatron_arguments(captured, plan)")
        check_total(captured, plan)
        self._captured, self._plan, self._program = captured, plan, program
        self._modules: WholeModules | None = None
        if plan.recomputed:
            problem = problem_with_regions(captured, plan, problem)
            self._modules = WholeModules(captured, plan, problem)
        members: dict[ModuleCall, list[str]] = {}
        self._outside: list[str] = []
        for name, call in layer_calls(captured).items():
            (self._outside if call is None else members.setdefault(call, [])).append(name)
        all_layers = [_Layer(call, tuple(names)) for call, names in members.items()]
        self._check_list(all_layers)
        self.layers: list[list[_Layer]] = [[] for _ in plan.stages]
        for layer in all_layers:
            self.layers[self._stage_of(layer)].append(layer)
        self._check_order(all_layers)
        self._check_ends(all_layers)

    # -- where layers are ------------------------------------------------------------------

    def _check_list(self, layers: Sequence[_Layer]) -> None:
        paths = [layer.call.path for layer in layers]
        lists = list(
            dict.fromkeys(path.rpartition(".")[0] for path in repeated_modules(self._captured))
        )
        if len(lists) != 1:
            has = f"lists {' and '.join(map(repr, lists))}" if lists else "none that repeat"
            raise PartitionError(
                f"{self._program} has one list of layers, and the model has {has}; use "
                "checkpointed_modules"
            )
        for path in paths:
            if paths.count(path) > 1:
                raise PartitionError(
                    f"layer {path!r} is called several times, and {self._program} calls each once; "
                    "use checkpointed_modules"
                )

    def _stage_of(self, layer: _Layer) -> int:
        index = self._plan.stage_index
        first = {index[name]: name for name in reversed(layer.operators)}
        if len(first) > 1:
            where = " and ".join(
                f"{self._plan.stages[stage]} ({first[stage]!r})" for stage in sorted(first)
            )
            raise PartitionError(
                f"the plan divides layer {layer.call.path!r} between {where}, and {self._program} "
                f"has whole layers; plan with Placement(keep_whole=[{layer.call.path!r}])"
            )
        return next(iter(first))

    def _check_order(self, layers: Sequence[_Layer]) -> None:
        found = [layer for own in self.layers for layer in own]
        for layer, expected in zip(found, layers, strict=True):
            if layer is not expected:
                raise PartitionError(
                    f"layer {layer.call.path!r} is on {self._plan.stages[self._stage_of(layer)]}, "
                    f"before {expected.call.path!r}, and {self._program} has layers in order; plan "
                    "with solver='chain'"
                )
        plan = self._plan
        rounds = len(plan.stages) // len(plan.device_order)
        if rounds * len(plan.device_order) != len(plan.stages):
            raise PartitionError(
                f"not all devices have as many chunks, and {self._program} gives each as many; "
                "plan with chunks_per_device=1"
            )
        for stage, own in list(zip(plan.stages, self.layers, strict=True))[1:-1]:
            if not own:
                raise PartitionError(
                    f"{stage} has no layer, and {self._program} has none without but the first "
                    "and the last; plan for fewer devices"
                )

    def _check_ends(self, layers: Sequence[_Layer]) -> None:
        """Raise if weights outside of layers are not where the first or the last stage is."""
        weights = self._captured.storage_table.weights_read
        place = {node.name: at for at, node in enumerate(self._captured.operators)}
        begin = place[layers[0].operators[0]]
        for name in self._outside:
            end = self._plan.stages[0 if place[name] < begin else -1]
            if weights.get(name) and self._plan.stage_of(name) != end:
                side = "before" if place[name] < begin else "after"
                raise PartitionError(
                    f"operator {name!r}, {side} the layers, is on {self._plan.stage_of(name)}, and "
                    f"{self._program} has it on {end}; pin it there"
                )

    # -- what of them runs again -----------------------------------------------------------

    def same_for_all(self) -> dict[str, object] | None:
        """Return the options that say it for all stages without counting; None if none do."""
        if self._modules is None:
            return {}
        if self._runs_cores_again(self._modules):
            return {"granularity": "selective", "modules": "core_attn"}
        for unit in range(1, 1 + max(map(len, self.layers))):
            unit_of = {
                name: (stage, at // unit)
                for stage, layers in enumerate(self.layers)
                for at, layer in enumerate(layers)
                for name in layer.operators
            }
            if self._is_all(self._modules, unit_of):
                return {"granularity": "full", "method": "uniform", "num_layers": unit}
        return None

    def _is_all(self, modules: WholeModules, group_of: Mapping[str, Hashable]) -> bool:
        """Return whether groups run again as a whole, each of them, and nothing else does."""
        again = {group_of[name] for name in self._plan.recomputed & group_of.keys()}
        return (
            self._plan.recomputed <= group_of.keys()
            and again == set(group_of.values())
            and modules.is_whole(group_of)
            and not any(modules.effects(group_of))
        )

    def _runs_cores_again(self, modules: WholeModules) -> bool:
        """Return whether the cores of attention of all layers run again, and nothing else."""
        core_of = {
            name: at for at, core in enumerate(attention_cores(self._captured)) for name in core
        }
        inside = {name for own in self.layers for layer in own for name in layer.operators}
        have = (
            not core_of.keys().isdisjoint(layer.operators) for own in self.layers for layer in own
        )
        return all(have) and core_of.keys() <= inside and self._is_all(modules, core_of)

    def first_of_all(self) -> int:
        """Return how many first layers run again of every stage, or all where it has fewer."""
        again = self.first_layers_again()
        most = max(again)
        for stage, first, layers in zip(self._plan.stages, again, self.layers, strict=True):
            if first < min(most, len(layers)):
                other = self._plan.stages[again.index(most)]
                all_of_it = counted(len(layers), "layer")
                raise PartitionError(
                    f"{stage} runs {first} of {all_of_it} again and {other} {most}, and "
                    f"{self._program}'s block has one number for all stages; FlagScale has one for "
                    f"each, and the nearest of {self._program} is {most} of every stage"
                )
        return most

    def first_layers_again(self) -> list[int]:
        """Return how many layers run again of each stage, which must be its first ones."""
        for name in self._outside:
            if name in self._plan.recomputed:
                raise PartitionError(
                    f"operator {name!r} on {self._plan.stage_of(name)} is in no layer and runs "
                    f"again, and {self._program} runs only layers again; {_ADVICE}"
                )
        counts = []
        for stage, layers in zip(self._plan.stages, self.layers, strict=True):
            runs = [self._runs_again(layer) for layer in layers]
            count = sum(runs)
            if not all(runs[:count]):
                again = layers[runs.index(True, runs.index(False))].call.path
                nearest = ", ".join(repr(layer.call.path) for layer in layers[:count])
                raise PartitionError(
                    f"{stage} runs layer {again!r} again but not "
                    f"{layers[runs.index(False)].call.path!r} before it, and {self._program} runs "
                    f"the first layers of a stage again; the nearest is {nearest}"
                )
            counts.append(count)
        return counts

    def _runs_again(self, layer: _Layer) -> bool:
        """Return whether a layer runs again; PartitionError if a part of it does."""
        again = self._plan.recomputed.intersection(layer.operators)
        if not again or self._modules is None:
            return False
        if not self._modules.is_whole(dict.fromkeys(layer.operators, layer.call)):
            raise PartitionError(
                f"{min(again)!r} of layer {layer.call.path!r} on "
                f"{self._plan.stage_of(layer.operators[0])} runs again but not all of it, and "
                f"{self._program} runs whole layers again, or the cores of attention of all; "
                f"{_ADVICE}"
            )
        self._modules.check_effects(layer.call.path, layer.operators)
        return True
