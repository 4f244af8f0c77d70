"""Workloads of Piper: its formula of costs against the evaluator, optima, malformed files."""

import copy
import itertools
import json
import math
import random

import pytest

from experiments.workloads.catalogue import workload_path
from experiments.workloads.fields import InstanceSettings
from experiments.workloads.piper import is_piper, piper_from_json
from experiments.workloads.reader import load_instance
from solver import PartitionError, PartitionPlan, SolveLimits, SolveStatus, evaluate, solve
from solver.io.files import read_json
from tests.support.piper_program import least_bottleneck
from tests.support.refusals import REMOVE, changed, refused

S = 10**9
ONE_A_STAGE = InstanceSettings(with_replicas=False)


def alternative(time, a, b, name="vanilla"):
    return {
        "id": name,
        "timePerSample": time,
        "parameterSize": 0,
        "memoryUsageA": a,
        "memoryUsageB": b,
        "syncTimeFw": {},
        "syncTimeBw": {},
    }


def node(identity, *alternatives):
    names = ("vanilla", "activation recomp")
    listed = [alternative(*each, name) for each, name in zip(alternatives, names, strict=False)]
    return {"id": identity, "TMPCs": {"1": listed}}


def edge(source, target, cost=0):
    return {"sourceId": source, "destId": target, "communicationCost": cost}


def workload(nodes, edges, devices=3, memory=1000, microbatches=8, bandwidth=2):
    return {
        "maxMemoryPerDevice": memory,
        "maxDevices": devices,
        "bandwidth": bandwidth,
        "mbsInBatch": microbatches,
        "nodes": nodes,
        "edges": edges,
    }


SMALL = workload([node(7, (4, 10, 3), (5, 2, 11)), node(8, (6, 4, 1))], [edge(7, 8, 3)])


def random_workload(rng, count):
    """Draw nodes of all kinds that can be read, in an order of the file that is none of theirs."""
    nodes = []
    for identity in range(count):
        time, a, b = rng.randint(2, 9), rng.randint(8, 30), rng.choice((0, rng.randint(1, 20)))
        less = rng.randint(4, a - 1)
        kinds = (
            [(time, a, b)],
            [(time, a, b), (time + rng.randint(1, time), less, a + b - less)],
            # Runs again at the price of more of the microbatch at hand.
            [(time, a, b), (time + rng.randint(1, time), less, a + b - less + rng.randint(1, 2))],
            # Worse in everything, and better in everything.
            [(time, a, b), (time + 1, a + 1, b)],
            [(time, a, b), (time, less, a + b - less)],
        )
        nodes.append(node(identity, *rng.choice(kinds)))
    edges = [
        edge(u, v, rng.choice((0, rng.randint(1, 4))))
        for u, v in itertools.combinations(range(count), 2)
        if rng.random() < 0.5
    ]
    rng.shuffle(nodes)
    return workload(nodes, edges, memory=rng.randint(10 * count, 40 * count))


# -- Piper's formula, which knows nothing of operators --------------------------------------------


def alternatives_of(data):
    return {
        entry["id"]: [
            (each["timePerSample"], each["memoryUsageA"], each["memoryUsageB"])
            for each in entry["TMPCs"]["1"]
        ]
        for entry in data["nodes"]
    }


def loads_and_bytes(data, stages, chosen):
    """Time and memory of each stage, a list of ids; `chosen` has an alternative for each id."""
    loads, sizes = [], []
    for number, stage in enumerate(stages):
        cut = [e for e in data["edges"] if (e["sourceId"] in stage) != (e["destId"] in stage)]
        sent = sum(2 * each["communicationCost"] for each in cut) / data["bandwidth"]
        loads.append(sent + sum(chosen[identity][0] for identity in stage))
        y = len(stages) - number
        sizes.append(sum(chosen[identity][1] * y + chosen[identity][2] for identity in stage))
    return loads, sizes


def random_stages(rng, data):
    """Cut a random order of the nodes at random places."""
    before = {entry["id"]: set() for entry in data["nodes"]}
    for each in data["edges"]:
        before[each["destId"]].add(each["sourceId"])
    order = []
    while len(order) < len(before):
        order.append(rng.choice([n for n in before if n not in order and before[n] <= {*order}]))
    cuts = sorted(rng.sample(range(1, len(order)), rng.randint(0, 2)))
    return [order[i:j] for i, j in itertools.pairwise([0, *cuts, len(order)])]


