"""The evaluator against the oracle's independent simulation, on random problems and plans."""

from itertools import permutations

import pytest

from solver import Interconnect, Weight
from solver.evaluation.evaluate import evaluate
from solver.model.plan import PartitionPlan
from tests.support.graphs import chain
from tests.support.oracle import Oracle, brute_force, cost
from tests.support.problem_counts import counts, nightly, some
from tests.support.random_problems import random_plan, random_problem, to_instance

PROBLEMS = {False: 2_500, True: 1_000}
"""Without and with several chunks per device."""
PLANS_PER_PROBLEM = 4

# The first words of the evaluator's sentences, by the kind of constraint that the oracle reports.
SENTENCES = {
    "order": ("the stages form a cycle", "which is an earlier stage"),
    "memory": ("too few",),
    "pin": ("may not run on",),
    "colocation": ("must share a device", "must share a stage"),
}
CHUNK_SENTENCES = {"chunks": ("chunks per device",), "devices": ("may use",)}


def violated_kinds(evaluation):
    kinds = set()
    for sentence in evaluation.violations:
        matching = {
            kind
            for kind, parts in (SENTENCES | CHUNK_SENTENCES).items()
            if any(part in sentence for part in parts)
        }
        assert len(matching) == 1, sentence
        kinds |= matching
    return kinds


def check_same(problem, plan, instance, oracle, *, with_step):
    expected = cost(
        instance, plan.assignment, plan.device_order, plan.chunks, oracle, with_step=with_step
    )
    found = evaluate(problem, plan)
    assert [usage.memory_bytes for usage in found.usage] == expected["memory"]
    assert [usage.compute_ns for usage in found.usage] == expected["compute"]
    assert [usage.send_ns for usage in found.usage] == expected["send"]
    assert [usage.receive_ns for usage in found.usage] == expected["receive"]
    assert [usage.load_ns for usage in found.usage] == expected["load"]
    assert found.devices_used == expected["devices"]
    assert found.transfer_bytes == expected["transfer"]
    assert found.bottleneck_ns == expected["bottleneck"]
    assert found.peak_memory_permille == expected["peak_memory"]
    if expected["latency"] is None:
        assert found.latency_ns == sum(entry.time_ns for entry in found.stages)
    else:
        assert found.latency_ns == expected["latency"]
    if with_step and not any(op.is_backward for op in problem.operators):
        if expected["step"] is None:
            assert found.step_ns == everything_in_turn_ns(problem, found)
        else:
            assert found.step_ns == expected["step"]
            assert found.step.bound_ns <= found.step_ns
            is_single_pass = problem.microbatches == 1 and not problem.is_training
            if is_single_pass and not problem.interconnect.overlap:
                assert found.step_ns == found.latency_ns
    assert violated_kinds(found) == expected["violations"]
    assert found.feasible == (not expected["violations"])
    return expected


def everything_in_turn_ns(problem, evaluation):
    parts = [(u.compute_ns, u.send_ns, u.receive_ns) for u in evaluation.usage]
    return problem.microbatches * sum(map(sum, parts))


