"""How long values travel where a host serves with devices."""

import pytest

from fx_bridge.serving.hops import check_links, host_hop_ns, stage_hop_ns
from solver import Device, Interconnect, Link, PartitionError
from solver.offload.model import OffloadDevice

SLOW, FAST = Link(10**8), Link(10**10)


def places(*links):
    return [OffloadDevice(Device(f"cuda:{at}"), link) for at, link in enumerate(links)]


def test_hops_take_the_links_that_are_given():
    forward = {("cuda:0", "cuda:1"): FAST, ("cuda:1", "cuda:0"): SLOW}
    interconnect = Interconnect(SLOW, {**forward, ("cuda:1", "host"): SLOW})
    check_links(interconnect, places(FAST, FAST))
    assert stage_hop_ns(interconnect, places(FAST, FAST), 1000) == 100
    assert stage_hop_ns(interconnect, places(FAST), 1000) == 10_000
    # The way back to the host is the slowest.
    assert host_hop_ns(interconnect, places(FAST, FAST), 1000) == 10_000
    assert host_hop_ns(Interconnect(SLOW), places(FAST, FAST), 1000) == 100


@pytest.mark.parametrize(
    ("interconnect", "message"),
    [
        (Interconnect(SLOW, {("cuda:0", "cuda:2"): FAST}), "'cuda:0' to 'cuda:1' is another one"),
        (Interconnect(SLOW, charging="host_staged"), "leave charging of the interconnect out"),
        (Interconnect(SLOW, overlap=True), "leave overlap of the interconnect out"),
    ],
)
def test_links_that_no_plan_with_a_host_knows(interconnect, message):
    with pytest.raises(PartitionError, match=message):
        check_links(interconnect, places(FAST, FAST, FAST))
