"""Linear relaxation of the stage model, for lower bounds of the bottleneck.

What the first b stages run is closed under ancestors; with y[u, b] for "unit u is in it",
precedence is a totally unimodular system, and what is left to relax are loads and transfers. The
program is one for a fixed device of each stage and for the plans within given windows. A bound is
taken from its dual values, whatever their quality: every dual vector gives one by the bounds of
the variables (A. Neumaier and O. Shcherbina, "Safe bounds in linear and mixed-integer linear
programming", Mathematical Programming 99, 2004).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np

from solver.bounds.held_weights import stage_weights
from solver.bounds.windows import StageBounds, StageWindows
from solver.model.arrays import Ints
from solver.model.clock import UNLIMITED, Clock
from solver.model.devices import Device
from solver.presolve.instance import Instance

_MOST_ROWS = 150_000
_SIMPLEX_ROWS = 12_000
"""Up to here the simplex method is quicker; beyond, a first-order method."""
_SIMPLEX_ITERATIONS = 100_000
_FIRST_ORDER_ITERATIONS = 40_000
MOST_PROGRAMS = 6
_WORTHWHILE = 1000
"""A program that gains less than this part of the bound is the last one."""
_LARGEST_SHARE = 10.0
"""More than any bottleneck in parts of the ceiling."""


def closure_bound_ns(
    stage_bounds: StageBounds,
    units: Instance,
    order: Sequence[Device],
    *,
    at_least: int,
    ceiling_ns: int,
    clock: Clock = UNLIMITED,
    programs: int = MOST_PROGRAMS,
) -> int:
    """Return a lower bound of the bottleneck of the plans for one order of devices.

    Parameters
    ----------
    stage_bounds : StageBounds
        Of `units`; gives the windows.
    units : Instance
        With one chunk per device, no backward operators and no overlap.
    order : sequence of Device
        The device of each stage.
    at_least : int
        A bound that is known.
    ceiling_ns : int
        Only plans with less are of interest: a bound of `ceiling_ns` says that there are none.
    clock : Clock
        Ends all programs together. Without a limit on the wall's time, only their iterations are
        limited.
    programs : int
        The most to solve. The first one is for all plans below the ceiling.

    Notes
    -----
    Destructive bounding: windows of plans of at most T are the narrower the smaller T is. If the
    program for them says that such plans take at least v, all plans take at least min(v, T),
    whichever of the two they are.
    """
    bound = at_least
    trial_ns = ceiling_ns - 1
    step = 0
    for _ in range(programs):
        if bound >= ceiling_ns or clock.is_over:
            break
        windows = stage_bounds.windows(len(order), trial_ns, order)
        least = trial_ns + 1
        if not windows.empty:
            program = _Program(units, windows, order, ceiling_ns)
            if len(program.low) > _MOST_ROWS:
                break
            least = program.least_ns(clock.wall_left_s)
        if trial_ns == ceiling_ns - 1:
            bound = max(bound, min(least, ceiling_ns))
            step = (ceiling_ns - bound) // 8
        elif least > trial_ns:
            bound = trial_ns + 1
            step *= 2
        else:
            gained = least - bound
            bound = max(bound, least)
            step //= 4
            if gained * _WORTHWHILE < bound:
                break
        trial_ns = bound + step
        if step == 0 or trial_ns >= ceiling_ns - 1:
            break
    return bound


@dataclass(slots=True)
class _Program:
    """The least T for which some fractional plan has all loads within T.

    Variables: T in parts of the ceiling; y[u, b] where the windows leave it open; and for every
    value and stage how often it is sent and whether it is received. For u -> v and every border b:
    y[v, b] <= y[u, b] <= y[u, b + 1]. A value of u that v reads crosses border b by
    y[u, b] - y[v, b]: this part of it is sent before, and received after it. Besides, a stage
    receives what it has of v and not of u, and sends what it has of u and not of v. Relayed values
    are simpler: each crosses border b by at least y[u, b] - y[v, b], or by y[u, b] if it is
    returned, and both stages at the border spend the time of the link between their devices.
    """

    units: Instance
    windows: StageWindows
    order: Sequence[Device]
    ceiling_ns: int
    upper: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    _open: list[dict[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._variable(_LARGEST_SHARE)
        for first, last in zip(self.windows.first, self.windows.last, strict=True):
            self._open.append({b: self._variable(1.0) for b in range(first + 1, last + 1)})
        for own in self._open:
            for border, column in own.items():
                if border + 1 in own:
                    self._add([(own[border + 1], 1.0), (column, -1.0)], 0.0)
        for source, target in self.units.edges:
            for border, column in self._open[target].items():
                if border in self._open[source]:
                    self._add([(self._open[source][border], 1.0), (column, -1.0)], 0.0)
        loads = [[(0, float(self.ceiling_ns))] for _ in self.order]
        # Powers of two change no digit, and numbers of about one size make solvers quicker.
        scale = _power_of_two(self.ceiling_ns)
        constants = [0.0] * len(self.order)
        if self.units.transfers.hops:
            self._add_relays(loads)
        else:
            self._add_transfers(loads)
        self._add_compute(loads, constants)
        for terms, constant in zip(loads, constants, strict=True):
            self._add([(c, value / scale) for c, value in terms], -constant / scale)

    def _variable(self, upper: float) -> int:
        self.upper.append(upper)
        return len(self.upper) - 1

    def _add(self, terms: Sequence[tuple[int, float]], least: float) -> None:
        """Add the row that the terms sum to at least `least`."""
        row = len(self.low)
        merged: dict[int, float] = {}
        for column, value in terms:
            merged[column] = merged.get(column, 0.0) + value
        for column, value in sorted(merged.items()):
            self.row.append(row)
            self.column.append(column)
            self.value.append(value)
        self.low.append(least)

    def _done(self, unit: int, border: int, sign: float) -> tuple[list[tuple[int, float]], float]:
        """Return sign * y[unit, border] as terms and a constant."""
        column = self._open[unit].get(border)
        if column is not None:
            return [(column, sign)], 0.0
        return [], sign if border > self.windows.last[unit] else 0.0

    def _row_over(
        self, terms: list[tuple[int, float]], *parts: tuple[list[tuple[int, float]], float]
    ) -> None:
        """Add the row that `terms` are at least the sum of `parts`."""
        least = 0.0
        for part, constant in parts:
            terms = terms + [(column, -value) for column, value in part]
            least += constant
        self._add(terms, least)

    def _add_compute(self, loads: list[list[tuple[int, float]]], constants: list[float]) -> None:
        held = stage_weights(self.units)
        for stage, device in enumerate(self.order):
            rows = [(self.units.work_ns[device.device_class].tolist(), loads[stage])]
            if device.memory_bytes is not None and held.any():
                rows.append((held.tolist(), []))
            for place, (amounts, terms) in enumerate(rows):
                fixed = 0.0
                for unit, amount in enumerate(amounts):
                    inside = self.windows.first[unit] <= stage <= self.windows.last[unit]
                    if not amount or not inside:
                        continue
                    for border, sign in ((stage + 1, -1.0), (stage, 1.0)):
                        part, constant = self._done(unit, border, sign * amount)
                        terms += part
                        fixed += constant
                if place == 0:
                    constants[stage] = fixed
                elif terms:
                    assert device.memory_bytes is not None
                    scale = _power_of_two(device.memory_bytes)
                    free = (float(device.memory_bytes) + fixed) / scale
                    self._add([(c, value / scale) for c, value in terms], -free)

    def _add_transfers(self, loads: list[list[tuple[int, float]]]) -> None:
        transfers = self.units.transfers
        first, last = self.windows.first, self.windows.last
        for net, time_ns in zip(transfers.nets, transfers.least_ns, strict=True):
            producer = net.producer
            readers = [unit for unit in net.consumers if last[unit] > first[producer]]
            if not time_ns or not readers:
                continue
            end = max(last[unit] for unit in readers)
            received = {p: self._variable(1.0) for p in range(first[producer] + 1, end + 1)}
            most = 1.0 if transfers.sends_once else float(len(self.order))
            sent = {
                p: self._variable(most)
                for p in range(first[producer], min(last[producer], end - 1) + 1)
            }
            for stages in (received, sent):
                for stage, column in stages.items():
                    if transfers.pays(self.order[stage]):
                        loads[stage].append((column, -float(time_ns)))
            if not transfers.sends_once:
                every = [(column, 1.0) for column in sent.values()]
                self._add(every + [(column, -1.0) for column in received.values()], 0.0)
            for reader in readers:
                for stage, column in received.items():
                    crosses = self._done(producer, stage, 1.0), self._done(reader, stage, -1.0)
                    after = [(c, 1.0) for p, c in received.items() if p >= stage]
                    before = [(c, 1.0) for p, c in sent.items() if p < stage]
                    self._row_over(after, *crosses)
                    self._row_over(before, *crosses)
                    self._row_over(
                        [(column, 1.0)],
                        *self._on(reader, stage, 1.0),
                        *self._on(producer, stage, -1.0),
                    )
                for stage, column in sent.items():
                    self._row_over(
                        [(column, 1.0)],
                        *self._on(producer, stage, 1.0),
                        *self._on(reader, stage, -1.0),
                    )

    def _add_relays(self, loads: list[list[tuple[int, float]]]) -> None:
        first, last = self.windows.first, self.windows.last
        transfers = self.units.transfers
        for border in range(1, len(self.order)):
            ends = self.order[border - 1].name, self.order[border].name
            times = transfers.pair_ns(transfers.pair(*ends)).tolist()
            for net, time_ns in zip(transfers.nets, times, strict=True):
                producer = net.producer
                readers = [unit for unit in net.consumers if last[unit] >= border]
                if not time_ns or first[producer] >= border or not (readers or net.is_output):
                    continue
                crossing = self._variable(1.0)
                for stage in (border - 1, border):
                    loads[stage].append((crossing, -float(time_ns)))
                made = self._done(producer, border, 1.0)
                if net.is_output:
                    self._row_over([(crossing, 1.0)], made)
                for reader in readers:
                    self._row_over([(crossing, 1.0)], made, self._done(reader, border, -1.0))

    def _on(
        self, unit: int, stage: int, sign: float
    ) -> tuple[tuple[list[tuple[int, float]], float], tuple[list[tuple[int, float]], float]]:
        return self._done(unit, stage + 1, sign), self._done(unit, stage, -sign)

    # -- solving --------------------------------------------------------------------------

    def least_ns(self, time_limit_s: float = math.inf) -> int:
        """Return a lower bound of T in nanoseconds; 0 if no dual values are found in time."""
        from ortools.math_opt import model_pb2
        from ortools.math_opt.python import mathopt

        model = model_pb2.ModelProto()
        count, rows = len(self.upper), len(self.low)
        model.variables.ids.extend(range(count))
        model.variables.lower_bounds.extend([0.0] * count)
        model.variables.upper_bounds.extend(self.upper)
        model.variables.integers.extend([False] * count)
        model.linear_constraints.ids.extend(range(rows))
        model.linear_constraints.lower_bounds.extend(self.low)
        model.linear_constraints.upper_bounds.extend([math.inf] * rows)
        matrix = model.linear_constraint_matrix
        matrix.row_ids.extend(self.row)
        matrix.column_ids.extend(self.column)
        matrix.coefficients.extend(self.value)
        model.objective.linear_coefficients.ids.append(0)
        model.objective.linear_coefficients.values.append(1.0)
        simple = rows <= _SIMPLEX_ROWS
        parameters = mathopt.SolveParameters(
            iteration_limit=_SIMPLEX_ITERATIONS if simple else _FIRST_ORDER_ITERATIONS
        )
        if time_limit_s < math.inf:
            parameters.time_limit = timedelta(seconds=time_limit_s)
        chosen = mathopt.SolverType.GLOP if simple else mathopt.SolverType.PDLP
        result = mathopt.solve(mathopt.Model.from_model_proto(model), chosen, params=parameters)
        if not result.solutions or result.solutions[0].dual_solution is None:
            return 0
        values = result.solutions[0].dual_solution.dual_values
        duals = np.zeros(rows)
        for constraint, value in values.items():
            duals[constraint.id] = value
        return self._safe_bound_ns(duals)

    def _safe_bound_ns(self, duals: np.ndarray[tuple[int], np.dtype[np.float64]]) -> int:
        """Return the bound that dual values prove, rounded down by more than its error.

        For duals d >= 0 of rows A x >= l, every solution has c x >= d l + (c - d A) x, and each
        reduced cost is worth at least its smaller product with the bounds of its variable.
        """
        duals = np.where(np.isfinite(duals), np.maximum(duals, 0.0), 0.0)
        rows: Ints = np.array(self.row, dtype=np.int64)
        columns: Ints = np.array(self.column, dtype=np.int64)
        products = np.array(self.value) * duals[rows]
        count = len(self.upper)
        reduced = -np.bincount(columns, weights=products, minlength=count)
        reduced[0] += 1.0
        upper = np.array(self.upper)
        # Each sum of k terms is wrong by at most k roundings of what they come to.
        sizes = np.bincount(columns, weights=np.abs(products), minlength=count)
        terms = np.bincount(columns, minlength=count) + 2
        error = math.fsum(2 * sys.float_info.epsilon * terms * (sizes + 1.0) * upper)
        gained = duals * np.array(self.low)
        lost = np.minimum(reduced, 0.0) * upper
        error += sys.float_info.epsilon * (math.fsum(np.abs(gained)) + math.fsum(np.abs(lost)))
        share = math.fsum(gained) + math.fsum(lost) - 2 * error
        return max(0, math.ceil(share * self.ceiling_ns * (1 - 4 * sys.float_info.epsilon) - 1e-6))


def _power_of_two(amount: int) -> float:
    """Return a power of two of about a hundredth of `amount`."""
    return math.ldexp(1.0, max(amount, 1).bit_length() - 7)
