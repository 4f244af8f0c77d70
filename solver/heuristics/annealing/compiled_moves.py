"""The inner loop of fast annealing, compiled; importing this module loads numba.

The arithmetic is that of :class:`solver.heuristics.annealing.stage_state.StageState` and
:class:`solver.heuristics.annealing.stage_times.StageTimes`, on one array, and the tests compare the
two. What a plan weighs in memory is looked at only where its loads are accepted: that is seldom,
and takes longer.

All tables are in one array, since numba counts references to each array that it passes on: with
many, moves took twice as long, and compiling them, too. And all that is compiled is in this one
file, with the layout: numba keeps its code for as long as the file of a function stays as it is,
whatever happens to others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np
from numba import njit

from solver.model.arrays import Ints

MOST_TOGETHER: Final = 32
"""Units that move at once."""
_CLOSURE_SHARE: Final = 0.01
_SWAP_SHARE: Final = 0.05
"""Parts of all tries that move a closure and that swap two units."""
_SWAP_TRIES: Final = 8
"""Units looked at to find one where another is to go."""

# Of the generator, as it was published.
_STEP: Final = np.uint64(0x9E3779B97F4A7C15)
_FIRST_FACTOR: Final = np.uint64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR: Final = np.uint64(0x94D049BB133111EB)
_SHIFTS: Final = (np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11))

_F = TypeVar("_F", bound=Callable[..., Any])


def _compiled(function: _F) -> _F:
    try:
        return cast(_F, njit(cache=True, nogil=True)(function))
    except RuntimeError:
        # There is no place to keep compiled code in.
        return cast(_F, njit(nogil=True)(function))


class Layout(NamedTuple):
    """Where each table begins in the array of numbers.

    Tables of two dimensions are by row. Those called rows list numbers for each item: entry i
    and the next one say where, in the whole array, the numbers of item i begin and end.

    Attributes
    ----------
    units, positions, nets, steps : int
        Not places but how many there are.
    successors, predecessors : int
        Rows of units, by unit.
    banned : int
        By unit and position.
    compute_ns : int
        By position and unit.
    producer, held_bytes : int
        By net.
    produced, consumed : int
        Rows of nets, by unit.
    link : int
        By two positions: where in the array the times begin, by net, that the receiver of a
        transfer pays, and under peer-to-peer charging the sender, too.
    write_ns : int
        By position and net: what the producer pays once if others read; 0 if nothing is staged.
    parts, trial : int
        As ``StageState.parts``; those of a plan that is being looked at.
    send_at, receive_at, bytes_at : int
        Where these blocks of the parts begin, from their start; the first two are 0 without
        overlap.
    reading, spread : int
        Units that read a net, by net and position; positions with such units, by net.
    weights, saved : int
        Bytes that a position holds once if it has one of some units; see :class:`_Shared`.
    weights_shared, saved_shared : tuple of int
        Own bytes by unit, rows of entries by unit, sizes by entry, users by entry and position.
    owner, low, high, storage_bytes, stays, absent : int
        By storage; `absent` counts its readers at other positions.
    readers, owned, read : int
        Rows of units by storage, and of storages by unit.
    live, peak : int
        By position and step; the most of any step, by position.
    in_flight : int
        By the number of used positions and of those that follow.
    counts_values : int
        Not a place but whether received values count in the memory.
    capacity, memory, size : int
        By position; the last one counts units.
    at, best_at : int
        Positions by unit; those of the best plan so far.
    together : int
        Units, sources and targets of the moves that are tried as one.
    random : int
        One number, the state of the generator.
    """

    units: int
    positions: int
    nets: int
    steps: int
    successors: int
    predecessors: int
    banned: int
    compute_ns: int
    producer: int
    held_bytes: int
    produced: int
    consumed: int
    link: int
    write_ns: int
    parts: int
    trial: int
    send_at: int
    receive_at: int
    bytes_at: int
    reading: int
    spread: int
    weights: int
    weights_shared: tuple[int, int, int, int]
    saved: int
    saved_shared: tuple[int, int, int, int]
    owner: int
    low: int
    high: int
    storage_bytes: int
    stays: int
    absent: int
    readers: int
    owned: int
    read: int
    live: int
    peak: int
    in_flight: int
    counts_values: int
    capacity: int
    memory: int
    size: int
    at: int
    best_at: int
    together: int
    random: int


@_compiled
def _draw(numbers: Ints, layout: Layout) -> float:
    """Return a random number from 0 to below 1 (splitmix64: Steele et al., OOPSLA 2014)."""
    z = np.uint64(numbers[layout.random]) + _STEP
    numbers[layout.random] = np.int64(z)
    z = (z ^ (z >> _SHIFTS[0])) * _FIRST_FACTOR
    z = (z ^ (z >> _SHIFTS[1])) * _SECOND_FACTOR
    z ^= z >> _SHIFTS[2]
    return float(z >> _SHIFTS[3]) * 2.0**-53


# -- loads --------------------------------------------------------------------------------


@_compiled
def _load(numbers: Ints, layout: Layout, parts: int, position: int) -> int:
    first = parts + position
    load = numbers[first]
    if layout.send_at:
        load = max(load, numbers[first + layout.send_at], numbers[first + layout.receive_at])
    return load  # type: ignore[no-any-return]


@_compiled
def largest_load(numbers: Ints, layout: Layout, parts: int) -> int:
    """Return the bottleneck that parts amount to."""
    largest = 0
    for position in range(layout.positions):
        largest = max(largest, _load(numbers, layout, parts, position))
    return largest


@_compiled
def norm_of_loads(numbers: Ints, layout: Layout, parts: int) -> float:
    """Return the norm of order 8: at least the largest load, and smooth."""
    total = 0.0
    for position in range(layout.positions):
        # Powers of seconds are far from what a float cannot hold.
        power = _load(numbers, layout, parts, position) * 1e-9
        power *= power
        power *= power
        total += power * power
    return 1e9 * math.sqrt(math.sqrt(math.sqrt(total)))


@_compiled
def _change(numbers: Ints, layout: Layout, parts: int, unit: int, source: int, target: int) -> None:
    """Add to parts what moving `unit` changes in them; see ``StageTimes.change``."""
    n = layout.positions
    out, to, held = parts + layout.send_at, parts + layout.receive_at, parts + layout.bytes_at
    staged = layout.write_ns > 0
    numbers[parts + source] -= numbers[layout.compute_ns + source * layout.units + unit]
    numbers[parts + target] += numbers[layout.compute_ns + target * layout.units + unit]
    from_source, from_target = layout.link + source * n, layout.link + target * n
    for row in range(numbers[layout.produced + unit], numbers[layout.produced + unit + 1]):
        net = numbers[row]
        reading = layout.reading + net * n
        size = numbers[layout.held_bytes + net]
        left = numbers[layout.spread + net]
        if staged:
            writes = layout.write_ns + net
            if left > (numbers[reading + source] > 0):
                numbers[out + source] -= numbers[writes + source * layout.nets]
            if left > (numbers[reading + target] > 0):
                numbers[out + target] += numbers[writes + target * layout.nets]
        reader = -1
        while left:
            reader += 1
            if not numbers[reading + reader]:
                continue
            left -= 1
            if reader == source:
                numbers[held + source] += size
            else:
                time_ns = numbers[numbers[from_source + reader] + net]
                numbers[to + reader] -= time_ns
                if not staged:
                    numbers[out + source] -= time_ns
            if reader == target:
                numbers[held + target] -= size
            else:
                time_ns = numbers[numbers[from_target + reader] + net]
                numbers[to + reader] += time_ns
                if not staged:
                    numbers[out + target] += time_ns
    for row in range(numbers[layout.consumed + unit], numbers[layout.consumed + unit + 1]):
        net = numbers[row]
        reading = layout.reading + net * n
        leaves = numbers[reading + source] == 1
        arrives = numbers[reading + target] == 0
        if not (leaves or arrives):
            continue
        home = numbers[layout.at + numbers[layout.producer + net]]
        link = layout.link + home * n
        size = numbers[layout.held_bytes + net]
        change = 0
        if leaves and home != source:
            time_ns = numbers[numbers[link + source] + net]
            numbers[to + source] -= time_ns
            numbers[held + source] -= size
            change -= 1
            if not staged:
                numbers[out + home] -= time_ns
        if arrives and home != target:
            time_ns = numbers[numbers[link + target] + net]
            numbers[to + target] += time_ns
            numbers[held + target] += size
            change += 1
            if not staged:
                numbers[out + home] += time_ns
        if staged:
            away = numbers[layout.spread + net] - (numbers[reading + home] > 0)
            written = numbers[layout.write_ns + home * layout.nets + net]
            numbers[out + home] += ((away + change > 0) - (away > 0)) * written


@_compiled
def _move_reader(numbers: Ints, layout: Layout, unit: int, source: int, target: int) -> None:
    """Update what :func:`_change` reads, but for the unit's own position."""
    for row in range(numbers[layout.consumed + unit], numbers[layout.consumed + unit + 1]):
        net = numbers[row]
        reading = layout.reading + net * layout.positions
        numbers[reading + source] -= 1
        numbers[layout.spread + net] += (numbers[reading + target] == 0) - (
            numbers[reading + source] == 0
        )
        numbers[reading + target] += 1


