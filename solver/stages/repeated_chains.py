"""Identical chains in the program over ideals: one ideal for all that differ by exchanges.

Let the blocks of a group of :mod:`solver.presolve.symmetry` be chains: each reads, within
the group, only the one before it in its own chain. An ideal contains a prefix of every chain, and
permuting these prefixes does not matter to the rest: exchange chains in the rest of the plan. So
the program uses ideals in which later chains of the group go less far (`RepeatedChains.arcs`), (m +
l choose l) for m chains of length l instead of (l + 1)^m.

The cost of a stage between two ideals then depends on *the advance of each chain in it*, and
the program takes the best. *Proof* that this is to let as many chains as possible stay at
every level: let one chain leave level i for j in the stage, and another one come from h < i to
i. Let the first stay at i and the other go from h to j. The stage runs the same units; the first
chain's value of level i is no longer received, the other's no longer sent, and nothing else
changes, provided that values and weights touch a group in one of these ways:

* a *link*, made by one block and read by the next of its chain alone;
* in one block only;
* made outside the group, or a weight, and at every level in all of the chains or none.

The second and third way depend only on the number of blocks of each level in the stage, which
the two ideals determine. Repeat until at every level i, with n chains before the stage and m after
it, min(n, m) stay. Then n - min(n, m) links are received and m - min(n, m) sent, which are sums of
products of indicators of both ideals (:meth:`solver.stages.pair_sums.PairSum.add_links`). The other
chains are matched in order of their levels, which works if anything does, and it does where one
sorted ideal contains the other. Relayed, each link that an ideal cuts crosses its border, and the
number of those is a function of the ideal alone.

Memory has to be that of weights, or not to bind; storages depend on more than counts.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from solver.presolve.device_kinds import limited_devices
from solver.presolve.graph import neighbours
from solver.presolve.instance import Instance
from solver.presolve.symmetry import identical_blocks
from solver.stages.blocks import DROPPED, Blocks

Chains = tuple[tuple[int, ...], ...]
"""The chains of a group; for each its blocks in order."""


@dataclass(frozen=True, slots=True)
class RepeatedChains:
    """All groups of identical chains."""

    groups: tuple[Chains, ...] = ()

    def arcs(self) -> Iterator[tuple[int, int]]:
        """Yield arcs that leave one of all ideals which differ by exchanges."""
        for chains in self.groups:
            for before, after in itertools.pairwise(chains):
                yield from zip(before, after, strict=True)

    def links(self) -> dict[tuple[int, int], tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return for every link, by its blocks, those of both levels in all chains."""
        return {
            (lower[number], upper[number]): (lower, upper)
            for chains in self.groups
            for lower, upper in itertools.pairwise(zip(*chains, strict=True))
            for number in range(len(chains))
        }

    def place(self, stage_of_block: list[int]) -> None:
        """Rematch the chains in a plan so that as many as possible stay at every level.

        Parameters
        ----------
        stage_of_block : list of int
            Position of every block, of a chain of ideals that satisfy `arcs`; changed in place.
        """
        for chains in self.groups:
            rows = [[stage_of_block[block] for block in chain] for chain in chains]
            stages = sorted({stage for row in rows for stage in row})
            level = [0] * len(chains)
            for stage in stages:
                for number, reached in enumerate(self._reached(level, rows, stage)):
                    for block in chains[number][level[number] : reached]:
                        stage_of_block[block] = stage
                    level[number] = reached

    @staticmethod
    def _reached(level: Sequence[int], rows: Sequence[Sequence[int]], stage: int) -> list[int]:
        """Return the new level of each chain if as many as possible stay."""
        coming = [sum(place <= stage for place in row) for row in rows]
        reached = list(level)
        leaving: list[int] = []
        # Of equal chains the later ones stay, so that earlier ones advance first.
        for number in reversed(range(len(level))):
            here = level[number]
            if here in coming:
                coming.remove(here)
            else:
                leaving.append(number)
        leaving.sort(key=lambda number: level[number])
        for number, target in zip(leaving, sorted(coming), strict=True):
            reached[number] = target
        return reached


def identical_chains(units: Instance, blocks: Blocks) -> RepeatedChains:
    """Return the groups of identical chains of blocks, one order of which is enough.

    Parameters
    ----------
    blocks : Blocks
        Of `units`, without those merged or dropped in one chain of a group and not in another.
    """
    problem, limited = units.problem, bool(limited_devices(units))
    # With several chunks the places of chains in other rounds distinguish them.
    if problem.chunks_per_device > 1 or (limited and problem.memory_model != "weights"):
        return RepeatedChains()
    members: list[int] = [0] * blocks.count
    for block in blocks.block_of:
        if block != DROPPED:
            members[block] += 1
    groups: list[Chains] = []
    facts = _Facts(units, blocks, limited=limited)
    for group in identical_blocks(units):
        chains = _chains_of(group, blocks, members)
        if chains is not None and facts.separate(chains):
            groups.append(chains)
    return RepeatedChains(tuple(groups))


def _chains_of(
    group: Sequence[Sequence[int]], blocks: Blocks, members: Sequence[int]
) -> Chains | None:
    """Return the chains of collapsed blocks, or None if these differ."""
    columns = sorted(range(len(group[0])), key=lambda place: group[0][place])
    chains: list[tuple[int, ...]] = []
    patterns = set()
    for own in group:
        ids = [blocks.block_of[own[place]] for place in columns]
        chain = list(dict.fromkeys(block for block in ids if block != DROPPED))
        if sum(members[block] for block in chain) != sum(block != DROPPED for block in ids):
            # Merged with a unit outside the chain.
            return None
        number = {block: place for place, block in enumerate(chain)} | {DROPPED: DROPPED}
        forgotten = tuple(own[place] in blocks.weightless for place in columns)
        patterns.add((tuple(number[block] for block in ids), forgotten))
        chains.append(tuple(sorted(chain)))
    return tuple(sorted(chains)) if len(patterns) == 1 and chains[0] else None


class _Facts:
    """Relations between blocks: edges, values, and, if memory is limited, weights."""

    def __init__(self, units: Instance, blocks: Blocks, *, limited: bool) -> None:
        self._after = neighbours(blocks.count, blocks.edges)
        ties: list[tuple[int, Iterable[int]]] = []
        ties += [(net.producer, net.consumers) for net in units.transfers.nets]
        if limited:
            ties += [(-1, entry.units) for entry in units.weights]
        self._ties: list[tuple[int, set[int]]] = []
        self._of_block: dict[int, list[int]] = defaultdict(list)
        for head, tail in ties:
            producer = DROPPED if head < 0 else blocks.block_of[head]
            touched = {blocks.block_of[unit] for unit in tail} - {producer, DROPPED}
            for block in (producer, *touched):
                self._of_block[block].append(len(self._ties))
            self._ties.append((producer, touched))

    def separate(self, chains: Chains) -> bool:
        """Return True if a group consists of chains, and is touched in the three ways only."""
        at = {
            block: (number, level)
            for number, chain in enumerate(chains)
            for level, block in enumerate(chain)
        }
        inner = {(block, after) for block in at for after in self._after[block] if after in at}
        if inner != {pair for chain in chains for pair in itertools.pairwise(chain)}:
            return False
        for tie in {tie for block in at for tie in self._of_block[block]}:
            producer, touched = self._ties[tie]
            own = touched & at.keys()
            if producer in at:
                number, level = at[producer]
                following = chains[number][level + 1 : level + 2]
                if own and tuple(touched) != following:
                    return False
            elif len(own) > 1:
                levels = {at[block][1] for block in own}
                if len(own) != len(levels) * len(chains):
                    return False
        return True