def test_the_evaluator_charges_and_holds_what_the_formula_says():
    rng = random.Random(3)
    seen = set()
    for _ in range(100):
        data = random_workload(rng, 6)
        problem = piper_from_json(data)
        stages = random_stages(rng, data)
        chosen, again = {}, set()
        for identity, each in alternatives_of(data).items():
            op = problem.operators[problem.index_of[str(identity)]]
            # One that has a choice has it of the first and the second; else one is no worse.
            chosen[identity] = min(each, key=lambda one: (one[0], one[1]))
            if op.backward.recomputable and rng.random() < 0.5:
                chosen[identity] = each[1]
                again.add(str(identity))
                seen.add("more" if sum(each[1][1:]) > sum(each[0][1:]) else "as much")
        place = {str(n): f"accelerator:{k}" for k, stage in enumerate(stages) for n in stage}
        plan = PartitionPlan(
            {op.name: place[op.name.split()[0]] for op in problem.operators},
            device_order=tuple(dict.fromkeys(place.values())),
            recomputed=frozenset(again),
        )
        loads, sizes = loads_and_bytes(data, stages, chosen)
        evaluation = evaluate(problem, plan)
        usage = {each.device: each for each in evaluation.usage}
        used = [usage[f"accelerator:{k}"] for k in range(len(stages))]
        assert [each.load_ns for each in used] == [load * S for load in loads]
        assert [each.memory_bytes for each in used] == sizes
        assert evaluation.feasible == (max(sizes) <= data["maxMemoryPerDevice"])
    assert seen == {"more", "as much"}


def test_optima_are_those_of_a_program_over_down_sets():
    # None fits; what fits is faster where a node runs again that holds more of the microbatch at
    # hand; and so it is again.
    rng = random.Random(36)
    proven = []
    for _ in range(3):
        data = random_workload(rng, 4)
        expected = least_bottleneck(data, 3, data["maxMemoryPerDevice"])
        result = solve(piper_from_json(data), SolveLimits(20, 1))
        if expected == math.inf:
            assert result.status is SolveStatus.INFEASIBLE
        else:
            assert (result.status, result.objective) == (SolveStatus.OPTIMAL, expected * S)
        proven.append((expected, result.plan is not None and bool(result.plan.recomputed)))
    assert proven == [(math.inf, False), (13, True), (8, True)]


def test_a_scale_multiplies_transfers_alone():
    plain, scaled = (piper_from_json(SMALL, InstanceSettings(scale)) for scale in (1, 1000))
    assert [op.transfer_ns for op in plain.operators] == [3 * S, 0]
    assert [op.transfer_ns for op in scaled.operators] == [3000 * S, 0]
    assert [op.latency_ns for op in scaled.operators] == [op.latency_ns for op in plain.operators]


def test_devices_are_those_of_the_file_or_of_the_options():
    problem = piper_from_json(SMALL)
    assert [(d.name, d.memory_bytes) for d in problem.devices] == [
        (f"accelerator:{k}", 1000) for k in range(3)
    ]
    problem = piper_from_json(SMALL, InstanceSettings(max_devices=2, device_memory_bytes=77))
    assert [d.memory_bytes for d in problem.devices] == [77, 77]
    # As many devices as microbatches can be busy.
    assert len(piper_from_json(SMALL, InstanceSettings(max_devices=99)).devices) == 8


def test_gigabytes_are_those_of_the_authors_programs():
    data = {**SMALL, "bandwidth": 25e9, "maxMemoryPerDevice": 80e9}
    data["edges"] = [edge(7, 8, 25 * 2**30)]
    problem = piper_from_json(data)
    assert problem.devices[0].memory_bytes == 80 * 2**30
    assert problem.operators[0].transfer_ns == 2 * S
    assert piper_from_json({**data, "bandwidth": 25 * 2**30}).operators == problem.operators


def test_bytes_with_decimals_are_rounded_up_and_still_cost_no_more_once():
    first = node(1, (4, 100, 10), (5, 10.16, 99.84))
    (op,) = piper_from_json(workload([first], [])).operators
    assert (op.backward.residual_bytes, op.backward.rng_bytes) == (100, 11)


# -- the published ones ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "nodes", "edges"), [("bert32a100", 37, 67), ("gnmt", 78, 104)])
def test_the_published_ones_are_in_the_package(name, nodes, edges):
    data = read_json(workload_path(f"published:piper.{name}"))
    assert (len(data["nodes"]), len(data["edges"])) == (nodes, edges)
    problem = load_instance(f"published:piper.{name}", ONE_A_STAGE)
    assert {str(entry["id"]) for entry in data["nodes"]} <= set(problem.index_of)
    assert (problem.recompute, problem.schedule, problem.memory_model) == (
        "auto",
        "1f1b",
        "training",
    )
    assert (len(problem.devices), problem.devices[0].memory_bytes) == (10, 80 * 2**30)
    assert problem.microbatches == data["mbsInBatch"]