# -- memory -------------------------------------------------------------------------------


@_compiled
def _move_shared(
    numbers: Ints,
    shared: tuple[int, int, int, int],
    held: int,
    positions: int,
    unit: int,
    source: int,
    target: int,
) -> None:
    own, entries, sizes, users = shared
    numbers[held + source] -= numbers[own + unit]
    numbers[held + target] += numbers[own + unit]
    for row in range(numbers[entries + unit], numbers[entries + unit + 1]):
        entry = numbers[row]
        place = users + entry * positions
        numbers[place + source] -= 1
        if not numbers[place + source]:
            numbers[held + source] -= numbers[sizes + entry]
        if not numbers[place + target]:
            numbers[held + target] += numbers[sizes + entry]
        numbers[place + target] += 1


@_compiled
def _move_bytes(numbers: Ints, layout: Layout, unit: int, source: int, target: int) -> None:
    """Move a unit, with all that memory is made of but received values."""
    n = layout.positions
    _move_shared(numbers, layout.weights_shared, layout.weights, n, unit, source, target)
    _move_shared(numbers, layout.saved_shared, layout.saved, n, unit, source, target)
    _move_storages(numbers, layout, unit, source, target)
    numbers[layout.size + source] -= 1
    numbers[layout.size + target] += 1
    numbers[layout.at + unit] = target


