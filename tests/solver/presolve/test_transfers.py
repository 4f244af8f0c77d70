"""What transfers cost, against the evaluator, for every charging."""

import random

import pytest

from solver import Device, Interconnect, Link, Operator, PartitionPlan, PartitionProblem, evaluate
from solver.presolve.instance import condense
from solver.presolve.transfers import Transfers
from tests.support.random_problems import random_problem


def time_of(transfers, net, links):
    """The time of a net over some links, which are as fast."""
    span = transfers.span_ns(links)
    number = transfers.nets.index(net)
    assert span.least[number] == span.most[number]
    return span.most[number]


def paid_ns(units, devices, at):
    """What each device pays for sends and receives, if units are at positions of devices."""
    transfers, last = units.transfers, max(at)
    send, receive = [0] * len(devices), [0] * len(devices)
    for net in transfers.nets:
        home = at[net.producer]
        readers = {at[unit] for unit in net.consumers} - {home}
        senders = [home] * len(readers)
        if transfers.hops:
            end = last if net.is_output else max(readers, default=home)
            senders, readers = range(home, end), range(home + 1, end + 1)
        for number, (s, r) in enumerate(zip(senders, readers, strict=True)):
            out = transfers.links(devices[s], (devices[r].name,), sends=True)
            into = transfers.links(devices[r], (devices[s].name,), sends=False)
            receive[r] += time_of(transfers, net, into)
            if transfers.hops or not (transfers.sends_once and number):
                send[s] += time_of(transfers, net, out)
    return send, receive


@pytest.mark.parametrize("relayed", [False, True])
def test_devices_pay_what_the_evaluator_says(relayed):
    kinds = set()
    for seed in range(150):
        problem = random_problem(seed, relayed=relayed)
        rng = random.Random(seed)
        units, devices = condense(problem), list(problem.devices)
        rng.shuffle(devices)
        at = sorted(rng.randrange(len(devices)) for _ in range(len(units)))
        at = [sorted(set(at)).index(position) for position in at]
        names = [device.name for device in devices]
        plan = PartitionPlan(
            units.lift([names[position] for position in at]), tuple(names[: max(at) + 1])
        )
        usage = {entry.device: entry for entry in evaluate(problem, plan).usage}
        paid = tuple(zip(*paid_ns(units, devices, at), strict=True))
        assert paid == tuple((usage[n].send_ns, usage[n].receive_ns) for n in names), seed
        kinds.add((problem.interconnect.charging, units.transfers.depends_on_pair))
    assert len(kinds) == (2 if relayed else 3)


def test_extremes_are_those_of_the_links_that_devices_pay_for():
    operators = [Operator("a", 1, value_bytes=8), Operator("b", 1, reads=("a",))]
    links = {("x", "y"): Link(2 * 10**9), ("host", "x"): Link(4 * 10**9)}
    devices = [Device("x"), Device("y"), Device("z", is_host=True)]

    def transfers(charging, links=links):
        interconnect = Interconnect(Link(10**9), links, charging)
        return condense(PartitionProblem(operators, devices, interconnect=interconnect)).transfers

    direct = transfers("peer_to_peer")
    assert direct.send_ns(devices[0]) == ([4], [8])
    assert direct.receive_ns(devices[0]) == ([8], [8])
    assert (direct.least_ns, direct.most_ns, direct.depends_on_pair) == ([4], [8], True)
    staged = transfers("host_staged")
    assert [staged.pays(device) for device in devices] == [True, True, False]
    assert staged.receive_ns(devices[0]) == ([2], [2])
    assert staged.send_ns(devices[2]) == ([0], [0])
    assert (staged.least_ns, staged.most_ns, staged.depends_on_pair) == ([2], [8], False)
    # The host is no device among which values travel directly.
    alike = transfers("peer_to_peer", {("host", "x"): Link(4 * 10**9)})
    assert (alike.least_ns, alike.most_ns, alike.depends_on_pair) == ([8], [8], False)
    assert [len(entry.names) for entry in alike.payers] == [3]


def test_who_pays_is_known_without_nets():
    problem = random_problem(0, relayed=True)
    assert Transfers(problem).hops
    assert Transfers(problem).least_ns == []
