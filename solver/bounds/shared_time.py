"""A bound of the bottleneck from the time and memory of unequal devices together."""

from __future__ import annotations

from collections import Counter

import numpy as np

from solver.bounds.regional.held_weights import stage_weights
from solver.model.arrays import Ints
from solver.presolve.instance import Instance

_MOST_CELLS = 50_000
"""Distinct units times device kinds; the linear program takes less than a second."""
_UNIT = 1 << 40
"""Integer price of a nanosecond on a device of average price."""


def least_shared_ns(units: Instance) -> int:
    """Return a lower bound of the bottleneck from a linear program without order.

    A fast device with little memory cannot use its speed, and slower ones take the rest. The bound
    is that of the fractional generalised assignment problem (S. Martello and P. Toth, "Knapsack
    Problems", Wiley 1990, section 7.2): units may be divided among devices, and neither order nor
    transfers count.

    It is 0 if all devices have one speed, or if there are too many distinct units.

    Proof. Let a plan have all loads at most T, and take any prices a_k >= 0 of time and b_k >= 0 of
    memory for the n_k devices of kind k, with b_k = 0 where memory is unlimited. Every device d has
    load_d <= T and holds at most memory_d, so

        sum over k of n_k (a_k T + b_k memory_k)
            >=  sum over d of a_d load_d + b_d held_d
            >=  sum over u of the least a_k t_k[u] + b_k h[u] of any k,

    where h[u] are the bytes of u (:func:`solver.bounds.regional.held_weights.stage_weights`).
    Devices without units only add to the left side. This bounds T for all prices; the dual values
    of the program are the best ones, and rounding them to integers keeps the bound exact.
    """
    problem = units.problem
    kinds = Counter((device.device_class, device.memory_bytes) for device in problem.devices)
    classes = sorted({name for name, _ in kinds})
    if len(classes) < 2:
        return 0
    columns = [units.work_ns[name] for name in classes] + [stage_weights(units)]
    rows, counts = np.unique(np.array(columns, dtype=np.int64).T, axis=0, return_counts=True)
    if len(rows) * len(kinds) > _MOST_CELLS:
        return 0
    times = [rows[:, classes.index(name)] for name, _ in kinds]
    memory, numbers = [size for _, size in kinds], list(kinds.values())
    time_prices, memory_prices = _prices(times, rows[:, -1], counts, memory, numbers)
    # Prices times sums of nanoseconds and bytes do not fit 64 bits.
    least = [
        min(
            a * int(own[row]) + b * int(rows[row, -1])
            for own, a, b in zip(times, time_prices, memory_prices, strict=True)
        )
        for row in range(len(rows))
    ]
    worth = sum(int(count) * own for count, own in zip(counts, least, strict=True))
    for number, size, price in zip(numbers, memory, memory_prices, strict=True):
        worth -= number * (size or 0) * price
    paid = sum(number * price for number, price in zip(numbers, time_prices, strict=True))
    return max(0, -(-worth // paid)) if paid else 0


def _prices(
    times: list[Ints], held: Ints, counts: Ints, memory: list[int | None], numbers: list[int]
) -> tuple[list[int], list[int]]:
    """Return the dual values of time and memory, by device kind; any prices prove a bound."""
    from ortools.math_opt.python import mathopt

    # Prices of time add up to 1. Time and memory are scaled by their totals.
    time_unit = max(float(min(own @ counts for own in times)), 1.0)
    memory_unit = max(float(held @ counts), 1.0)
    model = mathopt.Model()
    own_time = [model.add_variable(lb=0.0) for _ in times]
    own_memory = [
        model.add_variable(lb=0.0, ub=0.0 if size is None else float("inf")) for size in memory
    ]
    worths = [model.add_variable() for _ in counts]
    for row, worth in enumerate(worths):
        for own, a, b in zip(times, own_time, own_memory, strict=True):
            cost = float(own[row]) / time_unit * a + float(held[row]) / memory_unit * b
            model.add_linear_constraint(worth <= cost)
    model.add_linear_constraint(
        mathopt.fast_sum(number * a for number, a in zip(numbers, own_time, strict=True)) == 1.0
    )
    gained = mathopt.fast_sum(float(count) * w for count, w in zip(counts, worths, strict=True))
    paid = mathopt.fast_sum(
        number * (size or 0) / memory_unit * b
        for number, size, b in zip(numbers, memory, own_memory, strict=True)
    )
    model.maximize(gained - paid)
    result = mathopt.solve(model, mathopt.SolverType.GLOP)
    if not result.has_primal_feasible_solution():
        # No devices can hold the weights, which other bounds report: the dual is unbounded.
        return [1] * len(times), [0] * len(times)
    values = result.variable_values()
    memory_scale = _UNIT * time_unit / memory_unit
    return (
        [max(0, round(values[a] * _UNIT)) for a in own_time],
        [max(0, round(values[b] * memory_scale)) for b in own_memory],
    )
