"""How DeepSpeed's ``PipelineModule`` divides layers: evenly by parameters, or by number.

The methods ``parameters`` and ``uniform`` of ``deepspeed.runtime.pipe.module``, with
``partition_balanced`` and ``partition_uniform`` of ``deepspeed.runtime.utils``. The former is as
it was up to release 0.10: the least maximum of the stages' sums, by a search over that maximum
with a probe of the prefix sums (A. Pinar and C. Aykanat, "Fast optimal load balancing algorithms
for 1D partitioning", J. Parallel Distrib. Comput. 64, 2004, section 3). Later releases minimise
the difference of the largest and the smallest sum instead (DeepSpeed, pull request 4312). The
latter spreads the remainder, as since pull request 4053.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from experiments.planners.answers import balancer
from experiments.planners.sequence import LayerSequence
from experiments.planners.task import PlannerSpec
from solver.model.arrays import Ints


def partition_uniform(count: int, parts: int) -> list[int]:
    """Return the ends of `parts` stages of `count` layers, the first ones longer by one.

    Examples
    --------
    >>> partition_uniform(8, 3)
    [3, 6, 8]
    """
    size, longer = divmod(count, parts)
    return [size * part + min(part, longer) for part in range(1, parts + 1)]


def partition_balanced(weights: Ints, parts: int) -> list[int]:
    """Return the ends of the stages whose largest sum is least.

    Parameters
    ----------
    weights : array of int64
        By layer, none negative.
    parts : int
        Stages; the last ones may be empty, since every stage takes as much as it may.

    Examples
    --------
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
    """Return the ends of `parts` stages, each with as many layers as sum up to at most `most`."""
    ends = [0]
    for _ in range(parts):
        ends.append(int(np.searchsorted(prefix, prefix[ends[-1]] + most, side="right")) - 1)
    return ends[1:]


def _by_parameters(layers: LayerSequence) -> list[int]:
    return partition_balanced(layers.parameter_bytes, layers.stage_count)


def _by_number(layers: LayerSequence) -> list[int]:
    return partition_uniform(len(layers), layers.stage_count)


DEEPSPEED_PLANNERS: Final = (
    PlannerSpec(
        "deepspeed-parameters",
        "the least maximum of the stages' parameter bytes; no times, no activations",
        "DeepSpeed, PipelineModule(partition_method='parameters')",
        balancer("deepspeed-parameters", _by_parameters),
    ),
    PlannerSpec(
        "deepspeed-uniform",
        "equal numbers of layers, which here are operators",
        "DeepSpeed, PipelineModule(partition_method='uniform')",
        balancer("deepspeed-uniform", _by_number),
    ),
)
