"""The bound from multipliers of the partition matrix, against all partitions."""

import itertools
import random

import numpy as np

from solver.bounds.semidefinite.net_cuts import NetCuts, PricedNet
from solver.bounds.semidefinite.partition_matrix import PartitionMatrix, Rows
from tests.support.nets import costs, random_nets


def best_load(times, nets, parts, held, room):
    """The least of all largest loads, with nets sent from peer to peer."""
    best = None
    for devices in itertools.product(range(parts), repeat=len(times)):
        if held is not None:
            used = [0.0] * parts
            for unit, device in enumerate(devices):
                used[device] += held[unit]
            if max(used) > room:
                continue
        loads = [0.0] * parts
        for unit, device in enumerate(devices):
            loads[device] += times[unit]
        for net in nets:
            home = devices[net.units[0]]
            others = {devices[unit] for unit in net.units} - {home}
            # From peer to peer: both ends pay half of what a transfer takes.
            loads[home] += net.each / 2 * len(others)
            for device in others:
                loads[device] += net.each / 2
        if best is None or max(loads) < best:
            best = max(loads)
    return best


def peer_nets(rng, count):
    return [
        PricedNet(net.units, net.each + 1.0, 0.0, (net.each + 1.0) / 2)
        for net in random_nets(rng, count, 5)
    ]


def relaxed(times, nets, parts, held, room, limit):
    cuts = NetCuts(nets, len(times), parts)
    rows = None if held is None else Rows(np.array(held), room)
    return PartitionMatrix(np.array(times), cuts, parts, rows, limit)


def test_no_partition_is_below_it_after_any_number_of_steps():
    beyond_average = compared = with_rooms = 0
    for seed in range(60):
        rng = random.Random(seed)
        count, parts = rng.randint(4, 7), rng.randint(2, 3)
        times = [float(rng.randint(1, 9)) for _ in range(count)]
        nets = peer_nets(rng, count)
        held, room = None, 0.0
        if seed % 2:
            held = [float(rng.randint(0, 5)) for _ in range(count)]
            held[0] += 1.0
            room = sum(held) / parts * 1.4 + 2.0
        best = best_load(times, nets, parts, held, room)
        if best is None:
            continue
        for limit in (best, 0.8 * best, 1.5 * best):
            matrix = relaxed(times, nets, parts, held, room, limit)
            bounds = []
            for _ in range(60):
                matrix.step()
                bounds.append(matrix.bound())
                assert bounds[-1] <= best, (seed, limit, len(bounds))
            compared += 1
            beyond_average += max(bounds) > 1.02 * sum(times) / parts
            with_rooms += held is not None
    assert compared > 120
    assert with_rooms > 50
    assert beyond_average > 60


def test_a_knot_is_parted_between_two_devices():
    """Eight units that all read from each other: more than a quarter of their work is sent."""
    times = [1.0] * 8
    nets = [PricedNet((i, j), 0.2, 0.0, 0.1) for i in range(8) for j in range(i)]
    best = best_load(times, nets, 2, None, 0.0)
    # Four units on each device cut 16 pairs; three and five cut 15, but five units take longer.
    assert abs(best - 5.6) < 1e-9
    matrix = relaxed(times, nets, 2, None, 0.0, best)
    for _ in range(200):
        matrix.step()
    assert 5.1 < matrix.bound() <= best


def test_rooms_say_more_than_times():
    """Without memory three of the units share a device; with it they cannot."""
    times = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    nets = [PricedNet((i, j), 1.0, 0.0, 0.5) for i in range(3) for j in range(i)]
    nets += [PricedNet((i + 3, j + 3), 1.0, 0.0, 0.5) for i in range(3) for j in range(i)]
    held = [3.0, 3.0, 3.0, 1.0, 1.0, 1.0]
    bounds = []
    for own, room in ((None, 0.0), (held, 7.0)):
        best = best_load(times, nets, 2, own, room)
        matrix = relaxed(times, nets, 2, own, room, best)
        for _ in range(200):
            matrix.step()
        bounds.append(matrix.bound())
        assert bounds[-1] <= best
    assert bounds[0] <= 3.0
    assert bounds[1] > 3.3


def test_costs_of_nets_are_part_of_it():
    times = [1.0] * 6
    nets = [PricedNet((i, j), 0.1, 0.0, 0.05) for i in range(6) for j in range(i)]
    matrix = relaxed(times, nets, 3, None, 0.0, 2.5)
    for _ in range(300):
        matrix.step()
    even = (6.0 + costs(nets, [0, 0, 1, 1, 2, 2])) / 3
    assert 0.99 * even < matrix.bound() <= even
