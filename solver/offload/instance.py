"""The numbers of a job with a host, by unit; :mod:`solver.offload.evaluate` alone defines cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from solver.model.checks import did_you_mean
from solver.model.devices import STAGING_HOST, Device, Link
from solver.model.errors import PartitionError
from solver.model.job import Host, Job, ServingObjective, grown_bytes
from solver.model.plan import Mode, PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.problem_checks import MAX_TOTAL
from solver.offload.units import Unit, UnitMode, unit_of
from solver.presolve.transfers import Transfers


@dataclass(frozen=True)
class OffloadInstance:
    """Units in the order in which they run, and the devices in the order that data takes.

    `links` lead from the host to each device. `host_bytes` is the memory of the host; None is
    unlimited. By phase, `counts` are forwards in the objective and `prompt_runs` those for a
    prompt; `stage_hop_ns` is the time of activations from a device to another, by their positions,
    and `host_hop_ns` that between a device and the host. `objective` is one of a
    :class:`~solver.model.job.Job`, `batch` the sequences of a call, and `context` the positions of
    the caches. A prompt takes `first_token_limit_ns` at most; None is no limit.
    """

    units: tuple[Unit, ...]
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    host_bytes: int | None
    phases: tuple[str, ...]
    counts: tuple[int, ...]
    stage_hop_ns: tuple[tuple[tuple[int, ...], ...], ...]
    host_hop_ns: tuple[int, ...]
    objective: ServingObjective = "token"
    batch: int = 1
    context: int = 1
    prompt_runs: tuple[int, ...] = ()
    first_token_limit_ns: int | None = None

    @classmethod
    def of(cls, job: Job) -> OffloadInstance:
        """Return the instance of a job.

        A weight that several units read counts in each: every unit holds or loads its own reads.

        Raises `PartitionError` if units are not all operators, each once and in order, links are
        not those that plans with a host support, or numbers are too large.
        """
        host = Host() if job.host is None else job.host
        problems = [*job.phases.values()]
        devices, interconnect = problems[0].devices, problems[0].interconnect
        _check_units(job)
        _check_links(problems[0])
        links = tuple(interconnect.link(STAGING_HOST, device.name) for device in devices)
        back = tuple(interconnect.link(device.name, STAGING_HOST) for device in devices)
        names = [device.name for device in devices]
        between = [[interconnect.link(a, b) if a != b else Link() for b in names] for a in names]
        sent = [_crossing_bytes(problem, job.units) for problem in problems]
        runs = job.objective_runs
        weights = {key: weight for p in problems for key, weight in p.weights.items()}
        made = cls(
            tuple(unit_of(job, name, weights) for name in job.units),
            devices,
            links,
            host.memory_bytes,
            tuple(job.phases),
            tuple(runs.get(name, 0) for name in job.phases),
            tuple(
                tuple(tuple(link.transfer_ns(size) for link in row) for row in between)
                for size in sent
            ),
            tuple(max(link.transfer_ns(size) for link in (*links, *back)) for size in sent),
            job.objective,
            job.batch,
            job.context,
            tuple(job.prompt_runs.get(name, 0) for name in job.phases),
            job.first_token_limit_ns,
        )
        made._check_totals()
        return made

    def _check_totals(self) -> None:
        sizes = sum(unit.held_bytes + unit.padding_bytes for unit in self.units)
        if sizes > MAX_TOTAL:
            raise PartitionError(
                f"weights and caches are above {MAX_TOTAL} bytes (1 PB); write less"
            )
        most_ns = sum(max(n, 1) * self.most_ns(phase) for phase, n in enumerate(self.counts))
        if most_ns > MAX_TOTAL:
            raise PartitionError(
                f"times add up to more than {MAX_TOTAL} ns; check operators, links and tokens"
            )

    @property
    def rounds(self) -> list[tuple[int, int]]:
        """Phases in the objective, by position, and their counts."""
        return [(phase, count) for phase, count in enumerate(self.counts) if count]

    @property
    def limited_rounds(self) -> list[tuple[int, int]]:
        """Phases of a prompt whose time is limited, by position, and their counts."""
        runs = () if self.first_token_limit_ns is None else self.prompt_runs
        return [(phase, count) for phase, count in enumerate(runs) if count]

    @property
    def least_ns(self) -> int:
        """A time that no plan beats: every unit where it is fastest, and no hop."""
        return sum(n * unit.least_ns(phase) for phase, n in self.rounds for unit in self.units)

    @cached_property
    def device_index(self) -> Mapping[str, int]:
        """Position of every device, by name."""
        return {device.name: index for index, device in enumerate(self.devices)}

    def value_of(self, time_ns: Fraction) -> Fraction:
        """Return the objective of forwards that take a time, unless it is ``context``."""
        if self.objective != "throughput":
            return time_ns
        return Fraction(self.batch * 10**9) / max(time_ns, Fraction(1))

    def at(self, context: int) -> OffloadInstance:
        """Return the instance with caches of another context."""

        def grown(unit: Unit) -> Unit:
            more = sum(grown_bytes(*of, self.context, context) for of in unit.growths)
            return replace(unit, cache_bytes=unit.cache_bytes + more) if more else unit

        return replace(self, units=tuple(map(grown, self.units)), context=context)

    def without_end(self) -> OffloadInstance:
        """Return the instance whose plans are those that any context fits.

        A cache that grows without a limit exceeds every limited memory. Others have their most.
        """
        limits = [most for unit in self.units for _, most in unit.growths if most is not None]
        last = self.at(max([*limits, self.context]))
        memories = [self.host_bytes, *(device.memory_bytes for device in self.devices)]
        beyond = max((size for size in memories if size is not None), default=0) + 1

        def endless(unit: Unit) -> Unit:
            grows = any(size and most is None for size, most in unit.growths)
            return replace(unit, cache_bytes=beyond) if grows else unit

        return replace(last, units=tuple(map(endless, last.units)))

    def most_ns(self, phase: int) -> int:
        """Return a time that no round exceeds: all in the slowest way, one after the other."""
        hops = map(max, self.stage_hop_ns[phase])
        total = len(self.units) * max(*hops, self.host_hop_ns[phase])
        for unit in self.units:
            loads = (link.transfer_ns(unit.weight_bytes) for link in self.links)
            slowest = map(sum, zip(loads, unit.run_ns[phase], strict=True))
            total += max(unit.host_ns[phase], *slowest)
        return total

    def on(self, order: Sequence[int]) -> OffloadInstance:
        """Return the instance on some of the devices, by position, in this order."""

        def turned(unit: Unit) -> Unit:
            run_ns = tuple(tuple(own[at] for at in order) for own in unit.run_ns)
            own = unit.devices and tuple(new for new, at in enumerate(order) if at in unit.devices)
            return replace(unit, run_ns=run_ns, devices=own)

        return replace(
            self,
            units=tuple(map(turned, self.units)),
            devices=tuple(self.devices[at] for at in order),
            links=tuple(self.links[at] for at in order),
            stage_hop_ns=tuple(
                tuple(tuple(hops[one][other] for other in order) for one in order)
                for hops in self.stage_hop_ns
            ),
        )

    def plan(self, devices: Sequence[int], modes: Sequence[UnitMode]) -> PartitionPlan:
        """Return the plan of operators whose units have these devices, by position, and modes.

        What runs on the host is on :data:`solver.model.devices.STAGING_HOST`, the last device of
        every chunk. Each streamed unit is a stage of its own.
        """
        names = [*(device.name for device in self.devices), STAGING_HOST]
        assignment: dict[str, str] = {}
        chunks: dict[str, int] = {}
        mode_of: dict[str, Mode] = {}
        chunk, before = 0, (-1, "host")
        for unit, device, mode in zip(self.units, devices, modes, strict=True):
            place = (len(self.devices) if mode == "host" else device, mode)
            if place != before or mode == "streamed":
                chunk += place[0] <= before[0]
            assignment |= dict.fromkeys(unit.operators, names[place[0]])
            chunks |= dict.fromkeys(unit.operators, chunk)
            if mode != "host":
                mode_of |= dict.fromkeys(unit.operators, mode)
            before = place
        used = set(assignment.values())
        order = tuple(name for name in names if name in used)
        return PartitionPlan(assignment, order, chunks, mode_of=mode_of)

    def units_of(self, plan: PartitionPlan) -> dict[str, tuple[str, UnitMode]]:
        """Return the device and the mode of each unit under a plan of operators.

        A unit on the host belongs to the device of the unit before it, or else after it. Raises
        `PartitionError` if the plan names other operators or devices than the instance, or divides
        a unit.
        """
        known = {name for unit in self.units for name in unit.operators}
        for name, device in plan.assignment.items():
            if name not in known:
                hint = did_you_mean(name, known, "name operators of the problem alone")
                raise PartitionError(f"the plan names {name!r}, which is no operator; {hint}")
            if device not in (*self.device_index, STAGING_HOST):
                hint = did_you_mean(device, self.device_index, "name devices of the problem")
                raise PartitionError(f"operator {name!r} is on {device!r}, which is none; {hint}")
        places = [self._place(unit, plan) for unit in self.units]
        last = next((at for at, _ in places if at != STAGING_HOST), self.devices[0].name)
        found: dict[str, tuple[str, UnitMode]] = {}
        for unit, (device, mode) in zip(self.units, places, strict=True):
            last = last if device == STAGING_HOST else device
            found[unit.name] = last, "host" if device == STAGING_HOST else mode
        return found

    def _place(self, unit: Unit, plan: PartitionPlan) -> tuple[str, Mode]:
        """Return the device and the mode of the operators of a unit."""
        places: dict[tuple[str, Mode], str] = {}
        for name in unit.operators:
            if name not in plan.assignment:
                raise PartitionError(f"the plan has no device for operator {name!r}; write one")
            places.setdefault((plan.assignment[name], plan.modes[name]), name)
        place, *others = places
        if others:
            device, mode = others[0]
            raise PartitionError(
                f"the plan divides unit {unit.name!r}: operator {places[others[0]]!r} is {mode} on "
                f"{device}, and others are not; give all of its operators one device and one mode"
            )
        return place


def _crossing_bytes(problem: PartitionProblem, units: Mapping[str, Sequence[str]]) -> int:
    """Return the most bytes that one unit sends to other units."""
    unit_of = {name: unit for unit, names in units.items() for name in names}
    passed: dict[str, int] = {}
    for op in problem.operators:
        if any(unit_of[reader] != unit_of[op.name] for reader in problem.readers_of[op.name]):
            unit = unit_of[op.name]
            passed[unit] = passed.get(unit, 0) + op.value_bytes
    return max(passed.values(), default=0)


def _check_units(job: Job) -> None:
    names = {op.name: None for problem in job.phases.values() for op in problem.operators}
    number: dict[str, int] = {}
    for index, (unit, members) in enumerate(job.units.items()):
        for name in members:
            if name not in names:
                hint = did_you_mean(name, names, "write names of its operators")
                raise PartitionError(f"unit {unit!r} names {name!r}, which is unknown; {hint}")
            if name in number:
                raise PartitionError(f"two units name operator {name!r}; put it in one")
            number[name] = index
    titles = list(job.units)
    for op in (op for problem in job.phases.values() for op in problem.operators):
        if op.name not in number:
            raise PartitionError(f"operator {op.name!r} is in no unit; add it to one")
        for source in op.reads:
            if number.get(source, -1) > number[op.name]:
                raise PartitionError(
                    f"operator {op.name!r} of unit {titles[number[op.name]]!r} reads {source!r} "
                    f"of {titles[number[source]]!r}, which runs later; put that unit first"
                )


def _check_links(problem: PartitionProblem) -> None:
    interconnect = problem.interconnect
    if Transfers(problem).through_host or interconnect.overlap:
        given = "overlap" if interconnect.overlap else "charging"
        raise PartitionError(
            "with a host, values go from one device to the next while both wait; leave "
            f"{given} of the interconnect out"
        )
