import dataclasses
from functools import cached_property

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solver import SOLVERS, PartitionPlan, SolveLimits, diagnose, evaluate, solve
from solver.model.devices import Device, Interconnect, Link
from solver.model.errors import PartitionError
from solver.model.operators import Operator
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import ColocationGroup, GraphInput, ProblemFields, Weight
from solver.model.training import Backward
from tests.support.random_problems import random_plan, random_problem
from tests.support.refusals import refused

A, B = Operator("a"), Operator("b", reads=("a",))
DEVICES = (Device("gpu0"), Device("gpu1"))


def problem(**changes):
    return PartitionProblem(**{"operators": (A, B), "devices": DEVICES, **changes})


# -- the parts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"latency_ns": 1.5}, ("latency_ns is 1.5", "whole number")),
        ({"latency_ns": True}, ("latency_ns is True", "whole number")),
        ({"latency_ns": -1}, ("latency_ns is -1", "not negative")),
        ({"latency_ns": {"gpu": -3}}, ("latency_ns['gpu'] is -3", "not negative")),
        ({"storage_bytes": -1}, ("storage_bytes is -1", "not negative")),
        ({"value_bytes": "9"}, ("value_bytes is '9'", "whole number")),
        ({"transfer_ns": -2}, ("transfer_ns is -2", "not negative")),
        ({"reads": ("",)}, ("entry of reads", "non-empty string")),
        ({"reads": "x"}, ("reads is 'x'", "list of names", "['x']")),
        ({"weights": (3,)}, ("entry of weights", "non-empty string")),
        ({"weights": "w"}, ("weights is 'w'", "list of names")),
        ({"backward": 3}, ("backward is 3", "Backward(...)")),
        ({"backward": Backward(kept_bytes=4)}, ("4 bytes of a storage of 3", "residual_bytes")),
        ({"backward": Backward(passes_to="y")}, ("'y'", "does not read", "some of reads in")),
        ({"backward": Backward(slices=("x", "y"))}, ("'y'", "does not read", "and slices")),
        ({"alias_of": "y"}, ("alias_of is 'y'", "add it to reads")),
        ({"alias_of": "x"}, ("storage_bytes is 3", "'x'", "allocates 0 bytes")),
        ({"allowed_devices": frozenset()}, ("allowed_devices is empty", "leave it out")),
        ({"allowed_devices": "gpu0"}, ("is 'gpu0'", "list of names", "['gpu0']")),
        ({"allowed_devices": [["gpu0"]]}, ("entry of allowed_devices is ['gpu0']", "non-empty")),
    ],
)
def test_a_wrong_operator_is_named_with_the_remedy(fields, parts):
    with refused("'a'", *parts):
        Operator("a", **{"reads": ("x",), "storage_bytes": 3, **fields})


@pytest.mark.parametrize(
    ("build", "parts"),
    [
        (lambda: Operator(""), ("operator name", "''", "non-empty string")),
        (lambda: Operator(7), ("operator name", "7", "non-empty string")),
        (lambda: ColocationGroup("ab", "why"), ("why", "operators is 'ab'", "list of names")),
        (lambda: ColocationGroup([["b"]], "why"), ("why", "operator name is ['b']", "non-empty")),
        (lambda: GraphInput(""), ("graph input name", "non-empty string")),
        (lambda: GraphInput("x", -1), ("'x'", "value_bytes is -1", "not negative")),
        (lambda: Weight(-1), ("size_bytes is -1", "not negative")),
        (lambda: Weight(1, 2.0), ("training_bytes is 2.0", "whole number")),
        (lambda: Device(""), ("device name", "non-empty string")),
        (lambda: Device("host"), ("'host'", "staging memory", "choose another")),
        (lambda: Device("d", 0), ("'d'", "memory_bytes is 0", "None for unlimited memory")),
        (lambda: Device("d", -1), ("'d'", "memory_bytes is -1", "not negative")),
        (lambda: Device("d", device_class=""), ("'d'", "device_class", "non-empty string")),
        (lambda: Link(0), ("bandwidth_bytes_per_s is 0", "None for unlimited")),
        (lambda: Link(1, -1), ("latency_ns is -1", "not negative")),
        (lambda: Interconnect(charging="free"), ("charging is 'free'", "peer_to_peer, host_st")),
    ],
)
def test_a_wrong_part_is_named_with_the_remedy(build, parts):
    with refused(*parts):
        build()


