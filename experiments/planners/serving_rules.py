"""Default rules by which serving engines split a model, as plans of the solved problem.

Given only its devices, an engine decides the layers of each by a rule. A rule here returns those
stages; the evaluator determines their costs and the tokens that fit, as for any plan. Devices keep
their given order.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from torch import nn

from experiments.planners.device_maps import MAPPERS, device_map_of, spilled
from experiments.planners.served import EngineRule, ServedPlan
from fx_bridge.interop.layered_model import LayeredModel
from fx_bridge.interop.llama_cpp import stages_by_shares
from fx_bridge.interop.stage_layers import LayerNames, StageLayers, is_host
from fx_bridge.interop.words import stages_of_counts
from fx_bridge.presentation.modules import enclosing
from fx_bridge.serving.plan import ServingPlan
from solver import Device, PartitionError, PartitionPlan
from solver.evaluation.evaluate import Evaluation
from solver.model.job import Job
from solver.serving.contexts import Contexts
from solver.serving.metrics import evaluate_phases, metrics_of

Stages = Callable[[LayerNames, Sequence[Device], nn.Module], list[StageLayers]]
"""Function of the names of a model's modules, the devices and the model; raises PartitionError for
inputs that the engine refuses."""


def served_by_rules(
    found: ServingPlan, model: nn.Module, engine: str | None = None
) -> tuple[ServedPlan | None, list[ServedPlan]]:
    """Return the performance of the plan, if any, and of each rule, or that of `engine` alone.

    `found` is a plan of `model`, with ``any_context`` unless the objective was ``context``.
    """
    rules = [rule for rule in SERVING_RULES if engine in (None, rule.name)]
    judge = _Judge(found.asked)
    ours = None
    if found.solved.plan is not None:
        counts = {device: len(layers) for device, layers in found.layers.items()}
        ours = judge.served("plan", counts, found.solved.plan)
    answers: list[ServedPlan] = []
    try:
        graphs = [LayeredModel(captured, "an engine") for captured in found.graphs.values()]
    except PartitionError as error:
        return ours, [ServedPlan(rule.name, {}, reason=str(error)) for rule in rules]
    for rule in rules:
        try:
            stages = rule.plan(graphs[0].names, judge.devices, model)
            plan = _plan_of(graphs, stages)
        except PartitionError as error:
            answers.append(ServedPlan(rule.name, {}, reason=str(error)))
            continue
        counts = {stage.device: stage.count for stage in stages}
        answers.append(judge.served(rule.name, counts, plan))
    return ours, answers


def _plan_of(graphs: Sequence[LayeredModel], stages: Sequence[StageLayers]) -> PartitionPlan:
    """Merge the plans of all graphs of a step."""
    plans = [graph.plan_of(stages) for graph in graphs]
    # An operator of several graphs is in the same layer of each.
    assignment = {name: device for plan in plans for name, device in plan.assignment.items()}
    return PartitionPlan(assignment, plans[0].device_order)


class _Judge:
    """Evaluator of plans of one job."""

    def __init__(self, job: Job) -> None:
        self._job, self._contexts = job, Contexts(job)
        self._least = self._contexts.at(1)
        self.devices = next(iter(job.phases.values())).devices

    def served(self, name: str, counts: Mapping[str, int], plan: PartitionPlan) -> ServedPlan:
        layers = {device.name: counts.get(device.name, 0) for device in self.devices}
        if broken := _broken(evaluate_phases(self._least, plan)):
            return ServedPlan(name, layers, plan, reason=broken)
        most = self._contexts.most(plan, 1)
        tokens = None if most is None else self._job.batch * most
        phases = evaluate_phases(self._job, plan)
        if _broken(phases):
            reason = f"a context of {self._job.context} does not fit"
            return ServedPlan(name, layers, plan, tokens, reason=reason)
        return ServedPlan(name, layers, plan, tokens, metrics_of(self._job, plan, phases))


def _broken(phases: Mapping[str, Evaluation]) -> str:
    """Return the first violation of a plan in words, or empty."""
    return next((text for each in phases.values() for text in each.violations), "")


# -- the rules ---------------------------------------------------------------------------------


def vllm_counts(layers: int, ranks: int) -> list[int]:
    """Divide layers equally; the remainder goes to the last rank but one and those before it.

    Examples
    --------
    >>> vllm_counts(41, 3)
    [14, 14, 13]
    """
    counts = [layers // ranks] * ranks
    for back in range(2, layers % ranks + 2):
        counts[-back] += 1
    return counts


def sglang_counts(layers: int, ranks: int) -> list[int]:
    """Divide layers equally; the remainder goes to the last ranks.

    Examples
    --------
    >>> sglang_counts(41, 3)
    [13, 14, 14]
    """
    whole, rest = divmod(layers, ranks)
    return [whole + (rank >= ranks - rest) for rank in range(ranks)]


def transformers_counts(layers: int, ranks: int) -> list[int]:
    """Divide layers equally; the remainder goes to the last rank.

    Examples
    --------
    >>> transformers_counts(61, 8)
    [7, 7, 7, 7, 7, 7, 7, 12]
    """
    return [*[layers // ranks] * (ranks - 1), layers // ranks + layers % ranks]


def exo_counts(layers: int, memory_bytes: Sequence[int]) -> list[int]:
    """Divide layers by memory, at least one each; the rest goes to the largest remainders.

    Examples
    --------
    >>> exo_counts(10, [24, 12, 1])
    [6, 3, 1]
    """
    # In exo's own order of operations, for the same ties.
    shares = [size_bytes / sum(memory_bytes) * layers for size_bytes in memory_bytes]
    counts = [int(share) for share in shares]
    by_rest = sorted(range(len(shares)), key=lambda at: counts[at] - shares[at])
    for at in by_rest[: layers - sum(counts)]:
        counts[at] += 1
    for at, count in enumerate(counts):
        if not count:
            counts[counts.index(max(counts))] -= 1
            counts[at] = 1
    return counts


def _by_rank(
    program: str,
    counts: Callable[[int, int], list[int]],
    names: LayerNames,
    devices: Sequence[Device],
    model: nn.Module,
) -> list[StageLayers]:
    layers, order = len(names.layers), _names(_gpus(devices, program))
    return stages_of_counts(counts(layers, len(order)), layers, order, program)


def _exo(names: LayerNames, devices: Sequence[Device], model: nn.Module) -> list[StageLayers]:
    nodes = _gpus(devices, "exo")
    counts = exo_counts(len(names.layers), _memory_bytes(nodes, "exo"))
    return stages_of_counts(counts, len(names.layers), _names(nodes), "exo")


def _llama_cpp(names: LayerNames, devices: Sequence[Device], model: nn.Module) -> list[StageLayers]:
    gpus = _gpus(devices, "llama.cpp")
    host = next((device.name for device in devices if is_host(device.name)), None)
    shares = _memory_bytes(gpus, "llama.cpp")
    return stages_by_shares(shares, len(names.layers), _names(gpus), host)


def _by_device_map(
    name: str, names: LayerNames, devices: Sequence[Device], model: nn.Module
) -> list[StageLayers]:
    """Return the stages of a device map: its layers, the first embedding and the head."""
    gpus = _gpus(devices, name)
    device_map = device_map_of(MAPPERS[name], model, gpus)
    _, reason = spilled(model, device_map)
    if reason:
        raise PartitionError(reason)
    ends = (names.embedding[:1], names.layers, names.head[-1:])
    places = [_place(path, device_map) for part in ends for path in part]
    order = list(dict.fromkeys(places))
    for one, other in itertools.pairwise(places):
        if order.index(one) > order.index(other):
            raise PartitionError(f"data comes back to {gpus[other].name}, which no plan here does")
    counts = [_place(path, device_map) for path in names.layers]
    return [
        StageLayers(gpus[at].name, counts.count(at), at == places[0], at == places[-1])
        for at in order
    ]


def _place(path: str, device_map: Mapping[str, int]) -> int:
    return [device_map[prefix] for prefix in ("", *enclosing(path)) if prefix in device_map][-1]


def _gpus(devices: Sequence[Device], program: str) -> list[Device]:
    found = [device for device in devices if not is_host(device.name)]
    if not found:
        raise PartitionError(f"{program} has no device but the host; add such as 24GB")
    return found


def _names(devices: Sequence[Device]) -> list[str]:
    return [device.name for device in devices]


def _memory_bytes(devices: Sequence[Device], program: str) -> list[int]:
    found = [device.memory_bytes for device in devices if device.memory_bytes is not None]
    if len(found) < len(devices):
        raise PartitionError(f"{program} divides layers by memory; write that of every device")
    return found


SERVING_RULES: Final[tuple[EngineRule[Stages], ...]] = (
    EngineRule(
        "vllm", "vllm/distributed/utils.py: get_pp_indices", partial(_by_rank, "vLLM", vllm_counts)
    ),
    EngineRule(
        "sglang",
        "sglang/srt/distributed/utils.py: get_pp_indices",
        partial(_by_rank, "SGLang", sglang_counts),
    ),
    EngineRule(
        "transformers",
        "transformers/distributed/pipeline_parallel.py: PipelineStage.layer_range_for_rank",
        partial(_by_rank, "transformers", transformers_counts),
    ),
    EngineRule("llama.cpp", "src/llama-model.cpp: load_tensors", _llama_cpp),
    EngineRule("exo", "exo/master/placement_utils.py: allocate_layers_proportionally", _exo),
    EngineRule(
        "accelerate", "accelerate.infer_auto_device_map", partial(_by_device_map, "accelerate")
    ),
    EngineRule(
        "transformers-auto",
        "transformers.integrations.accelerate: device_map='auto'",
        partial(_by_device_map, "transformers-auto"),
    ),
)
"""Rules read from sources of 2025 and 2026; the last two are called."""
