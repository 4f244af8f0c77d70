"""Generated graphs: sizes, shapes, repeatability, and devices."""

import dataclasses
import hashlib
import json

import networkx as nx
import pytest

from experiments.cli import main
from experiments.problems.generators import (
    GENERATORS,
    GeneratorSettings,
    generate,
    generate_problem,
)
from experiments.problems.instances import one_device_bytes
from experiments.problems.synthetic import SLOWDOWN_PERMILLE, Draws, with_devices
from solver import Device, PartitionError, SolveLimits, load_problem, solve

SMALL = GeneratorSettings(operators=300, width=7, experts=4, seed=3)


def graph_of(name, settings=SMALL):
    problem = generate(name, settings).problem((Device("all"),))
    graph = nx.DiGraph()
    graph.add_nodes_from(op.name for op in problem.operators)
    graph.add_edges_from((read, op.name) for op in problem.operators for read in op.reads)
    return graph


@pytest.mark.parametrize("name", GENERATORS)
def test_graphs_are_connected_and_near_the_size_asked_for(name):
    graph = graph_of(name, GeneratorSettings(operators=1251, experts=8, seed=1))
    assert nx.is_weakly_connected(graph)
    assert nx.is_directed_acyclic_graph(graph)
    assert abs(len(graph) - 1251) <= 45
    if name in ("layered", "series-parallel", "nasnet"):
        assert len(graph) == 1251


