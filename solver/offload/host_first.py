"""The best plan that engines with an option for host layers can run, by CP-SAT.

Such a plan has whole *groups* of units, such as layers. The first ones are on the host as a whole,
the others resident, each on one device, in the order of the devices; of these a group's last unit
may be on the host alone. Nothing is streamed, so that the time of a forward is a sum: the model in
integers has it exactly, hops included, and its optimum is that of all such plans.

With booleans ``on[i, d]`` (group i is on device d), ``own[i, d]`` (and its last unit too) and
``first[i]`` (it is on the host):

* every group is on the host or on one device; the position of this, with that of the host before
  all, never falls from a group to the next;
* memory of devices and host holds the units of ``on``, ``own`` and ``first``;
* a hop leads from the host to the first device, two lead to and from a last unit on the host, one
  of which the end of the forward saves, and one leads from device to device otherwise.

Of alike groups on a device, neither the last one there, the earlier has its last unit on the host:
exchanging the two changes neither time nor memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, Final

from solver.model.clock import Clock
from solver.model.errors import PartitionError
from solver.model.limits import SolveLimits
from solver.offload.bound import classes_of
from solver.offload.contexts import Found, OffloadResult, solve_offload
from solver.offload.evaluate import evaluate_offload
from solver.offload.instance import OffloadInstance
from solver.offload.units import UnitMode

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_SEARCH: Final = "default_lp"
"""Of CP-SAT's searches: few kinds of groups, tight linear rows."""


@dataclass(frozen=True, slots=True)
class UnitGroup:
    """Units in a row that are on one device, or on the host as a whole.

    Attributes
    ----------
    units : tuple of int
        Their positions.
    last_apart : bool
        Whether the last of them may be on the host while the others are on a device.
    """

    units: tuple[int, ...]
    last_apart: bool = False


def plan_host_first(
    instance: OffloadInstance,
    groups: Sequence[UnitGroup],
    *,
    least_first: int = 0,
    below_ns: int | None = None,
    limits: SolveLimits | None = None,
) -> OffloadResult:
    """Find the best plan whose first groups are on the host and whose others are resident.

    Parameters
    ----------
    groups : sequence of UnitGroup
        All units in order.
    least_first : int
        How many groups must be on the host as a whole; more may be.
    below_ns : int, optional
        Time of a known plan: only faster ones are searched. Without any the status is
        ``UNKNOWN``, and the bound is at most the value of this time.
    limits : SolveLimits, optional
        Time and seed; 60 s if not said.

    Returns
    -------
    OffloadResult
        Its bound is that of plans of this kind.

    Raises
    ------
    PartitionError
        If the groups are not all units in order, or one of a single unit has its last apart.
    """
    units = [unit for group in groups for unit in group.units]
    if units != list(range(len(instance.units))) or not all(group.units for group in groups):
        raise PartitionError("groups are not all units in order; put each unit into one group")
    if any(group.last_apart and len(group.units) < 2 for group in groups):
        raise PartitionError("a group of one unit has none to be apart; leave last_apart out")
    limits = limits or SolveLimits()

    def search(asked: OffloadInstance, clock: Clock, *, is_timed: bool) -> Found:
        model = _HostFirstModel(asked, groups, least_first, below_ns, is_timed=is_timed)
        return model.solve(clock, limits.seed)

    return solve_offload(instance, Clock.of(limits), search)


