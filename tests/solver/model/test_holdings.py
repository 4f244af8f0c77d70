"""What operators make their stages hold, on small graphs worked out by hand."""

from collections import Counter
from dataclasses import replace

from solver import Device, Operator, PartitionPlan, PartitionProblem, evaluate
from solver.model.holdings import ALWAYS, Holding, gradient_spans, sliced_gradients
from solver.model.training import Backward


def held(*operators, **settings):
    return PartitionProblem(operators, (Device("d"),), **settings).holdings


def test_inference_holds_storages_until_their_last_readers():
    found = held(
        Operator("a", storage_bytes=8),
        Operator("view", reads=("a",), alias_of="a"),
        Operator("b", reads=("view",), storage_bytes=4, is_output=True),
    )
    assert found == (
        Holding(0, 0, 2, (1, 2), False, 8, "value"),
        Holding(2, 2, 2, (), True, 4, "value"),
    )
    assert held(Operator("a", storage_bytes=8), memory_model="weights") == ()


def test_training_holds_what_is_kept_gradients_and_temporaries():
    backward = Backward(
        gradient_bytes=8, kept_bytes=5, residual_bytes=2, workspace_bytes=1, weight_gradient_bytes=3
    )
    operators = (
        Operator("a", storage_bytes=8, backward=backward),
        Operator("b", reads=("a",)),
    )
    gradient = Holding(0, 0, 1, (), False, 8, "gradient")
    saved = Holding(0, 0, 0, (), True, 7, "saved")
    assert held(*operators, memory_model="training") == (
        gradient,
        saved,
        Holding(0, 0, 0, (), False, 1, "workspace"),
        # What is sent, and a buffer for its gradient.
        Holding(0, ALWAYS, ALWAYS, (1,), False, 8, "sent"),
        Holding(0, ALWAYS, ALWAYS, (1,), False, 8, "gradient"),
    )
    assert held(*operators, memory_model="training", microbatches=4) == (
        gradient,
        saved,
        Holding(0, 0, 0, (), False, 1 + 3, "workspace"),
        Holding(0, ALWAYS, ALWAYS, (1,), False, 4 * 3 + 5, "sent"),
        Holding(0, ALWAYS, ALWAYS, (1,), False, 4 * 8, "gradient"),
    )


def test_a_gradient_that_is_passed_on_is_that_of_the_first():
    gradient = Backward(gradient_bytes=8)
    passing = Backward(gradient_bytes=8, passes_to="a")
    larger = Backward(gradient_bytes=9, passes_to="a")
    found = held(
        Operator("a", backward=gradient),
        Operator("b", reads=("a",), backward=passing),
        Operator("c", reads=("a",), backward=larger),
        Operator("d", reads=("b",)),
        Operator("e", reads=("c",), is_output=True),
        memory_model="training",
    )
    present = [holding for holding in found if holding.first != ALWAYS]
    assert present == [
        Holding(0, 0, 3, (), False, 8, "gradient"),
        Holding(2, 2, 4, (), False, 9, "gradient"),
    ]


def rests(*operators):
    """What is left of buffers of which slices are there: where it counts, until when, bytes."""
    apart = [replace(op, backward=replace(op.backward, slices=())) for op in operators]
    together, alone = (
        Counter(gradient_spans(PartitionProblem(found, (Device("x"),), memory_model="training")))
        for found in (operators, apart)
    )
    return [(span.operator, span.last, span.size_bytes) for span in together - alone]


def of(size_bytes, *slices, **settings):
    return Backward(gradient_bytes=size_bytes, slices=slices, **settings)


def test_a_buffer_is_there_until_its_oldest_slice_ends():
    early, middle, late = (
        Operator("a", backward=of(3)),
        Operator("b"),
        Operator("c", backward=of(5)),
    )
    together = Operator("u", reads=("a", "c", "x"), backward=of(10, "a", "c"))
    x = Operator("x")
    # Behind c, two bytes that are no gradient of anybody; before it, that of c too.
    assert rests(x, early, middle, late, Operator("d"), together) == [(1, 2, 5 + 2), (3, 4, 2)]
    assert rests(x, late, early, middle, together) == [(1, 1, 3 + 2), (2, 3, 2)]
    # The gradient of what a later reader reads is no slice.
    again = Operator("v", reads=("a",))
    assert rests(x, early, middle, late, Operator("d"), together, again) == [(3, 4, 2)]


