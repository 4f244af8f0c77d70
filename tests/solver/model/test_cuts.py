import pytest

from solver import PartitionPlan, evaluate, solve
from solver.diagnosis.answer import CutLimit, StageLimit
from solver.diagnosis.diagnose import diagnose
from solver.evaluation.result import SolveStatus
from solver.model.cuts import positions_of_blocks, without_hand_made
from solver.model.devices import Device, Interconnect
from solver.model.limits import SolveLimits
from solver.model.operators import Operator
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import NO_BLOCK, ColocationGroup
from solver.presolve.instance import condense
from solver.presolve.unit_cuts import block_starts, by_block, unit_blocks, unit_stages
from tests.support import graphs

DEVICES = (Device("gpu0"), Device("gpu1"), Device("gpu2"))
LIMITS = SolveLimits(workers=1, time_limit_s=30)


def chain(names="abcdef", *, stages=None, **settings):
    of = {name: {"stage": stage} for name, stage in (stages or {}).items()}
    fields = {"devices": DEVICES, "interconnect": Interconnect(), **settings}
    return graphs.chain(names, latency_ns=1, value_bytes=1, of=of, **fields)


def plan_of(text, order=("gpu0", "gpu1", "gpu2")):
    """A plan from pairs such as ``a0 b0 c1``: operator, device; ``c0'`` is in chunk 1."""
    placed = text.split()
    used = {f"gpu{entry[1]}" for entry in placed}
    return PartitionPlan(
        {entry[0]: f"gpu{entry[1]}" for entry in placed},
        tuple(device for device in order if device in used),
        {entry[0]: entry.count("'") for entry in placed},
    )


# -- blocks -------------------------------------------------------------------------------------


def test_cuts_divide_the_execution_order_into_blocks():
    problem = chain(cuts=("d", "b", "d"))
    assert problem.cuts == ("b", "d")
    assert problem.blocks == (0, 0, 1, 1, 2, 2)
    assert problem.is_hand_made
    assert not chain().is_hand_made
    assert without_hand_made(chain(cuts=("b",), stages={"a": 0})) == chain()


def test_operators_of_a_backward_pass_are_in_no_block():
    back = Operator("a'", reads=("b",), is_backward=True)
    operators = (Operator("a"), Operator("b", reads=("a",)), back)
    problem = PartitionProblem(operators, DEVICES, memory_model="weights", cuts=("a",))
    assert problem.blocks == (0, 1, NO_BLOCK)
    assert solve(problem, LIMITS).status is SolveStatus.OPTIMAL


def test_units_know_their_blocks_and_stages():
    problem = chain(cuts=("c",), stages={"e": 1}, colocation=(ColocationGroup(("a", "c")),))
    units = condense(problem)
    assert [units.members[unit] for unit in range(3)] == [(0, 1, 2), (3,), (4,)]
    assert unit_blocks(units) == [0, 1, 1, 1]
    assert unit_stages(units) == [(), (), (1,), ()]
    assert block_starts(units) == [3]
    # Sorted by block an order is topological again; within a block it stays as it was.
    assert by_block(units, [3, 0, 2, 1]) == [0, 3, 2, 1]


def test_operators_pinned_to_one_stage_are_one_unit():
    problem = chain(stages={"b": 1, "d": 1})
    # What lies between them is merged by `condense`, as between colocated operators.
    assert ("b", "d") in problem.units
    assert (1, 2, 3) in condense(problem).members


def test_blocks_own_disjoint_stages():
    problem = chain(cuts=("b",))
    plan = plan_of("a0 b0 c1 d1 e2 f2")
    assert positions_of_blocks(problem, plan) == [range(1), range(1, 3)]


# -- what a plan breaks -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("a0 b0 c1 d1 e2 f2", ()),
        ("a0 b1 c2 d2 e2 f2", ("cut after 'd'",)),
        ("a0 b0 c0 d1 e2 f2", ("cut after 'b'",)),
        ("a0 b0 c0 d0 e0 f0", ("cut after 'b'", "cut after 'd'")),
    ],
)
def test_each_broken_cut_is_one_sentence(text, broken):
    problem = chain(cuts=("b", "d"))
    found = evaluate(problem, plan_of(text)).violations
    assert tuple(line.split(":")[0] for line in found) == broken


def test_a_broken_cut_names_operators_on_both_sides():
    problem = chain("ab", cuts=("a",))
    (line,) = evaluate(problem, plan_of("a1 b1")).violations
    assert line == (
        "cut after 'a': 'a' runs up to it and is on gpu1, 'b' runs behind it and is on gpu1, "
        "which is no later stage"
    )


def test_a_pinned_stage_is_counted_among_the_stages_with_operators():
    problem = chain("abcd", stages={"c": 2}, chunks_per_device=2)
    assert evaluate(problem, plan_of("a0 b1 c0' d1'")).feasible
    # Chunk 0 of gpu1 has no operator here, so c is on the second stage.
    (line,) = evaluate(problem, plan_of("a0 b0 c0' d1'")).violations
    assert line == "operator 'c' is pinned to stage 2 but is on stage 1 (gpu0 (chunk 1))"


def test_operators_pinned_alike_are_one_sentence():
    problem = chain("abcd", stages={"a": 0, "b": 0, "d": 1})
    found = evaluate(problem, plan_of("a0 b0 c0 d0")).violations
    assert found == ("operator 'd' is pinned to stage 1 but is on stage 0 (gpu0)",)
    found = evaluate(problem, plan_of("a1 b1 c0 d1", ("gpu0", "gpu1"))).violations
    assert "operator 'a' (and 1 more) is pinned to stage 0 but is on stage 1 (gpu1)" in found


# -- why nothing fits ---------------------------------------------------------------------------


def heavy(sizes=(1, 1, 1), capacities=(2, 2), **changes):
    devices = [Device(f"gpu{i}", size) for i, size in enumerate(capacities)]
    return graphs.chain(
        "abc", latency_ns=1, value_bytes=0, weight_bytes=sizes, devices=devices, **changes
    )


def test_a_cut_is_named_among_the_limits_that_clash():
    tight = heavy((1, 1, 2), cuts=("a",))
    diagnosis = diagnose(tight, LIMITS)
    assert CutLimit("a") in diagnosis.conflict
    assert diagnosis.is_minimal
    assert "the cut after 'a'" in diagnosis.text
    dropped = [r.change for r in diagnosis.remedies if "without" in r.change.text]
    assert [change.limit for change in dropped] == [CutLimit("a")]


def test_a_pinned_stage_is_named_among_the_limits_that_clash():
    tight = heavy(capacities=(1, 1, 1), of={name: {"stage": 1} for name in "bc"})
    diagnosis = diagnose(tight, LIMITS)
    assert StageLimit(("b", "c"), 1) in diagnosis.conflict
    assert "the pins of 'b' and 'c' to stage 1" in diagnosis.text
    assert any(r.change.text.startswith("without the pins") for r in diagnosis.remedies)