class _HostFirstModel:
    """The model in integers; names are those of the module's docstring."""

    def __init__(
        self,
        instance: OffloadInstance,
        groups: Sequence[UnitGroup],
        least_first: int,
        below_ns: int | None,
        *,
        is_timed: bool,
    ) -> None:
        from ortools.sat.python import cp_model

        self._instance, self._groups = instance, groups
        self._devices = range(len(instance.devices))
        self._model: cp_model.CpModel = cp_model.CpModel()
        self._first = [self._can_be_on_host(group.units) for group in groups]
        self._on = [[self._bool() for _ in self._devices] for _ in groups]
        self._own = [self._own_row(group, on) for group, on in zip(groups, self._on, strict=True)]
        self._add_places(least_first)
        self._add_memory()
        self._add_order_of_alike()
        self._is_timed = is_timed
        self._below_ns = below_ns if is_timed else None
        if is_timed:
            self._crossed = [self._crossings(at) for at in range(len(groups) - 1)]
            self._model.minimize(sum(self._times(instance.rounds)))
            if instance.first_token_limit_ns is not None:
                prompt = sum(self._times(instance.limited_rounds))
                self._model.add(prompt <= instance.first_token_limit_ns)
            if below_ns is not None:
                # Twice as fast as a row of its own.
                most_ns = below_ns - 1
                self._model.proto.objective.domain.extend([min(most_ns, 0), most_ns])

    def solve(self, clock: Clock, seed: int) -> Found:
        """Minimise until the clock is over."""
        from ortools.sat.python import cp_model

        from solver.cp.run import charge_run, limit_run, single_solver

        solver = single_solver(seed, _SEARCH)
        limit_run(solver.parameters, clock)
        status = solver.solve(self._model)
        charge_run(clock, solver)
        if status == cp_model.INFEASIBLE:
            return Found(self._below_ns)
        assert status != cp_model.MODEL_INVALID, self._model.validate()
        bound_ns = max(round(solver.best_objective_bound), self._instance.least_ns * self._is_timed)
        if self._below_ns is not None:
            bound_ns = min(bound_ns, self._below_ns)
        if status == cp_model.UNKNOWN:
            return Found(bound_ns)
        found = Found(bound_ns, self._state(solver))
        if self._is_timed:
            self._check(found, round(solver.objective_value), status == cp_model.OPTIMAL)
        return found

    def _check(self, found: Found, said_ns: int, is_optimal: bool) -> None:
        """Compare the time of the rows with that of the evaluator."""
        assert found.state is not None
        time_ns = evaluate_offload(self._instance, self._instance.plan(*found.state)).value_ns
        assert time_ns is not None
        # Until it is optimal a crossing may be counted that is none.
        is_exact = time_ns == said_ns or (time_ns < said_ns and not is_optimal)
        assert is_exact, "the rows miss a part of the time"

    def _state(self, solver: cp_model.CpSolver) -> tuple[tuple[int, ...], tuple[UnitMode, ...]]:
        """Return the device and mode of every unit; those of the host are of the first stage."""
        used = [next((d for d in self._devices if solver.value(on[d])), None) for on in self._on]
        start = next((device for device in used if device is not None), 0)
        devices: list[int] = []
        modes: list[UnitMode] = []
        for group, device, own in zip(self._groups, used, self._own, strict=True):
            devices += [start if device is None else device] * len(group.units)
            mode: UnitMode = "host" if device is None else "resident"
            modes += [mode] * len(group.units)
            if device is not None and not solver.value(own[device]):
                modes[-1] = "host"
        return tuple(devices), tuple(modes)

    # -- rows ----------------------------------------------------------------------------------

    def _bool(self) -> Any:
        return self._model.new_bool_var("")

    def _can_be_on_host(self, units: Sequence[int]) -> Any:
        """Return a Boolean, or 0 if one of the units cannot run there."""
        has_time = all("host" in self._instance.units[unit].modes for unit in units)
        return self._bool() if has_time else 0

    def _own_row(self, group: UnitGroup, on: list[Any]) -> list[Any]:
        """Return whether the last unit is resident, by device."""
        if not group.last_apart or "host" not in self._instance.units[group.units[-1]].modes:
            return on
        own = [self._bool() for _ in on]
        for here, whole in zip(own, on, strict=True):
            self._model.add_implication(here, whole)
        return own

    def _apart(self, at: int) -> Any:
        """Return whether the last unit of a group is on the host and the others are not."""
        return 0 if self._own[at] is self._on[at] else sum(self._on[at]) - sum(self._own[at])

    def _add_places(self, least_first: int) -> None:
        ranks = []
        for first, on in zip(self._first, self._on, strict=True):
            self._model.add(first + sum(on) == 1)
            ranks.append(sum((device + 1) * here for device, here in enumerate(on)))
        for before, after in pairwise(ranks):
            self._model.add(before <= after)
        for rank in ranks[:least_first]:
            self._model.add(rank == 0)
        for group, on, own in zip(self._groups, self._on, self._own, strict=True):
            *before, last = (self._instance.units[unit] for unit in group.units)
            for device in self._devices:
                if not all(unit.may_be_on(device) for unit in before):
                    self._model.add(on[device] == 0)
                if not last.may_be_on(device):
                    self._model.add(own[device] == 0)

    def _add_memory(self) -> None:
        units = self._instance.units
        held: list[list[Any]] = [[] for _ in self._devices]
        host: list[Any] = []
        for at, group in enumerate(self._groups):
            *bytes_before, last = (units[unit].held_bytes for unit in group.units)
            before = sum(bytes_before)
            for device in self._devices:
                held[device] += [before * self._on[at][device], last * self._own[at][device]]
            host += [(before + last) * self._first[at], last * self._apart(at)]
        for place, taken in zip(self._instance.devices, held, strict=True):
            if place.memory_bytes is not None:
                self._model.add(sum(taken) <= place.memory_bytes)
        if self._instance.host_bytes is not None:
            self._model.add(sum(host) <= self._instance.host_bytes)

    def _add_order_of_alike(self) -> None:
        kind_of = {
            unit: number
            for number, kind in enumerate(classes_of(self._instance))
            for unit in kind.members
        }
        before: dict[tuple[int, ...], int] = {}
        for at, group in enumerate(self._groups[:-1]):
            kind = (group.last_apart, *(kind_of[unit] for unit in group.units))
            earlier = before.get(kind)
            before[kind] = at
            if earlier is None or self._own[at] is self._on[at]:
                continue
            for device in self._devices:
                leaves = 2 - self._on[at][device] - self._on[at + 1][device]
                self._model.add(self._own[earlier][device] <= self._own[at][device] + leaves)

    def _times(self, rounds: Sequence[tuple[int, int]]) -> list[Any]:
        """Return the parts of the time of some forwards."""
        found: list[Any] = []
        apart = [self._apart(at) for at in range(len(self._groups))]
        for phase, count in rounds:
            found += [count * part for part in self._runs(phase)]
            hop_ns = count * self._instance.host_hop_ns[phase]
            found.append(hop_ns * (self._first[0] - self._first[-1]))
            found.append(hop_ns * (2 * sum(apart) - apart[-1]))
            hops = self._instance.stage_hop_ns[phase]
            found += [
                count * hops[one][other] * crosses
                for behind in self._crossed
                for (one, other), crosses in behind.items()
            ]
        return found

    def _crossings(self, at: int) -> dict[tuple[int, int], Any]:
        """Return whether data goes from a device to a later one behind a group, by both."""
        pairs = [*combinations(self._devices, 2)]
        if pairs and all(map(self._instance.has_equal_hops, range(len(self._instance.phases)))):
            # One variable is enough where all pairs take as long.
            leaves = self._bool()
            for here, there in zip(self._on[at], self._on[at + 1], strict=True):
                self._model.add(leaves >= here - there - self._apart(at))
            return {pairs[0]: leaves}
        found = {pair: self._bool() for pair in pairs}
        for (one, other), crosses in found.items():
            both = self._on[at][one] + self._on[at + 1][other]
            self._model.add(crosses >= both - 1 - self._apart(at))
        return found

    def _runs(self, phase: int) -> list[Any]:
        """Return the times of the units of a forward, each where it runs."""
        found: list[Any] = []
        for at, group in enumerate(self._groups):
            *before, last = (self._instance.units[unit] for unit in group.units)
            for device in self._devices:
                before_ns = sum(unit.run_ns[phase][device] for unit in before)
                found.append(before_ns * self._on[at][device])
                found.append(last.run_ns[phase][device] * self._own[at][device])
            last_ns = last.host_ns[phase]
            host_ns = sum(unit.host_ns[phase] for unit in before) + last_ns
            found += [host_ns * self._first[at], last_ns * self._apart(at)]
        return found
