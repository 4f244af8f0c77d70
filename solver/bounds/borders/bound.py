"""A lower bound of the bottleneck by what stages can really end with, and the plan that meets it.

:mod:`solver.bounds.positions` lets work and weights be cut anywhere within a region. Where
devices hold a few layers each, that says too much of them: weights come in lumps, and a device that
has room for two and a half lumps holds two. Here stages end at borders that exist
(:mod:`solver.bounds.borders.tables`). For a limit on the loads a dynamic program over the sets of
devices used so far says whether stages get to the end; destructive bounding
(:mod:`solver.bounds.stepping`) finds the least limit for which they may. As stages are longer
than regions, hardly anything is relaxed but the memory of activations. So the way to the end is a
plan that is often very near the bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from solver.bounds.borders.steps import BorderSteps, Front
from solver.bounds.borders.tables import BorderList, Borders
from solver.bounds.position_steps import StageKind
from solver.bounds.spine import spine_units
from solver.bounds.stepping import DestructiveBound
from solver.model.devices import Device
from solver.model.plan import PartitionPlan
from solver.presolve.instance import Instance

_MOST_TRIED = 2_000
"""Pairs of a border and a set of devices that are tried on the way back from the end."""


class BorderBound(DestructiveBound):
    """Lower bounds of the bottleneck of all plans of a problem, for any number of devices.

    Parameters
    ----------
    units : Instance
        With one chunk per device, no backward operators and no overlap (`applies`).
    slots : int
        The most devices that a plan may use.

    Notes
    -----
    Proof. Take a plan of at most T, and leave out all units that are not on the spine; that raises
    neither a load nor memory (:mod:`solver.bounds.spine`). Its stages with units left use some
    set of devices in some order, and by :mod:`solver.bounds.borders.steps` the front of each set of
    the first of them knows a border no worse than what they run. So the front of some set knows the
    end. If none does, no plan has all loads at most T. Of devices that are counted as one kind the
    kind has the largest memory and the highest speed.
    """

    most_sets = 700

    def __init__(self, units: Instance, slots: int) -> None:
        super().__init__(units, slots)
        self._units = units
        self._kept = spine_units(units)
        self._table: Borders | None = None
        # A host pays nothing, and graphs with too many ideals are not listed.
        if all(kind.pays for kind in self._kinds):
            slowness = max(units.slowness.values())
            work = self._work[self._kept]
            self._table = BorderList(units, self._kept, work, slots, slowness).borders()

    @property
    def is_known(self) -> bool:
        """Whether there is a bound."""
        return self._table is not None

    def _fails(self, bottleneck_ns: int, order: Sequence[Device] | None) -> bool:
        if self._table is None:
            return False
        steps = BorderSteps(self._table, bottleneck_ns)
        kinds = self._kinds_of(order)
        if kinds is not None:
            front = steps.start()
            for kind in kinds:
                front = steps.after([(front, kind)])
                if steps.is_done(front):
                    return False
            return True
        return not any(steps.is_done(front) for _, front in self._fronts(steps))

    def _fronts(self, steps: BorderSteps) -> Iterator[tuple[int, Front]]:
        """Yield the fronts of all sets of devices, the smaller ones first."""
        fronts = {0: steps.start()}
        yield 0, fronts[0]
        for level in self._sets.levels[1 : self._slots + 1]:
            for used in reversed(range(level.start, level.stop)):
                fronts[used] = steps.after(
                    [(fronts[rest], self._few_kinds[k]) for k, rest in self._sets.smaller[used]]
                )
                yield used, fronts[used]

    # -- plans ----------------------------------------------------------------------------

    def plan(self, bottleneck_ns: int, *, sends_sides: bool = True) -> PartitionPlan | None:
        """Return the plan of a way to the end, whose loads are hoped to be at most the limit.

        The search looks neither at pins and cuts, nor at what the units beside the spine hold, so
        the caller may have to throw the plan away.

        Parameters
        ----------
        bottleneck_ns : int
            The limit on every load.
        sends_sides : bool
            Whether the first stage is counted as sending what lies beside the spine to all others,
            which the bound leaves out.
        """
        if self._table is None:
            return None
        first_ns = 0
        if sends_sides:
            others = min(self._slots, sum(self._kinds.values())) - 1
            first_ns = others * sum(value.time_ns for value in self._table.side)
        steps = BorderSteps(self._table, bottleneck_ns, first_ns)
        fronts: dict[int, Front] = {}
        for used, front in self._fronts(steps):
            fronts[used] = front
            if steps.is_done(front):
                way = self._way(steps, fronts, used)
                return self._plan_of(way) if way else None
        return None

    def _way(
        self, steps: BorderSteps, fronts: dict[int, Front], used: int
    ) -> list[tuple[StageKind, int]] | None:
        """Return kinds of devices with the borders at which their stages end."""
        failed: set[tuple[int, int]] = set()

        def steps_before(used: int, border: int) -> Iterator[tuple[int, int, StageKind | None]]:
            for number, fewer in self._sets.smaller[used]:
                kind = self._few_kinds[number]
                for source in steps.stages_before(border, fronts[fewer], kind):
                    yield fewer, source, kind
                if border in fronts[fewer]:
                    yield fewer, border, None

        last = len(steps.borders) - 1
        way: list[tuple[int, int, StageKind | None]] = [(used, last, None)]
        pending = [steps_before(used, last)]
        while way and way[-1][1] != 0:
            step = next((s for s in pending[-1] if s[:2] not in failed), None)
            if step is not None:
                way.append(step)
                pending.append(steps_before(*step[:2]))
                continue
            pending.pop()
            failed.add(way.pop()[:2])
            if len(failed) > _MOST_TRIED:
                return None
        # Every step says which kind of device leads to the border of the one before it.
        ends = itertools.pairwise(way)
        return [(kind, border) for (_, border, _), (_, _, kind) in ends if kind is not None][::-1]

    def _plan_of(self, way: Sequence[tuple[StageKind, int]]) -> PartitionPlan | None:
        """Return the plan whose stages end at the borders of a way."""
        assert self._table is not None
        units = self._units
        stage_of = [-1] * len(units)
        for stage, (_, border) in enumerate(way):
            for place in self._table.units_of(border):
                unit = self._kept[place]
                if stage_of[unit] < 0:
                    stage_of[unit] = stage
        # Beside the spine: as late as the first reader, but not before what it reads.
        for unit in reversed(range(len(units))):
            if stage_of[unit] < 0:
                stage_of[unit] = min(
                    (stage_of[other] for other in units.successors[unit]), default=0
                )
        stage_of, _ = units.narrowed(stage_of, stage_of)
        names: list[str] = []
        left = list(units.problem.devices)
        for kind, _ in way:
            fitting = [device for device in left if _holds(self._kind_of(device), kind)]
            if not fitting:
                # Kinds that are counted as one promise more than any device has.
                return None
            device = min(fitting, key=lambda device: self._kind_of(device).room_bytes)
            left.remove(device)
            names.append(device.name)
        used = tuple(names[stage] for stage in sorted(set(stage_of)))
        return PartitionPlan(units.lift([names[stage] for stage in stage_of]), used)


def _holds(kind: StageKind, wanted: StageKind) -> bool:
    return kind.room_bytes >= wanted.room_bytes and kind.slowness <= wanted.slowness
