"""Values that are no tensors leave the boundaries of plans made by hand, as far as they fit."""

import operator
import random

import pytest
import torch
from torch import fx, nn

from fx_bridge import Training
from fx_bridge.capture.graph import capture
from fx_bridge.digraph import to_digraph
from fx_bridge.equivalence.check import check_equivalence
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import inseparable_groups
from fx_bridge.split.reader import stage_graph
from fx_bridge.split.tags.non_tensors import move_non_tensors
from solver import Device, PartitionError, evaluate, problem_from_digraph
from tests.support.random_plans import random_plan
from tests.support.split_checks import BACKENDS, cut_at, plan_of


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class Sizes(nn.Module):
    """Numbers from sizes, computed on, and read here and there."""

    def forward(self, x):
        batch, width = x.shape[0], x.size(1)
        y = x.exp()
        area = batch * width
        flat = y.reshape(area)
        z = (flat * 2).view(batch, width)
        return z.sin() / area, y.view(area)


class Tuples(nn.Module):
    def forward(self, x):
        low, high = x.chunk(2, dim=-1)
        values, indices = low.topk(2)
        mean = high.mean(-1, keepdim=True)
        return torch.cat((values, high * mean), -1), indices


class Whole(nn.Module):
    """Whoever reads a tuple as a whole cannot take its elements elsewhere."""

    def forward(self, x):
        return torch.cat(torch.chunk(x.exp(), 2, -1)[::-1], -1).sin() + 1


MODELS = [
    (Sizes(), (torch.randn(2, 3),)),
    (Tuples(), (torch.randn(2, 8),)),
    (Whole(), (torch.randn(2, 8),)),
]
IDS = [type(model).__name__ for model, _ in MODELS]


def traced(model, args):
    return capture(fx.symbolic_trace(model), args)


def problem_of(captured, capacities, **settings):
    devices = [Device(name, memory_bytes=size) for name, size in capacities.items()]
    return problem_from_digraph(to_digraph(captured), devices, **settings)


def non_tensors_between(captured, plan):
    """The values that are no tensors and that pass between stages, read off the split."""
    graph = stage_graph(split_by_plan(captured, plan), captured)
    return [
        v.name for v in graph.values if v.source is not None and v.targets and v.kind != "Tensor"
    ]


def check_moves(model, args, captured, moves):
    assert non_tensors_between(moves.captured, moves.plan) == []
    for backend in BACKENDS:
        split = split_by_plan(moves.captured, moves.plan, backend=backend)
        assert check_equivalence(model, split, args).equal
    names = {node.name for node in captured.operators}
    for name, copies in moves.copies.items():
        assert name in names and not names & set(copies)
        stages = {moves.plan.stage_index[n] for n in (name, *copies)}
        assert len(stages) == len(copies) + 1
    assert {n.name for n in moves.captured.operators} == names | {
        copy for copies in moves.copies.values() for copy in copies
    }


@pytest.mark.parametrize("source", ["export", "symbolic_trace"])
@pytest.mark.parametrize(("model", "args"), MODELS, ids=IDS)
def test_random_plans_end_with_tensors_only_on_their_boundaries(model, args, source):
    captured = capture(model, args) if source == "export" else traced(model, args)
    groups = inseparable_groups(captured)
    before = str(captured.graph)
    touched = 0
    for seed in range(16):
        chunks = 1 + seed % 2
        plan = random_plan(captured, groups, 3 - seed % 2, random.Random(seed), chunks=chunks)
        moves = move_non_tensors(captured, plan)
        check_moves(model, args, captured, moves)
        touched += bool(moves.moved or moves.copies)
        if not non_tensors_between(captured, plan):
            assert moves.plan == plan or any(
                node.target is operator.getitem for node in captured.operators
            )
        again = move_non_tensors(moves.captured, moves.plan)
        assert (again.plan, again.captured) == (moves.plan, moves.captured), "nothing is left"
    assert touched or (source == "export" and model is MODELS[0][0])
    assert str(captured.graph) == before


def test_a_plan_without_such_values_stays_as_it_is():
    captured = capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.randn(2, 4),))
    plan = cut_at(captured, 1)
    moves = move_non_tensors(captured, plan)
    assert (moves.captured, moves.plan, moves.moved, moves.copies) == (captured, plan, {}, {})


