"""What operators make their stages hold, on small graphs worked out by hand."""

from solver import Device, Operator, PartitionProblem
from solver.model.holdings import ALWAYS, Holding
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


def test_what_nobody_keeps_counts_where_no_gradient_is():
    operators = (Operator("a", storage_bytes=8), Operator("b", reads=("a",)))
    found = held(*operators, memory_model="training")
    assert found[0] == Holding(0, 0, 1, (), False, 8, "value")
