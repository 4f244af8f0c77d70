"""Plans for models that do not fit, with a bound that no plan beats."""

from __future__ import annotations

import importlib
import random
from collections.abc import Collection, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Final

from solver.evaluation.result import SolveStatus, StepRecord
from solver.model.clock import Clock
from solver.model.errors import PartitionError
from solver.model.limits import SolveLimits
from solver.offload.bound import CountModel, classes_of
from solver.offload.contexts import Found, OffloadResult, solve_offload
from solver.offload.evaluate import fits, memory_of, rooms_of, value_ns
from solver.offload.greedy import greedy_plans
from solver.offload.instance import OffloadInstance
from solver.offload.layout import State, layouts

STEPS: Final = ("mode fill", "mode counts", "mode moves")
"""Steps of the search, by their names in ``without`` and in logs."""
SCHEDULES: Final = {"auto": STEPS[1:], "cp-sat": STEPS[1:2], "greedy": STEPS[:1]}
"""Steps of each solver that plans with a host."""
_LATE: Final = 1000
"""Counted for each nanosecond beyond the limit of a prompt, in a search for plans within it."""
_BUFFERS: Final = (2, 3)
"""How many times streamed units fit into the buffer in the plans that are tried."""
_SHARE_OF_BOUND: Final = 0.4
"""Of the time, for the bound."""
_SHARE_OF_START: Final = 0.1
"""Of the time, for each other model of counts."""
_SHARE_OF_DESCENTS: Final = 0.5
"""Of the time that is left, for the plans to start from; the rest is for disturbances."""
_TRIES_OF_PAIR: Final = 4
"""Neighbours without gain, for each pair of units, after which a descent ends."""
_MOVES_OF_DISTURBANCE: Final = (2, 8)
"""Least and most moves by which the best plan is disturbed."""
_MOVE_S: Final = 5e-6
"""What a neighbour counts as on a clock of work, for each unit."""


def plan_offload(
    instance: OffloadInstance,
    limits: SolveLimits | None = None,
    *,
    solver: str = "auto",
    without: Collection[str] = (),
) -> OffloadResult:
    """Search the device and mode of every unit, the same in all phases.

    The count model (:mod:`solver.offload.bound`) gives the bound, and counts to start from: with
    room for one load, and with two and three. They are laid out over the order of units; iterated
    local search (Lourenço, Martin, Stützle, Handbook of Metaheuristics, 2003) moves on from there.
    The timelines of all phases judge every plan. :mod:`solver.offload.contexts` says what is asked
    of this search for each objective.

    The limits have time and seed, 60 s if not said; one thread searches. `solver` is one of
    ``SCHEDULES``, and `without` names ``STEPS`` that are left out: without counts nothing is proven
    but memory. Raises `PartitionError` if the solver has no steps for a host.
    """
    check_solver(solver)
    if solver != "greedy":
        # Loading it takes no part of the time.
        importlib.import_module("ortools.sat.python.cp_model")
    limits = limits or SolveLimits()
    clock, log = Clock.of(limits), list[StepRecord]()
    steps = [step for step in SCHEDULES[solver] if step not in without]
    search = partial(_filled if solver == "greedy" else _least_time, limits.seed, steps, log)
    found = replace(solve_offload(instance, clock, search), solver=solver, log=tuple(log))
    if solver != "greedy":
        return found
    status = SolveStatus.UNKNOWN if found.plan is None else SolveStatus.FEASIBLE
    return replace(found, status=status, objective_bounds=None)


def check_solver(name: str) -> None:
    """Raise PartitionError unless a solver has steps for a host."""
    if name not in SCHEDULES:
        raise PartitionError(
            f"solver {name!r} has no steps for a host; write one of {', '.join(SCHEDULES)}, or "
            "leave the host out"
        )


def _filled(
    seed: int,
    steps: Collection[str],
    log: list[StepRecord],
    instance: OffloadInstance,
    clock: Clock,
    *,
    is_timed: bool,
) -> Found:
    """Return the best plan that fills devices in order, without a proof."""
    search = _Search(instance, 0, clock, random.Random(seed))
    start_s = clock.spent_s
    search.is_done([*greedy_plans(instance)] if steps else [])
    log.append(search.record("mode fill", start_s, None, 0))
    return Found(0, search.found)


