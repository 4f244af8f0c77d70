"""Blocks that any plan may exchange, against the evaluator and brute force."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from solver import Device, Operator, PartitionProblem, SolveLimits, solve
from solver.evaluation.evaluate import evaluate
from solver.evaluation.result import SolveStatus
from solver.model.plan import PartitionPlan
from solver.model.problem import ColocationGroup, GraphInput
from solver.presolve.dominance import simplify
from solver.presolve.instance import condense
from solver.presolve.symmetry import identical_blocks
from tests.support.oracle import brute_force
from tests.support.problem_counts import counts
from tests.support.random_problems import random_plan, random_problem, to_instance
from tests.support.repeated_blocks import layers_of_blocks, problem_with_blocks

LIMITS = SolveLimits(workers=1)


def exchanged(units, plan, block, other):
    """The plan with two blocks in each other's places."""
    names = [op.name for op in units.problem.operators]
    assignment, chunks = dict(plan.assignment), dict(plan.chunks)
    for unit, partner in zip((*block, *other), (*other, *block), strict=True):
        leader = names[units.members[partner][0]]
        for index in units.members[unit]:
            assignment[names[index]] = plan.assignment[leader]
            chunks[names[index]] = plan.chunks.get(leader, 0)
    return PartitionPlan(assignment, plan.device_order, chunks)


def keeps_units(units, plan):
    names = [op.name for op in units.problem.operators]
    return all(
        len({(plan.assignment[names[i]], plan.chunks.get(names[i], 0)) for i in members}) == 1
        for members in units.members
    )


def check_exchanges(problem, label, plans=12):
    """Tests exchanges on random plans; returns the number of pairs compared."""
    units = condense(problem)
    groups = identical_blocks(units)
    compared = 0
    if not groups:
        return compared
    for seed in range(plans):
        plan = random_plan(problem, seed, draw_chunks=problem.chunks_per_device > 1)
        if not keeps_units(units, plan):
            continue
        before = evaluate(problem, plan)
        rng = random.Random(seed)
        for group in groups:
            variant = exchanged(units, plan, *rng.sample(group, 2))
            after = evaluate(problem, variant)
            assert after.feasible == before.feasible, label
            if before.feasible:
                assert after.objective == before.objective, label
                compared += 1
    return compared


@pytest.mark.parametrize(
    "settings",
    [{}, {"draw_chunks": True}, {"relayed": True}, {"relayed": True, "steps": True}],
    ids=["direct", "chunks", "relayed", "steps"],
)
@counts(50, 150)
def test_exchanges_change_no_cost(count, settings):
    compared = sum(
        check_exchanges(problem_with_blocks(seed, **settings), seed) for seed in range(count)
    )
    assert compared >= count * 4 // 5


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(40))
def test_exchanges_change_no_cost_of_more_problems(block):
    for seed in range(10_000 + block * 100, 10_100 + block * 100):
        for settings in ({}, {"draw_chunks": True}, {"relayed": True}, {"steps": True}):
            check_exchanges(problem_with_blocks(seed, **settings), (seed, settings))


@counts(140, 400)
def test_exchanges_change_no_cost_of_problems_without_copies(count):
    """Equal blocks that just happen, among them operators of a backward pass."""
    for seed in range(count):
        check_exchanges(random_problem(seed, max_operators=8), seed)


def sizes(problem):
    groups = identical_blocks(condense(problem))
    return Counter((len(group), len(group[0])) for group in groups)


def test_blocks_of_every_layer_are_found():
    assert sizes(layers_of_blocks(4, 5, 3)) == {(5, 3): 4}


def test_units_of_blocks_correspond_and_are_in_order():
    units = condense(layers_of_blocks(1, 3, 3))
    (group,) = identical_blocks(units)
    names = [
        [units.problem.operators[units.members[unit][0]].name for unit in block] for block in group
    ]
    # The unit in the middle is compared first.
    assert names == [[f"layer0.block{i}.{k}" for k in (1, 0, 2)] for i in range(3)]


def replaced(problem, name, **changed):
    return problem.replace(
        operators=tuple(
            replace(op, **changed) if op.name == name else op for op in problem.operators
        )
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"latency_ns": 12},
        {"value_bytes": 9},
        {"transfer_ns": 1},
        {"reads": ()},
        {"allowed_devices": frozenset({"d0", "d1"})},
        {"weights": ()},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_block_that_differs_is_left_out(changed):
    problem = replaced(layers_of_blocks(), "layer0.block1.0", **changed)
    assert sizes(problem) == {(3, 2): 1, (2, 2): 1}
    assert check_exchanges(problem, changed) > 0


def test_a_block_with_weights_of_another_sets_both_apart():
    both = ("layer0.block0.0", "layer0.block1.0")
    assert sizes(replaced(layers_of_blocks(), both[1], weights=both)) == {(3, 2): 1}


def test_colocation_with_others_sets_a_block_apart():
    group = ColocationGroup(("layer0.block1.0", "start"))
    assert sizes(layers_of_blocks().replace(colocation=(group,))) == {(3, 2): 1, (2, 2): 1}


