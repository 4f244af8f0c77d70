"""Least loads of devices against sets of units, and against the best plans."""

import itertools
import random

import pytest

from solver import Device, Interconnect, Operator, PartitionProblem
from solver.bounds.least_loads import LeastLoads
from solver.presolve.instance import condense
from tests.support.oracle import brute_force
from tests.support.random_problems import random_problem, to_instance


def interleaved(seed, chunks, operators=6):
    """Return a random problem of the bottleneck, on devices with room for everything."""
    problem = random_problem(seed, max_operators=operators, objective=("bottleneck",))
    devices = [Device(d.name, None, d.device_class, is_host=d.is_host) for d in problem.devices]
    return problem.replace(devices=devices, chunks_per_device=chunks, max_devices=None)


def gap_count(units, chosen):
    """Return how many units on a path through chosen units come after some between that are not."""
    most = [0] * len(units)
    outside = [-1] * len(units)
    for unit in range(len(units)):
        before = units.predecessors[unit]
        if unit in chosen:
            gaps = [most[b] for b in before if b in chosen]
            gaps += [outside[b] + 1 for b in before if b not in chosen and outside[b] >= 0]
            gaps += [0]
            most[unit] = max(gaps)
        else:
            outside[unit] = max([most[b] if b in chosen else outside[b] for b in before] + [-1])
    return max((most[unit] for unit in chosen), default=0)


def load_of(units, chosen):
    """Return what a device takes at least that runs some units."""
    crossing = 0
    for net, time_ns in zip(units.transfers.nets, units.transfers.least_ns, strict=True):
        readers = chosen.intersection(net.consumers)
        if net.producer in chosen:
            crossing += time_ns * (len(readers) < len(net.consumers))
        else:
            crossing += time_ns * bool(readers)
    return int(units.fastest_ns[list(chosen)].sum()) + crossing


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_no_set_of_units_takes_less(chunks):
    compared = equal = 0
    for seed in range(80):
        rng = random.Random(seed)
        problem = interleaved(seed, chunks, operators=8)
        units = condense(problem)
        if not LeastLoads.applies(units) or any(d.is_host for d in problem.devices):
            continue
        names = list(range(len(units)))
        sets = [set(s) for k in range(1, len(names) + 1) for s in itertools.combinations(names, k)]
        fit = [s for s in sets if gap_count(units, s) < chunks]
        bound = LeastLoads(units, len(problem.devices), chunks)
        rng.shuffle(names)
        inside = tuple(names[: rng.randint(1, 3)])
        outside = tuple(names[3 : 3 + rng.randint(0, 2)])
        loads = [load_of(units, s) for s in fit if s.issuperset(inside) and s.isdisjoint(outside)]
        if loads:
            assert bound._least(inside, outside) <= min(loads)
            alone = min(load_of(units, s) for s in fit if s.issuperset(inside))
            assert bound._least(inside) <= bound._least(inside, in_chunks=True) <= alone
            equal += bound._least(inside, outside) == min(loads)
            compared += 1
    assert compared > 20
    assert equal > compared // 2


@pytest.mark.parametrize("chunks", [1, 2])
def test_units_of_too_many_chunks_are_no_set_of_a_device(chunks):
    """A hub draws what it reads to its device, and long units between that are on others."""
    operators = []
    for number in range(chunks + 1):
        before = [f"long{number - 1}"] if number else []
        operators += [
            Operator(f"read{number}", 1, before, value_bytes=1, transfer_ns=30),
            Operator(f"next{number}", 1, [f"read{number}"], value_bytes=1, transfer_ns=1),
            Operator(f"long{number}", 99, [f"next{number}"], value_bytes=1, transfer_ns=1),
        ]
    operators.append(Operator("hub", 9, [f"read{number}" for number in range(chunks + 1)]))
    devices = [Device("d0"), Device("d1")]
    interconnect = Interconnect(charging="host_staged")
    units = condense(PartitionProblem(operators, devices, interconnect=interconnect))
    hub = len(units) - 1
    sets = [{hub, *s} for k in range(hub + 1) for s in itertools.combinations(range(hub), k)]
    bound = LeastLoads(units, 2, chunks)
    assert bound._least((hub,)) == min(load_of(units, s) for s in sets)
    least = min(load_of(units, s) for s in sets if gap_count(units, s) < chunks)
    assert bound._least((hub,)) < bound._least((hub,), in_chunks=True) == least


def layers_with_head(count, chunks):
    """Return layers of 10 in a row, with a small unit between any two, and a head that reads the
    first layer too.
    """
    operators = [Operator("layer0", 10, value_bytes=1, transfer_ns=5)]
    for number in range(1, count):
        for name, time_ns in ((f"small{number}", 4), (f"layer{number}", 10)):
            read = [operators[-1].name]
            operators.append(Operator(name, time_ns, read, transfer_ns=1, value_bytes=1))
    operators.append(Operator("head", 10, ["layer0", f"layer{count - 1}"]))
    return PartitionProblem(
        operators,
        [Device(f"d{number}") for number in range(3)],
        interconnect=Interconnect(charging="host_staged"),
        chunks_per_device=chunks,
    )


def test_more_chunks_leave_more_gaps_open():
    # One of three devices has three of seven units of 10.
    problems = [layers_with_head(6, chunks) for chunks in (1, 2, 3)]
    bounds = [
        LeastLoads(condense(problem), 3, problem.chunks_per_device).bottleneck_ns()
        for problem in problems
    ]
    assert bounds == [40, 36, 36]
    assert brute_force(to_instance(problems[0]))[0] == (40,)
