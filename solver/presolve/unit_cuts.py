"""Hand-made cuts and pinned stages (:mod:`solver.model.cuts`) in terms of units."""

from __future__ import annotations

from collections.abc import Sequence

from solver.presolve.instance import Instance


def unit_blocks(units: Instance) -> list[int]:
    """Return the block of every unit, 0 for all if there are no cuts.

    No unit has operators of two blocks (:mod:`solver.model.cut_checks`).
    """
    if not units.problem.cuts:
        return [0] * len(units)
    blocks = units.problem.blocks
    return [max(blocks[index] for index in members) for members in units.members]


def unit_stages(units: Instance) -> list[tuple[int, ...]]:
    """Return the stages to which operators of each unit are pinned, ascending."""
    operators, pins = units.problem.operators, units.problem.stage_pins
    if not pins:
        return [()] * len(units)
    names = [[operators[index].name for index in members] for members in units.members]
    return [tuple(sorted({pins[name] for name in own if name in pins})) for own in names]


def block_starts(units: Instance) -> list[int]:
    """Return the starts of all blocks but the first, with the units' operators in a row.

    The units must be sorted by block (:func:`by_block`), those in no block anywhere.
    """
    starts: list[int] = []
    place = 0
    for block, members in zip(unit_blocks(units), units.members, strict=True):
        if block > len(starts):
            starts.append(place)
        place += len(members)
    return starts


def by_block(units: Instance, order: Sequence[int]) -> list[int]:
    """Return a topological order of units sorted by block, otherwise as it was.

    It stays topological: no forward edge leads to an earlier block.
    """
    if not units.problem.cuts:
        return list(order)
    return sorted(order, key=unit_blocks(units).__getitem__)