@pytest.mark.parametrize(("devices", "memory_gib"), [(8, 6), (8, 8), (32, 8), (64, 2)])
def test_published_optima_are_those_of_a_program_over_down_sets(devices, memory_gib):
    data = read_json(workload_path("published:piper.bert32a100"))
    sizes = InstanceSettings(max_devices=devices, device_memory_bytes=memory_gib * 2**30)
    result = solve(piper_from_json(data, sizes), SolveLimits(workers=1))
    expected = least_bottleneck(data, devices, memory_gib * 2**30)
    if expected == math.inf:
        assert result.status is SolveStatus.INFEASIBLE
        return
    assert result.status is SolveStatus.OPTIMAL
    assert result.objective == pytest.approx(expected * S, abs=100)


# -- what is refused ------------------------------------------------------------------------------


TMPC = ("nodes", 0, "TMPCs", "1")


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("maxDevices",), 0, "maxDevices is 0; write at least 1"),
        (("bandwidth",), REMOVE, "bandwidth is missing"),
        (("nodes", 1, "id"), 7, "two nodes have the id 7"),
        (TMPC, [], "node 7: TMPCs['1'] is no list of one or two alternatives"),
        ((*TMPC, 1, "timePerSample"), 9, "write a timePerSample of at most 8"),
        ((*TMPC, 1, "memoryUsageB"), 10, "give it a memoryUsageB of at least 11"),
        ((*TMPC, 1, "memoryUsageB"), 13, "holds 2 more bytes of the microbatch at hand"),
        ((*TMPC, 0, "syncTimeBw"), {"8": 1}, "syncTimeBw['8'] is 1, but one device synchronises"),
        (("edges", 0, "destId"), 7, "edges[0] (7 -> 7) joins a node to itself"),
        (("edges", 0, "communicationCost"), 10**15, "edges[0] (7 -> 8) takes 1e+15 s; write less"),
        (("edges",), [edge(7, 8), edge(7, 8)], "edges[1] (7 -> 8) is there twice"),
        (("edges",), [edge(7, 8), edge(8, 7)], "the nodes 7 -> 8 -> 7 form a cycle"),
    ],
)
def test_what_is_wrong_is_one_line(path, value, says):
    with refused(says):
        piper_from_json(changed(SMALL, path, value))


def test_mutated_files_load_or_are_refused_in_one_line():
    rng = random.Random(2)
    strange = [None, -1, 0, 1.5, "x", [], {}, 10**40, True, float("inf")]
    refused = 0
    for _ in range(300):
        data = copy.deepcopy(random_workload(rng, 4))
        place, key = data, rng.choice(list(data))
        while isinstance(place[key], (dict, list)) and place[key] and rng.random() < 0.8:
            place = place[key]
            key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        place[key] = rng.choice(strange)
        try:
            piper_from_json(data)
        except PartitionError as error:
            refused += 1
            assert "\n" not in str(error) and len(str(error)) < 500
    assert 100 < refused < 300


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ([], "replicas of stages are not planned yet; write --no-replicas"),
        (["--no-replicas", "--no-host"], "without a host; leave --no-host out"),
        (
            ["--no-replicas", "--device-memory", "8GiB", "--devices", "2x8GiB"],
            "--devices says how much memory devices have, and so does --device-memory",
        ),
        (["--no-replicas", "--device-memory", "8"], "write for example 8GiB"),
        (["--no-replicas", "--device-memory", "unlimited"], "write for example 8GiB"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path, refuses, more, says):
    file = tmp_path / "small.json"
    file.write_text(json.dumps(SMALL))
    refuses(["solve", str(file), *more], says)


@pytest.mark.parametrize("more", [["--no-replicas"], ["--device-memory", "8GiB"]])
def test_its_options_are_for_its_files_alone(refuses, more):
    refuses(
        ["solve", "published:layer.bert24_inference", *more], "no workload of Piper, which --dev"
    )
    refuses(["plan", "mlp", "--devices", "2x1GB", *more], "mlp is a model; --device-memory and")


def test_solve_reads_a_file_and_its_options(tmp_path, answer):
    file = tmp_path / "small.json"
    file.write_text(json.dumps(SMALL))
    words = ["solve", str(file), "--no-replicas"]
    for more, expected_s, capacity in (
        ([], 9, 1000),
        (["--communication-scale", "0"], 6, 1000),
        (["--max-devices", "1"], 10, 1000),
        # 7 keeps 2 of all microbatches but one.
        (["--communication-scale", "0", "--device-memory", "15B"], 6, 15),
        (["--communication-scale", "0", "--device-memory", "22B"], 6, 22),
        (["--communication-scale", "0", "--devices", "2x23B"], 6, 23),
    ):
        found = answer([*words, *more])
        assert found["objective"] == found["objective_bound"] == expected_s * S
        assert {device["capacity_bytes"] for device in found["devices"]} == {capacity}
    assert is_piper(SMALL) and not is_piper({**SMALL, "schema": "fxpartition.problem"})
    assert not is_piper([])