# What every machine and Python release must make of a seed.
DIGESTS = {
    "layered": "57d6dba8c35afe83",
    "series-parallel": "25859fbb19c89158",
    "nasnet": "d1826188142744be",
    "transformer": "48638a3c30993c4b",
    "mixture-of-experts": "34fd64ce58300662",
    "balanced-experts": "5caed5e87448838a",
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_seed_gives_the_same_problem_everywhere(name):
    text = json.dumps([dataclasses.astuple(op) for op in generate(name, SMALL).operators])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGESTS[name]


@pytest.mark.parametrize("name", ["layered", "series-parallel", "nasnet", "mixture-of-experts"])
def test_another_seed_gives_another_graph(name):
    other = GeneratorSettings(300, 7, 4, seed=4)
    assert generate(name, SMALL).operators != generate(name, other).operators


def test_layers_have_the_width_asked_for():
    graph = graph_of("layered", GeneratorSettings(operators=200, width=20, seed=2))
    generations = [int(name.split("layer")[1]) for name in graph]
    assert [generations.count(layer) for layer in range(10)] == [20] * 10
    for source, target in graph.edges:
        assert int(target.split("layer")[1]) - int(source.split("layer")[1]) in (1, 2)


@pytest.mark.parametrize("operators", [1, 2, 3, 4, 5, 50, 400])
def test_series_parallel_graphs_reduce_to_one_edge(operators):
    graph = graph_of("series-parallel", GeneratorSettings(operators=operators, seed=operators))
    assert len(graph) == operators
    # Valdes, Tarjan and Lawler (1982): series and parallel reductions leave a single edge.
    multi = nx.MultiDiGraph()
    multi.add_edge("source", next(name for name in graph if not graph.in_degree(name)))
    multi.add_edge(next(name for name in graph if not graph.out_degree(name)), "sink")
    multi.add_edges_from(graph.edges)
    changed = True
    while changed:
        changed = False
        for source, target in list(multi.edges()):
            while multi.number_of_edges(source, target) > 1:
                multi.remove_edge(source, target)
                changed = True
        for name in list(multi):
            if multi.in_degree(name) == multi.out_degree(name) == 1:
                (before,), (after,) = multi.predecessors(name), multi.successors(name)
                multi.remove_node(name)
                multi.add_edge(before, after)
                changed = True
    assert list(multi.edges()) == [("source", "sink")]


def test_nasnet_mobile_and_large_have_the_sizes_of_the_published_networks():
    mobile = graph_of("nasnet", GeneratorSettings(operators=921))
    assert len(mobile) == 921
    # As in PipeDream's profile: 12 normal cells join six values, 4 reduction cells four.
    joins = [mobile.in_degree(name) for name in mobile if name.endswith(".concat")]
    assert (joins.count(6), joins.count(4)) == (12, 4)
    assert len(graph_of("nasnet", GeneratorSettings(operators=1251))) == 1251


def test_transfers_of_nasnet_are_comparable_to_its_times():
    problem = generate_problem("nasnet", GeneratorSettings(operators=921), 6)
    assert problem.interconnect.charging == "host_staged"
    per_device_ns = sum(op.latency_on("default") for op in problem.operators) // 6
    cell_ns = max(
        problem.interconnect.default.transfer_ns(op.value_bytes)
        for op in problem.operators
        if op.name.endswith(".concat")
    )
    assert per_device_ns // 3 < cell_ns < 3 * per_device_ns


def test_experts_of_a_layer_run_side_by_side():
    graph = graph_of("mixture-of-experts", GeneratorSettings(operators=100, experts=16))
    gathers = [name for name in graph if name.endswith(".gather")]
    assert len(gathers) == 16
    for name in gathers:
        assert not nx.descendants(graph, name) & set(gathers)


@pytest.mark.parametrize("name", GENERATORS)
def test_capacities_follow_the_need_of_one_device(name):
    problem = generate_problem(name, SMALL, 5, slack_percent=12.5)
    need_bytes = one_device_bytes(problem)
    total_bytes = sum(device.memory_bytes for device in problem.devices)
    assert 0 <= total_bytes - need_bytes * 1125 // 1000 <= 5
    assert len({device.memory_bytes for device in problem.devices}) == 1


def test_unequal_devices_differ_in_memory_speed_and_links():
    problem = generate_problem("layered", SMALL, 8, unequal=True)
    sizes = sorted({device.memory_bytes for device in problem.devices})
    assert len(sizes) == 4 and 3.9 < sizes[-1] / sizes[0] < 4.1
    assert {device.device_class for device in problem.devices} == set(SLOWDOWN_PERMILLE)
    link = problem.interconnect.link
    assert link("gpu:0", "gpu:3").transfer_ns(10**9) < link("gpu:3", "gpu:4").transfer_ns(10**9)
    ratios = {
        kind: {
            round(op.latency_ns["a100-like"] * 100 / op.latency_ns["default"])
            for op, made in zip(
                problem.operators, generate("layered", SMALL).operators, strict=True
            )
            if made.kind == kind
        }
        for kind in ("compute", "memory")
    }
    assert ratios == {"compute": {317}, "memory": {164}}


def test_without_slack_memory_is_unlimited():
    problem = with_devices(generate("layered", SMALL), 3, slack_permille=None)
    assert [device.memory_bytes for device in problem.devices] == [None] * 3


def test_draws_are_what_python_promises():
    draws = Draws(0)
    assert [draws.below(1000) for _ in range(3)] == [844, 757, 420]
    numbers = [draws.octaves(8, 3) for _ in range(500)]
    assert min(numbers) == 8 and max(numbers) == 63


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"operators": 0}, "operators is 0"),
        ({"width": -1}, "width is -1"),
        ({"experts": True}, "experts is True"),
        ({"seed": 2**40}, "seed is"),
    ],
)
def test_wrong_settings_are_refused(change, message):
    with pytest.raises(PartitionError, match=message):
        GeneratorSettings(**change)


def test_the_command_writes_a_problem_that_can_be_solved(tmp_path, capsys):
    out = tmp_path / "graph.json"
    words = ["generate", "layered", "--operators", "24", "--width", "4", "--devices", "2"]
    assert main([*words, "--seed", "1", "--slack", "100", "-o", str(out)]) == 0
    assert "24 operators, 2 devices" in capsys.readouterr().out
    settings = GeneratorSettings(24, 4, seed=1)
    problem = load_problem(out)
    assert problem == generate_problem("layered", settings, 2, slack_percent=100)
    assert solve(problem, SolveLimits(10, workers=1)).objective is not None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["chain"], "generator 'chain' is unknown; write one of layered, "),
        (["layered", "--slack", "nan"], "slack is nan"),
        (["layered", "--slack", "-1"], "slack is -1"),
        (["layered", "--devices", "0"], "--devices is 0; write a whole number from 1"),
        (["layered", "--operators", "0"], "operators is 0"),
    ],
)
def test_the_command_refuses_nonsense(tmp_path, capsys, words, message):
    assert main(["generate", *words, "--out", str(tmp_path / "graph.json")]) == 2
    assert message in capsys.readouterr().err


def test_help_says_that_a_plan_is_not_promised(capsys):
    assert main(["generate", "--help"]) == 0
    assert "none may fit, and solve says by how much" in " ".join(capsys.readouterr().out.split())