def _least_time(
    seed: int,
    steps: Collection[str],
    log: list[StepRecord],
    instance: OffloadInstance,
    clock: Clock,
    *,
    is_timed: bool,
) -> Found:
    limit_s, start_s = clock.left_s, clock.spent_s
    counts = is_timed and "mode counts" in steps
    model = CountModel(instance, is_timed=counts)
    share = _SHARE_OF_BOUND if is_timed else 1.0
    answer = model.solve(clock.slice(share * limit_s), seed)
    starts = list(layouts(classes_of(instance), answer))
    if answer.bound_ns is None or not is_timed:
        return Found(answer.bound_ns, starts[0] if starts else None)
    search = _Search(instance, answer.bound_ns, clock, random.Random(seed))
    is_done = search.is_done(starts)
    others = [(instance, buffers) for buffers in _BUFFERS]
    if instance.first_token_limit_ns is not None:
        prompt = replace(instance, counts=instance.prompt_runs, first_token_limit_ns=None)
        others.append((prompt, 1))
    for asked, buffers in others if counts else ():
        if is_done:
            break
        model = CountModel(asked, buffers=buffers)
        more = layouts(classes_of(asked), model.solve(clock.slice(_SHARE_OF_START * limit_s), seed))
        starts += more
        is_done = search.is_done(starts)
    found_ns = search.value_ns
    if counts:
        log.append(search.record("mode counts", start_s, None, 0))
    if "mode moves" in steps and not is_done:
        start_s = clock.spent_s
        search.run(starts)
        log.append(search.record("mode moves", start_s, found_ns, answer.bound_ns))
    return Found(answer.bound_ns, search.found)


