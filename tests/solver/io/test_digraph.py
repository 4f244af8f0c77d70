import re

import networkx as nx
import numpy as np
import pytest

from solver.io.digraph import problem_from_digraph, problem_to_digraph
from solver.model.devices import Device
from solver.model.errors import PartitionError
from solver.model.operators import Operator
from solver.model.problem_fields import GraphInput, Weight
from solver.model.training import Backward
from tests.support.problem_counts import some
from tests.support.random_problems import random_problem
from tests.support.refusals import refused

DEVICES = (Device("gpu0"), Device("gpu1"))


def graph_of(nodes, edges=(), **attributes):
    graph = nx.DiGraph(**attributes)
    for name, node_attributes in nodes.items():
        graph.add_node(name, **node_attributes)
    graph.add_edges_from(edges)
    return graph


def settings_of(problem):
    return {
        "interconnect": problem.interconnect,
        "objective": problem.objective,
        "memory_model": problem.memory_model,
        "schedule": problem.schedule,
        "microbatches": problem.microbatches,
    }


@pytest.mark.parametrize("seed", some(200, of=200))
def test_a_problem_survives_the_way_to_a_graph_and_back(seed):
    problem = random_problem(seed)
    graph = problem_to_digraph(problem)
    again = problem_from_digraph(graph, problem.devices, **settings_of(problem))
    assert again == problem
    assert problem_from_digraph(graph, problem.devices, **settings_of(problem)) == problem
    assert nx.utils.graphs_equal(problem_to_digraph(problem), graph)


def test_every_attribute_is_read():
    graph = graph_of(
        {
            "x": {"kind": "input", "value_bytes": 7, "info": {"mine": 1}},
            "a": {
                "latency_ns": {"default": 5},
                "storage_bytes": 8,
                "value_bytes": 9,
                "weights": ["w"],
                "backward": {"latency_ns": {"default": 6}, "kept_bytes": 8, "slices": ["x"]},
                "is_output": True,
                "allowed_devices": ["gpu1"],
                "transfer_ns": 4,
                "info": "anything",
            },
            "b": {"alias_of": "a"},
        },
        [("x", "a"), ("a", "b")],
        weights={"w": {"size_bytes": 3, "training_bytes": 12}},
        colocation=[{"operators": ["a", "b"], "reason": "view"}],
        info=[1, 2],
    )
    problem = problem_from_digraph(graph, DEVICES, memory_model="training")
    assert problem.inputs == (GraphInput("x", 7),)
    assert problem.operators == (
        Operator(
            "a",
            {"default": 5},
            reads=("x",),
            storage_bytes=8,
            value_bytes=9,
            weights=("w",),
            backward=Backward({"default": 6}, kept_bytes=8, slices=("x",)),
            is_output=True,
            allowed_devices=frozenset({"gpu1"}),
            transfer_ns=4,
        ),
        Operator("b", reads=("a",), alias_of="a"),
    )
    assert problem.weights == {"w": Weight(3, 12)}
    assert [(group.operators, group.reason) for group in problem.colocation] == [
        (("a", "b"), "view")
    ]


def test_order_decides_over_insertion():
    graph = graph_of({"late": {"order": 9}, "early": {"order": -2}, "mid": {"order": 0}})
    names = [op.name for op in problem_from_digraph(graph, DEVICES).operators]
    assert names == ["early", "mid", "late"]


def test_without_order_the_insertion_is_followed_as_far_as_edges_allow():
    graph = graph_of({name: {} for name in "dcba"}, [("a", "c"), ("d", "b")])
    names = [op.name for op in problem_from_digraph(graph, DEVICES).operators]
    assert names == ["d", "b", "a", "c"]


def test_an_input_may_stand_anywhere_and_have_an_order_or_none():
    nodes = {"a": {"order": 0}, "x": {"kind": "input", "order": 0}, "y": {"kind": "input"}}
    problem = problem_from_digraph(graph_of(nodes, [("x", "a"), ("y", "a")]), DEVICES)
    assert [g.name for g in problem.inputs] == ["x", "y"]
    assert problem.operators[0].reads == ("x", "y")


