"""Offload rules of other programs, as offload plans for the common evaluator.

A rule decides which units are resident, streamed or on the host, and the start of loads. Units
that it moves together become one unit of a restated instance. Costs outside the timeline are not
counted: without streams, diffusers also copies groups back to the host.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Final

from fx_bridge.interop.llama_cpp_experts import OP_OFFLOAD_TOKENS
from fx_bridge.serving.halves import parts_of_units
from fx_bridge.serving.hosted import HostedPlan
from solver import PartitionError
from solver.model.plan import MODES, Mode, PartitionPlan
from solver.offload.evaluate import evaluate_offload
from solver.offload.greedy import filled
from solver.offload.instance import OffloadInstance
from solver.offload.rounds import Prefetch
from solver.offload.units import Unit


@dataclass(frozen=True, slots=True)
class OffloadChain:
    """A problem, with the properties of its units that rules need.

    Attributes
    ----------
    instance : OffloadInstance
        Of one phase.
    block_of : sequence of str or None
        Block of each unit, such as a layer; None outside all lists of blocks.
    tokens : int
        Tokens of all sequences in one forward.
    experts : frozenset of str
        Units that hold the experts of a mixture.
    """

    instance: OffloadInstance
    block_of: Sequence[str | None]
    tokens: int = 1
    experts: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RulePlan:
    """Plan of a rule, its restated instance, and the start of its loads."""

    instance: OffloadInstance
    plan: PartitionPlan
    prefetch: Prefetch = "buffer"


@dataclass(frozen=True, slots=True)
class OffloadRule:
    """Offload rule of a program.

    Attributes
    ----------
    name : str
        Program and setting.
    source : str
        File and function from which the rule was read.
    plan : callable
        The rule; raises PartitionError if it does not apply.
    """

    name: str
    source: str
    plan: Callable[[OffloadChain], RulePlan]


@dataclass(frozen=True, slots=True)
class OffloadAnswer:
    """Value of a rule's plan.

    Attributes
    ----------
    name : str
        Name of the rule.
    value_ns : Fraction or None
        Time of the forwards; None if the plan does not fit.
    modes : mapping of str to int
        Number of units of the restated instance in each mode.
    reason : str
        Reason for a missing value, or empty.
    """

    name: str
    value_ns: Fraction | None = None
    modes: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""


def served_by_offload_rules(found: HostedPlan) -> list[OffloadAnswer]:
    """Return the value of each rule on the phases of a plan."""
    phases = []
    for at, count in found.instance.rounds:
        tokens, captured = list(found.graphs.items())[at]
        halves = parts_of_units(captured, found.asked.units)
        experts = frozenset(unit for unit, half in halves.items() if half.has_experts)
        blocks = [half.layer for half in halves.values()]
        rows = found.request.batch * tokens
        phases.append((OffloadChain(_of_phase(found.instance, at), blocks, rows, experts), count))
    return answers_of_rules(phases)


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
        stage_hop_ns=instance.stage_hop_ns[at : at + 1],
        host_hop_ns=instance.host_hop_ns[at : at + 1],
        first_token_limit_ns=None,
    )


def answers_of_rules(phases: Sequence[tuple[OffloadChain, int]]) -> list[OffloadAnswer]:
    """Return the value of each rule over forwards of several kinds.

    Parameters
    ----------
    phases : sequence of (OffloadChain, int)
        Kinds of forward and their runs. Answers have the modes of the last kind. A rule may treat
        kinds differently, as llama.cpp does, at no cost for the change.
    """
    return [_answer(rule, phases) for rule in OFFLOAD_RULES]


def _answer(rule: OffloadRule, phases: Sequence[tuple[OffloadChain, int]]) -> OffloadAnswer:
    value = Fraction(0)
    modes: dict[str, int] = {}
    for chain, count in phases:
        try:
            made = rule.plan(chain)
        except PartitionError as error:
            return OffloadAnswer(rule.name, reason=str(error))
        found = evaluate_offload(made.instance, made.plan, prefetch=made.prefetch)
        if found.value_ns is None:
            return OffloadAnswer(rule.name, reason=found.violations[0])
        value += count * found.value_ns
        have = Counter(mode for _, mode in made.instance.units_of(made.plan).values())
        modes = {mode: have[mode] for mode in MODES}
    return OffloadAnswer(rule.name, value, modes)


# -- units resident as long as they fit --------------------------------------------------------


def _accelerate_auto(chain: OffloadChain) -> RulePlan:
    # Accelerate runs streamed modules on its main device, the first; here that comes last, to
    # keep stages in order.
    turned = chain.instance.on(range(len(chain.instance.devices))[::-1])
    return RulePlan(turned, turned.plan(*filled(turned, "streamed")), "none")


def _by_llama_cpp(
    chain: OffloadChain, *, op_offload: bool = True, passed: frozenset[str] = frozenset()
) -> RulePlan:
    """Keep the first layers on the host; for many tokens they are streamed when due."""
    is_copied = op_offload and chain.tokens >= OP_OFFLOAD_TOKENS
    other: Mode = "streamed" if is_copied else "host"
    state = filled(chain.instance, other, from_end=True, passed=passed)
    return RulePlan(chain.instance, chain.instance.plan(*state), "none")


def _experts_on_host(chain: OffloadChain, *, every: bool) -> RulePlan:
    """Keep all experts on the host, or those of as few first layers as necessary."""
    experts = [unit.name for unit in chain.instance.units if unit.name in chain.experts]
    if not experts:
        raise PartitionError("the model has no experts")
    for count in range(len(experts) if every else 0, len(experts) + 1):
        made = _by_llama_cpp(chain, passed=frozenset(experts[:count]))
        placed = made.instance.units_of(made.plan).values()
        if sum(mode != "resident" for _, mode in placed) == count:
            break
    return made


# -- all units streamed, or none ---------------------------------------------------------------


def _on_first(instance: OffloadInstance, prefetch: Prefetch, *, streamed: bool = True) -> RulePlan:
    """Return the plan on the first device alone, with all possible units streamed, or none."""
    alone = instance.on(range(1))
    modes = tuple[Mode, ...](
        "streamed" if streamed and "streamed" in unit.modes else "resident" for unit in alone.units
    )
    return RulePlan(alone, alone.plan((0,) * len(modes), modes), prefetch)


def _whole_model(chain: OffloadChain) -> RulePlan:
    return _on_first(chain.instance, "none", streamed=False)


def _every_unit(chain: OffloadChain, *, prefetch: Prefetch) -> RulePlan:
    return _on_first(chain.instance, prefetch)


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
    )


_GROUPS: Final = "diffusers/hooks/group_offloading.py: "

OFFLOAD_RULES: Final = (
    OffloadRule(
        "accelerate auto", "accelerate.infer_auto_device_map, AlignDevicesHook", _accelerate_auto
    ),
    OffloadRule(
        "diffusers model",
        "diffusers/pipelines/pipeline_utils.py: enable_model_cpu_offload",
        _whole_model,
    ),
    OffloadRule(
        "diffusers sequential",
        "diffusers/pipelines/pipeline_utils.py: enable_sequential_cpu_offload",
        partial(_every_unit, prefetch="none"),
    ),
    OffloadRule(
        "diffusers block",
        f"{_GROUPS}_apply_group_offloading_block_level",
        partial(_every_block, prefetch="none"),
    ),
    OffloadRule(
        "diffusers block, stream",
        f"{_GROUPS}_apply_group_offloading_block_level, LazyPrefetchGroupOffloadingHook",
        partial(_every_block, prefetch="next"),
    ),
    OffloadRule(
        "diffusers leaf, stream",
        f"{_GROUPS}_apply_group_offloading_leaf_level, LazyPrefetchGroupOffloadingHook",
        partial(_every_unit, prefetch="next"),
    ),
    OffloadRule(
        "llama.cpp -ngl",
        "src/llama-model.cpp: load_tensors; ggml/src/ggml-cuda/ggml-cuda.cu: "
        "ggml_backend_cuda_device_offload_op",
        _by_llama_cpp,
    ),
    OffloadRule(
        "llama.cpp -ngl --no-op-offload",
        "src/llama-model.cpp: load_tensors",
        partial(_by_llama_cpp, op_offload=False),
    ),
    OffloadRule(
        "llama.cpp --cpu-moe", "common/arg.cpp: --cpu-moe", partial(_experts_on_host, every=True)
    ),
    OffloadRule(
        "llama.cpp --n-cpu-moe",
        "common/arg.cpp: --n-cpu-moe, with the least number that fits",
        partial(_experts_on_host, every=False),
    ),
)
"""Rules read from sources of 2025 and 2026. Leaves of a model are units here: without streams,
group offloading of leaves is sequential offloading."""
