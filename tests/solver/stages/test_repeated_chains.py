"""Identical chains in the program over ideals, against brute force and the program without them."""

import math
import random
from collections import Counter
from dataclasses import replace

import pytest

import solver.dp.ideal_program
from solver import Device, Interconnect, Link, Operator, PartitionProblem, SolveLimits, solve
from solver.evaluation.result import SolveStatus
from solver.model.devices import STAGING_HOST
from solver.model.problem import ColocationGroup, Weight
from solver.presolve.dominance import simplify
from solver.presolve.instance import condense
from solver.stages.blocks import collapse_units
from solver.stages.ideals import list_ideals
from solver.stages.repeated_chains import RepeatedChains, identical_chains
from tests.support.oracle import brute_force
from tests.support.random_problems import to_instance
from tests.support.repeated_blocks import layers_of_blocks, problem_with_blocks

LIMITS = SolveLimits(workers=1)
OBJECTIVES = (
    ("bottleneck",),
    ("transfer",),
    ("bottleneck", "transfer"),
    ("devices", "bottleneck"),
    ("transfer", "bottleneck"),
    ("peak_memory", "bottleneck"),
)


def fork_and_join(seed, *, chains=None, length=None, devices=None, **changed):
    """A random problem with identical chains between a fork and a join."""
    rng = random.Random(seed)
    chains = chains or rng.choice((2, 2, 3))
    length = length or (rng.choice((1, 2, 3)) if chains == 2 else rng.choice((1, 2)))
    level = [
        (rng.randint(0, 9), rng.randint(1, 9), rng.choice((0, rng.randint(1, 9))))
        for _ in range(length)
    ]
    operators, weights = [], {}

    def add(name, reads, time_ns, value_bytes, weight_bytes, *, is_output=False):
        if weight_bytes:
            weights[name] = Weight(weight_bytes)
        keys = (name,) if weight_bytes else ()
        operators.append(
            Operator(
                name,
                time_ns,
                tuple(reads),
                storage_bytes=value_bytes,
                value_bytes=value_bytes,
                weights=keys,
                is_output=is_output,
            )
        )
        return name

    reads = [add("start", (), rng.randint(0, 9), rng.randint(1, 9), rng.randint(0, 9))]
    if rng.random() < 0.4:
        reads.append(add("other", (), rng.randint(0, 5), rng.randint(1, 9), 0))
    everywhere = rng.randrange(length)
    ends = []
    for chain in range(chains):
        end = None
        for place, (time_ns, value_bytes, weight_bytes) in enumerate(level):
            own = [end] if end else reads[:1]
            if place == everywhere and place:
                own += reads[-1:]
            returned = place == 0 and seed % 7 == 0
            end = add(
                f"chain{chain}.{place}", own, time_ns, value_bytes, weight_bytes, is_output=returned
            )
        ends.append(end)
    add("join", [*ends, *reads[1:]], rng.randint(0, 9), 1, rng.randint(0, 9), is_output=True)
    if rng.random() < 0.3:
        # One weight for a level of all chains.
        weights["shared"] = Weight(rng.randint(1, 9))
        at = rng.randrange(length)
        operators = [
            replace(op, weights=(*op.weights, "shared")) if op.name.endswith(f".{at}") else op
            for op in operators
        ]
    total = sum(weight.size_bytes for weight in weights.values())
    count = devices or rng.choice((2, 3, 3))
    classes = rng.choice((("a",), ("a", "b")))
    if len(classes) == 2:
        slower = rng.randint(1, 3)
        operators = [
            replace(op, latency_ns={"a": op.latency_ns, "b": slower * op.latency_ns})
            for op in operators
        ]
    values = {
        "devices": tuple(
            Device(
                f"d{i}",
                memory_bytes=max(1, int(total * rng.choice((0.5, 0.7, 1.0)))),
                device_class=rng.choice(classes),
                is_host=rng.random() < 0.15,
            )
            for i in range(count)
        ),
        "interconnect": Interconnect(
            Link(rng.choice((None, 1_000_000_000)), rng.randint(0, 3)),
            charging=rng.choice(("peer_to_peer", "host_staged", "relayed")),
            overlap=rng.random() < 0.3,
        ),
        "memory_model": "weights",
        "objective": rng.choice(OBJECTIVES),
    } | changed
    return PartitionProblem(operators=tuple(operators), weights=weights, **values)


def chains_of(problem):
    units = simplify(condense(problem)).units
    return identical_chains(units, collapse_units(units, forget_weights=False))


def without_chains(monkeypatch):
    monkeypatch.setattr(
        solver.dp.ideal_program, "identical_chains", lambda units, blocks: RepeatedChains()
    )


def accepted(problem):
    """The problem without what the program declines: latency, and links between devices."""
    links = {
        pair: link for pair, link in problem.interconnect.links.items() if STAGING_HOST in pair
    }
    return problem.replace(
        objective=tuple(o for o in problem.objective if o != "latency") or ("bottleneck",),
        interconnect=replace(problem.interconnect, links=links),
    )


def compare(problem, label):
    """Compares an answer with brute force; returns its status."""
    result = solve(problem, LIMITS, solver="ideal-dp")
    best = brute_force(to_instance(problem))
    if best is None:
        assert result.status is SolveStatus.INFEASIBLE, label
    elif result.status is SolveStatus.FEASIBLE:
        assert problem.interconnect.charging == "peer_to_peer", label
        assert result.objective_bound <= best[0][0] <= result.objective_values[0], label
    else:
        assert result.status is SolveStatus.OPTIMAL, (label, result)
        assert result.objective_values == best[0], label
    return result.status


