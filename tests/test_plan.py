import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.errors import PartitionError
from solver.hardware import Device
from solver.plan import PartitionPlan, check_assignment, quotient_arcs
from solver.problem import GraphInput, Operator, PartitionProblem


def diamond(**changes):
    """a feeds b and c, which feed d."""
    operators = (
        Operator("a", reads=("x",)),
        Operator("b", reads=("a",)),
        Operator("c", reads=("a",)),
        Operator("d", reads=("b", "c")),
    )
    fields = {
        "operators": operators,
        "devices": tuple(Device(name) for name in ("p", "q", "r")),
        "inputs": (GraphInput("x"),),
    }
    return PartitionProblem(**{**fields, **changes})


def raises(*parts):
    return pytest.raises(PartitionError, match="(?s)" + ".*".join(map(re.escape, parts)))


@pytest.mark.parametrize("stages", [(), ("p",), ("p", "q", "r"), ("p", "q", "q"), ("p", "p")])
def test_device_order_must_be_the_used_devices_once_each(stages):
    with raises("device_order is", "['p', 'q']", "exactly once"):
        PartitionPlan({"a": "p", "b": "q"}, stages)


def test_a_plan_cannot_be_changed_through_what_it_was_made_of():
    assignment = {"a": "p"}
    plan = PartitionPlan(assignment, ("p",))
    assignment["a"] = "q"
    assert plan.assignment == {"a": "p"}
    with pytest.raises(TypeError):
        plan.assignment["a"] = "q"


@pytest.mark.parametrize(
    ("assignment", "parts"),
    [
        ({"a": "p", "b": "p", "c": "p"}, ("no device for operator 'd'",)),
        (dict.fromkeys("abcd", "tpu"), ("'a' on 'tpu'", "the devices are p, q, r")),
        (dict.fromkeys("abcde", "p"), ("'e'", "not an operator")),
        (dict.fromkeys("abcdx", "p"), ("'x'", "not an operator")),
    ],
)
def test_an_assignment_must_be_total_and_on_known_devices(assignment, parts):
    with raises(*parts):
        check_assignment(diamond(), assignment)
    with raises(*parts):
        PartitionPlan.from_assignment(diamond(), assignment)


@pytest.mark.parametrize(
    ("devices", "stages"),
    [
        ("pppp", ("p",)),
        ("qqpp", ("q", "p")),
        ("rqpp", ("r", "q", "p")),
        ("pqrr", ("p", "q", "r")),
        ("prqq", ("p", "r", "q")),
    ],
)
def test_stages_follow_the_data(devices, stages):
    plan = PartitionPlan.from_assignment(diamond(), dict(zip("abcd", devices, strict=True)))
    assert plan.device_order == stages


def test_independent_stages_follow_their_first_operators():
    operators = (Operator("a"), Operator("b"), Operator("c", reads=("b",)))
    problem = diamond(operators=operators, inputs=())
    plan = PartitionPlan.from_assignment(problem, {"a": "r", "b": "p", "c": "q"})
    assert plan.device_order == ("r", "p", "q")


def test_a_device_seen_first_waits_for_what_it_reads():
    # p has the first operator, but also one that reads from q.
    operators = (Operator("a"), Operator("b"), Operator("c", reads=("b",)))
    problem = diamond(operators=operators, inputs=())
    plan = PartitionPlan.from_assignment(problem, {"a": "p", "b": "q", "c": "p"})
    assert plan.device_order == ("q", "p")


def test_a_cycle_leaves_the_devices_as_they_are_first_seen():
    plan = PartitionPlan.from_assignment(diamond(), {"a": "q", "b": "p", "c": "q", "d": "q"})
    assert plan.device_order == ("q", "p")


def test_quotient_arcs_are_the_crossed_pairs_once_each():
    assignment = {"a": "p", "b": "q", "c": "q", "d": "r"}
    assert tuple(quotient_arcs(diamond(), assignment)) == (("p", "q"), ("q", "r"))


def test_edges_with_a_backward_end_order_no_stages():
    operators = (
        Operator("f"),
        Operator("g", reads=("f",), is_backward=True),
        Operator("h", reads=("g",)),
        Operator("i", reads=("f",)),
    )
    problem = diamond(operators=operators, inputs=(), memory_model="weights")
    assignment = {"f": "p", "g": "q", "h": "p", "i": "r"}
    assert tuple(quotient_arcs(problem, assignment)) == (("p", "r"),)


def test_operators_of_a_device():
    plan = PartitionPlan({"a": "p", "b": "q", "c": "p"}, ("p", "q"))
    assert plan.operators_of("p") == ("a", "c")
    assert plan.operators_of("r") == ()


@given(st.integers(0, 500), st.integers(0, 5))
def test_the_stage_order_of_a_random_plan_is_topological_or_there_is_a_cycle(seed, plan_seed):
    import networkx as nx
    from random_problems import random_plan, random_problem

    problem = random_problem(seed)
    assignment = random_plan(problem, plan_seed).assignment
    plan = PartitionPlan.from_assignment(problem, assignment)
    arcs = tuple(quotient_arcs(problem, assignment))
    backwards = [
        arc for arc in arcs if plan.device_order.index(arc[0]) > plan.device_order.index(arc[1])
    ]
    assert bool(backwards) == (not nx.is_directed_acyclic_graph(nx.DiGraph(arcs)))