def test_a_size_moves_to_its_only_reader_and_is_copied_for_several():
    captured = traced(*MODELS[0])
    order = [node.name for node in captured.operators]
    assert order == [
        "getattr_1", "getitem", "size", "exp", "mul", "reshape", "mul_1", "view", "sin", "truediv",
        "view_1",
    ]  # fmt: skip
    late = {"view", "sin", "truediv", "view_1"}
    tags = {name: "late" if name in late else "early" for name in order}
    moves = move_non_tensors(captured, tags)
    # Read by `view` alone, or by both: `reshape` needs the area early.
    assert set(moves.copies) == {"getattr_1", "getitem", "size", "mul"}
    (copy,) = moves.copies["mul"]
    reader = next(n for n in moves.captured.operators if n.name == "truediv")
    assert [read.name for read in reader.all_input_nodes] == ["sin", copy]
    assert moves.moved == {}
    check_moves(*MODELS[0], captured, moves)
    # Where nothing early needs it, it moves.
    late |= {"reshape", "mul_1"}
    moves = move_non_tensors(captured, {n: "late" if n in late else "early" for n in order})
    assert moves.copies == {}
    assert set(moves.moved) == {"getattr_1", "getitem", "size", "mul"}
    assert set(moves.moved.values()) == {("early", "late")}
    check_moves(*MODELS[0], captured, moves)


def test_a_stage_that_is_left_empty_disappears():
    captured = traced(*MODELS[0])
    sizes = {"getattr_1", "getitem", "size", "mul"}
    plan = plan_of(captured, lambda node: int(node.name not in sizes))
    moves = move_non_tensors(captured, plan)
    assert moves.plan.device_order == ("d1",)
    check_moves(*MODELS[0], captured, moves)


def test_elements_of_a_tuple_are_taken_where_it_is_made():
    captured = capture(*MODELS[1])
    makers = {"chunk", "topk"}
    plan = plan_of(captured, lambda node: int(node.name not in makers | {"getitem"}))
    moves = move_non_tensors(captured, plan)
    elements = {n.name for n in captured.operators if n.target is operator.getitem}
    assert set(moves.moved) == elements - {"getitem"}
    assert moves.copies == {}
    check_moves(*MODELS[1], captured, moves)


def test_a_tuple_of_views_that_is_read_as_a_whole_goes_to_its_reader():
    captured = traced(*MODELS[2])
    plan = plan_of(captured, lambda node: int(node.name not in ("exp", "chunk")))
    moves = move_non_tensors(captured, plan)
    assert moves.moved["chunk"] == ("d0", "d1")
    check_moves(*MODELS[2], captured, moves)


def test_what_computes_tensors_is_not_copied():
    graph = fx.Graph()
    x = graph.placeholder("x")
    parts = graph.call_function(torch.split_with_sizes_copy, (x, [2, 2], -1))
    first = graph.call_function(torch.cat, (parts, -1))
    second = graph.call_function(torch.stack, (parts,))
    graph.output((first, second))
    module, args = fx.GraphModule(nn.Module(), graph), (torch.randn(2, 4),)
    captured = capture(module, args)
    tags = {parts.name: "a", first.name: "b", second.name: "c"}
    with pytest.raises(
        PartitionError, match=r"is of type \w+ and is read by '\w+' on '[bc]', but "
    ):
        move_non_tensors(captured, tags)
    # One reader on the tuple's device and one elsewhere is no better.
    with pytest.raises(PartitionError, match="it computes tensors too; put all of its readers on"):
        move_non_tensors(captured, {**tags, second.name: "a"})
    # One device for all readers is.
    moves = move_non_tensors(captured, {**tags, second.name: "b"})
    assert moves.plan.device_order == ("b",)
    check_moves(module, args, captured, moves)


def test_a_function_that_may_have_effects_is_moved_but_not_copied():
    calls = []

    def count(x):
        calls.append(1)
        return x.shape[0]

    graph = fx.Graph()
    x = graph.placeholder("x")
    number = graph.call_function(count, (x,))
    y = graph.call_function(operator.mul, (x, number))
    z = graph.call_function(operator.add, (y, number))
    graph.output(z)
    module, args = fx.GraphModule(nn.Module(), graph), (torch.randn(2, 4),)
    captured = capture(module, args)
    with pytest.raises(PartitionError, match="calling 'count' twice may have effects"):
        move_non_tensors(captured, {number.name: "a", y.name: "b", z.name: "c"})
    moves = move_non_tensors(captured, {number.name: "a", y.name: "b", z.name: "b"})
    calls.clear()
    split_by_plan(moves.captured, moves.plan)(*args)
    assert len(calls) == 1


