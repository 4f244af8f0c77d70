import pytest

from experiments.pipelines.group import MeasuredPlan
from experiments.pipelines.prediction import PlanPrediction, PlanRow, in_order, predict
from solver import GraphInput, Interconnect, Link, PartitionPlan, Weight, evaluate
from solver.model.training import Backward
from tests.support.graphs import chain

LINK = Link(10**9, 100)


def problem(training, microbatches, schedule="gpipe"):
    """A chain of two with times 1000 and 3000 ns, a value of 400 bytes between them."""
    backward = Backward(latency_ns=2000, gradient_bytes=400)
    return chain(
        "ab",
        latency_ns=[1000, 3000],
        value_bytes=[400, 8],
        of={
            "a": {"reads": ("x",), "weights": ("w",), "backward": backward},
            "b": {"backward": Backward(latency_ns=5000, gradient_bytes=8)},
        },
        inputs=(GraphInput("x", 50),),
        weights={"w": Weight(1000)},
        interconnect=Interconnect(LINK, charging="relayed"),
        memory_model="training" if training else "inference",
        microbatches=microbatches,
        schedule=schedule,
    )


PLAN = PartitionPlan({"a": "p", "b": "q"}, ("p", "q"))


def test_both_ends_of_a_hop_spend_its_time():
    hop_ns = LINK.transfer_ns(400)
    found = predict(problem(False, 4), PLAN)
    assert found.microbatch_ns == 3000 + hop_ns
    assert found.step_ns == 1000 + hop_ns + 4 * (3000 + hop_ns)


def test_memory_is_that_of_all_microbatches():
    found = predict(problem(False, 4), PLAN)
    # The weight, four inputs, and four values that were sent; four that were received, four
    # numbers that are returned, and what these are merged in.
    assert found.peak_bytes == (1000 + 4 * 50 + 4 * 400, 4 * 400 + 2 * 4 * 8)
    usage = evaluate(problem(False, 4), PLAN).usage
    assert [entry.memory_bytes for entry in usage] == [found.peak_bytes[0], 4 * 400 + 4 * 8]
    found = predict(problem(False, 1), PLAN)
    assert found.peak_bytes == (1000 + 50 + 400, 400 + 8)


def test_training_steps_are_those_of_the_schedule():
    hop_ns = LINK.transfer_ns(400)
    first, last = (1000 + hop_ns, 2000 + hop_ns), (3000 + hop_ns, 5000 + hop_ns)
    found = predict(problem(True, 3, "gpipe"), PLAN)
    assert found.step_ns == first[0] + 3 * last[0] + 3 * last[1] + first[1]
    found = predict(problem(True, 3, "1f1b"), PLAN)
    # The last rank is never idle between its first and its last pass.
    assert found.step_ns == first[0] + 3 * sum(last) + first[1]
    assert found.microbatch_ns == sum(last)


def row(name, predicted_ns, steps_ns, *, model="m", same_as=None, peaks=((100, 100),)):
    predicted = PlanPrediction(predicted_ns, predicted_ns // 4, tuple(p for p, _ in peaks))
    measured = MeasuredPlan(tuple(steps_ns), (), tuple(m for _, m in peaks), ())
    return PlanRow(model, name, same_as, 4, ("p", "q"), predicted, measured)


def test_a_row_compares_medians():
    found = row("greedy", 110, (90, 100, 104, 96, 500), peaks=((95, 100), (30, 20)))
    assert found.step_ns == 100
    assert found.time_error == pytest.approx(0.1)
    assert found.spread == pytest.approx(0.08)
    assert found.memory_errors == pytest.approx((-0.05, 0.5))
    assert row("greedy", 110, (100,)).spread == 0.0


def test_order_is_that_of_the_prediction_or_noise():
    slow, fast = row("greedy", 200, (200,) * 5), row("auto", 100, (120,) * 5)
    assert in_order([slow, fast])
    assert not in_order([slow, row("auto", 100, (201,) * 5)])
    # Its own steps are further apart than the two medians.
    noisy = row("auto", 100, (150, 195, 201, 205, 250))
    assert in_order([slow, noisy])
    assert in_order([row("greedy", 100, (100,) * 5), row("auto", 100, (300,) * 5)])
    assert in_order([row("greedy", 1000, (100,) * 5), row("auto", 991, (300,) * 5)])
    assert not in_order([row("greedy", 1000, (100,) * 5), row("auto", 989, (300,) * 5)])
