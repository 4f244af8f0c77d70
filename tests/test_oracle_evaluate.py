"""The evaluator against the oracle's independent simulation, on random problems and plans."""

import pytest
from oracle import Oracle, brute_force, cost
from random_problems import random_plan, random_problem, to_instance

from solver.evaluate import evaluate
from solver.plan import PartitionPlan

PROBLEMS = 2_500
PLANS_PER_PROBLEM = 4

# The first words of the evaluator's sentences, by the kind of constraint that the oracle reports.
SENTENCES = {
    "order": ("the stages form a cycle", "which is an earlier stage"),
    "memory": ("too few",),
    "pin": ("may not run on",),
    "colocation": ("must share a device",),
}


def violated_kinds(evaluation):
    kinds = set()
    for sentence in evaluation.violations:
        matching = {
            kind for kind, parts in SENTENCES.items() if any(part in sentence for part in parts)
        }
        assert len(matching) == 1, sentence
        kinds |= matching
    return kinds


def check_same(problem, plan, instance, oracle):
    expected = cost(instance, plan.assignment, plan.device_order, oracle)
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
    if expected["latency"] is not None:
        assert found.latency_ns == expected["latency"]
    assert violated_kinds(found) == expected["violations"]
    assert found.feasible == (not expected["violations"])
    return expected


@pytest.mark.parametrize("block", range(10))
def test_evaluate_equals_the_oracle(block):
    kinds = set()
    feasible = 0
    for seed in range(block * PROBLEMS // 10, (block + 1) * PROBLEMS // 10):
        problem = random_problem(seed)
        instance = to_instance(problem)
        oracle = Oracle(instance)
        for plan_seed in range(PLANS_PER_PROBLEM):
            plan = random_plan(problem, plan_seed)
            try:
                expected = check_same(problem, plan, instance, oracle)
            except AssertionError as error:
                raise AssertionError(f"problem {seed}, plan {plan_seed}: {error}") from error
            kinds |= expected["violations"]
            feasible += not expected["violations"]
    # The comparison means something only if all sides of every constraint were seen.
    assert kinds == set(SENTENCES)
    assert feasible >= PROBLEMS * PLANS_PER_PROBLEM // 10 // 20


def test_the_oracles_best_plan_has_the_value_it_claims():
    solved = 0
    for seed in range(300):
        problem = random_problem(seed)
        answer = brute_force(to_instance(problem))
        if answer is None:
            continue
        solved += 1
        best, assignment = answer
        plans = [PartitionPlan.from_assignment(problem, assignment)]
        if problem.memory_model == "training":
            plans = every_stage_order(plans[0])
        values = [evaluate(problem, plan) for plan in plans]
        assert best in [value.objective for value in values if value.feasible], seed
    assert 180 <= solved <= 270  # both outcomes are well represented


def every_stage_order(plan):
    from itertools import permutations

    return [PartitionPlan(plan.assignment, order) for order in permutations(plan.device_order)]


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
            "value_bytes": 10,
            "alias_of": None,
            "weights": [f"w_{name}"],
            "saves": [],
            "is_output": name == "c",
            "allowed_devices": None,
            "transfer_ns": None,
            "is_backward": False,
        }

    instance = {
        "operators": [operator("a", 4, []), operator("b", 6, ["a"]), operator("c", 5, ["b"])],
        "inputs": {},
        "weights": {
            f"w_{name}": {"size_bytes": 100, "training_bytes": None} for name in ("a", "b", "c")
        },
        "saved": {},
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
