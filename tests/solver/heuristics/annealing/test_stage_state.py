"""Incremental loads and memory against the evaluator, after every move."""

import random

from solver import PartitionPlan, evaluate
from solver.heuristics.annealing.stage_state import StageState
from solver.presolve.instance import condense
from tests.support.random_problems import random_problem


def in_order(state, unit, target):
    return all(state.at[u] <= target for u in state.predecessors[unit]) and all(
        state.at[u] >= target for u in state.successors[unit]
    )


def assert_equals_evaluation(state, seed):
    problem, units = state.problem, state.units
    names = [device.name for device in state.devices]
    used = tuple(name for name, size in zip(names, state.size, strict=True) if size)
    plan = PartitionPlan(units.lift([names[position] for position in state.at]), used)
    evaluation = evaluate(problem, plan)
    usage = {entry.device: entry for entry in evaluation.usage}
    assert state.loads_of(state.parts) == [usage[name].load_ns for name in names], seed
    for position, name in enumerate(names):
        if state.size[position]:
            assert state.memory_bytes[position] == usage[name].memory_bytes, (seed, position)
    assert state.excess_bytes() == sum(
        max(0, entry.memory_bytes - entry.capacity_bytes)
        for entry in usage.values()
        if entry.capacity_bytes is not None
    )
    if not problem.is_training:
        copies = 1 if problem.memory_model == "weights" else problem.microbatches
        readers = problem.readers_of
        held = sum(
            op.held_value_bytes
            * len({plan.assignment[name] for name in (op.name, *readers[op.name])} - {own})
            for op in problem.operators
            for own in (plan.assignment[op.name],)
        )
        assert sum(state.received_bytes) == copies * held, seed
    for unit in range(len(units)):
        position = state.at[unit]
        forward = position + 1 < len(names) and position not in (
            state.at[other] for other in state.successors[unit]
        )
        backward = position > 0 and position not in (
            state.at[other] for other in state.predecessors[unit]
        )
        assert forward == (2 * unit in state.movable)
        assert backward == (2 * unit + 1 in state.movable)


def test_every_move_is_what_the_evaluator_says():
    kinds = set()
    for seed in range(400):
        problem = random_problem(seed)
        rng = random.Random(seed)
        devices = list(problem.devices)
        rng.shuffle(devices)
        state = StageState(condense(problem), devices, every_value=True)
        assert_equals_evaluation(state, seed)
        for _ in range(12):
            unit, target = rng.randrange(len(state.units)), rng.randrange(len(devices))
            if target == state.at[unit] or not in_order(state, unit, target):
                continue
            state.move(unit, target)
            assert_equals_evaluation(state, seed)
            kinds.add((problem.interconnect.charging, problem.memory_model))
    assert len(kinds) == 6


def test_units_may_pass_through_states_that_are_out_of_order():
    for seed in range(200):
        problem = random_problem(seed)
        rng = random.Random(seed)
        state = StageState(condense(problem), problem.devices, every_value=True)
        state.place([rng.randrange(state.count) for _ in state.at])
        positions = sorted(rng.randrange(state.count) for _ in state.at)
        state.place(positions)
        assert state.at == positions
        assert_equals_evaluation(state, seed)
