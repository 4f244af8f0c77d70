"""Values from outside the spine of a graph that many stages receive.

Masks and rotary positions are made once and read in every layer. They are not on the spine
(:mod:`solver.bounds.regional.spine`), but every stage with a reader on the spine has to receive
some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from solver.presolve.instance import Instance


@dataclass(frozen=True, slots=True)
class SideValue:
    """The least transfer to every stage with one of `readers`, if `first` is on an earlier stage.

    `first` and the readers, ascending, are units of the spine by their index there. `time_ns` is
    the least time of one transfer, `held_bytes` are the least bytes of it on a stage with a reader.
    """

    first: int
    readers: tuple[int, ...]
    time_ns: int
    held_bytes: int


def side_values(units: Instance, kept: Sequence[int]) -> tuple[SideValue, ...]:
    """Return values from outside `kept`; a stage receives all of which it has readers.

    Transfers are direct; `kept` are the units of the spine, ascending.

    The nets from outside the spine make a forest: net b follows net a if the producer of b reads a,
    and nothing else. Take a tree of it, with root net n of unit s, and the units of the spine that
    read its nets. Let `first` be one of them and S_{k-1}, the units of the stages before stage k,
    contain it. Then S_{k-1} contains s, which comes before `first`. If stage k runs another one,
    the path of nets from s to that reader crosses from S_{k-1} into stage k: it receives a net of
    the tree. All of them take at least the least time of the nets on such paths. Trees that have no
    net in common are paid for one by one, so the root with the largest values is chosen first, and
    of equal ones the one with the most readers.
    """
    trees = _Trees(units, kept)
    values = {root: trees.value(root)[0] for root in trees.outside}
    values = {root: value for root, value in values.items() if value.readers and value.time_ns}
    best_first = sorted(values, key=lambda n: (-values[n].time_ns, -len(values[n].readers)))
    chosen: list[SideValue] = []
    for root in best_first:
        if root in trees.taken:
            continue
        value, nets = trees.value(root)
        if value.readers and value.time_ns:
            chosen.append(value)
            trees.taken |= nets
    return tuple(chosen)


class _Trees:
    """The forest of nets from outside a spine (`outside`), with those of chosen trees (`taken`)."""

    def __init__(self, units: Instance, kept: Sequence[int]) -> None:
        self._nets, self._times_ns = units.nets, units.transfers.least_ns
        self._place = place = {unit: number for number, unit in enumerate(kept)}
        self.outside = [n for n, net in enumerate(units.nets) if net.producer not in place]
        self.taken: set[int] = set()
        self._following = {
            number: [
                other
                for unit in units.nets[number].consumers
                if unit not in place and len(units.nets_read[unit]) == 1
                for other in units.nets_made[unit]
            ]
            for number in self.outside
        }

    def value(self, root: int) -> tuple[SideValue, set[int]]:
        """Return the least transfer to readers of a tree, and the nets of the tree."""
        nets: set[int] = set()
        readers: set[int] = set()
        pending = [(root, self._times_ns[root], self._nets[root].held_bytes)]
        found: list[tuple[int, int]] = []
        while pending:
            number, time_ns, held_bytes = pending.pop()
            nets.add(number)
            consumers = self._nets[number].consumers
            own = {self._place[unit] for unit in consumers if unit in self._place}
            if own:
                readers |= own
                found.append((time_ns, held_bytes))
            pending += [
                (
                    other,
                    min(time_ns, self._times_ns[other]),
                    min(held_bytes, self._nets[other].held_bytes),
                )
                for other in self._following[number]
                if other not in self.taken
            ]
        first, *rest = sorted(readers) or [-1]
        least_ns = min((time_ns for time_ns, _ in found), default=0)
        least_bytes = min((held_bytes for _, held_bytes in found), default=0)
        return SideValue(first, tuple(rest), least_ns, least_bytes), nets
