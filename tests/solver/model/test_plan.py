from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver.evaluation.evaluate import evaluate
from solver.io.json_files import plan_from_json, plan_to_json
from solver.model.errors import PartitionError
from solver.model.operators import Operator
from solver.model.plan import (
    PartitionPlan,
    Stage,
    check_assignment,
    quotient_arcs,
    repair_colocation,
)
from solver.model.problem_fields import ColocationGroup
from tests.support.graphs import diamond
from tests.support.random_problems import random_plan, random_problem
from tests.support.refusals import refused


@pytest.mark.parametrize("stages", [(), ("p",), ("p", "q", "r"), ("p", "q", "q"), ("p", "p")])
def test_device_order_must_be_the_used_devices_once_each(stages):
    with refused("device_order is", "['p', 'q']", "exactly once"):
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
    with refused(*parts):
        check_assignment(diamond(), assignment)
    with refused(*parts):
        PartitionPlan.from_assignment(diamond(), assignment)


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


# -- chunks -------------------------------------------------------------------------------------


CHUNKED = PartitionPlan({"a": "p", "b": "q", "c": "p", "d": "q"}, ("q", "p"), {"c": 1, "d": 2})


def test_stages_are_every_chunk_in_turn_in_the_order_of_the_devices():
    assert CHUNKED.stages == (Stage("q"), Stage("p"), Stage("p", 1), Stage("q", 2))
    assert dict(CHUNKED.stage_index) == {"b": 0, "a": 1, "c": 2, "d": 3}
    assert CHUNKED.stage_of("c") == Stage("p", 1)
    assert [str(stage) for stage in CHUNKED.stages] == ["q", "p", "p (chunk 1)", "q (chunk 2)"]
    assert CHUNKED.operators_of("p") == ("a", "c")
    with pytest.raises(TypeError):
        CHUNKED.chunks["a"] = 1


def test_the_smallest_chunk_is_0_so_that_the_same_plans_are_equal():
    assignment = {"a": "p", "b": "q"}
    plain = PartitionPlan(assignment, ("p", "q"))
    assert PartitionPlan(assignment, ("p", "q"), {"a": 2, "b": 2}) == plain
    assert PartitionPlan(assignment, ("p", "q"), {"a": 0}) == plain
    moved = PartitionPlan(assignment, ("p", "q"), {"a": 3, "b": 5})
    assert moved == PartitionPlan(assignment, ("p", "q"), {"b": 2})
    assert dict(moved.chunks) == {"b": 2}


@pytest.mark.parametrize(
    ("chunks", "parts"),
    [
        ({"a": -1}, ("chunks['a'] is -1", "not negative")),
        ({"a": 0.5}, ("chunks['a'] is 0.5", "whole number")),
        ({"z": 1}, ("'z'", "no device")),
    ],
)
def test_wrong_chunks_are_refused(chunks, parts):
    with refused(*parts):
        PartitionPlan({"a": "p"}, ("p",), chunks)


def test_modes_are_sparse_and_known():
    problem = diamond()
    names = [op.name for op in problem.operators]
    device = problem.devices[0].name
    every = dict.fromkeys(names, device)
    plan = PartitionPlan(every, (device,), mode_of={names[0]: "streamed", names[1]: "resident"})
    assert dict(plan.mode_of) == {names[0]: "streamed"}
    assert [plan.modes[name] for name in names[:2]] == ["streamed", "resident"]
    assert plan_from_json(plan_to_json(plan)) == plan
    for mode_of, says in (
        ({names[0]: "gpu"}, "is 'gpu'; write one of"),
        ({"x": "streamed"}, "'x'"),
    ):
        with pytest.raises(PartitionError, match=says):
            PartitionPlan(every, (device,), mode_of=mode_of)
    with pytest.raises(PartitionError, match=f"operator '{names[0]}' of the plan is streamed"):
        evaluate(problem, plan)


@given(st.integers(0, 500), st.integers(0, 5), st.booleans())
def test_the_order_of_a_random_plan_is_topological_if_any_is(seed, plan_seed, draw_chunks):
    from itertools import permutations

    problem = random_problem(seed)
    drawn = random_plan(problem, plan_seed, draw_chunks=draw_chunks)
    plan = PartitionPlan.from_assignment(problem, drawn.assignment, drawn.chunks)

    def is_forward(plan):
        return all(source <= target for source, target in quotient_arcs(problem, plan.stage_index))

    orders = permutations(plan.device_order)
    possible = any(is_forward(PartitionPlan(plan.assignment, o, plan.chunks)) for o in orders)
    assert is_forward(plan) == possible