def test_a_slice_ends_where_another_gradient_is_added_to_it():
    early, late = Operator("a", backward=of(3)), Operator("c", backward=of(5))
    together = Operator("u", reads=("a", "c"), backward=of(8, "a", "c"))
    reader = Operator("r", reads=("a",))
    # The slice, next to the sum and what is added; then what c has left.
    assert rests(early, Operator("b"), reader, Operator("d"), late, together) == [
        (2, 2, 3),
        (2, 3, 5),
    ]
    # What r adds is a slice of its own gradient, which counts anyway.
    reader = replace(reader, backward=of(3, "a"))
    found = rests(early, Operator("b"), reader, Operator("d"), late, together)
    assert found == [(2, 3, 5)]


def test_what_is_passed_on_is_the_same_slice():
    early, middle = Operator("a", backward=of(3)), Operator("b")
    view = Operator("v", reads=("a",), backward=of(3, passes_to="a"))
    late = Operator("c", backward=of(5))
    together = Operator("u", reads=("v", "c"), backward=of(8, "v", "c"))
    assert rests(early, middle, view, late, together) == [(0, 2, 5)]
    # Slices of slices: the first of them ends last.
    inner = Operator("w", reads=("a", "c"), backward=of(8, "a", "c"))
    far = Operator("f", backward=of(7))
    outer = Operator("z", reads=("w", "f"), backward=of(15, "w", "f"))
    assert rests(early, middle, late, inner, far, outer) == [(0, 1, 5), (0, 3, 7)]


def test_a_stage_has_two_gradients_of_a_slice_that_goes_back():
    operators = (
        Operator("a", value_bytes=4, backward=of(4)),
        Operator("v", reads=("a",), value_bytes=4, backward=of(4, passes_to="a")),
        Operator("u", reads=("v",), backward=of(6, "v")),
    )
    problem = PartitionProblem(operators, (Device("x"),), memory_model="training", microbatches=3)
    assert sliced_gradients(problem) == [True, True, False]
    assert problem.arrays.held_bytes.tolist() == [3 * 4 + 2 * 4, 3 * 4 + 2 * 4, 6]


def test_a_slice_without_gaps_that_goes_back_keeps_its_buffer():
    operators = (
        Operator("a", value_bytes=4, backward=of(4, buffer_bytes=20)),
        Operator("b", value_bytes=4, backward=of(4, buffer_bytes=3)),
    )
    problem = PartitionProblem(operators, (Device("x"),), memory_model="training", microbatches=3)
    assert problem.arrays.held_bytes.tolist() == [3 * 4 + 20, 3 * 4 + 4]


def test_what_nobody_keeps_counts_where_no_gradient_is():
    operators = (Operator("a", storage_bytes=8), Operator("b", reads=("a",)))
    found = held(*operators, memory_model="training")
    assert found[0] == Holding(0, 0, 1, (), False, 8, "value")


def test_a_value_that_is_sent_and_returned_counts_once():
    kept = Backward(kept_bytes=5)
    operators = (
        Operator("a", storage_bytes=8, backward=kept, is_output=True),
        Operator("b", reads=("a",)),
    )
    found = held(*operators, memory_model="training", microbatches=4)
    sent = [holding for holding in found if holding.kind == "sent"]
    # As returned, which is more than 4 * (8 - 5) + 5.
    assert sent == [Holding(0, ALWAYS, ALWAYS, (1,), True, 4 * 8, "sent")]


def test_a_value_and_its_gradient_are_one_row_until_the_gradient_ends():
    operators = (
        Operator("a", storage_bytes=9, backward=Backward(gradient_bytes=4)),
        Operator("b", reads=("a",), backward=Backward(gradient_bytes=3, passes_to="a")),
        # The last one that reads a is not the last one with its gradient.
        Operator("c", reads=("b",)),
    )
    found = held(*operators, memory_model="training")
    assert found[0] == Holding(0, 0, 2, (), False, 9, "value")
    assert [holding.operator for holding in found if holding.kind == "value"] == [0]
    returned = (operators[0], replace(operators[1], is_output=True), operators[2])
    # Who passes its gradient on is returned: that stays, and so does the row.
    assert held(*returned, memory_model="training")[0] == Holding(0, 0, 2, (), True, 9, "value")


def test_a_gradient_is_held_for_readers_of_those_that_pass_theirs_on_in_other_stages():
    operators = (
        Operator("a", storage_bytes=4, backward=Backward(gradient_bytes=40)),
        Operator("b", reads=("a",), backward=Backward(gradient_bytes=30, passes_to="a")),
        Operator("c", 1, storage_bytes=5),
        Operator("d", reads=("b",)),
    )
    problem = PartitionProblem(operators, (Device("x"), Device("y")), memory_model="training")
    plan = PartitionPlan({"a": "x", "b": "y", "c": "x", "d": "y"}, ("x", "y"))
    here = evaluate(problem, plan).usage[0]
    # While c runs, whose reader is nowhere; a is sent, and a buffer waits for its gradient.
    assert here.memory_bytes == 40 + 5 + 4 + 40
