"""What nets cost at least, against what they cost."""

import random

import numpy as np

from solver.bounds.semidefinite.net_cuts import NetCuts, PricedNet
from tests.support.nets import costs, random_nets


def partition_matrix(devices):
    at = np.array(devices)
    return (at[:, None] == at[None, :]).astype(np.float64)


def random_matrix(rng, count):
    entries = np.array([[rng.random() for _ in range(count)] for _ in range(count)])
    return (entries + entries.T) / 2


def least_cost(cuts, matrix):
    return cuts.constant - 0.5 * float((cuts.cost * matrix).sum())


def test_no_partition_costs_less():
    """Whatever the mixtures have learned, on any number of devices."""
    for seed in range(300):
        rng = random.Random(seed)
        count, parts = rng.randint(3, 12), rng.randint(2, 6)
        nets = random_nets(rng, count)
        cuts = NetCuts(nets, count, parts)
        for _ in range(4):
            for _ in range(6):
                devices = [rng.randrange(parts) for _ in range(count)]
                found = least_cost(cuts, partition_matrix(devices))
                assert found <= costs(nets, devices) + 1e-9, (seed, devices)
            for _ in range(rng.choice((1, 5))):
                cuts.learn(random_matrix(rng, count))


def test_nets_of_two_and_three_units_cost_what_they_do_on_two_devices():
    for devices in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)):
        nets = [PricedNet((0, 1), 5.0, 2.0, 0.0)]
        cuts = NetCuts(nets, 3, 2)
        assert abs(least_cost(cuts, partition_matrix(devices)) - costs(nets, devices)) < 1e-9
        nets = [PricedNet((0, 1, 2), 5.0, 0.0, 0.0)]
        cuts = NetCuts(nets, 3, 2)
        cuts.learn(partition_matrix(devices))
        # At first smaller subsets have a tenth of a share, and what is learned at once is less.
        assert least_cost(cuts, partition_matrix(devices)) >= 0.9 * costs(nets, devices)


def test_what_many_devices_read_costs_more_than_two_devices_do():
    """A wide value on p devices evenly costs p - 1 transfers once its mixture has learned so."""
    for parts in (2, 3, 5, 8):
        count = 4 * parts
        net = PricedNet(tuple(range(count)), 1.0, 0.0, 0.0)
        cuts = NetCuts([net], count, parts)
        matrix = partition_matrix([unit % parts for unit in range(count)])
        before = least_cost(cuts, matrix)
        assert before <= parts - 1 + 1e-9
        for _ in range(30):
            cuts.learn(matrix)
        assert least_cost(cuts, matrix) > 0.99 * (parts - 1)
        assert before < parts - 1 or parts == 2


def test_learning_says_more_of_the_matrix_that_is_learned():
    gains = 0
    for seed in range(60):
        rng = random.Random(seed)
        nets = random_nets(rng, 8)
        cuts = NetCuts(nets, 8, 4)
        matrix = partition_matrix([rng.randrange(4) for _ in range(8)])
        before = least_cost(cuts, matrix)
        for _ in range(20):
            cuts.learn(matrix)
        assert least_cost(cuts, matrix) >= before - 1e-9
        gains += least_cost(cuts, matrix) > before + 1e-3
    assert gains > 30


def test_rows_charge_a_device_no_more_than_it_pays():
    compared = 0
    for seed in range(200):
        rng = random.Random(seed)
        count, parts = rng.randint(3, 10), rng.randint(2, 4)
        nets = random_nets(rng, count)
        cuts = NetCuts(nets, count, parts)
        devices = [rng.randrange(parts) for _ in range(count)]
        exact = partition_matrix(devices)
        for matrix in (exact, random_matrix(rng, count)):
            charged = (cuts.own_times(matrix) * exact).sum(axis=1)
            for unit in range(count):
                here = [devices[other] == devices[unit] for other in range(count)]
                paid = sum(
                    net.own for net in nets if len({here[other] for other in net.units}) == 2
                )
                assert charged[unit] <= paid + 1e-9, (seed, unit)
                if matrix is exact:
                    assert charged[unit] >= paid - 1e-9, (seed, unit)
                    compared += paid > 0
    assert compared > 200
