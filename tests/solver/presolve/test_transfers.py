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


@pytest.mark.parametrize(
    ("charging", "paid", "sends", "sent", "is_staged"),
    [
        ("peer_to_peer", [3, 5], 2, [7], False),
        ("host_staged", [5], 1, [7], True),
        ("relayed", [5], 1, [0], False),
    ],
)
def test_each_charging_answers_for_itself(charging, paid, sends, sent, is_staged):
    operators = [Operator("a", 1, value_bytes=8), Operator("b", 1, reads=("a",), is_output=True)]
    devices = [Device("x"), Device("y"), Device("z", is_host=True)]
    interconnect = Interconnect(Link(10**9), charging=charging)
    problem = PartitionProblem(operators, devices, interconnect=interconnect)
    units = condense(problem)
    transfers = units.transfers
    assert transfers.paid([3, 5]) == paid
    assert (transfers.most_sends(1), transfers.most_sends(5)) == (1, sends)
    assert transfers.divided([7]) == (sent, [7 - sent[0]])
    assert [transfers.stages(device) for device in devices] == [is_staged, is_staged, False]
    assert transfers.paying == tuple(devices[: 2 if is_staged else 3])
    assert transfers.leaves_others(0)
    # Another reader may be on a device more, for which a producer pays one send more.
    assert transfers.leaves_others(0, readers=2) == (charging != "peer_to_peer")
    nets = [units.sent_nets, transfers.nets if is_staged else (), units.relays]
    assert sum(map(bool, nets)) == 1
    assert (transfers.direct is interconnect) == (charging != "relayed")


def test_several_chunks_and_links_of_pairs_make_stages_depend_on_others():
    operators = [Operator("a", 1, value_bytes=8), Operator("b", 1, reads=("a",))]

    def dependence(charging, links, chunks):
        interconnect = Interconnect(Link(10**9), links, charging)
        problem = PartitionProblem(
            operators,
            [Device("x"), Device("y")],
            interconnect=interconnect,
            chunks_per_device=chunks,
        )
        transfers = Transfers(problem)
        assert transfers.are_border_sums == (charging == "relayed" and not links)
        return transfers.dependence

    links = {("x", "y"): Link(1)}
    assert dependence("relayed", {}, 1) is dependence("peer_to_peer", {}, 2) is None
    assert "chunks" in dependence("relayed", {}, 2)
    assert "pairs of devices" in dependence("peer_to_peer", links, 1)
