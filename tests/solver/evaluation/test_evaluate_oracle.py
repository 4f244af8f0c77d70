"""The evaluator against the oracle's independent simulation, on random problems and plans."""

import pytest

from solver.evaluation.evaluate import evaluate
from solver.model.plan import PartitionPlan
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
    """Time of all microbatches without any pipelining."""
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
    from itertools import permutations

    return [
        PartitionPlan(plan.assignment, order, plan.chunks)
        for order in permutations(plan.device_order)
    ]


def test_the_oracle_solves_an_example_worked_by_hand():
    # Chain a (4 ns) -> b (6 ns) -> c (5 ns), 10 bytes each way at 1 byte/ns; two devices.
    # Cuts: {a | b c}: 4 + 10 = 14 against 10 + 11 = 21; {a b | c}: 10 + 10 = 20 against
    # 10 + 5 = 15; no cut: 15. So one device is best, unless memory forbids it.
    def operator(name, latency_ns, reads):
        return {
            "name": name,
            "latency_ns": latency_ns,
            "reads": reads,
            "storage_bytes": 10,
            "workspace_bytes": 0,
            "value_bytes": 10,
            "alias_of": None,
            "weights": [f"w_{name}"],
            "is_output": name == "c",
            "allowed_devices": None,
            "transfer_ns": None,
            "is_backward": False,
            "backward": {},
        }

    instance = {
        "operators": [operator("a", 4, []), operator("b", 6, ["a"]), operator("c", 5, ["b"])],
        "inputs": {},
        "weights": {
            f"w_{name}": {"size_bytes": 100, "training_bytes": None} for name in ("a", "b", "c")
        },
        "colocation": [],
        "devices": [
            {"name": name, "memory_bytes": 320, "device_class": "default", "is_host": False}
            for name in ("p", "q")
        ],
        "interconnect": {
            "charging": "peer_to_peer",
            "overlap": False,
            "default": {"bandwidth_bytes_per_s": 1_000_000_000, "latency_ns": 0},
            "links": [],
        },
        "objective": ["bottleneck", "devices", "transfer"],
        "memory_model": "inference",
        "schedule": "gpipe",
        "microbatches": 1,
        "chunks_per_device": 1,
        "max_devices": None,
    }
    assert brute_force(instance)[0] == (15, 1, 0)
    for device in instance["devices"]:
        # All three need 300 + 20; two with a transfer 200 + 20 (as producer: both values live
        # while b runs; as consumer: 10 received, then 20 live, or 230).
        device["memory_bytes"] = 319
    assert brute_force(instance)[0] == (20, 2, 10)
    for device in instance["devices"]:
        device["memory_bytes"] = 219
    assert brute_force(instance) is None
    instance["devices"][0]["memory_bytes"] = 220
    assert brute_force(instance)[0] == (20, 2, 10)
    instance["max_devices"] = 1
    assert brute_force(instance) is None


def test_the_oracle_interleaves_an_example_worked_by_hand():
    # A chain of 9, 1, 1 and 9 ns whose values travel in no time, with both ends pinned to p and
    # the third operator to q: p has to run twice.
    def operator(i, latency_ns, allowed):
        return {
            "name": f"o{i}",
            "latency_ns": latency_ns,
            "reads": [f"o{i - 1}"] if i else [],
            "storage_bytes": 1,
            "workspace_bytes": 0,
            "value_bytes": 1,
            "alias_of": None,
            "weights": ["tied"] if i in (0, 3) else [],
            "is_output": i == 3,
            "allowed_devices": allowed,
            "transfer_ns": None,
            "is_backward": False,
            "backward": {},
        }

    instance = {
        "operators": [
            operator(0, 9, ["p"]),
            operator(1, 1, None),
            operator(2, 1, ["q"]),
            operator(3, 9, ["p"]),
        ],
        "inputs": {},
        "weights": {"tied": {"size_bytes": 100, "training_bytes": None}},
        "colocation": [],
        "devices": [
            {"name": name, "memory_bytes": None, "device_class": "default", "is_host": False}
            for name in ("p", "q")
        ],
        "interconnect": {
            "charging": "peer_to_peer",
            "overlap": False,
            "default": {"bandwidth_bytes_per_s": None, "latency_ns": 0},
            "links": [],
        },
        "objective": ["bottleneck", "latency", "transfer"],
        "memory_model": "inference",
        "schedule": "gpipe",
        "microbatches": 1,
        "chunks_per_device": 1,
        "max_devices": None,
    }
    assert brute_force(instance) is None
    instance["chunks_per_device"] = 2
    best, assignment, chunks = brute_force(instance)
    assert best == (18, 20, 2)
    assert assignment == {"o0": "p", "o1": "q", "o2": "q", "o3": "p"}
    assert chunks == {"o0": 0, "o1": 0, "o2": 0, "o3": 1}
    # The weight is held once; each chunk holds one value of its own, the second one received.
    instance["devices"][0]["memory_bytes"] = 103
    assert brute_force(instance)[0] == best
    instance["devices"][0]["memory_bytes"] = 102
    assert brute_force(instance) is None