class _Search:
    """Iterated local search over modes and stage borders."""

    def __init__(
        self, instance: OffloadInstance, bound_ns: int, clock: Clock, draw: random.Random
    ) -> None:
        self._instance = instance
        self._bound_ns = bound_ns
        self._clock = clock
        self._draw = draw
        self._most_ns = sum(n * instance.most_ns(phase) for phase, n in instance.rounds)
        self._alike = {m: kind.members for kind in classes_of(instance) for m in kind.members}
        self.best: State | None = None
        self.value_ns: Fraction | None = None

    @property
    def found(self) -> State | None:
        """The best plan, unless its prompt is too late."""
        best = self.best
        return None if best is None or self._late_ns(best, self._rooms(best) or ()) else best

    def _late_ns(self, state: State, rooms: Sequence[int | None]) -> Fraction:
        """Return the time of a prompt beyond its limit."""
        limit_ns, prompt = self._instance.first_token_limit_ns, self._instance.limited_rounds
        if limit_ns is None:
            return Fraction()
        return max(value_ns(self._instance, *state, rooms, rounds=prompt) - limit_ns, Fraction())

    def record(
        self, step: str, start_s: float, before: Fraction | None, bound_before: int
    ) -> StepRecord:
        """Return the record of a step that ends now; times count in whole nanoseconds."""
        spent_s, name = self._clock.spent_s - start_s, self._instance.objective
        old, new = (None if value is None else round(value) for value in (before, self.value_ns))
        return StepRecord(step, 1, start_s, spent_s, name, old, new, bound_before, self._bound_ns)

    def is_done(self, starts: list[State]) -> bool:
        """Take the best of these plans, and say whether nothing is left to do."""
        for state in starts:
            self._judge(state)
        return self._is_over()

    def run(self, starts: list[State]) -> None:
        """Improve every plan that fits, then the best one, disturbed, until that gains nothing."""
        valued = [state for state in dict.fromkeys(starts) if self._judge(state) is not None]
        share_s = _SHARE_OF_DESCENTS * self._clock.left_s / max(len(valued), 1)
        for state in valued:
            self._improve(state, self._clock.slice(share_s))
        idle = 0
        while self.best is not None and idle < len(self._instance.units) and not self._is_over():
            before = self.value_ns
            self._improve(self._disturbed(self.best), self._clock.slice(share_s))
            idle = idle + 1 if self.value_ns == before else 0

    def _is_over(self) -> bool:
        return self.value_ns == self._bound_ns or self._clock.is_over

    def _rooms(self, state: State) -> list[int | None] | None:
        """Return the buffers of a plan; None if it does not fit."""
        placed = zip(self._instance.units, *state, strict=True)
        is_kept = all(mode == "host" or unit.may_be_on(at) for unit, at, mode in placed)
        if not is_kept or not fits(self._instance, *state):
            return None
        return rooms_of(self._instance, memory_of(self._instance, *state)[0])

    def _judge(self, state: State, enough_ns: Fraction | None = None) -> Fraction | None:
        """Return the value of a plan, None if it does not fit, and remember the best.

        A late prompt counts for more than any token. From `enough_ns` on, which must be worse than
        the best, the value need not be exact.
        """
        rooms = self._rooms(state)
        if rooms is None:
            return None
        value = value_ns(self._instance, *state, rooms, enough_ns=enough_ns)
        if late_ns := self._late_ns(state, rooms):
            value += self._most_ns + _LATE * late_ns
        if self.value_ns is None or value < self.value_ns:
            self.best, self.value_ns = state, value
        return value

    def _improve(self, state: State, clock: Clock) -> None:
        """Go from plan to plan that is no worse, until many neighbours gained nothing."""
        count = len(self._instance.units)
        value = self._judge(state)
        assert value is not None
        idle = 0
        while idle < _TRIES_OF_PAIR * count**2 and not clock.is_over and not self._is_over():
            idle += 1
            clock.charge(_MOVE_S * count)
            neighbour = self._neighbour(state)
            if neighbour is None:
                continue
            found = self._judge(neighbour, value + 1)
            if found is not None and found <= value:
                idle = 0 if found != value else idle
                state, value = neighbour, found

    def _disturbed(self, state: State) -> State:
        for _ in range(self._draw.randint(*_MOVES_OF_DISTURBANCE)):
            neighbour = self._neighbour(state)
            if neighbour is not None and self._rooms(neighbour) is not None:
                state = neighbour
        return state

    def _neighbour(self, state: State) -> State | None:
        """Return a plan that differs a little: modes exchanged, one changed, a border moved."""
        draw = self._draw
        devices, modes = state
        index = draw.randrange(len(modes))
        kind = draw.random()
        if kind < 0.1 and len(self._instance.devices) > 1:
            return self._moved_border(state, index)
        changed = list(modes)
        if kind < 0.7:
            others = [m for m in self._alike[index] if modes[m] != modes[index]]
            if others:
                other = draw.choice(others)
                changed[index], changed[other] = modes[other], modes[index]
                return devices, tuple(changed)
        allowed = [m for m in self._instance.units[index].modes if m != modes[index]]
        if not allowed:
            return None
        changed[index] = draw.choice(allowed)
        if kind > 0.85:
            # One mode more and another less, of units that need not be alike.
            other = draw.randrange(len(modes))
            if modes[index] in self._instance.units[other].modes:
                changed[other] = modes[index]
        return devices, tuple(changed)

    def _moved_border(self, state: State, index: int) -> State | None:
        """Return the plan in which a unit and all between it and a border change the device."""
        devices, modes = state
        borders = [i for i in range(1, len(devices)) if devices[i] != devices[i - 1]]
        moved = list(devices)
        if not borders:
            device = self._draw.randrange(len(self._instance.devices))
            part = range(index) if device < devices[0] else range(index, len(devices))
            for i in part:
                moved[i] = device
            return tuple(moved), modes
        border = self._draw.choice(borders)
        step = self._draw.choice((-2, -1, 1, 2))
        if step > 0:
            for i in range(border, min(border + step, len(devices))):
                if devices[i] == devices[border]:
                    moved[i] = devices[border - 1]
        else:
            for i in range(max(border + step, 0), border):
                if devices[i] == devices[border - 1]:
                    moved[i] = devices[border]
        return tuple(moved), modes
