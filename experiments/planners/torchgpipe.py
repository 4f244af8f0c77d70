"""torchgpipe's balance, by time and by size: block partitions of sequences.

C. Kim et al., "torchgpipe: On-the-fly Pipeline Parallelism for Training Giant Models" (2020),
``torchgpipe.balance``. Its algorithm is that of I. Barany and V. S. Grinberg, "Block partitions of
sequences", Israel Journal of Mathematics 206 (2015), section 2: a sequence of numbers between 0
and 1 has a partition into k blocks whose sums differ by at most 1, and moving one element at a
time from blocks next to a smallest one finds it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from experiments.planners.answers import balancer
from experiments.planners.deepspeed import partition_uniform
from experiments.planners.sequence import LayerSequence
from experiments.planners.task import PlannerSpec
from solver.model.arrays import Ints


def block_partition(costs: Ints, parts: int) -> list[int]:
    """Return the ends of blocks whose sums differ by little.

    Parameters
    ----------
    costs : array of int64
        By layer.
    parts : int
        At most the number of layers.

    Returns
    -------
    list of int
        Taking from every cost the least one, the sums of two blocks differ by at most the
        largest cost that is left. That says nothing of the largest sum itself, which need not
        be the least possible.

    Notes
    -----
    torchgpipe scales costs to [0, 1] first; here they stay integers, and the bound of 1 becomes
    their range, so that nothing is rounded. Of several smallest blocks the one closest to the
    largest is taken, as the paper asks: so a block that has nothing to give is never asked.

    Examples
    --------
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
            # The neighbour of the smallest block on the side of the largest one gives an element.
            giver, border = (low - 1, low - 1) if at < low else (low + 1, low)
            ends[border] += -1 if at < low else 1
            for block in (giver, low):
                start = ends[block - 1] if block else 0
                sums[block] = prefix[ends[block]] - prefix[start]
            if giver == at:
                break


def _balanced(layers: LayerSequence, costs: Ints) -> list[int]:
    if len(layers) <= layers.stage_count:
        # torchgpipe refuses fewer layers than partitions; one each is what it would want.
        return partition_uniform(len(layers), layers.stage_count)
    return block_partition(costs, layers.stage_count)


def _by_time(layers: LayerSequence) -> list[int]:
    return _balanced(layers, layers.time_ns)


def _by_size(layers: LayerSequence) -> list[int]:
    # `param_scale` says how many copies of parameters training holds; the problem knows that.
    return _balanced(layers, layers.activation_bytes + layers.weight_bytes)


_SOURCE: Final = "torchgpipe.balance; Barany and Grinberg, Block partitions of sequences, 2015"

TORCHGPIPE_PLANNERS: Final = (
    PlannerSpec(
        "torchgpipe-time",
        "stages whose times differ by little, for equal devices; no transfers, no memory",
        _SOURCE,
        balancer("torchgpipe-time", _by_time),
    ),
    PlannerSpec(
        "torchgpipe-size",
        "stages whose weights and activations differ by little, for equal devices; no times",
        _SOURCE,
        balancer("torchgpipe-size", _by_size),
    ),
)