def small(problem):
    return len(problem.devices) ** len(problem.units) <= 7_000


def test_it_equals_brute_force_on_chains_between_a_fork_and_a_join():
    statuses, found = Counter(), 0
    for seed in range(160):
        problem = fork_and_join(seed)
        if small(problem):
            statuses[compare(problem, seed)] += 1
            found += bool(chains_of(problem).groups)
    assert statuses[SolveStatus.OPTIMAL] >= 80
    assert found >= 50


def test_it_equals_brute_force_on_problems_with_blocks():
    found = 0
    for seed in range(120):
        problem = accepted(problem_with_blocks(seed, most_operators=6))
        if small(problem) and chains_of(problem).groups:
            compare(problem, seed)
            found += 1
    assert found >= 18


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(40))
def test_it_equals_brute_force_on_more_chains(block):
    for seed in range(1_000 + block * 200, 1_200 + block * 200):
        for problem in (fork_and_join(seed), accepted(problem_with_blocks(seed))):
            if small(problem):
                compare(problem, seed)


def test_it_equals_the_program_without_chains_on_larger_problems(monkeypatch):
    problems = [fork_and_join(seed, chains=4, length=3, devices=4) for seed in range(40)]
    problems = [problem for problem in problems if chains_of(problem).groups]
    assert len(problems) >= 25
    results = [solve(problem, LIMITS, solver="ideal-dp") for problem in problems]
    without_chains(monkeypatch)
    for problem, result in zip(problems, results, strict=True):
        other = solve(problem, LIMITS, solver="ideal-dp")
        assert result.objective_bound == other.objective_bound
        if result.status is not SolveStatus.FEASIBLE:
            # A relaxation's plans may differ in what it does not count.
            assert result.status is other.status or other.status is SolveStatus.FEASIBLE
            assert other.status is SolveStatus.FEASIBLE or (
                result.objective_values == other.objective_values
            )


@pytest.mark.parametrize(("chains", "length"), [(3, 1), (5, 2), (4, 4), (8, 3)])
def test_ideals_are_counted_once(chains, length):
    problem = layers_of_blocks(1, chains, length)
    units = condense(problem)
    blocks = collapse_units(units, forget_weights=False)
    found = identical_chains(units, blocks)
    ((first, *others),) = found.groups
    assert len(others) == chains - 1
    assert len(first) == length
    ideals = list_ideals(blocks.count, [*blocks.edges, *found.arcs()], 10**6)
    every = list_ideals(blocks.count, blocks.edges, 10**6)
    # Nothing, all but the join, and everything; and what the chains can be in between.
    assert len(every) == 2 + (length + 1) ** chains
    assert len(ideals) == 2 + math.comb(chains + length, length)


def test_chains_that_rest_keep_their_place():
    """Of ideals that are sorted, a chain that is behind may go past one that rests."""
    found = RepeatedChains((((0, 1), (2, 3)),))
    # Sorted: 0 on stage 0; 1 and 2 on stage 1; 3 on stage 2. The first chain rests at its first
    # block while the second one runs both of its own: then one value less is sent.
    stages = [0, 1, 1, 2]
    found.place(stages)
    assert stages == [0, 2, 1, 1]


def test_a_value_that_others_read_besides_the_next_of_a_chain_is_declined():
    problem = fork_and_join(5, chains=3, length=2, devices=3)
    problem = problem.replace(
        operators=tuple(
            replace(op, reads=(*op.reads, *(f"chain{i}.0" for i in range(3))))
            if op.name == "join"
            else replace(op, latency_ns=30, weights=())
            for op in problem.operators
        ),
        weights={key: size for key, size in problem.weights.items() if key == "join"},
    )
    units = condense(problem)
    blocks = collapse_units(units, forget_weights=False)
    assert identical_chains(units, blocks).groups == ()


def test_storages_that_bind_are_declined():
    problem = fork_and_join(3, chains=3, length=1, devices=3, memory_model="inference")
    assert chains_of(problem).groups == ()


def test_parallel_operators_within_blocks_are_declined():
    """Two operators of a block that neither reads the other are no chain."""
    operators = [Operator("start", 5, value_bytes=3)]
    for block in range(3):
        for part, time_ns in (("x", 7), ("y", 9)):
            operators.append(Operator(f"{block}.{part}", time_ns, ("start",), value_bytes=5))
        reads = (f"{block}.x", f"{block}.y")
        operators.append(Operator(f"{block}.z", 8, reads, value_bytes=5))
    operators.append(Operator("join", 5, tuple(f"{block}.z" for block in range(3))))
    problem = PartitionProblem(
        operators=tuple(operators),
        devices=tuple(Device(f"d{i}") for i in range(3)),
        memory_model="weights",
        interconnect=Interconnect(Link(None, 1)),
    )
    assert chains_of(problem).groups == ()
    result = solve(problem, LIMITS, solver="ideal-dp")
    assert result.objective_bound <= brute_force_value(problem)


def brute_force_value(problem):
    """The optimum with every block's parts kept together, which is one more choice than none."""
    groups = tuple(
        ColocationGroup((f"{block}.x", f"{block}.y", f"{block}.z")) for block in range(3)
    )
    best = brute_force(to_instance(problem.replace(colocation=groups)))
    return best[0][0]
