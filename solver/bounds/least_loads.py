"""Lower bounds of the bottleneck from the least load of a device that runs given units.

The compute, sends and receives of a device depend on the set of its units alone: not on the order
of the devices, or on the other devices' units. So the least load of a device with some units and
without others is a minimum cut, and no plan is below

* the least load of a device that runs unit u, for every u;
* the least load of a device with some k of n > (k - 1) P units: of P devices one has k;
* the least, over all ways to divide some units among devices, of the largest load of a device
  with its own units and without the others, and of the average load.

These hold with backward operators too, whose arcs follow no order, and for any number of chunks,
which limits the times that a path may leave a device and come back.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Final, TypeVar

import numpy as np

from solver.bounds.device_cuts import DeviceCuts
from solver.model.arrays import Ints
from solver.model.clock import UNLIMITED, Clock
from solver.presolve.instance import Instance

_MOST_NODES: Final = 2_000
"""Partial choices visited in one search."""
_MOST_TOGETHER: Final = 5
"""The largest number of units that are looked for on one device."""

_Choice = TypeVar("_Choice", bound=tuple[object, ...])


class LeastLoads:
    """The least loads of devices, by their units.

    Nothing overlaps, and some devices pay for transfers (`applies`). A plan has at most `slots`
    devices, each with at most `chunks`.

    Proof. Let S be the units of a device d that pays for transfers, with speed v <= 1: it takes at
    least 1 / v as long for any unit as its fastest class. A value that S makes and other units read
    leaves d once at least, and one that S reads and does not make enters it once, whatever the
    charging; each transfer takes the least time of any link. So with work(S) on the fastest class
    and crossing(S) for these times

        load(d)  >=  work(S) / v + crossing(S)  >=  work(S) + crossing(S).

    The least of the right side over all S with the units I and without the units O is a minimum cut
    (the nets are those of Yang and Wong, "Efficient network flow based min-cut balanced
    partitioning", ICCAD 1994, once for each direction). A device that pays nothing takes its own
    time for all of I. Summed over all devices, with V the sum of all speeds and v the least of
    those that pay, the first inequality says that a bottleneck T has

        V T  >=  work of all units  +  v times the sum of crossing(S).

    *Gaps.* Let a path lead through units u and w of S. If a unit between them, on any path, is not
    in S, it is on a later position than u and an earlier one than w, so w is in a later chunk than
    u. So with c chunks at most c - 1 of the gaps between units of I on a path are open, and S has
    all units between two others in the closed gaps. The bound is the least over all choices of open
    gaps.

    *Singles.* Every unit is on a device. A member of the least set of another unit has no larger
    least load than that one.

    *Pigeonholes.* Of (k - 1) P + 1 units some k are on one device, so T is at least the least load
    of any k of them. A set has no smaller least load than a part of it, so a best-first search over
    partial choices finds the least without visiting most of them.

    *Divisions.* Every plan divides some units among the devices in some way. A device with the
    units B of them, and hence without the others O, has at least the least load for B and O, and
    its crossing is at least the least crossing for them (isolating cuts: Dahlhaus et al., "The
    complexity of multiterminal cuts", SIAM J. Comput. 23, 1994). Both only grow as units are added
    to B and O, so a best-first search finds the least over all divisions; if it ends early, the
    least value of its open nodes is a bound.

    Examples
    --------
    >>> from solver import Device, Interconnect, Operator, PartitionProblem
    >>> from solver.presolve.instance import condense
    >>> operators = [Operator("a", 10, value_bytes=1, transfer_ns=50), Operator("b", 30, ["a"])]
    >>> devices = [Device("d0"), Device("d1")]
    >>> interconnect = Interconnect(charging="host_staged")
    >>> problem = PartitionProblem(operators, devices, interconnect=interconnect)
    >>> LeastLoads(condense(problem), 2).bottleneck_ns()
    40
    """

    def __init__(
        self, units: Instance, slots: int, chunks: int = 1, clock: Clock = UNLIMITED
    ) -> None:
        self._work, self._slots, self._chunks = units.fastest_ns, slots, chunks
        self._clock = clock
        self._cuts = DeviceCuts(units, chunks, clock)
        devices = units.problem.devices
        speeds = [1 / units.slowness[device.device_class] for device in devices]
        self._speed = sum(sorted(speeds)[-slots:])
        paying = units.transfers.paying
        self._slowest = 1 / max((units.slowness[d.device_class] for d in paying), default=1.0)
        self._free_count = len(devices) - len(paying)
        # The least time of a unit on devices that pay nothing.
        free = {device.device_class for device in devices if device not in paying}
        self._free_work = np.min([units.work_ns[name] for name in free], axis=0) if free else None
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...], bool, bool], int] = {}

    @staticmethod
    def applies(units: Instance) -> bool:
        """Return True if loads are sums of work and transfers."""
        return bool(units.transfers.paying) and not units.problem.interconnect.overlap

    def bottleneck_ns(self, at_least: int = 0, at_most: int | None = None) -> int:
        """Return a lower bound of the bottleneck of every plan.

        `at_least` is a known bound; the search ends once the bound reaches `at_most`.
        """
        if not self._cuts.are_exact:
            return at_least
        most = self._cuts.most_ns if at_most is None else at_most
        best, first = at_least, 0
        open_units = np.ones(len(self._work), dtype=np.bool_)
        for unit in np.argsort(-self._alone, kind="stable").tolist():
            if self._alone[unit] <= best or self._is_over(best, most):
                break
            if open_units[unit]:
                load_ns, members = self._cuts.cut((unit,))
                least = self._least((unit,))
                if least > best:
                    best, first = least, unit
                if load_ns <= best:
                    open_units[members] = False
        for search in (self._divisions, self._pigeonholes):
            if not self._is_over(best, most):
                best = search(best, most, first)
        return best

    def _is_over(self, best: int, most: int) -> bool:
        return best >= most or self._clock.is_over

    def _pigeonholes(self, best: int, most: int, _: int) -> int:
        """Raise the bound by the least load of a device with several of the longest units."""
        longest = np.argsort(-self._work, kind="stable").tolist()
        for together in range(2, _MOST_TOGETHER + 1):
            units = longest[: (together - 1) * self._slots + 1]
            if len(units) <= (together - 1) * self._slots:
                break
            # The load of all together is at most the sum of their loads alone.
            if sum(int(self._alone[unit]) for unit in units[-together:]) <= best:
                continue

            def more(
                chosen: tuple[int, ...], units: list[int] = units, together: int = together
            ) -> Iterable[tuple[int, tuple[int, ...]]]:
                start = chosen[-1] + 1 if chosen else 0
                for place in range(start, len(units) - together + len(chosen) + 1):
                    inside = tuple(units[other] for other in (*chosen, place))
                    yield self._least(inside), (*chosen, place)

            def refined(chosen: tuple[int, ...], units: list[int] = units) -> int:
                return self._least(tuple(units[place] for place in chosen), in_chunks=True)

            best = self._search(more, together, best, most, refined)
        return best

    def _divisions(self, best: int, most: int, first: int) -> int:
        """Raise the bound by all ways to divide units that are costly to combine among devices."""
        units = self._costly_units(first)
        total = int(self._work.sum())

        def more(
            blocks: tuple[tuple[int, ...], ...],
        ) -> Iterable[tuple[int, tuple[tuple[int, ...], ...]]]:
            placed = units[: sum(map(len, blocks)) + 1]
            for place in range(min(len(blocks) + 1, self._slots)):
                own = (*blocks[place : place + 1], ())[0]
                divided = (*blocks[:place], (*own, placed[-1]), *blocks[place + 1 :])
                loads: list[int] = []
                crossing: list[int] = []
                for block in divided:
                    others = tuple(unit for unit in placed if unit not in block)
                    loads.append(self._least(block, others))
                    crossing.append(self._least(block, others, crossing=True))
                # Any block may be on a device that pays nothing.
                paid = sum(sorted(crossing)[: max(0, len(crossing) - self._free_count)])
                average = (total + self._slowest * paid) / self._speed
                # The division is in floats: round down by more than its error.
                yield max(*loads, int(average * (1 - 1e-12))), divided

        return self._search(more, len(units), best, most)

    def _costly_units(self, first: int) -> list[int]:
        """Return one unit more than there are devices, any two costly to have on one of them.

        The next one has the largest least load together with any unit chosen before (T. F.
        Gonzalez, "Clustering to minimize the maximum intercluster distance", Theoretical Computer
        Science 38, 1985).
        """
        chosen = [first]
        # By unit: an upper bound of the least load with the first few units chosen.
        loads: list[int] = (self._alone + self._alone[first]).tolist()
        heap = [(-load_ns, unit, 0) for unit, load_ns in enumerate(loads) if unit != first]
        heapq.heapify(heap)
        while heap and len(chosen) <= self._slots and not self._clock.is_over:
            load_ns, unit, known = heapq.heappop(heap)
            if known == len(chosen):
                chosen.append(unit)
                continue
            load_ns = max(load_ns, *(-self._least((other, unit)) for other in chosen[known:]))
            heapq.heappush(heap, (load_ns, unit, len(chosen)))
        return chosen

    def _search(
        self,
        more: Callable[[_Choice], Iterable[tuple[int, _Choice]]],
        depth: int,
        best: int,
        most: int,
        refine: Callable[[_Choice], int] | None = None,
    ) -> int:
        """Return the least value of all choices, or a lower bound of it, if it is above `best`.

        `more` returns the extensions of a partial choice, each with a lower bound of its value;
        `depth` of them make a whole choice. Values above `most` are of no interest. `refine`
        returns a further lower bound of a whole choice.
        """
        root: Any = ()
        least, choice = 0, root
        for _ in range(depth):
            value, choice = min(more(choice))
            least = max(least, value)
            if self._clock.is_over:
                return best
        if least <= best:
            # The greedy choice bounds the least from above.
            return best
        heap = [(0, depth, root)]
        for _ in range(_MOST_NODES):
            least, left, choice = heap[0]
            if left < 0 or self._is_over(least, most) or not (left or refine):
                break
            heapq.heappop(heap)
            if not left and refine:
                heapq.heappush(heap, (max(least, refine(choice)), -1, choice))
                continue
            for value, longer in more(choice):
                heapq.heappush(heap, (max(least, value), left - 1, longer))
        return max(best, heap[0][0])

    @cached_property
    def _alone(self) -> Ints:
        """The load of a device that runs a single unit, by unit."""
        load = self._work.copy()
        for producer, readers, time_ns in self._cuts.nets:
            load[[producer, *readers]] += time_ns
        return load

    def _least(
        self,
        inside: tuple[int, ...],
        outside: tuple[int, ...] = (),
        *,
        crossing: bool = False,
        in_chunks: bool = False,
    ) -> int:
        """Return the least load, or the least crossing, of a device with some units."""
        key = inside, outside, crossing, in_chunks
        if key not in self._known:
            closed = self._closed(inside, outside)
            least = [
                (
                    self._cuts.in_chunks(units)
                    if in_chunks
                    else self._cuts.cut(units, outside, crossing)[0]
                )
                for units in closed
            ]
            if self._free_work is not None and not crossing:
                least += [int(self._free_work[units].sum()) for units in closed]
            self._known[key] = min(least, default=self._cuts.most_ns)
        return self._known[key]

    def _closed(self, inside: tuple[int, ...], outside: tuple[int, ...]) -> list[list[int]]:
        """Return `inside` with the closed gaps of a path, for each choice of open gaps."""
        path: list[int] = []
        for unit in sorted(inside):
            if not path or self._cuts.behind(path[-1])[unit]:
                path.append(unit)
        gaps = [self._cuts.behind(a) & self._cuts.before(b) for a, b in itertools.pairwise(path)]
        found: list[list[int]] = []
        for closed in itertools.combinations(gaps, max(0, len(gaps) - self._chunks + 1)):
            units = np.zeros(len(self._work), dtype=np.bool_)
            units[list(inside)] = True
            for gap in closed:
                units |= gap
            if not units[list(outside)].any():
                found.append(np.flatnonzero(units).tolist())
        return found