# -- memory --------------------------------------------------------------------------------


class WideSize(nn.Module):
    """The size of something large is needed where something small is computed."""

    def forward(self, x):
        wide = x.repeat(1, 64)
        number = wide.size(1)
        small = wide.sum(-1).exp()
        return small.sin() * number


WIDE = (torch.randn(4, 16),)
WIDE_BYTES = 4 * 16 * 64 * 4


def wide_plan():
    captured = traced(WideSize(), WIDE)
    return captured, plan_of(captured, lambda node: int(node.name in ("sin", "mul")))


def test_memory_decides_which_end_moves():
    captured, plan = wide_plan()
    enough = problem_of(captured, {"d0": None, "d1": WIDE_BYTES + 200})
    moves = move_non_tensors(captured, plan, enough)
    assert moves.moved == {"size": ("d0", "d1")}
    assert evaluate(moves.problem, moves.plan).feasible
    # What it is the size of would have to travel: with less memory the reader comes instead,
    # and what it reads in turn is there already.
    plan = plan_of(captured, lambda node: int(node.name == "mul"))
    little = problem_of(captured, {"d0": None, "d1": 200})
    moves = move_non_tensors(captured, plan, little)
    assert moves.moved == {"mul": ("d1", "d0")}
    assert evaluate(moves.problem, moves.plan).feasible
    check_moves(WideSize(), WIDE, captured, moves)


def test_no_way_that_fits_is_said_with_the_missing_bytes():
    captured, plan = wide_plan()
    exact = move_non_tensors(captured, plan)
    problem = problem_of(captured, {"d0": None, "d1": None})
    moved = move_non_tensors(captured, plan, problem)
    need_bytes = evaluate(moved.problem, exact.plan).usage[1].memory_bytes
    assert need_bytes > WIDE_BYTES
    fits = problem_of(captured, {"d0": None, "d1": need_bytes})
    assert move_non_tensors(captured, plan, fits).plan == exact.plan
    tight = problem_of(captured, {"d0": None, "d1": need_bytes - 5})
    with pytest.raises(PartitionError) as error:
        move_non_tensors(captured, plan, tight)
    assert str(error.value) == (
        "moving 'size' off the boundaries takes device 'd1' 5 bytes over its memory; put them and "
        "their readers on one device, or give it more memory"
    )


@pytest.mark.parametrize(("model", "args"), MODELS, ids=IDS)
def test_a_plan_that_fits_never_ends_with_one_that_does_not(model, args):
    captured = traced(model, args)
    groups = inseparable_groups(captured)
    refused = accepted = 0
    for seed in range(24):
        rng = random.Random(seed)
        plan = random_plan(captured, groups, 3, rng)
        free = problem_of(captured, dict.fromkeys(plan.device_order))
        before = {e.device: e.memory_bytes for e in evaluate(free, plan).usage}
        capacities = {name: size + rng.choice([0, 8, 64]) for name, size in before.items()}
        problem = problem_of(captured, capacities)
        try:
            moves = move_non_tensors(captured, plan, problem)
        except PartitionError as error:
            refused += 1
            assert "over its memory" in str(error)
            continue
        accepted += 1
        assert evaluate(moves.problem, moves.plan).feasible
        check_moves(model, args, captured, moves)
    assert accepted, refused


def test_what_is_over_its_memory_already_gets_no_worse():
    captured, plan = wide_plan()
    free = {"d0": None, "d1": None, "d2": None}
    need_bytes = evaluate(problem_of(captured, free), plan).usage[0].memory_bytes
    # Once `wide` is sent, the first device holds it to the end.
    problem = problem_of(captured, {**free, "d0": need_bytes - 1})
    with pytest.raises(PartitionError, match="takes device 'd0' 16 bytes over its memory"):
        move_non_tensors(captured, plan, problem)
    # Here it is sent anyway: too much is held, but no more than before.
    stages = {"repeat": 0, "size": 0, "sum_1": 1, "exp": 1, "sin": 2, "mul": 2}
    plan = plan_of(captured, lambda node: stages[node.name])
    need_bytes = evaluate(problem_of(captured, free), plan).usage[0].memory_bytes
    problem = problem_of(captured, {**free, "d0": need_bytes - 1})
    assert move_non_tensors(captured, plan, problem).moved == {"size": ("d0", "d2")}