@_compiled
def _move_storages(numbers: Ints, layout: Layout, unit: int, source: int, target: int) -> None:
    steps = layout.steps
    left, entered = layout.live + source * steps, layout.live + target * steps
    touched = False
    for row in range(numbers[layout.owned + unit], numbers[layout.owned + unit + 1]):
        storage = numbers[row]
        low, high = numbers[layout.low + storage], numbers[layout.high + storage]
        size = numbers[layout.storage_bytes + storage]
        stays = numbers[layout.stays + storage] > 0
        end = steps if stays or numbers[layout.absent + storage] else high
        _add(numbers, left + low, left + end, -size)
        absent = 0
        readers = layout.readers + storage
        for place in range(numbers[readers], numbers[readers + 1]):
            absent += numbers[layout.at + numbers[place]] != target
        numbers[layout.absent + storage] = absent
        end = steps if stays or absent else high
        _add(numbers, entered + low, entered + end, size)
        touched = True
    for row in range(numbers[layout.read + unit], numbers[layout.read + unit + 1]):
        storage = numbers[row]
        home = numbers[layout.at + numbers[layout.owner + storage]]
        if home != source and home != target:
            continue
        before = numbers[layout.absent + storage]
        after = before + (home == source) - (home == target)
        numbers[layout.absent + storage] = after
        if not numbers[layout.stays + storage] and (before == 0) != (after == 0):
            size = numbers[layout.storage_bytes + storage]
            place = layout.live + home * steps
            first = place + numbers[layout.high + storage]
            _add(numbers, first, place + steps, size if before == 0 else -size)
            touched = True
    if touched:
        numbers[layout.peak + source] = _largest(numbers, left, left + steps)
        numbers[layout.peak + target] = _largest(numbers, entered, entered + steps)


