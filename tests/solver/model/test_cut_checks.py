"""Every contradiction is refused at once, in one line that names what is at fault."""

import pytest

from solver import SOLVERS, SolveLimits, SolveStatus, diagnose, solve
from solver.model.devices import Device
from solver.model.errors import PartitionError
from solver.model.operators import Operator
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import ColocationGroup
from tests.support import graphs
from tests.support.refusals import refused

TWO = (Device("gpu0"), Device("gpu1"))
LAYERS, APART = ("mlp_1", "mlp_2", "head"), {"a": {"gpu0"}, "c": {"gpu1"}}
TIED = (ColocationGroup(("a", "d"), "they share 'w'"),)
JOINED = (ColocationGroup(("a", "b")), ColocationGroup(("b", "c")))


def chain(names="abcd", *, stages=None, pins=None, **settings):
    stages, pins = stages or {}, pins or {}
    of = {name: {"stage": stages.get(name), "allowed_devices": pins.get(name)} for name in names}
    return graphs.chain(names, of=of, **{"devices": TWO, **settings})


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"cuts": "ab"}, ("cuts is 'ab'", "write a list of names")),
        ({"cuts": (3,)}, ("entry of cuts is 3", "non-empty string")),
        ({"cuts": ("z",)}, ("cut after 'z'", "no such operator", "name an operator")),
        ({"names": LAYERS, "cuts": ("mlp1",)}, ("'mlp1'", "did you mean 'mlp_1' or 'mlp_2'?")),
        ({"cuts": ("d",)}, ("cut after 'd'", "no operator runs behind it", "leave this cut out")),
        ({"cuts": ("a", "b")}, ("2 cuts ('a', 'b') need at least 3 stages", "1 chunk each allow")),
        ({"cuts": ("a",), "max_devices": 1}, ("1 cut ('a') need at least 2", "1 chunk each allow")),
        ({"cuts": ("b",), "colocation": TIED}, ("divides 'a' and 'd'", "they share 'w'", "cut wh")),
        ({"cuts": ("b",), "colocation": JOINED}, ("divides 'b' and 'c'", "given by the caller")),
        ({"cuts": ("b",), "stages": {"a": 1, "d": 1}}, ("'a' and 'd'", "both are pinned to stage")),
        ({"stages": {"a": -1}}, ("'a'", "stage is -1")),
        ({"stages": {"a": True}}, ("'a'", "stage is True")),
        (
            {"stages": {"d": 2}},
            ("'d' is pinned to stage 2", "1 chunk each allow 2", "numbered from"),
        ),
        ({"stages": {"a": 0, "d": 1}, "colocation": TIED}, ("0 and 'd' to stage 1", "pin both to")),
        ({"stages": {"a": 0, "c": 1}, "colocation": JOINED}, ("'c' to stage 1", "groups that sha")),
        ({"pins": APART, "stages": {"a": 1, "c": 1}}, ("'a' and 'c' must", "pinned stage", "gpu0")),
    ],
)
def test_contradictions_are_named(settings, parts):
    with refused(*parts):
        chain(**settings)


def test_a_backward_operator_cannot_be_cut_after():
    operators = (Operator("a"), Operator("b"), Operator("a'", reads=("a",), is_backward=True))
    with pytest.raises(PartitionError, match=r"cut after \"a'\": it belongs to the backward pass"):
        PartitionProblem(operators, TWO, memory_model="weights", cuts=("a'",))
    with pytest.raises(PartitionError, match="cut after 'b': no operator runs behind it"):
        PartitionProblem(operators, TWO, memory_model="weights", cuts=("b",))


def test_with_chunks_a_device_has_several_stages():
    settings = {"chunks_per_device": 2, "pins": {"a": {"gpu0"}, "c": {"gpu0"}}}
    assert chain(cuts=("b",), **settings).blocks == (0, 0, 1, 1)
    assert chain(stages={"a": 0, "c": 2}, **settings).stage_pins == {"a": 0, "c": 2}


@pytest.mark.parametrize(
    "settings",
    [
        {"stages": {"a": 1, "d": 0}},
        {"cuts": ("a",), "stages": {"c": 0}},
        {"cuts": ("b",), "stages": {"a": 1}},
        {"pins": {"a": {"gpu0"}, "c": {"gpu0"}}, "cuts": ("b",)},
        {"pins": {"a": {"gpu0"}, "c": {"gpu0"}}, "stages": {"a": 0, "c": 1}},
    ],
)
def test_what_contradicts_the_order_of_stages_is_infeasible_and_diagnosed(settings):
    problem = chain(**settings)
    for solver in SOLVERS:
        found = solve(problem, SolveLimits(workers=1), solver=solver)
        assert found.plan is None or not found.evaluation.feasible
        if solver in ("auto", "cp-sat"):
            assert found.status is SolveStatus.INFEASIBLE
    assert diagnose(problem, SolveLimits(workers=1)).remedies