def test_operators_may_be_named_by_the_numbers_of_their_nodes():
    problem = diamond(operators=(Operator("7"), Operator("8", reads=("7",))), inputs=())
    for assignment in ({7: "p", 8: "q"}, {"7": "p", np.int64(8): "q"}):
        plan = PartitionPlan.from_assignment(problem, assignment)
        assert plan == PartitionPlan({"7": "p", "8": "q"}, ("p", "q"))
        assert repair_colocation(problem, assignment) == plan.assignment


@pytest.mark.parametrize(
    ("assignment", "parts"),
    [
        ({7: "p"}, ("no device for operator '8'",)),
        ({7: "p", 8: 1}, ("operator '8' on 1", "the devices are p, q")),
        ({7: "p", 8: ["q"]}, ("operator '8' on ['q']", "the devices are p, q")),
        ({7: "p", (8,): "q"}, ("an operator is (8,)", "a whole number")),
        ({7: "p", "7": "q", 8: "q"}, ("'7' as a number and as a text", "keep one")),
        (["p", "q"], ("assignment is ['p', 'q']", "write a mapping")),
    ],
)
def test_an_assignment_that_is_none_is_named(assignment, parts):
    problem = diamond(operators=(Operator("7"), Operator("8", reads=("7",))), inputs=())
    for read in (PartitionPlan.from_assignment, repair_colocation):
        with refused(*parts):
            read(problem, assignment)


def test_groups_go_to_where_most_of_their_time_is_and_all_else_stays():
    operators = (
        Operator("a", 3),
        Operator("b", 4, ("a",)),
        Operator("c", 2, ("b",)),
        Operator("d", 9, ("c",)),
        Operator("e", reads=("d",)),
        Operator("f", reads=("e",)),
    )
    assignment = {"a": "p", "b": "q", "c": "p", "d": "p", "e": "q", "f": "q"}

    def repaired(groups, **changed):
        own = tuple(replace(op, **changed.get(op.name, {})) for op in operators)
        colocation = tuple(ColocationGroup(tuple(names)) for names in groups)
        problem = diamond(operators=own, inputs=(), colocation=colocation)
        return "".join(repair_colocation(problem, assignment).values())

    assert repaired([]) == "pqppqq"
    assert repaired(["abc"]) == "ppppqq"  # 5 to 4
    assert repaired(["ab"]) == "qqppqq"
    assert repaired(["bd", "de"]) == "ppppp" + "q"  # groups that overlap
    assert repaired(["ef"]) == "pqppqq"
    # Of equal times that of the largest operator, of none that of most operators.
    assert repaired(["abc"], a={"latency_ns": 2}) == "qqqpqq"
    assert repaired(["aef"], a={"latency_ns": 0}) == "qqppqq"
    # Pins count, and one of its own too.
    only_q, only_p = ({"allowed_devices": frozenset(name)} for name in "qp")
    assert repaired(["abc"], a=only_q) == "qqqpqq"
    assert repaired([], e=only_p) == "pqpppq"
    assert repaired(["ef"], f=only_p) == "pqpppp"
    assert repaired([], a={"stage": 1}, b={"stage": 1}, c={"stage": 1}) == "ppppqq"


@given(st.integers(0, 500), st.integers(0, 5))
def test_repaired_assignments_keep_colocation_and_pins(seed, plan_seed):
    problem = random_problem(seed)
    drawn = random_plan(problem, plan_seed, draw_chunks=False).assignment
    repaired = repair_colocation(problem, drawn)
    for unit in problem.units:
        (device,) = {repaired[name] for name in unit}
        members = [problem.operators[problem.index_of[name]] for name in unit]
        assert all(op.allowed_devices is None or device in op.allowed_devices for op in members)
        if len({drawn[name] for name in unit}) == 1 and all(
            op.allowed_devices is None for op in members
        ):
            assert device == drawn[unit[0]]
    assert repair_colocation(problem, repaired) == repaired