def test_a_size_of_what_is_written_in_place_stays_with_the_write():
    class Model(nn.Module):
        def forward(self, x):
            y = x * 2
            number = y.size(0)
            z = y.add_(1)
            return z.sin() * number

    args = (torch.randn(2, 3),)
    captured = traced(Model(), args)
    plan = plan_of(captured, lambda node: int(node.name in ("sin", "mul_1")))
    with pytest.raises(
        PartitionError, match=r"cannot go to their readers: .* 'add_' writes the value of 'mul'"
    ):
        move_non_tensors(captured, plan)


def test_groups_and_settings_of_the_problem_are_kept():
    captured = traced(*MODELS[0])
    late = {"view", "sin", "truediv", "view_1"}
    plan = plan_of(captured, lambda node: int(node.name in late))
    problem = problem_of(captured, {"d0": None, "d1": None}, objective=("transfer", "latency"))
    assert not evaluate(problem, plan).feasible, "its groups keep sizes and readers together"
    moves = move_non_tensors(captured, plan, problem)
    assert evaluate(moves.problem, moves.plan).feasible
    assert moves.problem.objective == problem.objective
    assert len(moves.problem.operators) == len(problem.operators) + 4


def test_copies_of_what_the_model_returns_are_not_returned():
    class Returned(nn.Module):
        def forward(self, x):
            count = x.size(0)
            return x.exp().reshape(count, -1).sin().view(count, -1), count

    captured = traced(Returned(), (torch.randn(2, 3),))
    late = {"sin", "view"}
    plan = plan_of(captured, lambda node: int(node.name in late))
    problem = problem_of(captured, {"d0": None, "d1": None})
    assert {op.name for op in problem.operators if op.is_output} == {"size", "view"}
    moves = move_non_tensors(captured, plan, problem)
    (copy,) = moves.copies["size"]
    returned = {op.name for op in moves.problem.operators if op.is_output}
    assert returned == {"size", "view"} and copy not in returned


# -- wrong input ---------------------------------------------------------------------------


def test_a_plan_that_cannot_be_split_is_refused():
    captured = capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.randn(2, 4),))
    with pytest.raises(PartitionError, match="operator 'relu' has no tag"):
        move_non_tensors(captured, {"linear": "a"})
    with pytest.raises(PartitionError, match="the plan places 'x', which is not an operator"):
        plan = plan_of(captured, lambda node: 0)
        move_non_tensors(captured, type(plan)({**plan.assignment, "x": "d0"}, ("d0",)))
    with pytest.raises(PartitionError, match="tags is a int"):
        move_non_tensors(captured, 3)


def test_a_problem_of_another_graph_is_refused():
    captured = capture(nn.Linear(2, 2), (torch.ones(1, 2),))
    other = to_digraph(capture(nn.Tanh(), (torch.ones(1, 2),)))
    with pytest.raises(PartitionError, match="the problem has no operator 'linear'"):
        move_non_tensors(captured, {"linear": "a"}, problem_from_digraph(other, [Device("a")]))
    with pytest.raises(PartitionError, match="the problem is a int; give a PartitionProblem"):
        move_non_tensors(captured, {"linear": "a"}, 3)


@pytest.mark.parametrize("tied_weights", ["colocate", "sum"])
def test_tied_weights_stay_as_the_problem_was_made_for_them(tied_weights):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 4))

        def forward(self, x):
            x = (x @ self.weight).relu()
            return x.reshape(x.size(0), -1).tanh() @ self.weight

    captured = capture(fx.symbolic_trace(Tied()), (torch.ones(2, 4),))
    graph = to_digraph(captured, training=Training(tied_weights=tied_weights))
    devices = [Device("first"), Device("second")]
    problem = problem_from_digraph(graph, devices, memory_model="training")
    tags = dict.fromkeys(problem.index_of, "second")
    tags |= dict.fromkeys(("matmul", "relu", "size"), "first")
    moves = move_non_tensors(captured, tags, problem)
    assert moves.moved == {"size": ("first", "second")}
    violations = evaluate(moves.problem, moves.plan).violations
    assert any("diverge" in text for text in violations) == (tied_weights == "colocate")
