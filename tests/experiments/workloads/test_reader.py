"""Published workloads: their optima, their semantics against brute force, malformed files."""

import copy
import itertools
import json
import random

import pytest

from experiments.workloads.catalogue import OPTIMA_MS, workload_path
from experiments.workloads.fields import InstanceSettings
from experiments.workloads.reader import load_instance, workload_from_json
from solver import PartitionError, SolveLimits, SolveStatus, evaluate, solve
from solver.io.files import read_json
from tests.support.refusals import REMOVE, changed, refused

QUICK = (
    "layer.bert24_inference",
    "layer.bert24_training",
    "layer.gnmt_inference",
    "layer.resnet50_training",
    "operator.bert_l-3_inference",
    "operator.bert_l-6_inference",
    "operator.bert_l-6_training",
    "operator.bert_l-12_training",
    "operator.resnet50_training",
)


def node(identity, fpga=1, cpu=10, size=0, *, supported=1, backward=0, colour=None):
    fields = {
        "id": identity,
        "fpgaLatency": fpga,
        "cpuLatency": cpu,
        "size": size,
        "supportedOnFpga": supported,
        "isBackwardNode": backward,
    }
    return fields if colour is None else {**fields, "colorClass": colour}


def edge(source, target, cost=0):
    return {"sourceId": source, "destId": target, "cost": cost}


def workload(nodes, edges, fpgas=2, cpus=1, capacity=1000):
    return {
        "maxFPGAs": fpgas,
        "maxCPUs": cpus,
        "maxSizePerFPGA": capacity,
        "nodes": nodes,
        "edges": edges,
    }


# -- an oracle that reads the format on its own ------------------------------------------------


def class_of(entry):
    return ("class", entry["colorClass"]) if "colorClass" in entry else ("node", entry["id"])


def order_arcs(data):
    """Pairs of classes (a, b): a may not come after b."""
    colour = {entry["id"]: class_of(entry) for entry in data["nodes"]}
    backward = {entry["id"] for entry in data["nodes"] if entry["isBackwardNode"]}
    forward_classes = {c for identity, c in colour.items() if identity not in backward}
    arcs = set()
    for entry in data["edges"]:
        u, v = entry["sourceId"], entry["destId"]
        if u not in backward and v not in backward:
            arcs.add((colour[u], colour[v]))
        elif u in backward and not {colour[u], colour[v]} <= forward_classes:
            arcs.add((colour[v], colour[u]))
    return {(a, b) for a, b in arcs if a != b}


def has_cycle(arcs):
    arcs = set(arcs)
    while arcs:
        targets = {b for _, b in arcs}
        left = {(a, b) for a, b in arcs if a in targets}
        if left == arcs:
            return True
        arcs = left
    return False


def oracle(data, scale=1):
    """The least bottleneck over all assignments of classes to devices, or None."""
    devices = [f"a{i}" for i in range(data["maxFPGAs"])] + [f"c{i}" for i in range(data["maxCPUs"])]
    classes = list(dict.fromkeys(class_of(entry) for entry in data["nodes"]))
    cost = {entry["sourceId"]: entry["cost"] * scale for entry in data["edges"]}
    arcs = order_arcs(data)
    best = None
    for choice in itertools.product(devices, repeat=len(classes)):
        of_class = dict(zip(classes, choice, strict=True))
        if has_cycle({(of_class[a], of_class[b]) for a, b in arcs if of_class[a] != of_class[b]}):
            continue
        place = {entry["id"]: of_class[class_of(entry)] for entry in data["nodes"]}
        load = dict.fromkeys(devices, 0)
        size = dict.fromkeys(devices, 0)
        bad = False
        for entry in data["nodes"]:
            device = place[entry["id"]]
            on_cpu = device[0] == "c"
            load[device] += entry["cpuLatency" if on_cpu else "fpgaLatency"]
            size[device] += 0 if on_cpu else entry["size"]
            bad |= not on_cpu and not entry["supportedOnFpga"]
        received = {
            (e["sourceId"], place[e["destId"]])
            for e in data["edges"]
            if place[e["sourceId"]] != place[e["destId"]]
        }
        for source, device in received:
            load[device] += 0 if device[0] == "c" else cost[source]
        for source in {source for source, _ in received}:
            load[place[source]] += 0 if place[source][0] == "c" else cost[source]
        if bad or max(size.values()) > data["maxSizePerFPGA"]:
            continue
        best = max(load.values()) if best is None else min(best, max(load.values()))
    return best


