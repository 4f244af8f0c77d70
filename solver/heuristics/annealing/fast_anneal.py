"""Simulated annealing of the bottleneck by compiled moves, some twenty times as many a second.

The search is that of :mod:`solver.heuristics.annealing.anneal`, and all that it says holds here;
moves are tried at equal temperatures in pieces, between which the clock is looked at. Compiling
takes seconds where no earlier process has left its code, and loading it half a second, so this is
for long searches.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from solver.heuristics.annealing.anneal import EXCESS_PRICE, Cooling, way_gone
from solver.model.clock import UNLIMITED, Clock
from solver.model.devices import Device
from solver.presolve.instance import Instance

_MOVES: Final = "solver.heuristics.annealing.compiled_moves"
_COMPILED_IN_S: Final = 20.0
_LOADED_IN_S: Final = 3.0
"""Searches that are shorter leave no time to get ready for them."""
_PIECES: Final = 400
"""Temperatures on the way from first to last, at least."""
_PIECE_WORK: Final = 50_000_000
"""Moves times what one may cost; some 20 milliseconds."""
_NONE: Final = 1 << 62


def pays_off(clock: Clock) -> bool:
    """Return whether there is time to load, or to compile, what :func:`anneal_fast` runs."""
    if _MOVES in sys.modules:
        return True
    return clock.wall_left_s > (_LOADED_IN_S if _is_kept() else _COMPILED_IN_S)


def _is_kept() -> bool:
    """Return whether code of the file as it is has been kept next to it, as far as that shows."""
    source = Path(__file__).with_name("compiled_moves.py")
    kept = (source.parent / "__pycache__").glob("compiled_moves.run_moves*.nbc")
    return any(code.stat().st_mtime > source.stat().st_mtime for code in kept)


def anneal_fast(
    units: Instance,
    devices: Sequence[Device],
    positions: Sequence[int],
    cooling: Cooling,
    seed: int,
    *,
    target: int = 0,
    clock: Clock = UNLIMITED,
) -> tuple[int, list[int]] | None:
    """Search for a smaller bottleneck.

    Parameters
    ----------
    units : Instance
        Of any charging but ``relayed``.
    devices : sequence of Device
        By position; positions may stay empty.
    positions : sequence of int
        Of the units at the start, in order.
    cooling, seed, target, clock
        As for :func:`solver.heuristics.annealing.anneal.anneal`.

    Returns
    -------
    tuple of int and list of int, or None
        The least value found within the capacities, and its positions; None if there is none.
    """
    # Only here, as numba takes a while to load.
    from solver.heuristics.annealing import compiled_moves as moves
    from solver.heuristics.annealing.move_tables import move_tables

    numbers, layout = move_tables(units, devices, seed)
    moves.place_units(numbers, layout, np.array(positions, dtype=np.int64))
    excess = moves.excess_bytes(numbers, layout, layout.parts)
    energy_ns = moves.norm_of_loads(numbers, layout, layout.parts)
    roomy = [device.memory_bytes for device in devices if device.memory_bytes]
    price_ns = EXCESS_PRICE * energy_ns * len(roomy) / max(sum(roomy), 1)
    energy_ns += excess * price_ns
    best_ns = _NONE if excess else moves.largest_load(numbers, layout, layout.parts)
    best_at = slice(layout.best_at, layout.best_at + len(units))
    numbers[best_at] = positions
    first_ns, ratio = cooling.first * energy_ns, cooling.last / cooling.first
    # A move that loads accept looks at all steps of two positions.
    piece = min(-(-cooling.iterations // _PIECES), 1 + _PIECE_WORK // (1000 + layout.steps))
    given_s, done = clock.wall_left_s, 0
    while done < cooling.iterations and best_ns > target:
        if clock.is_over:
            break
        way = way_gone(done, cooling, clock, given_s)
        energy_ns, best_ns = moves.run_moves(
            numbers,
            layout,
            min(piece, cooling.iterations - done),
            first_ns * ratio**way,
            price_ns,
            energy_ns,
            best_ns,
            target,
        )
        done += piece
    return None if best_ns == _NONE else (best_ns, numbers[best_at].tolist())