@pytest.mark.parametrize("block", some(4, of=10))
@pytest.mark.parametrize("draw_chunks", [False, True])
def test_evaluate_equals_the_oracle(block, draw_chunks):
    check_block(block, PROBLEMS[draw_chunks] // 10, draw_chunks=draw_chunks)


@pytest.mark.parametrize("block", [0, *nightly(range(1, 11))])
@pytest.mark.parametrize("draw_chunks", [False, True])
def test_evaluate_equals_the_oracle_where_values_are_relayed(block, draw_chunks):
    check_block(block, 1_000 if block else 250, draw_chunks=draw_chunks, relayed=True)


def check_block(block, count, *, draw_chunks, relayed=False):
    kinds = set()
    feasible = chunked = 0
    for seed in range(block * count, (block + 1) * count):
        problem = random_problem(seed, draw_chunks=draw_chunks, relayed=relayed)
        instance = to_instance(problem)
        oracle = Oracle(instance)
        for plan_seed in range(PLANS_PER_PROBLEM):
            plan = random_plan(problem, plan_seed, draw_chunks=draw_chunks)
            try:
                # One of the plans: simulating a step takes longer than all the rest.
                expected = check_same(problem, plan, instance, oracle, with_step=plan_seed == 1)
            except AssertionError as error:
                raise AssertionError(f"problem {seed}, plan {plan_seed}: {error}") from error
            kinds |= expected["violations"]
            feasible += not expected["violations"]
            chunked += bool(plan.chunks) and not expected["violations"]
    # The comparison means something only if all sides of every constraint were seen.
    assert kinds == set(SENTENCES) | (set(CHUNK_SENTENCES) if draw_chunks else set())
    assert feasible >= count * PLANS_PER_PROBLEM // 20
    assert chunked >= (count * PLANS_PER_PROBLEM // 100 if draw_chunks else 0)


@pytest.mark.parametrize("draw_chunks", [False, True])
@counts(100, 300)
def test_the_oracles_best_plan_has_the_value_it_claims(count, draw_chunks):
    solved = total = 0
    for seed in range(100 if draw_chunks else count):
        most = 4 if draw_chunks else 8
        problem = random_problem(seed, max_operators=most, draw_chunks=draw_chunks)
        answer = brute_force(to_instance(problem))
        total += 1
        if answer is None:
            continue
        solved += 1
        best, assignment, chunks = answer
        plan = PartitionPlan.from_assignment(problem, assignment, chunks)
        plans = every_order(plan) if problem.memory_model == "training" else [plan]
        values = [evaluate(problem, plan) for plan in plans]
        assert best in [value.objective for value in values if value.feasible], seed
    assert 0.5 * total <= solved <= 0.9 * total  # both outcomes are well represented


def every_order(plan):
    return [
        PartitionPlan(plan.assignment, order, plan.chunks)
        for order in permutations(plan.device_order)
    ]


def with_memory(instance, *memory_bytes):
    for device, size in zip(instance["devices"], memory_bytes, strict=True):
        device["memory_bytes"] = size
    return instance


def test_the_oracle_solves_an_example_worked_by_hand():
    # Chain a (4 ns) -> b (6 ns) -> c (5 ns), 10 bytes each way at 1 byte/ns; two devices.
    # Cuts: {a | b c}: 4 + 10 = 14 against 10 + 11 = 21; {a b | c}: 10 + 10 = 20 against
    # 10 + 5 = 15; no cut: 15. So one device is best, unless memory forbids it.
    settings = {"memory_model": "inference", "objective": ("bottleneck", "devices", "transfer")}
    problem = chain("abc", latency_ns=[4, 6, 5], value_bytes=10, weight_bytes=100, **settings)
    instance = to_instance(problem)
    # All three need 300 + 20; two with a transfer 200 + 20 (as producer: both values live
    # while b runs; as consumer: 10 received, then 20 live, or 230).
    for sizes, best in (
        ((320, 320), (15, 1, 0)),
        ((319, 319), (20, 2, 10)),
        ((220, 219), (20, 2, 10)),
    ):
        assert brute_force(with_memory(instance, *sizes))[0] == best
    instance["max_devices"] = 1
    assert brute_force(instance) is None
    assert brute_force(with_memory(instance, 219, 219)) is None


def test_the_oracle_interleaves_an_example_worked_by_hand():
    # A chain of 9, 1, 1 and 9 ns whose values travel in no time, with both ends pinned to p and
    # the third operator to q: p has to run twice.
    ends = {"allowed_devices": {"p"}, "weights": ("tied",)}
    problem = chain(
        4,
        latency_ns=[9, 1, 1, 9],
        value_bytes=1,
        of={"op0": ends, "op2": {"allowed_devices": {"q"}}, "op3": ends},
        weights={"tied": Weight(100)},
        interconnect=Interconnect(),
        objective=("bottleneck", "latency", "transfer"),
        memory_model="inference",
    )
    instance = to_instance(problem)
    assert brute_force(instance) is None
    instance["chunks_per_device"] = 2
    best, assignment, chunks = brute_force(instance)
    assert best == (18, 20, 2)
    assert "".join(assignment.values()) == "pqqp"
    assert list(chunks.values()) == [0, 0, 0, 1]
    # The weight is held once; each chunk holds one value of its own, the second one received.
    assert brute_force(with_memory(instance, 103, None))[0] == best
    assert brute_force(with_memory(instance, 102, None)) is None