def test_blocks_on_both_sides_of_a_cut_are_not_exchanged():
    problem = layers_of_blocks(1, 4, 2)
    assert sizes(problem) == {(4, 2): 1}
    cut = problem.replace(cuts=("layer0.block1.1",))
    assert sizes(cut) == {(2, 2): 2}


def test_pinned_stages_set_blocks_apart():
    assert sizes(replaced(layers_of_blocks(1, 3), "layer0.block1.0", stage=1)) == {(2, 2): 1}


def test_layers_in_series_are_not_exchanged():
    chain = [Operator(f"op{i}", 3, (f"op{i - 1}",) if i else (), value_bytes=2) for i in range(12)]
    problem = PartitionProblem(operators=tuple(chain), devices=(Device("a"), Device("b")))
    assert sizes(problem) == {}


def test_storages_that_bind_tell_blocks_apart_by_when_they_run():
    """While the second block runs, what the first left is there."""
    problem = layers_of_blocks(1, 2, 2, memory_model="inference")
    for block in range(2):
        problem = replaced(problem, f"layer0.block{block}.0", storage_bytes=20)
    assert sizes(problem) == {}
    roomy = problem.replace(devices=tuple(Device(d.name, 10**6) for d in problem.devices))
    assert sizes(roomy) == {(2, 2): 1}
    # The exchange would change what a device needs.
    units = condense(problem)
    ones = [f"layer0.block{i}.{k}" for i in range(2) for k in range(2)]
    assignment = {op.name: "d0" for op in problem.operators} | dict.fromkeys(
        (ones[1], "join0"), "d1"
    )
    plan = PartitionPlan(assignment, ("d0", "d1"))
    unit_of = units.unit_of_operator
    first, second, third, fourth = (unit_of[problem.index_of[name]] for name in ones)
    other = exchanged(units, plan, (first, second), (third, fourth))
    memories = [evaluate(problem, entry).usage[0].memory_bytes for entry in (plan, other)]
    # Weights of three operators, then the rows while a block runs.
    assert memories == [89 + 20 + 20 + 8, 89 + 8 + 20 + 8]


def test_blocks_of_one_operator_may_be_exchanged_where_storages_bind():
    assert sizes(layers_of_blocks(2, 3, 1, memory_model="inference")) == {(3, 1): 2}


def test_inputs_count_where_memory_binds():
    problem = layers_of_blocks(1, 2, 1, memory_model="inference", inputs=(GraphInput("in0", 4),))
    problem = replaced(problem, "layer0.block0.0", reads=("start", "in0"))
    assert sizes(problem) == {}
    assert sizes(replaced(problem, "layer0.block1.0", reads=("start", "in0"))) == {(2, 1): 1}


def test_blocks_that_share_a_weight_with_all_or_none_are_equal():
    problem = layers_of_blocks(1, 4, 1, devices=(Device("d0", 59), Device("d1", 59)))
    for index in range(4):
        problem = replaced(problem, f"layer0.block{index}.0", weights=("layer0.block0.0",))
    assert sizes(problem) == {(4, 1): 1}
    # Two pairs with a weight each, which are exchanged as a whole.
    for index in (2, 3):
        problem = replaced(problem, f"layer0.block{index}.0", weights=("layer0.block2.0",))
    assert sizes(problem) == {(2, 2): 1}
    assert check_exchanges(problem, "pairs") > 0


def compare_with_brute_force(seeds, **settings):
    """Compares with brute force where that is quick; returns statuses and what had blocks."""
    statuses, with_blocks = Counter(), 0
    for seed in seeds:
        problem = problem_with_blocks(seed, most_operators=6, **settings)
        places = len(problem.devices) * problem.chunks_per_device
        if places ** len(problem.units) > 3_000:
            continue
        with_blocks += bool(identical_blocks(simplify(condense(problem)).units))
        result = solve(problem, LIMITS, solver="cp-sat")
        best = brute_force(to_instance(problem))
        if best is None:
            assert result.status is SolveStatus.INFEASIBLE, seed
        elif result.status is SolveStatus.OPTIMAL:
            assert result.objective_values == best[0], seed
        else:
            assert "step" in problem.objective, seed
        statuses[result.status] += 1
    return statuses, with_blocks


@pytest.mark.parametrize(
    "settings",
    [{}, {"draw_chunks": True}, {"relayed": True}, {"steps": True}],
    ids=["direct", "chunks", "relayed", "steps"],
)
@counts(28, 40)
def test_the_exact_solver_equals_brute_force_on_problems_with_blocks(count, settings):
    statuses, with_blocks = compare_with_brute_force(range(count), **settings)
    assert statuses[SolveStatus.OPTIMAL] >= count // 5
    assert with_blocks >= count * 3 // 20


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(50))
def test_the_exact_solver_equals_brute_force_on_more_problems_with_blocks(block):
    for settings in ({}, {"draw_chunks": True}, {"relayed": True}, {"steps": True}):
        compare_with_brute_force(range(100_000 + block * 40, 100_040 + block * 40), **settings)
