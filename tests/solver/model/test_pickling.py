"""Every public dataclass of solver survives pickle and deepcopy, and stays as it was."""

import copy
import dataclasses
import pickle

import pytest

import solver
from solver import (
    PCIE,
    Backward,
    ColocationGroup,
    Device,
    Diagnosis,
    GraphInput,
    Host,
    Interconnect,
    Job,
    Link,
    Operator,
    Pipeline,
    Progress,
    SolveLimits,
    Stage,
    StepRecord,
    Weight,
    evaluate,
    solve,
)
from solver.diagnosis.answer import DeviceCountLimit
from tests.support.random_problems import random_plan, random_problem

PROBLEM = random_problem(3, draw_chunks=True)
PLAN = random_plan(PROBLEM, 3, draw_chunks=True)
RESULT = solve(PROBLEM.replace(chunks_per_device=1), SolveLimits(workers=1), solver="greedy")
EVALUATION = evaluate(PROBLEM, PLAN)

ITEMS = [
    PROBLEM,
    PLAN,
    RESULT,
    EVALUATION,
    EVALUATION.usage[0],
    EVALUATION.stages[0],
    EVALUATION.step,
    EVALUATION.step.times,
    EVALUATION.step.timeline(),
    PCIE,
    Device("a", memory_bytes=3),
    Link(3, 4),
    Interconnect(links={("a", "b"): Link(1, 2)}, charging="host_staged", overlap=True),
    Operator("a", {"fast": 3, "slow": 4}, reads=("x",), allowed_devices=frozenset("ab")),
    GraphInput("x", 3),
    Weight(3, 12),
    Backward({"fast": 3}, gradient_bytes=4, kept_bytes=2),
    ColocationGroup(("a", "b"), "because"),
    Stage("a", 2),
    Pipeline("1f1b", microbatches=2),
    StepRecord("parts", 1, 0.5, 0.25, "bottleneck", None, 7, 3, 5),
    SolveLimits(time_limit_s=3.0, workers=2),
    Diagnosis(RESULT.plan, (DeviceCountLimit(2),), is_minimal=True),
    Progress("cp-sat", "bottleneck", None, 2, 1.0),
    Host("64GB", "cpu"),
    Job({"token": PROBLEM.replace(microbatches=1, memory_model="weights")}, "token"),
]


def test_no_public_dataclass_is_left_out():
    values = [getattr(solver, name) for name in solver.__all__]
    public = {v for v in values if isinstance(v, type) and dataclasses.is_dataclass(v)}
    assert public <= {type(item) for item in ITEMS}


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: type(item).__name__)
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_pickle_and_deepcopy_give_an_equal_item(item, protocol):
    for again in (pickle.loads(pickle.dumps(item, protocol)), copy.deepcopy(item)):
        assert again == item
        assert type(again) is type(item)
        assert repr(again) == repr(item)


def test_what_comes_out_is_read_only_again():
    again = copy.deepcopy(PROBLEM)
    assert evaluate(again, copy.deepcopy(PLAN)) == EVALUATION
    with pytest.raises(TypeError):
        again.weights["w"] = 3
    with pytest.raises(TypeError):
        copy.deepcopy(PLAN).assignment["a"] = "b"
