"""The best plan of llama.cpp from all that there are; imports nothing of the project.

Layers are placed one after the other, in all ways. What is kept of the ways to place some of them
is the least time for every content of the memories, so that none is left out.
"""

from collections import namedtuple

Part = namedtuple("Part", "size_bytes cache_bytes device_ns host_ns")
"""Of a layer; `device_ns` is by the kind of device, `host_ns` None where the host has no time."""
Machine = namedtuple("Machine", "memory_bytes kinds host_bytes hop_ns host_hop_ns")
HOST = -1


def places_of(layer, device, devices, may_cross):
    """Yield the place of each part of a layer whose first one is on a device."""
    yield [device] * len(layer)
    for kept in range(1, len(layer)):
        later = range(device + 1, devices) if may_cross else ()
        for other in (HOST, *later):
            yield [device] * kept + [other] * (len(layer) - kept)


def best(embedding, layers, output, machine, *, may_divide=True, may_cross=False):
    """Return the least time of a call on devices in their order, or None if nothing fits.

    The embedding and the first layers are on the host. Of another layer the last parts may be
    there, or on the later device on which the next layer begins.
    """
    devices = len(machine.memory_bytes)
    start = place([embedding], [HOST], None, machine, ((0,) * devices, 0))
    if start is None:
        return None
    # By the last place, whether the next layer has to be there, and the bytes.
    found = {(HOST, False, start[0]): start[1]}
    rows = [*layers, [output]]
    for number, layer in enumerate(rows):
        grown = {}
        for (last, is_tied, held), time_ns in found.items():
            stage = max((at for at in range(devices) if held[0][at]), default=HOST)
            ways = [[HOST] * len(layer)] if stage == HOST else []
            for device in range(max(stage, 0), devices):
                if is_tied and device != last:
                    continue
                crosses = may_cross and number < len(rows) - 1
                own = [*places_of(layer, device, devices, crosses)]
                ways += own if may_divide else own[:1]
            for way in ways:
                after = place(layer, way, last, machine, held)
                if after is None:
                    continue
                key = (way[-1], way[-1] not in (HOST, way[0]), after[0])
                grown[key] = min(grown.get(key, time_ns + after[1]), time_ns + after[1])
        found = grown
    return min(found.values(), default=None)


def place(parts, places, last, machine, held):
    """Return the bytes of devices and of the host with some parts more, and the time of these."""
    sizes, host_bytes = [*held[0]], held[1]
    time_ns = 0
    for part, here in zip(parts, places, strict=True):
        size = part.size_bytes + part.cache_bytes
        if here == HOST:
            if part.host_ns is None:
                return None
            host_bytes, time_ns = host_bytes + size, time_ns + part.host_ns
        else:
            sizes[here] += size
            time_ns += part.device_ns[machine.kinds[here]]
        if last is not None and here != last:
            time_ns += machine.host_hop_ns if HOST in (here, last) else machine.hop_ns
        last = here
    if machine.host_bytes is not None and host_bytes > machine.host_bytes:
        return None
    if any(size > room for size, room in zip(sizes, machine.memory_bytes, strict=True)):
        return None
    return ((tuple(sizes), host_bytes), time_ns)


def has_room(embedding, layers, output, machine):
    """Whether some plan has all layers on the devices, each on one."""
    never = [[part._replace(host_ns=None) for part in layer] for layer in layers]
    return (
        best(embedding, never, output._replace(host_ns=None), machine, may_divide=False) is not None
    )