def random_workload(rng):
    count = rng.randint(3, 6)
    forward = rng.randint(1, count)
    nodes = [
        node(
            10 + index,
            rng.randint(0, 5),
            rng.randint(0, 20),
            rng.randint(0, 5),
            supported=int(rng.random() < 0.9),
            backward=int(index >= forward),
            colour=rng.randint(0, 3) if rng.random() < 0.6 else None,
        )
        for index in range(count)
    ]
    edges = []
    for u, v in itertools.combinations(range(count), 2):
        if rng.random() < 0.45:
            edges.append((u, v))
    cost = [rng.randint(0, 4) for _ in nodes]
    rng.shuffle(edges)
    edges = [edge(10 + u, 10 + v, cost[u]) for u, v in edges]
    rng.shuffle(nodes)
    return workload(nodes, edges, rng.randint(1, 2), rng.randint(1, 2), rng.randint(4, 20))


def test_random_workloads_equal_brute_force():
    rng = random.Random(5)
    solved = 0
    for _ in range(60):
        data = random_workload(rng)
        problem = workload_from_json(data)
        result = solve(problem, SolveLimits(None, workers=1))
        expected = oracle(data)
        solved += expected is not None
        assert result.objective == (None if expected is None else expected * 1_000_000), data
    assert solved > 40


# -- published optima --------------------------------------------------------------------------


@pytest.mark.parametrize("name", QUICK)
def test_the_published_optimum_is_found_and_proven(name):
    problem = load_instance(f"published:{name}")
    result = solve(problem, SolveLimits(None, workers=2))
    assert result.status is SolveStatus.OPTIMAL
    assert result.objective / 1e6 == pytest.approx(OPTIMA_MS[name], rel=1e-6)
    assert evaluate(problem, result.plan).objective == (result.objective,)


# -- what becomes of each field ----------------------------------------------------------------


def test_fields():
    data = workload(
        [node(7, 1.5, 2.25, 30, colour=1), node(8, colour=1, supported=False)], [edge(7, 8, 0.5)]
    )
    problem = workload_from_json({**data, "maxCPUs": 2})
    assert [(d.name, d.memory_bytes, d.is_host) for d in problem.devices] == [
        ("accelerator:0", 1000, False),
        ("accelerator:1", 1000, False),
        ("cpu:0", None, True),
        ("cpu:1", None, True),
    ]
    first, second = problem.operators
    assert (first.latency_on("accelerator"), first.latency_on("cpu")) == (1_500_000, 2_250_000)
    assert first.transfer_ns == 500_000
    assert problem.weights["7"].size_bytes == 30
    assert second.reads == ("7",)
    assert second.allowed_devices == {"cpu:0", "cpu:1"}
    assert [group.operators for group in problem.colocation] == [("7", "8")]
    assert problem.interconnect.charging == "host_staged"
    assert problem.memory_model == "weights"


def test_communication_scale_multiplies_transfers_alone():
    data = workload([node(1), node(2)], [edge(1, 2, 0.25)])
    problem = workload_from_json(data, InstanceSettings(1000))
    assert problem.operators[0].transfer_ns == 250_000_000
    assert problem.operators[0].latency_on("accelerator") == 1_000_000
    assert workload_from_json(data, InstanceSettings(0)).operators[0].transfer_ns == 0


def test_without_host():
    problem = workload_from_json(workload([node(1)], []), InstanceSettings(with_host=False))
    assert [device.name for device in problem.devices] == ["accelerator:0", "accelerator:1"]
    with pytest.raises(PartitionError, match=r"node 3 has supportedOnFpga 0.*no CPU"):
        workload_from_json(workload([node(3, supported=0)], []), InstanceSettings(with_host=False))


def test_operators_come_in_a_topological_order_forward_first():
    data = workload(
        [node(1, backward=1), node(2), node(3, backward=1), node(4)],
        [edge(4, 2), edge(2, 3), edge(3, 1)],
    )
    names = [op.name for op in workload_from_json(data).operators if op.name.isdigit()]
    assert names == ["4", "2", "3", "1"]


def test_a_class_with_backward_nodes_only_is_ordered_by_mirrored_edges():
    # Forward 1 -> 2, backward 3 (class of 2) -> 4 (alone) -> 5 (class of 1): 4 belongs between.
    nodes = [node(1, colour=1), node(2, colour=2), node(3, backward=1, colour=2)]
    nodes += [node(4, backward=1), node(5, backward=1, colour=1)]
    data = workload(nodes, [edge(1, 2, 9), edge(3, 4, 1), edge(4, 5, 1)], fpgas=3, cpus=0)
    problem = workload_from_json(data)
    mirror = {op.name: op for op in problem.operators if op.name.startswith("forward of")}
    assert {name: op.reads for name, op in mirror.items()} == {
        "forward of class 1": (),
        "forward of node 4": ("forward of class 1",),
        "forward of class 2": ("forward of node 4",),
    }
    # They cost nothing, wherever their class goes.
    assert all(op.latency_ns == 0 and op.transfer_ns == 0 for op in mirror.values())
    assert solve(problem).objective == oracle(data) * 1_000_000


# -- malformed files ---------------------------------------------------------------------------