@_compiled
def _add(numbers: Ints, first: int, end: int, size: int) -> None:
    # A slice, as the compiler makes vector instructions only of indices that begin at 0.
    live = numbers[first:end]
    for step in range(len(live)):
        live[step] += size


@_compiled
def _largest(numbers: Ints, first: int, end: int) -> int:
    live = numbers[first:end]
    largest = 0
    for step in range(len(live)):
        largest = max(largest, live[step])
    return largest


@_compiled
def excess_bytes(numbers: Ints, layout: Layout, parts: int) -> int:
    """Weigh all positions; return by how much together they exceed their capacities."""
    n = layout.positions
    used = 0
    for position in range(n):
        used += numbers[layout.size + position] > 0
    followers = excess = 0
    for position in range(n - 1, -1, -1):
        total = numbers[layout.weights + position] + numbers[layout.peak + position]
        in_flight = numbers[layout.in_flight + used * (n + 1) + followers]
        total += (in_flight - 1) * numbers[layout.saved + position]
        if layout.counts_values:
            total += numbers[parts + layout.bytes_at + position]
        numbers[layout.memory + position] = total
        excess += max(0, total - numbers[layout.capacity + position])
        followers += numbers[layout.size + position] > 0
    return excess


# -- moves --------------------------------------------------------------------------------


@_compiled
def _range(numbers: Ints, layout: Layout, unit: int) -> tuple[int, int]:
    """Return the first and the last position that `unit` may take."""
    first, last = 0, layout.positions - 1
    for row in range(numbers[layout.predecessors + unit], numbers[layout.predecessors + unit + 1]):
        first = max(first, numbers[layout.at + numbers[row]])
    for row in range(numbers[layout.successors + unit], numbers[layout.successors + unit + 1]):
        last = min(last, numbers[layout.at + numbers[row]])
    return first, last


@_compiled
def _write(numbers: Ints, layout: Layout, move: int, unit: int, target: int) -> None:
    place = layout.together + 3 * move
    numbers[place] = unit
    numbers[place + 1] = numbers[layout.at + unit]
    numbers[place + 2] = target


@_compiled
def _move(numbers: Ints, layout: Layout, move: int) -> tuple[int, int, int]:
    place = layout.together + 3 * move
    return numbers[place], numbers[place + 1], numbers[place + 2]


@_compiled
def _propose(numbers: Ints, layout: Layout) -> int:
    """Write the next moves to try into ``together``; return their number, perhaps 0."""
    unit = int(_draw(numbers, layout) * layout.units)
    kind = _draw(numbers, layout)
    if kind < _CLOSURE_SHARE:
        return _closure(numbers, layout, unit)
    first, last = _range(numbers, layout, unit)
    if first == last:
        return 0
    source = numbers[layout.at + unit]
    target = first + int(_draw(numbers, layout) * (last - first))
    if target >= source:
        target += 1
    if numbers[layout.banned + unit * layout.positions + target]:
        return 0
    _write(numbers, layout, 0, unit, target)
    if kind >= _CLOSURE_SHARE + _SWAP_SHARE:
        return 1
    for _ in range(_SWAP_TRIES):
        other = int(_draw(numbers, layout) * layout.units)
        if numbers[layout.at + other] != target:
            continue
        numbers[layout.at + unit] = target
        first, last = _range(numbers, layout, other)
        numbers[layout.at + unit] = source
        banned = numbers[layout.banned + other * layout.positions + source]
        if first <= source <= last and not banned:
            _write(numbers, layout, 1, other, source)
            return 2
    return 0


@_compiled
def _closure(numbers: Ints, layout: Layout, unit: int) -> int:
    """Propose to move `unit` one position, with all of its position that is beyond it."""
    forward = _draw(numbers, layout) < 0.5
    source = numbers[layout.at + unit]
    target = source + 1 if forward else source - 1
    if target < 0 or target >= layout.positions:
        return 0
    rows = layout.successors if forward else layout.predecessors
    _write(numbers, layout, 0, unit, target)
    count = 1
    done = 0
    while done < count:
        unit = numbers[layout.together + 3 * done]
        done += 1
        if numbers[layout.banned + unit * layout.positions + target]:
            return 0
        for row in range(numbers[rows + unit], numbers[rows + unit + 1]):
            other = numbers[row]
            known = numbers[layout.at + other] != source
            for move in range(count):
                known = known or numbers[layout.together + 3 * move] == other
            if known:
                continue
            if count == MOST_TOGETHER:
                return 0
            _write(numbers, layout, count, other, target)
            count += 1
    return count


