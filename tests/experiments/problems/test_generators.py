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
from experiments.problems.synthetic import SLOWDOWN_PERMILLE, Draws
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