@pytest.mark.parametrize(
    ("graph", "parts"),
    [
        (nx.Graph([("a", "b")]), ("a Graph", "networkx.DiGraph")),
        (nx.MultiDiGraph([("a", "b")]), ("a MultiDiGraph", "networkx.DiGraph")),
        ({"a": ["b"]}, ("a dict", "networkx.DiGraph")),
        (nx.DiGraph([("a", (3, 4))]), ("name of a node is (3, 4)", "relabel_nodes")),
        (nx.DiGraph([("a", True)]), ("name of a node is True", "whole number")),
        (nx.DiGraph([(1, "1")]), ("nodes 1 and '1'", "same name '1'; rename one")),
        (
            nx.DiGraph([("a", "b", {"weight": 3})]),
            ("edge 'a' -> 'b'", "'weight'", "put 'value_bytes', or 'transfer_ns', on node 'a'"),
        ),
        (nx.DiGraph(["ab", "bc", "ca"]), ("cycle", "a -> b -> c -> a", "remove an edge")),
    ],
)
def test_what_is_no_graph_of_operators_is_named(graph, parts):
    with refused(*parts):
        problem_from_digraph(graph, DEVICES)


LATENCY, SIZE, GROUP = {"latency_ns": 3}, {"size_bytes": 1}, {"operators": ["a"]}
STORED_INPUT = {"kind": "input", "storage_bytes": 4}


@pytest.mark.parametrize(
    ("nodes", "parts"),
    [
        ({"a": LATENCY, "b": {}}, ("node 'b' has no latency_ns, which another", "one, 0 if")),
        ({"a": LATENCY, "b": {"latency_ns": 0}, "c": {}}, ("node 'c'", "which 2 others have")),
        ({"a": {"order": 0}, "b": {}}, ("'b'", "order is None", "every operator a whole")),
        ({"a": {"order": 1}, "b": {"order": 1}}, ("'a' and 'b'", "same order 1")),
        ({"a": {}, "x": STORED_INPUT}, ("graph input 'x'", "storage_bytes is only for operators")),
    ],
)
def test_nodes_that_do_not_go_together_are_named(nodes, parts):
    with refused(*parts):
        problem_from_digraph(graph_of(nodes), DEVICES)


def test_an_input_reads_nothing():
    with refused("graph input 'x' reads 'a'", "reads nothing"):
        problem_from_digraph(graph_of({"a": {}, "x": {"kind": "input"}}, [("a", "x")]), DEVICES)


@pytest.mark.parametrize(
    ("attributes", "parts"),
    [
        ({"latency": 3}, ("'latency' is unknown", "did you mean 'latency_ns'")),
        ({"colour": 3}, ("'colour' is unknown", "under 'info'")),
        ({"kind": "sink"}, ("kind is 'sink'", "operator or input")),
        ({"order": 0.5}, ("order is 0.5", "whole number")),
        ({"order": True}, ("order is True", "whole number")),
        ({"weights": "w"}, ("weights is 'w'", "list of names")),
        ({"weights": [["w"]]}, ("weights: an entry is ['w']", "a text")),
        ({"backward": 3}, ("backward is 3", "write a mapping")),
        ({"backward": {"latency": 3}}, ("'latency' is unknown", "latency_ns")),
        ({"backward": {"workspace_bytes": "x"}}, ("workspace_bytes is 'x'", "whole number")),
        ({"allowed_devices": "gpu0"}, ("allowed_devices is 'gpu0'", "list of names")),
        ({"is_output": 1}, ("is_output is 1", "true or false")),
        ({"is_backward": "no"}, ("is_backward is 'no'", "true or false")),
        ({"alias_of": 5.5}, ("alias_of is 5.5", "a text")),
        ({"by_device_class": 3}, ("by_device_class is 3", "a mapping")),
        (
            {"by_device_class": {"cpu": {"latency_ns": 1}}},
            (": by_device_class: attribute 'latency_ns' is unknown", "write one of storage_bytes"),
        ),
        ({"by_device_class": {"default": {"workspace_bytes": "1"}}}, ("workspace_bytes is '1'",)),
    ],
)
def test_a_wrong_attribute_of_a_node_is_named_with_the_remedy(attributes, parts):
    with refused("'a'", *parts):
        problem_from_digraph(graph_of({"a": attributes}), DEVICES)


