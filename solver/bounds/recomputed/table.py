"""Lower bounds of stages between ideals, and their refinement to ideals of more units.

Every plan is a chain of ideals of more units as it is one of fewer; without the additional units
the former are the latter. So the bound of a stage between ideals of fewer units holds for all
stages between ideals of more units within it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from solver.bounds.recomputed.skeleton import Pairs, Skeleton
from solver.model.arrays import Floats, Ints
from solver.presolve.device_kinds import DeviceKind
from solver.presolve.instance import Instance

_MOST_PAIRS = 2_000_000
_Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class StageTable:
    """Stages between ideals.

    Attributes
    ----------
    units : Instance
        Of a problem with recomputable operators.
    kinds : sequence of DeviceKind
        Its devices.
    pairs : Pairs
        Of ideals.
    loads_ns : mapping of (int, int) to Floats
        Least loads by device kind and microbatches in flight, transfers included; infinite for
        stages that do not fit or are excluded.
    transfers_ns : mapping of int to Floats
        By kind, the transfers.
    """

    units: Instance
    kinds: Sequence[DeviceKind]
    pairs: Pairs
    loads_ns: Mapping[_Key, Floats]
    transfers_ns: Mapping[int, Floats]

    @property
    def skeleton(self) -> Skeleton:
        """The ideals."""
        return self.pairs.skeleton

    def restricted(self, left: Mapping[_Key, Sequence[tuple[Ints, Ints]]]) -> StageTable:
        """Return the table of some of the stages.

        Parameters
        ----------
        left : mapping of (int, int) to sequence of (Ints, Ints)
            Starts and ends of the stages to keep, by the keys of `loads_ns`.
        """
        count, pairs = len(self.skeleton), self.pairs
        codes = pairs.starts * count + pairs.ends
        loads_ns: dict[_Key, Floats] = {}
        for key, parts in left.items():
            own = np.concatenate([starts * count + ends for starts, ends in parts])
            loads_ns[key] = np.where(np.isin(codes, own), self.loads_ns[key], np.inf)
        kept = np.flatnonzero(np.any(np.isfinite([*loads_ns.values()]), axis=0))
        return replace(
            self,
            pairs=Pairs(self.skeleton, pairs.starts[kept], pairs.ends[kept]),
            loads_ns={key: own[kept] for key, own in loads_ns.items()},
            transfers_ns={kind: own[kept] for kind, own in self.transfers_ns.items()},
        )

    def expanded(self, skeleton: Skeleton) -> StageTable | None:
        """Return the stages of more units that lie in these; None if they are too many.

        Stages that begin and end in the same ideal of fewer units have their work as their bound.
        """
        pairs, image = self.pairs, _images(self.skeleton, skeleton)
        order = np.argsort(image, kind="stable")
        counts = np.bincount(image, minlength=len(self.skeleton))
        first = np.cumsum(counts) - counts
        used = np.unique(np.concatenate([pairs.starts, pairs.ends]))
        starts = np.concatenate([pairs.starts, used])
        ends = np.concatenate([pairs.ends, used])
        number = np.concatenate([np.arange(len(pairs)), np.full(len(used), -1)])
        sizes = counts[starts] * counts[ends]
        if int(sizes.sum()) > _MOST_PAIRS:
            return None
        within = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        columns = np.repeat(counts[ends], sizes)
        own = (
            order[np.repeat(first[starts], sizes) + within // columns],
            order[np.repeat(first[ends], sizes) + within % columns],
        )
        kept = np.flatnonzero(skeleton.ideals.within(*own))
        kept = kept[np.lexsort((own[1][kept], own[0][kept]))]
        starts, ends, number = own[0][kept], own[1][kept], np.repeat(number, sizes)[kept]
        work_ns = skeleton.ideals.work_ns[ends] - skeleton.ideals.work_ns[starts]

        def spread(values: Floats) -> Floats:
            found: Floats = np.append(values, 0.0)[number]
            return found

        return replace(
            self,
            pairs=Pairs(skeleton, starts, ends),
            loads_ns={key: np.maximum(spread(own), work_ns) for key, own in self.loads_ns.items()},
            transfers_ns={kind: spread(own) for kind, own in self.transfers_ns.items()},
        )


def _images(fewer: Skeleton, more: Skeleton) -> Ints:
    """Return, by ideal of more units, its ideal of fewer units."""
    rows = more.member[[more.place[unit] for unit in fewer.chosen]]
    bits = np.packbits(rows, axis=0, bitorder="little").T
    place = {mask: number for number, mask in enumerate(fewer.masks)}
    return np.array([place[int.from_bytes(row.tobytes(), "little")] for row in bits])
