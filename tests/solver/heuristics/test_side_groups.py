"""Groups beside a longest path: what they are, and orders that move them."""

import random

from solver import Device, Operator, PartitionProblem, Weight
from solver.bounds.spine import longest_path
from solver.heuristics.side_groups import SideGroups
from solver.presolve.instance import condense
from tests.support.random_problems import random_problem


def path_with_sides():
    """Eight layers; a bias of two operators that three of them read, a projection, a dead end."""
    ops = [
        Operator("layer0", 100),
        Operator("table", 1),
        Operator("bias", 1, ("table",)),
        Operator("projection", 1, ("layer0",)),
    ]
    reads = {2: ("bias",), 4: ("projection", "bias"), 6: ("bias",)}
    for layer in range(1, 8):
        ops.append(Operator(f"layer{layer}", 100, (f"layer{layer - 1}", *reads.get(layer, ()))))
    ops.insert(6, Operator("norm", 1, ("layer1",)))
    return ops


def sides_of(ops, **settings):
    problem = PartitionProblem(tuple(ops), (Device("x"), Device("y")), **settings)
    units = condense(problem)
    return problem, SideGroups.of(units, longest_path(units))


def named(problem, units):
    return [problem.operators[unit].name for unit in units]


def test_groups_are_what_has_the_same_readers_on_the_path():
    problem, sides = sides_of(path_with_sides())
    assert named(problem, sides.path) == [f"layer{layer}" for layer in range(8)]
    found = {tuple(named(problem, group.units)): group for group in sides.groups}
    assert set(found) == {("table", "bias"), ("projection",), ("norm",)}
    bias = found["table", "bias"]
    assert (bias.earliest, bias.latest, bias.is_shared) == (0, 2, True)
    projection = found["projection",]
    assert (projection.earliest, projection.latest, projection.is_shared) == (1, 4, False)
    norm = found["norm",]
    assert (norm.earliest, norm.latest, norm.is_shared) == (2, 8, False)


def test_shared_groups_come_early_and_others_beside_their_readers():
    problem, sides = sides_of(path_with_sides())
    order = named(problem, sides.order(sides.shared_early()))
    assert order[:3] == ["table", "bias", "layer0"]
    assert order.index("projection") == order.index("layer4") - 1
    # Nobody reads it.
    assert order.index("norm") == order.index("layer1") + 1
    order = named(problem, sides.order(sides.late()))
    assert order.index("layer1") < order.index("bias") < order.index("layer2")


def test_a_large_weight_is_a_group_of_its_own():
    ops = path_with_sides()
    ops[1] = Operator("table", 1, weights=("embedding",))
    problem, sides = sides_of(ops, weights={"embedding": Weight(1000)})
    groups = [named(problem, group.units) for group in sides.groups]
    assert ["table"] in groups and ["bias"] in groups
    table, bias = groups.index(["table"]), groups.index(["bias"])
    assert sides.groups[table].after == (bias,)
    assert sides.groups[bias].before == (table,)
    # What makes the bias must not come after it.
    places = sides.moved(sides.moved(sides.shared_early(), table, 2), bias, 1)
    assert (places[table], places[bias]) == (1, 1)
    places = sides.moved(places, table, 2)
    assert (places[table], places[bias]) == (2, 2)


def test_any_moves_leave_topological_orders():
    moved = 0
    for seed in range(300):
        units = condense(random_problem(seed, min_operators=6, max_operators=16))
        sides = SideGroups.of(units, longest_path(units))
        beside = [unit for group in sides.groups for unit in group.units]
        assert sorted([*sides.path, *beside]) == list(range(len(units)))
        rng = random.Random(seed)
        places = sides.shared_early()
        for _ in range(20):
            for group, place in zip(sides.groups, places, strict=True):
                assert group.earliest <= place <= group.latest
            order = sides.order(places)
            assert sorted(order) == list(range(len(units)))
            position = {unit: number for number, unit in enumerate(order)}
            assert all(position[source] < position[target] for source, target in units.edges)
            if not sides.groups:
                break
            number = rng.randrange(len(sides.groups))
            group = sides.groups[number]
            before = places
            places = sides.moved(places, number, rng.randint(group.earliest, group.latest))
            moved += places != before
    assert moved > 1000