@pytest.mark.parametrize(
    ("attributes", "parts"),
    [
        ({"wieghts": {}}, ("graph attribute 'wieghts' is unknown", "did you mean 'weights'")),
        ({"weights": ["w"]}, ("graph attribute weights", '"size_bytes"')),
        ({"weights": {"w": 5}}, ("weight 'w' is 5", '"size_bytes"')),
        ({"weights": {5.5: {}}}, ("weights: a key is 5.5", "whole number")),
        ({"weights": {"5": SIZE, 5: SIZE}}, ("weight '5'", "as a number and as a string")),
        ({"weights": {"w": {}}}, ("weight 'w' has no size_bytes",)),
        ({"weights": {"w": {**SIZE, "size": 2}}}, ("'w'", "'size' is unknown", "size_bytes, tr")),
        ({"colocation": {"a": 1}}, ("colocation is {'a': 1}", '[{"operators"')),
        ({"colocation": ["a"]}, ("colocation[0]", '{"operators"')),
        ({"colocation": [{"operators": "a"}]}, ("colocation[0]", "is 'a'", "list of names")),
        ({"colocation": [{}]}, ("colocation[0]", "operators is None")),
        ({"colocation": [GROUP | {"why": ""}]}, ("colocation[0]", "'why' is unknown")),
        ({"colocation": [GROUP | {"reason": 4}]}, ("colocation[0]", "reason is 4", "a string")),
    ],
)
def test_a_wrong_attribute_of_a_graph_is_named_with_the_remedy(attributes, parts):
    with refused(*parts):
        problem_from_digraph(graph_of({"a": {}}, **attributes), DEVICES)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *((name, "latency_ns") for name in ("time_ns", "cost", "runtime_ms", "flops", "execTime")),
        *((name, "storage_bytes") for name in ("memory", "size", "mem_mb", "activation_bytes")),
        *((name, "value_bytes") for name in ("comm", "output_bytes", "tensorSize", "edge_weight")),
        *((name, "transfer_ns") for name in ("comm_ns", "transfer_time", "communicationLatency")),
        *((name, "weights") for name in ("params", "param_bytes", "weight_bytes")),
        *((name, "allowed_devices") for name in ("device", "gpu_id")),
        ("colorClass", "colocation"),
    ],
)
def test_names_that_others_use_are_answered_with_ours(name, meant):
    """Tests for the first name in the answer; ``weight`` alone may be any of several."""
    with refused(f"attribute {name!r} is unknown; did you mean ", meant) as caught:
        problem_from_digraph(graph_of({"a": {name: 1}}), DEVICES)
    assert re.search(r"mean (?:the graph attribute )?'(\w+)'", str(caught.value))[1] == meant
    with refused("'latency_ns'", "'storage_bytes'", "'weights'"):
        problem_from_digraph(graph_of({"a": {"weight": 1}}), DEVICES)


