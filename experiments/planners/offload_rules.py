"""Offload rules of other programs, as offload plans for the common evaluator.

A rule decides which units are resident, streamed or on the host, and the start of loads. Units
that it moves together become one unit of a restated instance. Costs outside the timeline are not
counted: without streams, diffusers also copies groups back to the host.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from experiments.planners.served import EngineRule, ServedPlan
from experiments.planners.task import PlannerAnswer, PlannerSpec, PlanningTask
from fx_bridge.interop.llama_cpp_experts import OP_OFFLOAD_TOKENS
from solver import PartitionError, SolveLimits, SolveResult, SolveStatus
from solver.model.job import Job
from solver.model.plan import PartitionPlan
from solver.offload.evaluate import OffloadEvaluation, evaluate_offload
from solver.offload.greedy import filled
from solver.offload.instance import OffloadInstance
from solver.offload.rounds import Prefetch
from solver.offload.units import UNIT_MODES, Unit, UnitMode
from solver.serving.metrics import hosted_metrics

if TYPE_CHECKING:
    from fx_bridge.serving.hosted import HostedPlan


@dataclass(frozen=True, slots=True)
class OffloadChain:
    """A problem of one phase, with the properties of its units that rules need.

    `block_of` is the block of each unit, such as a layer; None outside all lists of blocks.
    `tokens` are those of all sequences in one forward; `experts` the units that hold the experts of
    a mixture.
    """

    instance: OffloadInstance
    block_of: Sequence[str | None]
    tokens: int = 1
    experts: frozenset[str] = frozenset()


RulePlan: TypeAlias = tuple[PartitionPlan, OffloadEvaluation]
"""The plan of a rule with its cost, for an instance that may be restated."""
OffloadRule: TypeAlias = EngineRule[Callable[[OffloadChain], RulePlan]]


def served_by_offload_rules(found: HostedPlan) -> tuple[ServedPlan | None, list[ServedPlan]]:
    """Return the performance of the plan, if any, and of each rule for the requested context.

    Parts are numbers of units in each mode, those of a rule for a token. A rule may treat phases
    differently, as llama.cpp does, at no cost for the change.
    """
    from fx_bridge.serving.halves import parts_of_units

    ours, rules = None, list[ServedPlan]()
    if found.solved.plan is not None:
        ours = _served("plan", found.asked, [(found.plan, found.evaluation)])
    instance, chains = OffloadInstance.of(found.asked), list[OffloadChain]()
    for at, (tokens, captured) in enumerate(found.graphs.items()):
        halves = parts_of_units(captured, found.asked.units)
        experts = frozenset(unit for unit, half in halves.items() if half.has_experts)
        blocks = [half.layer for half in halves.values()]
        rows = found.request.batch * tokens
        chains.append(OffloadChain(_of_phase(instance, at), blocks, rows, experts))
    for rule in OFFLOAD_RULES:
        try:
            rules.append(_served(rule.name, found.asked, costs_of_rule(rule, chains)))
        except PartitionError as error:
            rules.append(ServedPlan(rule.name, {}, reason=str(error)))
    return ours, rules


def _served(name: str, job: Job, costs: Sequence[RulePlan]) -> ServedPlan:
    """Return the performance of the plans of some phases."""
    times_ns = {phase: ns for _, cost in costs for phase, ns in cost.times_ns.items()}
    plan, cost = next(each for each in costs if job.token_phase in each[1].times_ns)
    have = Counter(mode for _, mode in cost.instance.units_of(plan).values())
    most = min(math.inf if cost.most_tokens is None else cost.most_tokens for _, cost in costs)
    return ServedPlan(
        name,
        {mode: have[mode] for mode in UNIT_MODES},
        plan,
        None if math.isinf(most) else int(most),
        hosted_metrics(job, times_ns),
    )


def _of_phase(instance: OffloadInstance, at: int) -> OffloadInstance:
    """Return the instance of one forward of a phase, by its position."""
    units = tuple(
        replace(unit, run_ns=unit.run_ns[at : at + 1], host_ns=unit.host_ns[at : at + 1])
        for unit in instance.units
    )
    return replace(
        instance,
        units=units,
        phases=instance.phases[at : at + 1],
        counts=(1,),
        objective="token",
        stage_hop_ns=instance.stage_hop_ns[at : at + 1],
        host_hop_ns=instance.host_hop_ns[at : at + 1],
        first_token_limit_ns=None,
    )


def costs_of_rule(rule: OffloadRule, chains: Sequence[OffloadChain]) -> list[RulePlan]:
    """Return the plan of a rule and its cost by phase; raise PartitionError unless they fit."""
    found = [rule.plan(chain) for chain in chains]
    for _, cost in found:
        if cost.violations:
            raise PartitionError(cost.violations[0])
    return found


def _judged(
    instance: OffloadInstance, devices: Sequence[int], modes: Sequence[UnitMode], when: Prefetch
) -> RulePlan:
    plan = instance.plan(devices, modes)
    return plan, evaluate_offload(instance, plan, prefetch=when)


# -- units resident as long as they fit --------------------------------------------------------


def _accelerate_auto(chain: OffloadChain) -> RulePlan:
    # Accelerate runs streamed modules on its main device, the first; here that comes last, to
    # keep stages in order.
    turned = chain.instance.on(range(len(chain.instance.devices))[::-1])
    return _judged(turned, *filled(turned, "streamed"), "none")


def _by_llama_cpp(
    chain: OffloadChain, *, op_offload: bool = True, passed: frozenset[str] = frozenset()
) -> RulePlan:
    """Keep the first layers on the host; for many tokens they are streamed when due."""
    is_copied = op_offload and chain.tokens >= OP_OFFLOAD_TOKENS
    other: UnitMode = "streamed" if is_copied else "host"
    state = filled(chain.instance, other, from_end=True, passed=passed)
    return _judged(chain.instance, *state, "none")


def _experts_on_host(chain: OffloadChain, *, every: bool) -> RulePlan:
    """Keep all experts on the host, or those of as few first layers as necessary."""
    experts = [unit.name for unit in chain.instance.units if unit.name in chain.experts]
    if not experts:
        raise PartitionError("the model has no experts")
    for count in range(len(experts) if every else 0, len(experts) + 1):
        made = _by_llama_cpp(chain, passed=frozenset(experts[:count]))
        plan, cost = made
        placed = cost.instance.units_of(plan).values()
        if sum(mode != "resident" for _, mode in placed) == count:
            break
    return made


# -- all units streamed, or none ---------------------------------------------------------------


def _on_first(instance: OffloadInstance, prefetch: Prefetch, *, streamed: bool = True) -> RulePlan:
    """Return the plan on the first device alone, with all possible units streamed, or none."""
    alone = instance.on(range(1))
    modes = tuple[UnitMode, ...](
        "streamed" if streamed and "streamed" in unit.modes else "resident" for unit in alone.units
    )
    return _judged(alone, (0,) * len(modes), modes, prefetch)


def _every_block(chain: OffloadChain, *, prefetch: Prefetch) -> RulePlan:
    """Return the plan that streams whole blocks.

    Units outside blocks form one group: it loads at the start of a forward, before any computation,
    and stays until the end. Its load is modelled as a resident unit without weights.
    """
    instance = chain.instance
    merged, rest_bytes = [], 0
    for block, members in itertools.groupby(
        zip(chain.block_of, instance.units, strict=True), key=lambda pair: pair[0]
    ):
        units = [unit for _, unit in members]
        if block is not None:
            merged.append(_merged(block, units))
            continue
        rest_bytes += sum(unit.weight_bytes for unit in units)
        # Written units cannot be streamed: they are held throughout.
        merged += [replace(unit, modes=("resident",)) for unit in units]
    if rest_bytes:
        load_ns = instance.links[0].transfer_ns(rest_bytes)
        times = ((load_ns,) * len(instance.devices),)
        merged.insert(0, Unit("load of what is in no block", 0, 0, 0, ("resident",), times, (0,)))
    return _on_first(replace(instance, units=tuple(merged)), prefetch)


def _merged(name: str, units: Sequence[Unit]) -> Unit:
    is_streamable = all("streamed" in unit.modes or not unit.weight_bytes for unit in units)
    weight_bytes = sum(unit.weight_bytes for unit in units)
    return Unit(
        name,
        weight_bytes,
        sum(unit.cache_bytes for unit in units),
        sum(unit.padding_bytes for unit in units),
        ("resident", "streamed") if weight_bytes and is_streamable else ("resident",),
        (tuple(map(sum, zip(*(unit.run_ns[0] for unit in units), strict=True))),),
        (0,),
        tuple(growth for unit in units for growth in unit.growths),
    )


_GROUPS: Final = "diffusers/hooks/group_offloading.py: "

_MODULE_RULES: Final[tuple[OffloadRule, ...]] = (
    EngineRule(
        "accelerate auto", "accelerate.infer_auto_device_map, AlignDevicesHook", _accelerate_auto
    ),
    EngineRule(
        "diffusers model",
        "diffusers/pipelines/pipeline_utils.py: enable_model_cpu_offload",
        lambda chain: _on_first(chain.instance, "none", streamed=False),
    ),
    EngineRule(
        "diffusers sequential",
        "diffusers/pipelines/pipeline_utils.py: enable_sequential_cpu_offload",
        lambda chain: _on_first(chain.instance, "none"),
    ),
    EngineRule(
        "diffusers block",
        f"{_GROUPS}_apply_group_offloading_block_level",
        partial(_every_block, prefetch="none"),
    ),
    EngineRule(
        "diffusers block, stream",
        f"{_GROUPS}_apply_group_offloading_block_level, LazyPrefetchGroupOffloadingHook",
        partial(_every_block, prefetch="next"),
    ),
    EngineRule(
        "diffusers leaf, stream",
        f"{_GROUPS}_apply_group_offloading_leaf_level, LazyPrefetchGroupOffloadingHook",
        lambda chain: _on_first(chain.instance, "next"),
    ),
)
"""Rules for any module; those of llama.cpp are for language models."""

OFFLOAD_RULES: Final[tuple[OffloadRule, ...]] = (
    *_MODULE_RULES,
    EngineRule(
        "llama.cpp -ngl",
        "src/llama-model.cpp: load_tensors; ggml/src/ggml-cuda/ggml-cuda.cu: "
        "ggml_backend_cuda_device_offload_op",
        _by_llama_cpp,
    ),
    EngineRule(
        "llama.cpp -ngl --no-op-offload",
        "src/llama-model.cpp: load_tensors",
        partial(_by_llama_cpp, op_offload=False),
    ),
    EngineRule(
        "llama.cpp --cpu-moe", "common/arg.cpp: --cpu-moe", partial(_experts_on_host, every=True)
    ),
    EngineRule(
        "llama.cpp --n-cpu-moe",
        "common/arg.cpp: --n-cpu-moe, with the least number that fits",
        partial(_experts_on_host, every=False),
    ),
)
"""Rules read from sources of 2025 and 2026. Leaves of a model are units here: without streams,
group offloading of leaves is sequential offloading."""


def _plan(name: str, rule: OffloadRule, task: PlanningTask, limits: SolveLimits) -> PlannerAnswer:
    """Return the judged answer of a rule; `limits` do not matter."""
    assert task.job is not None
    instance, layers = OffloadInstance.of(task.job), dict[str, str]()
    if task.captured is not None:
        from fx_bridge.capture.layers import layer_calls

        calls = layer_calls(task.captured).items()
        layers = {name: call.path for name, call in calls if call is not None}
    blocks = [layers.get(unit.operators[0]) for unit in instance.units]
    plan, cost = rule.plan(OffloadChain(instance, blocks))
    modes = Counter(mode for _, mode in cost.instance.units_of(plan).values())
    words = ", ".join(f"{modes[mode]} {mode}" for mode in UNIT_MODES)
    status = SolveStatus.FEASIBLE if cost.feasible else SolveStatus.UNKNOWN
    reason = "; ".join(cost.violations)
    return PlannerAnswer(SolveResult(name, status, plan, cost, None, 0.0, reason), words)


OFFLOAD_PLANNERS: Final = tuple(
    PlannerSpec(
        name,
        f"weights on the host by the rule of {rule.name}",
        rule.source,
        partial(_plan, name, rule),
        uses_model=True,
        host="with",
    )
    for rule in _MODULE_RULES
    for name in [rule.name.replace(",", "").replace(" ", "-")]
)
"""Rules for any module, as planners of problems with a host."""
