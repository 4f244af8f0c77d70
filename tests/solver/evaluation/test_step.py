"""The step of plans whose times can be added up by hand."""

import pytest

from solver import (
    Device,
    Interconnect,
    Link,
    Operator,
    PartitionError,
    PartitionPlan,
    PartitionProblem,
    evaluate,
)
from solver.model.training import Backward


def chain(*, operators=4, **settings):
    """Operators of 10 ns, values of 3 bytes that take 3 ns, gradients of 2; backward 20 ns."""
    settings.setdefault("interconnect", Interconnect(Link(10**9), charging="relayed"))
    return PartitionProblem(
        tuple(
            Operator(
                f"op{i}",
                10,
                reads=(f"op{i - 1}",) if i else (),
                value_bytes=3,
                backward=Backward(20, gradient_bytes=2),
            )
            for i in range(operators)
        ),
        (Device("a"), Device("b")),
        objective="step",
        **settings,
    )


def plan(devices, chunks=None):
    names = [f"op{i}" for i in range(len(devices))]
    chunk_of = dict(zip(names, chunks or [0] * len(devices), strict=True))
    return PartitionPlan(
        dict(zip(names, devices, strict=True)), tuple(dict.fromkeys(devices)), chunk_of
    )


@pytest.mark.parametrize("charging", ["relayed", "peer_to_peer"])
def test_inference_takes_the_first_microbatch_and_one_more_load_for_each_other(charging):
    interconnect = Interconnect(Link(10**9), charging=charging)
    problem = chain(microbatches=5, interconnect=interconnect)
    # Two operators and one transfer, which both devices spend.
    assert evaluate(problem, plan("aabb")).step_ns == 23 + 5 * 23
    overlapped = problem.replace(
        interconnect=Interconnect(Link(10**9), charging=charging, overlap=True)
    )
    assert evaluate(overlapped, plan("aabb")).step_ns == 20 + 3 + 5 * 20


def test_training_goes_back_too():
    problem = chain(memory_model="training", microbatches=5)
    # Forward 23, backward 42 on both devices.
    for schedule in ("gpipe", "1f1b"):
        found = evaluate(problem.replace(schedule=schedule), plan("aabb"))
        assert found.step_ns == 23 + 5 * (23 + 42) + 42
        assert found.objective == (found.step_ns,)
        assert found.value("step") == found.step_ns
        assert found.step.timeline().idle_ns == (23 + 42, 23 + 42)
        assert found.step.bound_ns == found.step_ns


def test_everything_on_one_device_has_no_bubble():
    problem = chain(memory_model="training", microbatches=5)
    assert evaluate(problem, plan("aaaa")).step_ns == 5 * 4 * 30


def test_the_schedule_is_that_of_the_plans_rounds():
    problem = chain(chunks_per_device=2, microbatches=4, memory_model="training")
    two, one = (evaluate(problem, plan(*p)) for p in (("abab", [0, 0, 1, 1]), ("aabb",)))
    assert (len(two.step.times.forward_ns), len(one.step.times.forward_ns)) == (4, 2)
    assert one.step_ns == evaluate(problem.replace(chunks_per_device=1), plan("aabb")).step_ns


def test_values_that_go_back_leave_no_pipeline():
    problem = chain(microbatches=5)
    found = evaluate(problem, PartitionPlan(plan("abaa").assignment, ("a", "b")))
    assert not found.feasible
    # Without relays back; all else one after another.
    assert found.step_ns == 5 * sum(usage.load_ns for usage in found.usage)


def test_halves_of_a_given_transfer_time_travel_each_way():
    problem = chain(operators=2, memory_model="training", microbatches=1)
    operators = (
        Operator("op0", 0, value_bytes=3, transfer_ns=7, backward=Backward(gradient_bytes=2)),
        Operator("op1", 0, reads=("op0",)),
    )
    problem = problem.replace(operators=operators)
    times = evaluate(problem, plan("ab")).step.times
    assert times.arcs == {(0, 1): (4, 3)}


def test_operators_of_a_backward_pass_have_no_step():
    operators = (Operator("a", 1), Operator("b", 1, reads=("a",), is_backward=True))
    with pytest.raises(PartitionError, match="operator 'b': is_backward, but the objective 'step'"):
        PartitionProblem(operators, (Device("d"),), memory_model="weights", objective="step")