def test_whole_numbers_are_names_wherever_a_graph_names_something():
    nodes = {
        7: {"latency_ns": 3, "weights": [0], "storage_bytes": np.int64(8)},
        np.int64(3): {"latency_ns": {"default": np.int32(4)}},
        "x": {"kind": "input", "value_bytes": 2.0},
        5: {"alias_of": 3, "backward": {"passes_to": 7, "slices": [3], "saves": [7]}},
    }
    graph = graph_of(
        nodes,
        [(3, 5), (7, 5), ("x", 7), (7, 3)],
        colocation=[{"operators": [3, 5]}],
        weights={0: {"size_bytes": np.int64(6)}},
        name="mine",
    )
    problem = problem_from_digraph(graph, DEVICES)
    assert [(op.name, op.reads) for op in problem.operators] == [
        ("7", ("x",)),
        ("3", ("7",)),
        ("5", ("3", "7")),
    ]
    back = problem.operators[2].backward
    assert (back.passes_to, back.slices, back.saves) == ("7", ("3",), ("7",))
    assert problem.operators[2].alias_of == "3"
    assert problem.colocation[0].operators == ("3", "5")
    assert problem.weights == {"0": Weight(6)} and problem.operators[0].weights == ("0",)
    assert [type(op.latency_on("default")) for op in problem.operators] == [int] * 3
    assert list(graph) == [7, 3, "x", 5]


def test_times_may_be_left_out_where_nothing_counts_them():
    nodes = {"a": {"latency_ns": 3}, "b": {"value_bytes": 4}}
    problem = problem_from_digraph(graph_of(nodes, [("a", "b")]), DEVICES, objective="transfer")
    assert problem.operators[1].latency_ns == 0
    view = {"a": {"latency_ns": 3}, "b": {"alias_of": "a"}}
    assert len(problem_from_digraph(graph_of(view, [("a", "b")]), DEVICES).operators) == 2


def test_memory_is_the_most_that_a_class_of_the_devices_needs():
    own = {
        "storage_bytes": 0,
        "alias_of": "x",
        "workspace_bytes": 5,
        "backward": {"latency_ns": 7, "residual_bytes": 3},
        "by_device_class": {
            "cpu": {"workspace_bytes": 9, "backward": {"residual_bytes": 1, "gradient_bytes": 8}},
            "l4": {"workspace_bytes": 2, "storage_bytes": 8, "alias_of": None},
        },
    }
    graph = nx.DiGraph([("x", "a")])
    graph.nodes["x"]["storage_bytes"] = 8
    graph.nodes["a"].update(own)

    def found(*classes):
        devices = [Device(name, device_class=name) for name in classes]
        a = problem_from_digraph(graph, devices).operators[1]
        back = a.backward
        assert back.latency_ns == 7
        return (
            a.storage_bytes,
            a.alias_of,
            a.workspace_bytes,
            back.residual_bytes,
            back.gradient_bytes,
        )

    assert found("default") == (0, "x", 5, 3, 0)
    assert found("cpu") == (0, "x", 9, 1, 8)
    assert found("l4") == (8, None, 2, 3, 0)
    assert found("l4", "cpu") == (8, None, 9, 3, 8)
    assert found("default", "cpu", "other") == (0, "x", 9, 3, 8)


def test_the_graph_is_left_as_it_was():
    graph = problem_to_digraph(random_problem(3))
    before = nx.node_link_data(graph, edges="edges")
    problem_from_digraph(graph, random_problem(3).devices)
    assert nx.node_link_data(graph, edges="edges") == before


@pytest.mark.parametrize(
    ("devices", "settings", "says"),
    [
        (None, {}, 'devices: None is not a Device; write .* such as "24GB,12GB"'),
        (3, {}, "devices: 3 is not a Device"),
        ("gpu0", {}, "devices 'gpu0': 'gpu0' is not a memory; write for example"),
        ([Device("d")], {"objectve": "latency"}, "did you mean 'objective'"),
        ([Device("d")], {"weights": {}}, "setting 'weights' is unknown; write one of"),
    ],
)
def test_devices_and_settings_that_are_wrong_are_named(devices, settings, says):
    graph = nx.DiGraph()
    graph.add_node("a")
    with pytest.raises(PartitionError, match=says):
        problem_from_digraph(graph, devices, **settings)
