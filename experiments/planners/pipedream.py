"""PipeDream's dynamic program: the pipeline whose slowest stage or transfer is fastest.

D. Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019,
section 3.1. A(j, m), the time of the slowest stage of the best pipeline of layers 1 to j on m
machines, is the least over i of max(A(i, m - 1), 2 a_i / B, T(i + 1, j)), where T is the sum of
the layers' times, a_i what layer i returns, and B the bandwidth.

Replicated stages are left out, since plans here have no replicas: T is that of one machine. What
crosses a cut stands for a_i, all of it where layers are no chain, and counts once where there are
no gradients on their way back. The recurrence has no memory and one kind of machine.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from experiments.planners.answers import balancer
from experiments.planners.sequence import LayerSequence
from experiments.planners.task import PlannerSpec
from solver.model.arrays import Ints, link_ns
from solver.model.devices import Link


def pipedream_cut(time_ns: Ints, transfer_ns: Ints, machines: int) -> list[int]:
    """Return the ends of the stages for which the slowest stage or transfer is fastest.

    Parameters
    ----------
    time_ns : array of int64
        By layer.
    transfer_ns : array of int64
        Of what crosses the cut before each layer; the first entry is of no account.
    machines : int
        Most stages; of several numbers of stages that are as fast the least is taken.

    Returns
    -------
    list of int
        As long as there are stages.

    Notes
    -----
    Takes O(machines * layers**2) time and O(machines * layers) memory.

    Examples
    --------
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
        # What the pipeline up to a cut and the transfer over it take, wherever the stage ends.
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


def _cut(layers: LayerSequence) -> list[int]:
    # The paper knows a bandwidth, and no time that a transfer takes to start.
    link = Link(layers.problem.interconnect.default.bandwidth_bytes_per_s)
    transfer_ns = link_ns(link, layers.crossing_bytes)
    return pipedream_cut(layers.time_ns, transfer_ns, layers.stage_count)


PIPEDREAM_PLANNERS: Final = (
    PlannerSpec(
        "pipedream",
        "the least of the slowest stage and the slowest transfer, for equal devices; no memory",
        "Narayanan et al., PipeDream, SOSP 2019, section 3.1, without replicated stages",
        balancer("pipedream", _cut),
    ),
)
