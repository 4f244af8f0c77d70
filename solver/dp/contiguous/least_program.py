"""The least bottleneck or step of cuts with a device order, where sets of devices are few.

The program of :mod:`solver.dp.contiguous.limit_program` for all limits at once: it keeps the least
cost for every set of devices and every place (:mod:`solver.dp.kernels.stage_chains`), so that a
longer segment with a dearer border does not hide a better one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from solver.dp.contiguous.limit_program import LimitProgram
from solver.dp.kernels.stage_chains import ChainStages, LeastCosts, Stage, StageChains
from solver.stages.step_paths import step_of_loads_ns

MOST_SETS: Final = 256
_PART: Final = 1 / 2000
"""Relative gap allowed between a step and the least one."""


def least_stages(program: LimitProgram, most_ns: float = math.inf) -> list[Stage] | None:
    """Return the stages with the least objective, if less than `most_ns`; None if none fit.

    A device is charged at the slower of its links. The objective is ``bottleneck`` or ``step``.
    """
    longest = program.tables.longest
    ends, columns = np.nonzero(program.tables.exists)
    starts = ends - longest + columns
    order = np.argsort(starts, kind="stable")
    starts, ends, columns = starts[order], ends[order], columns[order]

    def stages(kind: int, flying: int) -> ChainStages:
        loads_ns = program.loads_ns(kind, flying)[ends, columns]
        return ChainStages(starts, ends, loads_ns, loads_ns).chosen(np.isfinite(loads_ns))

    chains = StageChains(program.problem, program.sets, len(program.tables.places), stages)
    if program.problem.objective[0] == "bottleneck":
        costs = chains.bottlenecks()
        return chains.way(costs) if costs.least < most_ns else None
    best: list[tuple[float, list[Stage]]] = []

    def seen(costs: LeastCosts) -> None:
        found = chains.way(costs)
        step_ns = value_ns(program, found)
        if step_ns < most_ns:
            best.append((step_ns, found))

    chains.least_step_ns(part=_PART, most_ns=most_ns, seen=seen)
    return min(best)[1] if best else None


def value_ns(program: LimitProgram, stages: Sequence[Stage]) -> float:
    """Return the bottleneck or the step of some stages by the tables."""
    loads_ns = program.stage_loads_ns(stages)
    if program.problem.objective[0] == "bottleneck":
        return max(loads_ns)
    return step_of_loads_ns(program.problem, loads_ns)
