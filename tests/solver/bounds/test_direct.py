"""Direct transfers in place of relayed ones: what they cost is never more."""

import pytest

from solver.bounds.direct import direct, direct_problem
from solver.evaluation.evaluate import evaluate
from solver.model.devices import Device, Interconnect, Link
from solver.model.operators import Operator
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import OBJECTIVES
from solver.presolve.instance import condense
from tests.support.problem_counts import counts
from tests.support.random_problems import random_plan, random_problem


@pytest.mark.parametrize("draw_chunks", [False, True])
@counts(500, 2000)
def test_no_plan_costs_or_holds_more(count, draw_chunks):
    ordered = cheaper = 0
    for seed in range(count):
        problem = random_problem(seed, relayed=True, draw_chunks=draw_chunks)
        plan = random_plan(problem, seed, draw_chunks=draw_chunks)
        found = evaluate(problem, plan)
        if any("cycle" in text or "earlier stage" in text for text in found.violations):
            continue
        relaxed = evaluate(direct_problem(problem), plan)
        for before, after in zip(found.usage, relaxed.usage, strict=True):
            assert after.memory_bytes <= before.memory_bytes, seed
            assert after.send_ns <= before.send_ns, seed
            assert after.receive_ns <= before.receive_ns, seed
        for name in set(OBJECTIVES) - {"step"}:
            assert relaxed.value(name) <= found.value(name), seed
        assert relaxed.feasible or not found.feasible, seed
        ordered += 1
        cheaper += relaxed.transfer_bytes < found.transfer_bytes
    assert ordered >= count // 5
    assert cheaper >= count * 2 // 25


def test_only_links_between_devices_count():
    links = {
        ("p", "q"): Link(10, 3),
        ("q", "p"): Link(20, 4),
        ("p", "host"): Link(None, 0),
    }
    problem = PartitionProblem(
        operators=(Operator("a"),),
        devices=(Device("p", is_host=True), Device("q")),
        interconnect=Interconnect(Link(5, 9), links, "relayed", overlap=True),
    )
    relaxed = direct_problem(problem)
    assert relaxed.interconnect == Interconnect(Link(20, 3), {}, "host_staged", overlap=True)
    assert not any(device.is_host for device in relaxed.devices)


def test_other_problems_stay_as_they_are():
    problem = random_problem(1)
    assert direct_problem(problem) is problem
    units = condense(problem)
    assert direct(units) is units