def test_parts_are_frozen_and_their_tables_cannot_be_written():
    op = Operator("a", {"gpu": 3}, reads=("x",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        op.name = "b"
    with pytest.raises(TypeError):
        op.latency_ns["gpu"] = 4
    table = {("p", "q"): Link(1)}
    interconnect = Interconnect(links=table)
    table.clear()
    assert interconnect.link("p", "q") == Link(1)
    weights = {"w": Weight(1)}
    made = problem(weights=weights)
    weights.clear()
    assert made.weights == {"w": Weight(1)}
    with pytest.raises(TypeError):
        made.weights["z"] = 1


def test_repeated_names_in_a_list_count_once():
    op = Operator("a", reads=("x", "y", "x"), weights=("w", "w"))
    assert (op.reads, op.weights) == (("x", "y"), ("w",))
    assert ColocationGroup(("a", "b", "a")).operators == ("a", "b")


@given(st.integers(0, 10**15), st.integers(1, 10**13), st.integers(0, 10**9))
def test_transfer_time_is_rounded_up_to_the_next_nanosecond(value_bytes, bandwidth, latency_ns):
    time_ns = Link(bandwidth, latency_ns).transfer_ns(value_bytes) - latency_ns
    assert (time_ns - 1) * bandwidth < value_bytes * 10**9 <= time_ns * bandwidth


# -- the whole ----------------------------------------------------------------------------------


BACK = Operator("a", is_backward=True)


FOR_BACK = {"memory_model": "weights"}
TRAINED = Operator("a", backward=Backward({"fast": 1}))
PINNED = [Operator(name, allowed_devices={gpu}) for name, gpu in (("a", "gpu0"), ("b", "gpu1"))]
GROUP, RELAYED = ColocationGroup(("a", "b")), Interconnect(charging="relayed")


def linked(target):
    return Interconnect(links={("gpu0", target): Link()})


@pytest.mark.parametrize(
    ("operators", "changes", "parts"),
    [
        ([], {}, ("no operators", "nothing to place")),
        ([A, A], {}, ("'a'", "names must be unique")),
        ([B, A], {}, ("'b'", "reads 'a'", "later", "topological order")),
        ([Operator("a", reads=("a",))], {}, ("'a'", "reads 'a'", "later")),
        ([Operator("c", reads=("z",))], {}, ("'c'", "'z'", "neither an operator nor a graph inpu")),
        ([Operator("a", weights=("w",))], {}, ("'a'", "'w'", "not in the table of weights")),
        ([Operator("a", {"fast": 1})], {}, ("'a'", "latency_ns", "device class 'default'")),
        ([TRAINED], {}, ("'a'", "backward latency_ns", "device class 'default'")),
        ([Operator("a", allowed_devices={"gpu0", "tpu"})], {}, ("'a'", "'tpu'", "gpu0, gpu1")),
        ([BACK], {"memory_model": "training"}, ("'a'", "is_backward", "memory_model 'weights'")),
        ([BACK], {"objective": "step", **FOR_BACK}, ("'a': is_backward", "the objective 'step'")),
        ([BACK], {"interconnect": RELAYED, **FOR_BACK}, ("forward", "charging than 'relayed'")),
        (PINNED, {"colocation": (GROUP,)}, ("'a' and 'b'", "gpu0", "gpu1", "let them share one")),
    ],
)
def test_operators_of_a_wrong_problem_are_named_with_the_remedy(operators, changes, parts):
    with refused(*parts):
        problem(operators=operators, **changes)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"devices": ()}, ("no devices", "at least one")),
        ({"devices": (Device("d"), Device("d"))}, ("'d'", "device names must be unique")),
        ({"inputs": (GraphInput("a"),)}, ("'a'", "names must be unique")),
        ({"objective": ()}, ("objective is empty", "bottleneck")),
        ({"objective": "speed"}, ("objective is 'speed'", "bottleneck")),
        ({"objective": ("latency", "latency")}, ("objective", "twice", "once")),
        ({"memory_model": "guess"}, ("memory_model is 'guess'", "inference")),
        ({"schedule": "zigzag"}, ("schedule is 'zigzag'", "gpipe, 1f1b")),
        ({"microbatches": 0}, ("microbatches is 0", "at least 1")),
        ({"microbatches": -1}, ("microbatches is -1", "not negative")),
        ({"microbatches": 2.0}, ("microbatches is 2.0", "whole number")),
        ({"chunks_per_device": 0}, ("chunks_per_device is 0", "at least 1")),
        ({"chunks_per_device": 10**9}, ("chunks_per_device is 1000000000", "at most 1000")),
        ({"chunks_per_device": None}, ("chunks_per_device is None", "whole number")),
        ({"max_devices": 0}, ("max_devices is 0", "positive number, or None for no limit")),
        ({"max_devices": "2"}, ("max_devices is '2'", "whole number")),
        ({"interconnect": linked("gpu7")}, ("'gpu0' -> 'gpu7'", "no device", "gpu0, gpu1")),
        ({"interconnect": linked("gpu0")}, ("'gpu0' -> 'gpu0'", "to itself", "leave it out")),
        ({"colocation": (ColocationGroup([*"aq"], "why"),)}, ("why", "'q' is not an operator")),
    ],
)
def test_a_wrong_problem_is_named_with_the_remedy(changes, parts):
    with refused(*parts):
        problem(**changes)