@_compiled
def _move_in_time(numbers: Ints, layout: Layout, count: int, limit_ns: float) -> bool:
    """Apply the proposed moves as far as times go, if the loads' norm is within the limit.

    Positions stay as they were, for :func:`_move_bytes` to go through them once more.
    """
    for place in range(layout.bytes_at + layout.positions):
        numbers[layout.trial + place] = numbers[layout.parts + place]
    last = count - 1
    for move in range(count):
        unit, source, target = _move(numbers, layout, move)
        _change(numbers, layout, layout.trial, unit, source, target)
        if move < last:
            _move_reader(numbers, layout, unit, source, target)
            numbers[layout.at + unit] = target
    accepted = norm_of_loads(numbers, layout, layout.trial) <= limit_ns
    for move in range(last, -1, -1):
        unit, source, target = _move(numbers, layout, move)
        numbers[layout.at + unit] = source
        if accepted and move == last:
            _move_reader(numbers, layout, unit, source, target)
        elif move < last and not accepted:
            _move_reader(numbers, layout, unit, target, source)
    return accepted


@_compiled
def place_units(numbers: Ints, layout: Layout, positions: Ints) -> None:
    """Move every unit to its position; the order may be broken meanwhile."""
    for unit in range(layout.units - 1, -1, -1):
        source, target = numbers[layout.at + unit], positions[unit]
        if source != target:
            _change(numbers, layout, layout.parts, unit, source, target)
            _move_reader(numbers, layout, unit, source, target)
            _move_bytes(numbers, layout, unit, source, target)


@_compiled
def run_moves(
    numbers: Ints,
    layout: Layout,
    moves: int,
    temperature_ns: float,
    price_ns: float,
    energy_ns: float,
    best_ns: int,
    target_ns: int,
) -> tuple[float, int]:
    """Try `moves` at one temperature.

    Parameters
    ----------
    numbers : array
        Changed; ``best_at`` is the best plan within the capacities.
    moves : int
        How many to try.
    temperature_ns : float
        A move that raises the energy by this is accepted with a probability of 1/e.
    price_ns : float
        Energy of every byte beyond a capacity.
    energy_ns : float
        Of the plan as it is.
    best_ns, target_ns : int
        The least bottleneck so far; stop when it is at most the target.

    Returns
    -------
    tuple of float and int
        `energy_ns` and `best_ns` after the moves.
    """
    for _ in range(moves):
        if best_ns <= target_ns:
            break
        count = _propose(numbers, layout)
        if not count:
            continue
        # Metropolis: accept a rise of d with probability exp(-d / temperature).
        limit_ns = energy_ns - temperature_ns * math.log(1.0 - _draw(numbers, layout))
        if not _move_in_time(numbers, layout, count, limit_ns):
            continue
        for move in range(count):
            unit, source, target = _move(numbers, layout, move)
            _move_bytes(numbers, layout, unit, source, target)
        excess = excess_bytes(numbers, layout, layout.trial)
        after_ns = norm_of_loads(numbers, layout, layout.trial) + excess * price_ns
        if after_ns > limit_ns:
            for move in range(count - 1, -1, -1):
                unit, source, target = _move(numbers, layout, move)
                _move_bytes(numbers, layout, unit, target, source)
                _move_reader(numbers, layout, unit, target, source)
            continue
        for place in range(layout.bytes_at + layout.positions):
            numbers[layout.parts + place] = numbers[layout.trial + place]
        energy_ns = after_ns
        if not excess:
            value_ns = largest_load(numbers, layout, layout.parts)
            if value_ns < best_ns:
                best_ns = value_ns
                for unit in range(layout.units):
                    numbers[layout.best_at + unit] = numbers[layout.at + unit]
    return energy_ns, best_ns
