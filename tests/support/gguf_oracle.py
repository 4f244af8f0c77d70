"""The best plan of llama.cpp by enumeration of all; imports nothing of the project."""

import itertools
from collections import namedtuple

Part = namedtuple("Part", "size_bytes cache_bytes device_ns host_ns")
"""Of a layer; `device_ns` is by the kind of device, `host_ns` None where the host has no time."""
Machine = namedtuple("Machine", "memory_bytes kinds host_bytes hop_ns host_hop_ns")


def plans(layers, devices):
    """Yield the place of each layer and of the output, None for the host."""
    for first in range(layers + 2):
        rest = layers + 1 - first
        for ends in itertools.combinations_with_replacement(range(rest + 1), devices - 1):
            counts = [b - a for a, b in itertools.pairwise((0, *ends, rest))]
            yield [None] * first + [place for place, n in enumerate(counts) for _ in range(n)]


def best(embedding, layers, output, machine):
    """Return the least time of a call on devices in their order, or None if nothing fits.

    A layer is one part or two, of which the host may have the second alone.
    """
    found = None
    for places in plans(len(layers), len(machine.memory_bytes)):
        movable = [
            at
            for at, layer in enumerate(layers)
            if places[at] is not None and len(layer) > 1 and layer[1].host_ns is not None
        ]
        for size in range(len(movable) + 1):
            for apart in itertools.combinations(movable, size):
                row = [(embedding, None)]
                for at, layer in enumerate(layers):
                    row.append((layer[0], places[at]))
                    row += [(part, None if at in apart else places[at]) for part in layer[1:]]
                row.append((output, places[-1]))
                value = cost(row, machine)
                if value is not None and (found is None or value < found):
                    found = value
    return found


def has_room(embedding, layers, output, machine):
    """Whether some plan has all layers on the devices."""
    never = [[part._replace(host_ns=None) for part in layer] for layer in layers]
    return best(embedding, never, output._replace(host_ns=None), machine) is not None


def cost(row, machine):
    """Return the time of parts, each at its place, or None if they do not fit."""
    held = [0] * len(machine.memory_bytes)
    host_bytes = time_ns = 0
    for number, (part, place) in enumerate(row):
        if place is None and part.host_ns is None:
            return None
        size = part.size_bytes + part.cache_bytes
        if place is None:
            host_bytes, time_ns = host_bytes + size, time_ns + part.host_ns
        else:
            held[place] += size
            time_ns += part.device_ns[machine.kinds[place]]
        if number and place != (before := row[number - 1][1]):
            time_ns += machine.host_hop_ns if None in (place, before) else machine.hop_ns
    if machine.host_bytes is not None and host_bytes > machine.host_bytes:
        return None
    if any(size > room for size, room in zip(held, machine.memory_bytes, strict=True)):
        return None
    return time_ns