def test_pins_that_disagree_only_three_at_a_time_are_found():
    # Any two of the three share a device; all three do not.
    devices = tuple(Device(name) for name in "xyz")
    operators = tuple(
        Operator(name, allowed_devices=set(allowed))
        for name, allowed in (("a", "xy"), ("b", "yz"), ("c", "xz"))
    )
    with refused("'b' and 'c'", "let them share one"):
        PartitionProblem(operators, devices, colocation=(ColocationGroup(("a", "b", "c")),))


def test_replace_validates_again_and_leaves_the_original():
    original = problem()
    assert original.replace(objective="latency").objective == ("latency",)
    assert original.objective == ("bottleneck",)
    with refused("no devices"):
        original.replace(devices=())


@pytest.mark.parametrize("seed", range(20))
def test_a_problem_with_weights_of_other_sizes_is_like_one_made_anew(seed):
    original = random_problem(seed, draw_chunks=True, training=seed % 2 == 0)
    members = vars(ProblemFields) | vars(PartitionProblem)
    tables = [name for name, of in members.items() if isinstance(of, cached_property)]
    for name in tables:
        getattr(original, name)
    larger = {key: Weight(3 * w.size_bytes + 1) for key, w in original.weights.items()}
    resized, made = original.replace(weights=larger), dataclasses.replace(original, weights=larger)
    assert resized == made
    for name in set(tables) - {"arrays", "storage_graph"}:
        assert repr(getattr(resized, name)) == repr(getattr(made, name)), name
    assert vars(resized.storage_graph) == vars(made.storage_graph)
    plan = random_plan(original, seed, draw_chunks=True)
    assert evaluate(resized, plan) == evaluate(made, plan)
    assert original.replace(weights=original.weights) == original
    if larger:
        with refused("1 PB"):
            original.replace(weights=dict.fromkeys(larger, Weight(10**15)))


def test_derived_tables():
    made = PartitionProblem(
        operators=(
            Operator("conv", reads=("x",), storage_bytes=4),
            Operator("view", reads=("conv",), alias_of="conv"),
            Operator("view2", reads=("view", "x"), alias_of="view"),
            Operator("slice", reads=("x",), alias_of="x"),
        ),
        devices=DEVICES,
        inputs=(GraphInput("x", 4),),
    )
    assert made.index_of == {"conv": 0, "view": 1, "view2": 2, "slice": 3}
    readers = {"x": ("conv", "view2", "slice"), "conv": ("view",), "view": ("view2",)}
    assert made.readers_of == {**readers, "view2": (), "slice": ()}
    assert made.root_of == {"conv": "conv", "view": "conv", "view2": "conv", "x": "x", "slice": "x"}
    assert made.input_of == {"x": GraphInput("x", 4)}
    assert made.device_of["gpu1"] is DEVICES[1]


def test_an_empty_group_asks_nothing():
    made = problem(colocation=(ColocationGroup(()),))
    assert made.units == (("a",), ("b",))