SMALL = workload([node(1), node(2, colour=4), node(3, colour=4, backward=1)], [edge(1, 2, 0.5)])


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("maxFPGAs",), REMOVE, "maxFPGAs is missing"),
        (("maxSizePerFPGA",), 0, "maxSizePerFPGA is 0"),
        (("nodes",), {}, "nodes is not a list"),
        (("nodes", 1, "id"), REMOVE, "nodes[1]: id is missing"),
        (("nodes", 1, "id"), 1, "two nodes have the id 1"),
        (("nodes", 1, "cpuLatency"), -1, "node 2: cpuLatency is -1"),
        (("nodes", 1, "isBackwardNode"), "no", "node 2: isBackwardNode is 'no'"),
        (("nodes", 0, "isBackwardNode"), 1, "edges[0] (1 -> 2) leads from a backward"),
        (("edges", 0, "destId"), 77, "edges[0]: destId is 77, which is no node's id"),
        (("edges", 0, "destId"), 1, "edges[0] (1 -> 1) joins a node to itself"),
        (("edges", 0, "cost"), REMOVE, "edges[0] (1 -> 2): cost is missing"),
    ],
)
def test_a_malformed_field_is_named(tmp_path, path, value, message):
    file = tmp_path / "broken.json"
    file.write_text(json.dumps(changed(SMALL, path, value)), encoding="utf-8")
    with refused("broken.json: ", message):
        load_instance(file)


def test_a_cycle_is_named():
    data = workload([node(1), node(2), node(3)], [edge(1, 2), edge(2, 3), edge(3, 2)])
    with pytest.raises(PartitionError, match="nodes 2 -> 3 -> 2 form a cycle"):
        workload_from_json(data)
    backward = [node(2, backward=1), node(3, backward=1)]
    with pytest.raises(PartitionError, match="backward nodes 2 -> 3 -> 2 form a cycle"):
        workload_from_json(workload(backward, [edge(2, 3), edge(3, 2)]))


def test_costs_of_one_source_must_agree():
    nodes = [node(1), node(2), node(3)]
    with pytest.raises(PartitionError, match=r"edges\[1\] \(1 -> 3\): cost is 3, but 2"):
        workload_from_json(workload(nodes, [edge(1, 2, 2), edge(1, 3, 3)]))
    workload_from_json(workload(nodes, [edge(1, 2, 2), edge(1, 3, 2 + 1e-9)]))


@pytest.mark.parametrize("scale", [-1, float("nan"), float("inf"), "2", True])
def test_a_wrong_communication_scale_is_no_fault_of_the_file(scale):
    with refused(starts="communication_scale is "):
        InstanceSettings(scale)


@pytest.mark.parametrize("name", ["colourClass", "colorclass", "color_class", "ColorClass"])
def test_a_misspelt_field_is_not_left_out(name):
    with pytest.raises(PartitionError, match=f"'{name}' is unknown; did you mean colorClass?"):
        workload_from_json(workload([node(1) | {name: 3}], []))
    workload_from_json(workload([node(1) | {"layerId": 3, "comment": "colours"}], []))


STRANGE = (None, True, False, -1, 0, 1, 2, 3, 1.5, -0.5, 1e308, 10**30, 10**400, "", "1", "x" * 200)
STRANGE += ([], {}, [[]], [1, 2], {"id": 1}, float("nan"), float("inf"), float("-inf"))


def mutate(rng, value):
    """Change one place of nested data: delete, replace, repeat or swap."""
    parent, key = None, None
    while isinstance(value, (dict, list)) and value and (parent is None or rng.random() < 0.85):
        parent = value
        key = rng.choice(sorted(value) if isinstance(value, dict) else range(len(value)))
        value = parent[key]
    kind = rng.random()
    if kind < 0.25:
        del parent[key]
    elif kind < 0.35 and isinstance(parent, list):
        parent.append(copy.deepcopy(value))
    elif kind < 0.5 and isinstance(parent, dict):
        other = rng.choice(sorted(parent))
        parent[key], parent[other] = parent[other], parent[key]
    else:
        parent[key] = copy.deepcopy(rng.choice(STRANGE))


def test_mutated_files_load_or_are_refused_in_one_line(tmp_path):
    rng = random.Random(11)
    originals = [SMALL, random_workload(rng), random_workload(rng)]
    originals.append(read_json(workload_path("published:layer.bert24_training")))
    refused = 0
    file = tmp_path / "mutated.json"
    for index in range(400):
        data = copy.deepcopy(originals[index % len(originals)])
        for _ in range(rng.randint(1, 2)):
            mutate(rng, data)
        text = json.dumps(data)
        if rng.random() < 0.1:
            text = text[: rng.randrange(len(text))]
        file.write_text(text, encoding="utf-8")
        try:
            load_instance(file)
        except PartitionError as error:
            refused += 1
            assert "mutated.json" in str(error) and "\n" not in str(error)
            assert len(str(error)) < 500
    assert 200 < refused < 400
