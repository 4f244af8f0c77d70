"""Balancers of other projects and the usual split by hand, which cut layers into stages.

Each makes one stage for every device that may be used. Stage k is put on the k-th device, since
balancers assume equal devices.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np

from experiments.planners.sequence import LayerSequence
from experiments.planners.task import PlannerAnswer, PlannerSpec, PlanningTask, judged
from solver import PartitionError, SolveLimits
from solver.model.arrays import Ints, link_ns
from solver.model.devices import Link
from solver.model.quantities import counted
from solver.model.text import printable

if TYPE_CHECKING:
    import torch

    from fx_bridge.capture.graph import CapturedGraph


def pipedream_cut(time_ns: Ints, transfer_ns: Ints, machines: int) -> list[int]:
    """Return the ends of the stages that minimise the slowest stage or transfer.

    PipeDream's dynamic program: D. Narayanan et al., "PipeDream: Generalized Pipeline Parallelism
    for DNN Training", SOSP 2019, section 3.1. A(j, m), the time of the slowest stage of the best
    pipeline of layers 1 to j on m machines, is the least over i of max(A(i, m - 1), 2 a_i / B,
    T(i + 1, j)), where T is the sum of the layers' times, a_i the output of layer i, and B the
    bandwidth.

    Replicated stages are left out, since plans here have no replicas: T is that of one machine.
    The bytes across a cut stand for a_i, also where layers are no chain, and count once where no
    gradients return. The recurrence ignores memory and assumes equal machines.

    The first of `transfer_ns`, the transfer times of the cuts before the layers, is ignored. There
    are at most `machines` stages; among equally fast numbers of stages the least is taken. This
    takes O(machines * layers**2) time and O(machines * layers) memory.

    >>> pipedream_cut(np.array([4, 1, 1, 4]), np.array([0, 9, 2, 9]), 2)
    [2, 4]
    """
    count = len(time_ns)
    before = np.concatenate([[0], np.cumsum(time_ns)])
    crossing = np.concatenate([transfer_ns, [0]])
    # best[m][j]: of the first j layers in exactly m + 1 stages; the first stage is alone.
    best = [before.copy()]
    cut: list[Ints] = [np.zeros(count + 1, dtype=np.int64)]
    for stages in range(2, min(machines, count) + 1):
        # Bottleneck of the pipeline up to a cut and of the transfer over it.
        earlier = np.maximum(best[-1], crossing)
        values = np.full(count + 1, np.iinfo(np.int64).max, dtype=np.int64)
        places = np.zeros(count + 1, dtype=np.int64)
        for end in range(stages, count + 1):
            first = stages - 1
            slowest = np.maximum(earlier[first:end], before[end] - before[first:end])
            place = int(np.argmin(slowest))
            places[end] = first + place
            values[end] = slowest[place]
        best.append(values)
        cut.append(places)
    stage = min(range(len(best)), key=lambda m: (best[m][count], m))
    ends = [count]
    while stage:
        ends.append(int(cut[stage][ends[-1]]))
        stage -= 1
    return ends[::-1]


def partition_uniform(count: int, parts: int) -> list[int]:
    """Return the ends of `parts` stages of `count` layers, the first ones longer by one.

    The method ``uniform`` of DeepSpeed's ``PipelineModule``, with the remainder spread as since
    pull request 4053.

    Examples
    --------
    >>> partition_uniform(8, 3)
    [3, 6, 8]
    """
    size, longer = divmod(count, parts)
    return [size * part + min(part, longer) for part in range(1, parts + 1)]


def partition_balanced(weights: Ints, parts: int) -> list[int]:
    """Return the ends of the stages that minimise the largest sum.

    The method ``parameters`` of DeepSpeed's ``PipelineModule`` up to release 0.10: a search over
    the largest sum with a probe of the prefix sums (A. Pinar and C. Aykanat, "Fast optimal load
    balancing algorithms for 1D partitioning", J. Parallel Distrib. Comput. 64, 2004, section 3).
    Later releases minimise the difference of the largest and the smallest sum instead (DeepSpeed,
    pull request 4312).

    Weights are not negative. Each of the `parts` takes as much as it can, so the last ones may be
    empty.

    >>> partition_balanced(np.array([1, 2, 3, 4, 5]), 2)
    [3, 5]
    """
    if len(weights) <= parts:
        return partition_uniform(len(weights), parts)
    prefix = np.concatenate([[0], np.cumsum(weights)])
    low, high = int(weights.max()), int(prefix[-1])
    while low < high:
        middle = (low + high) // 2
        if _probe(prefix, parts, middle)[-1] == len(weights):
            high = middle
        else:
            low = middle + 1
    return _probe(prefix, parts, low)


def _probe(prefix: Ints, parts: int, most: int) -> list[int]:
    """Fill `parts` stages greedily up to the sum `most` and return their ends."""
    ends = [0]
    for _ in range(parts):
        ends.append(int(np.searchsorted(prefix, prefix[ends[-1]] + most, side="right")) - 1)
    return ends[1:]


def block_partition(costs: Ints, parts: int) -> list[int]:
    """Return the ends of blocks with nearly equal sums.

    ``torchgpipe.balance`` of C. Kim et al., "torchgpipe: On-the-fly Pipeline Parallelism for
    Training Giant Models" (2020). Its algorithm is that of I. Barany and V. S. Grinberg, "Block
    partitions of sequences", Israel Journal of Mathematics 206 (2015), section 2: a sequence of
    numbers between 0 and 1 has a partition into k blocks whose sums differ by at most 1, found by
    moving one element at a time into a smallest block from its neighbour.

    There are at most as many parts as layers. With the least cost subtracted from every cost, the
    sums of two blocks differ by at most the largest remaining cost; the largest sum need not be
    minimal.

    torchgpipe scales costs to [0, 1] first; here they stay integers, and the bound of 1 becomes
    their range, without rounding. Of several smallest blocks the one closest to the largest is
    taken, as in the paper, so an empty block never has to give an element.

    >>> block_partition(np.array([1, 2, 3, 4, 5, 6]), 2)
    [4, 6]
    """
    count = len(costs)
    assert 1 <= parts <= count
    shifted = costs - costs.min()
    bound = int(shifted.max())
    prefix = [0, *np.cumsum(shifted).tolist()]
    starts = [count // parts * part for part in range(parts)]
    ends = [*starts[1:], count]
    sums = [prefix[end] - prefix[start] for start, end in zip(starts, ends, strict=True)]
    while True:
        largest, at = max((value, i) for i, value in enumerate(sums))
        while True:
            smallest = min(sums)
            if largest <= smallest + bound:
                return ends
            distances = [(abs(i - at), i) for i, value in enumerate(sums) if value == smallest]
            low = min(distances)[1]
            # The neighbour of the smallest block towards the largest one gives an element.
            giver, border = (low - 1, low - 1) if at < low else (low + 1, low)
            ends[border] += -1 if at < low else 1
            for block in (giver, low):
                start = ends[block - 1] if block else 0
                sums[block] = prefix[ends[block]] - prefix[start]
            if giver == at:
                break


def _pipedream(layers: LayerSequence) -> list[int]:
    # The paper has a bandwidth and no latency.
    link = Link(layers.problem.interconnect.default.bandwidth_bytes_per_s)
    transfer_ns = link_ns(link, layers.crossing_bytes)
    return pipedream_cut(layers.time_ns, transfer_ns, layers.stage_count)


def _by_blocks(layers: LayerSequence, costs: Ints) -> list[int]:
    if len(layers) <= layers.stage_count:
        # torchgpipe refuses fewer layers than partitions; one layer each is balanced.
        return partition_uniform(len(layers), layers.stage_count)
    return block_partition(costs, layers.stage_count)


def _plan(
    name: str, cut: Callable[[LayerSequence], list[int]], task: PlanningTask, limits: SolveLimits
) -> PlannerAnswer:
    layers = LayerSequence.of(task.problem)
    return judged(name, task.problem, layers.plan(cut(layers)))


def _spec(
    name: str, description: str, source: str, cut: Callable[[LayerSequence], list[int]]
) -> PlannerSpec:
    return PlannerSpec(name, description, source, partial(_plan, name, cut))


_TORCHGPIPE: Final = "torchgpipe.balance; Barany and Grinberg, Block partitions of sequences, 2015"

BALANCERS: Final = (
    _spec(
        "pipedream",
        "the least of the slowest stage and the slowest transfer, for equal devices; no memory",
        "Narayanan et al., PipeDream, SOSP 2019, section 3.1, without replicated stages",
        _pipedream,
    ),
    _spec(
        "deepspeed-parameters",
        "the least maximum of the stages' parameter bytes; no times, no activations",
        "DeepSpeed, PipelineModule(partition_method='parameters')",
        lambda layers: partition_balanced(layers.parameter_bytes, layers.stage_count),
    ),
    _spec(
        "deepspeed-uniform",
        "equal numbers of layers, which here are operators",
        "DeepSpeed, PipelineModule(partition_method='uniform')",
        lambda layers: partition_uniform(len(layers), layers.stage_count),
    ),
    _spec(
        "torchgpipe-time",
        "stages whose times differ by little, for equal devices; no transfers, no memory",
        _TORCHGPIPE,
        lambda layers: _by_blocks(layers, layers.time_ns),
    ),
    _spec(
        "torchgpipe-size",
        "stages whose weights and activations differ by little, for equal devices; no times",
        _TORCHGPIPE,
        # In place of `param_scale`, the problem has the training state of weights.
        lambda layers: _by_blocks(layers, layers.activation_bytes + layers.weight_bytes),
    ),
)

# -- the split by hand ---------------------------------------------------------------------------

_UNIFORM: Final = "uniform-layers"


def repeated_layers(module: torch.nn.Module, captured: CapturedGraph) -> list[tuple[str, ...]]:
    """Return the operators of every layer of a model, in execution order of the layers.

    Layers are the members of the outermost lists of modules (``ModuleList``, ``Sequential``) that
    have several members with operators, such as the blocks of an encoder or decoder.
    """
    from torch import nn

    operators = captured.modules.operators
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


def _plan_uniform(task: PlanningTask, limits: SolveLimits) -> PlannerAnswer:
    loaded, captured = task.model(_UNIFORM)
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
    return judged(_UNIFORM, task.problem, layers.plan(ends), words)


UNIFORM_PLANNERS: Final = (
    PlannerSpec(
        _UNIFORM,
        "equal numbers of the model's own layers; no times, no sizes",
        "the usual hand-made split of a ModuleList",
        _plan_uniform,
        needs_model=True,
    ),
)