@given(st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=4), max_size=6))
def test_units_are_the_connected_components_of_the_groups(groups):
    operators = tuple(Operator(f"op{i}") for i in range(8))
    made = PartitionProblem(
        operators,
        DEVICES,
        colocation=tuple(ColocationGroup(tuple(f"op{i}" for i in group)) for group in groups),
    )
    graph = nx.Graph((group[0], other) for group in groups for other in group)
    graph.add_nodes_from(range(8))
    expected = sorted(sorted(component) for component in nx.connected_components(graph))
    assert [[int(name[2:]) for name in unit] for unit in made.units] == expected


HUGE, SAVES = 10**18, Operator("a", backward=Backward(residual_bytes=10**9))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"devices": (Device("d", HUGE),)}, "memory_bytes is above"),
        ({"operators": (Operator("a", HUGE),)}, "times of operators and transfers"),
        ({"operators": (Operator("a", {"default": HUGE}),)}, "times of operators and transfers"),
        ({"operators": (Operator("a", storage_bytes=HUGE),)}, "sizes add up"),
        ({"operators": (Operator("a", value_bytes=HUGE),)}, "sizes add up"),
        ({"inputs": (GraphInput("i", HUGE),)}, "sizes add up"),
        ({"weights": {"w": Weight(1, HUGE)}}, "sizes add up"),
        (
            {"operators": (SAVES,), "microbatches": 10**9, "memory_model": "training"},
            "sizes add up",
        ),
        ({"interconnect": Interconnect(Link(1))}, "a faster link"),
        ({"interconnect": Interconnect(Link(None, HUGE))}, "a faster link"),
    ],
)
def test_numbers_that_solvers_cannot_hold_are_refused(changes, says):
    start = {
        "operators": (Operator("a", value_bytes=10**9), Operator("b", reads=("a",))),
        "devices": (Device("d"), Device("e")),
    }
    PartitionProblem(**start)
    with pytest.raises(PartitionError, match=says):
        PartitionProblem(**{**start, **changes})


def test_the_greatest_numbers_are_solved_exactly():
    operators = (Operator("a", 10**15 - 3, storage_bytes=10**15), Operator("b", 3, reads=("a",)))
    problem = PartitionProblem(
        operators, (Device("d", 10**15), Device("e", 10**15)), objective="peak_memory"
    )
    for objective, value in (("peak_memory", 1000), ("bottleneck", 10**15 - 3)):
        for solver in SOLVERS:
            changed = problem.replace(objective=objective)
            result = solve(changed, SolveLimits(workers=1), solver=solver)
            assert result.objective is not None
            assert result.objective >= value
        assert result.objective == value


@pytest.mark.parametrize(
    "field", ["operators", "devices", "inputs", "colocation", "weights", "cuts", "interconnect"]
)
def test_what_is_no_list_of_its_kind_is_refused(field):
    for value in (None, 3, "gpu0", {"a": 1}, [None], object(), [[]], b"x"):
        given = {"operators": (Operator("a"),), "devices": (Device("gpu0"),), field: value}
        with pytest.raises(PartitionError, match=r"write "):
            PartitionProblem(**given)


def test_links_that_are_none_are_refused():
    for value in (None, 3, "gpu0", [], [None], object(), {("a", "b"): 3}, {"ab": Link()}):
        with pytest.raises(PartitionError, match=r"^interconnect links"):
            Interconnect(links=value)
        with pytest.raises(PartitionError, match=r"^interconnect default is"):
            Interconnect(default=value)


def test_a_plan_that_is_none_is_refused():
    for value in (None, 3, "gpu0", [None], object(), {"a": 1}, [[]]):
        for parts in (
            (value, ("gpu0",)),
            ({"a": "gpu0"}, value),
            ({"a": "gpu0"}, ("gpu0",), value),
        ):
            if parts != ({"a": "gpu0"}, ("gpu0",), {"a": 1}):
                with pytest.raises(PartitionError):
                    PartitionPlan(*parts)


def test_a_search_is_of_a_problem():
    for value in (None, 3, Operator("a")):
        for call in (solve, diagnose):
            with pytest.raises(PartitionError, match=r"^problem is .*; write a PartitionProblem"):
                call(value)
    with pytest.raises(PartitionError, match=r"^time_limit_s is an int that cannot be shown"):
        SolveLimits(10**5000)
