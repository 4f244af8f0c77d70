"""Random nets, and what a division of their units costs."""

from solver.bounds.semidefinite.net_cuts import PricedNet


def random_nets(rng, count, most_units=9):
    nets = []
    for _ in range(rng.randint(1, 6)):
        units = tuple(rng.sample(range(count), rng.randint(2, min(count, most_units))))
        each, once = rng.choice(((3.0, 0.0), (2.0, 1.0), (1.0, 4.0), (0.0, 2.0)))
        nets.append(PricedNet(units, each, once, rng.choice((0.0, 1.0, 2.0))))
    return nets


def costs(nets, devices):
    total = 0.0
    for net in nets:
        count = len({devices[unit] for unit in net.units})
        total += net.each * (count - 1) + net.once * (count > 1)
    return total
