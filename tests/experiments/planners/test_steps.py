"""Names of steps."""

import pytest

from experiments.planners.steps import check_step, read_steps
from solver import PartitionError, step_names


def test_every_step_has_a_name_that_is_taken():
    assert [check_step(name) for name in step_names()] == list(step_names())
    assert read_steps(step_names()) == tuple(sorted(step_names()))


def test_several_stand_with_commas_or_apart_each_once():
    first, second = sorted(step_names())[:2]
    for texts in ([f"{first},{second}"], [second, first], [f" {second} , {first}", first]):
        assert read_steps(texts) == (first, second)
    assert read_steps(()) == ()


def test_an_unknown_step_is_refused_with_what_comes_close():
    name = step_names()[0]
    with pytest.raises(PartitionError, match=f"step '{name}x' is unknown; did you mean {name}"):
        check_step(f"{name}x")
    with pytest.raises(PartitionError, match="step '' is unknown; write one of ") as caught:
        read_steps([f"{name},"])
    assert all(each in str(caught.value) for each in step_names())
    with pytest.raises(PartitionError, match="step 3 is unknown"):
        check_step(3)
