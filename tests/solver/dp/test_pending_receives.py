"""The least latency of chains whose devices have unlike links, against all plans of chains."""

from dataclasses import replace

import pytest

from solver import Device, Interconnect, Link
from solver.dp.limited_latency import LimitedChain
from solver.dp.pending_receives import exchangeable_devices
from solver.dp.sweep import GaveUp
from tests.support.random_jobs import TOKEN, random_job


def test_devices_are_alike_if_exchanging_them_changes_no_link():
    near, far = Link(10**11, 1), Link(10**9, 5)
    names = "abcd"
    node = {"a": 0, "b": 0, "c": 1, "d": 1}
    links = {(x, y): near for x in names for y in names if x != y and node[x] == node[y]}
    problem = random_job(1).phases[TOKEN]
    problem = problem.replace(
        operators=[op.__class__(op.name, 1, op.reads) for op in problem.operators],
        devices=[Device(name) for name in names],
        interconnect=Interconnect(far, links),
    )
    assert exchangeable_devices(problem) == {"a": "a", "b": "a", "c": "c", "d": "c"}
    one_way = {**links, ("b", "c"): near}
    changed_links = problem.replace(interconnect=Interconnect(far, one_way))
    assert exchangeable_devices(changed_links) == {"a": "a", "b": "b", "c": "c", "d": "d"}


def test_what_it_does_not_do():
    job = random_job(1, links=True)
    problem = job.merged({TOKEN: 1}, TOKEN)
    overlapping = replace(problem.interconnect, overlap=True)
    with pytest.raises(GaveUp, match="overlap"):
        LimitedChain(*2 * [problem.replace(interconnect=overlapping)], [problem], [[], []])
