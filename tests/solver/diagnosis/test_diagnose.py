"""Why nothing fits: small cases by hand, and random ones against brute force."""

import copy
import functools
import json
import sys
from dataclasses import replace

import pytest

from experiments.cli import main
from solver import (
    ColocationGroup,
    Device,
    GraphInput,
    Interconnect,
    Link,
    Operator,
    PartitionError,
    PartitionProblem,
    SolveLimits,
    SolveResult,
    SolveStatus,
    evaluate,
    save_problem,
    solve,
)
from solver.diagnosis.answer import (
    ColocationLimit,
    DeviceCountLimit,
    HigherDeviceCount,
    MemoryLimit,
    MoreDevices,
    MoreMemory,
    PinLimit,
    Without,
)
from solver.diagnosis.diagnose import diagnose
from solver.diagnosis.variants import changed
from solver.presolve.shortfalls import find_shortfalls, least_bytes_together
from tests.support.graphs import weighted_chain
from tests.support.oracle import has_plan
from tests.support.problem_counts import counts, some
from tests.support.random_problems import random_problem, to_instance

# Nothing is asked of the clock: a diagnosis that it cut short would be another one.
LIMITS = SolveLimits(workers=1, time_limit_s=None)

RANDOM = 250

# The package has the function under the name of its file.
MODULE = sys.modules["solver.diagnosis.diagnose"]


def changes(diagnosis, kind):
    return [r.change for r in diagnosis.remedies if isinstance(r.change, kind)]


def test_the_total_of_the_weights_is_too_large():
    diagnosis = diagnose(weighted_chain([6, 6, 6], [10, 7]), LIMITS)
    assert diagnosis.is_proven
    assert diagnosis.conflict == (MemoryLimit(("gpu0",), 10), MemoryLimit(("gpu1",), 7))
    assert diagnosis.is_minimal
    (shortfall,) = diagnosis.shortfalls
    assert (shortfall.needed_bytes, shortfall.available_bytes) == (18, 17)
    assert shortfall.missing_bytes == 1
    assert not shortfall.together
    # Two of three operators on one device need 12 bytes.
    more = [MoreMemory(("gpu0",), 2, 1), MoreMemory(("gpu1",), 5, 4)]
    assert changes(diagnosis, MoreMemory) == more
    assert [(c.like.name, c.count, c.is_least) for c in changes(diagnosis, MoreDevices)] == [
        ("gpu0", 1, True),
        ("gpu1", 1, True),
    ]
    assert diagnosis.text == (
        "These limits clash: the memory of gpu0 (10 B); the memory of gpu1 (7 B). Without any one "
        "of them the others could be kept. What must be held on gpu0 and gpu1 adds up to at least "
        "18 B, but there is room for 17 B: 1 B too few. Any one of these changes is enough (a plan "
        "was found for each): 2 B more on gpu0 (one byte less is not enough); 5 B more on gpu1 "
        "(one byte less is not enough); one more device like gpu0 (10 B, class default); one more "
        "device like gpu1 (7 B, class default)."
    )
    assert str(diagnosis) == diagnosis.text
    assert "\n" not in diagnosis.text


def test_one_operator_is_larger_than_every_device():
    problem = weighted_chain([9, 2], [8, 5])
    diagnosis = diagnose(problem, LIMITS)
    (shortfall, *_) = diagnosis.shortfalls
    assert shortfall.together
    assert shortfall.operators == ("a",)
    assert shortfall.text.startswith("'a' alone needs at least 9 B, but the largest device")
    inside = replace(problem, operators=[replace(op, module="b.c") for op in problem.operators])
    assert find_shortfalls(inside)[0].text.startswith("'a' of module 'b.c' alone needs")
    more = [MoreMemory(("gpu0",), 1, 0), MoreMemory(("gpu1",), 4, 3)]
    assert changes(diagnosis, MoreMemory) == more
    assert not changes(diagnosis, MoreDevices)


def test_simple_reasons_are_found_without_search(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("searched")

    monkeypatch.setattr(MODULE, "solve", refuse)
    for problem in (weighted_chain([3, 9, 2], [8, 5]), weighted_chain([6, 6, 6], [10, 7])):
        search = MODULE._Search(problem, LIMITS)
        answer = search.ask(search.base, search.clock)
        assert answer.proven and answer.plan is None


def test_pins_and_memory_clash():
    pins = {name: {"allowed_devices": {"gpu0"}} for name in "ab"}
    problem = weighted_chain([4, 4], [7, 100], of=pins)
    diagnosis = diagnose(problem, LIMITS)
    assert diagnosis.conflict == (MemoryLimit(("gpu0",), 7), PinLimit(("a", "b"), ("gpu0",)))
    assert changes(diagnosis, MoreMemory) == [MoreMemory(("gpu0",), 1, 0)]
    assert changes(diagnosis, Without) == [Without(PinLimit(("a",), ("gpu0",)))]
    assert "the pins of 'a' and 'b' to gpu0" in diagnosis.text


def test_colocation_and_pins_on_a_cycle():
    groups = (ColocationGroup(("a", "c"), "tied"), ColocationGroup(("b", "d"), "mutation"))
    pins = {name: {"allowed_devices": {gpu}} for name, gpu in (("a", "gpu0"), ("d", "gpu1"))}
    problem = weighted_chain([1, 1, 1, 1], [9, 9], colocation=groups, of=pins)
    diagnosis = diagnose(problem, LIMITS)
    assert diagnosis.conflict == (
        PinLimit(("a",), ("gpu0",)),
        PinLimit(("d",), ("gpu1",)),
        *map(ColocationLimit, groups),
    )
    assert diagnosis.is_minimal
    assert {r.change.limit for r in diagnosis.remedies} == set(diagnosis.conflict)
    assert "the colocation group of 'b' and 'd' (mutation)" in diagnosis.text


def test_a_duplicated_group_is_dropped_as_one():
    group = ColocationGroup(("a", "b"))
    problem = weighted_chain([4, 4], [5, 5], colocation=(group, ColocationGroup(("a", "b"))))
    diagnosis = diagnose(problem, LIMITS)
    assert Without(ColocationLimit(group)) in changes(diagnosis, Without)


def test_too_few_devices_allowed():
    diagnosis = diagnose(weighted_chain([4, 4, 4, 4], [5, 5, 5, 5], max_devices=2), LIMITS)
    memory = MemoryLimit(tuple(f"gpu{d}" for d in range(4)), 5)
    assert diagnosis.conflict == (memory, DeviceCountLimit(2))
    assert changes(diagnosis, HigherDeviceCount) == [HigherDeviceCount(4, True)]
    assert "max_devices = 2" in diagnosis.text


def test_the_known_plan_of_a_feasible_problem_needs_no_search(monkeypatch):
    problem = weighted_chain([4, 4], [5, 5])
    result = solve(problem, LIMITS)
    monkeypatch.setattr(MODULE, "solve", None)
    assert diagnose(problem, LIMITS, result=result).plan is not None


@pytest.fixture
def asked(monkeypatch):
    """Limits of the searches that a diagnosis starts."""
    found, real = [], MODULE.solve

    def recording(problem, limits, **kwargs):
        found.append(limits)
        return real(problem, limits, **kwargs)

    monkeypatch.setattr(MODULE, "solve", recording)
    return found


def test_a_proof_is_not_repeated(asked):
    problem = hard_problem()
    result = SolveResult("cp-sat", SolveStatus.INFEASIBLE, None, None, None, 0.0, "proven")
    first = diagnose(problem, LIMITS, result=result)
    without = len(asked)
    second = diagnose(problem, LIMITS)
    assert len(asked) - without == without + 1
    assert first.conflict == second.conflict
    assert [r.change for r in first.remedies] == [r.change for r in second.remedies]


def hard_problem():
    """Infeasible, but no sum shows it: 3 x 4 bytes on two devices of 7 and 6."""
    return weighted_chain([4, 4, 4], [7, 6])


def never_decides(problem, limits, **_):
    return SolveResult("cp-sat", SolveStatus.UNKNOWN, None, None, None, 0.0, "time")


def test_an_open_question_is_said_to_be_open(monkeypatch):
    monkeypatch.setattr(MODULE, "solve", never_decides)
    diagnosis = diagnose(hard_problem(), LIMITS)
    assert diagnosis.plan is None and not diagnosis.is_proven
    assert diagnosis.conflict == ()
    assert diagnosis.time_ran_out
    assert diagnosis.text.startswith("Whether a plan exists is open: ")
    assert "The time limit ended the search" in diagnosis.text
    assert "No single change" not in diagnosis.text


def test_an_open_question_leaves_enough_but_not_the_least(monkeypatch):
    """Only problems with 3 bytes more and up are decided: the changes that work are offered."""
    real = MODULE.solve

    def decides_easy(problem, limits, **kwargs):
        room = [d.memory_bytes for d in problem.devices]
        if None not in room and sum(room) < 13 + 3 and len(room) == 2:
            return never_decides(problem, limits)
        return real(problem, limits, **kwargs)

    monkeypatch.setattr(MODULE, "solve", decides_easy)
    diagnosis = diagnose(hard_problem(), LIMITS)
    assert diagnosis.plan is None and not diagnosis.is_proven
    memory = changes(diagnosis, MoreMemory)
    assert memory
    for change in memory:
        assert not change.is_least
        assert change.too_few_bytes == -1
        assert change.text.endswith("(perhaps less)")
    assert all(not change.is_least for change in changes(diagnosis, MoreDevices))
    for remedy in diagnosis.remedies:
        assert evaluate(remedy.problem, remedy.plan).feasible


def test_a_proof_with_open_questions_is_not_called_minimal(monkeypatch):
    real = MODULE.solve
    calls = []

    def forgets(problem, limits, **kwargs):
        calls.append(problem)
        return (
            real(problem, limits, **kwargs) if len(calls) == 1 else never_decides(problem, limits)
        )

    monkeypatch.setattr(MODULE, "solve", forgets)
    diagnosis = diagnose(hard_problem(), LIMITS)
    assert diagnosis.is_proven
    assert set(diagnosis.conflict) == {MemoryLimit(("gpu0",), 7), MemoryLimit(("gpu1",), 6)}
    assert not diagnosis.is_minimal
    assert diagnosis.time_ran_out
    assert "Not all of them may be needed for the clash." in diagnosis.text


def test_no_time_is_no_reason_to_fail():
    diagnosis = diagnose(hard_problem(), SolveLimits(time_limit_s=1e-9, workers=1))
    assert diagnosis.plan is None and not diagnosis.is_proven
    assert diagnosis.time_ran_out


def test_searches_share_the_time(asked):
    diagnose(hard_problem(), SolveLimits(time_limit_s=60, workers=1))
    assert all(0 < limits.time_limit_s <= 30 for limits in asked)
    asked.clear()
    diagnose(hard_problem(), SolveLimits(time_limit_s=None, workers=1))
    assert {limits.time_limit_s for limits in asked} == {None}


def test_more_devices_copy_links_and_permissions():
    links = Interconnect(links={("gpu0", "gpu1"): Link(5), ("gpu1", "gpu0"): Link(3)})
    pins = {"a": {"allowed_devices": {"gpu0"}}}
    problem = weighted_chain([6, 6, 6], [7, 7], of=pins, interconnect=links)
    more = changed(problem, MoreDevices(problem.devices[0], 2, True))
    assert [device.name for device in more.devices] == ["gpu0", "gpu1", "gpu0 #2", "gpu0 #3"]
    assert more.operators[0].allowed_devices == {"gpu0", "gpu0 #2", "gpu0 #3"}
    assert more.interconnect.link("gpu0 #3", "gpu1") == Link(5)
    assert more.interconnect.link("gpu1", "gpu0 #2") == Link(3)
    assert changes(diagnose(problem, LIMITS), MoreDevices)


def test_wrong_limits_are_refused():
    with pytest.raises(PartitionError, match="limits is 60"):
        diagnose(hard_problem(), 60)
    with pytest.raises(PartitionError, match=r"limits is 'chain', .* write solver='chain'$"):
        diagnose(hard_problem(), "chain")
    with pytest.raises(PartitionError, match=r"solver is SolveLimits\(time_limit_s=5\); write"):
        solve(hard_problem(), solver=SolveLimits(5))


def dropped(instance, limits):
    """The instance without some limits; nothing of the project's own code does this."""
    instance = copy.deepcopy(instance)
    for limit in limits:
        if isinstance(limit, MemoryLimit):
            for device in instance["devices"]:
                if device["name"] in limit.devices:
                    assert device["memory_bytes"] == limit.memory_bytes
                    device["memory_bytes"] = None
        elif isinstance(limit, PinLimit):
            for op in instance["operators"]:
                if op["name"] in limit.operators:
                    assert sorted(op["allowed_devices"]) == sorted(limit.devices)
                    op["allowed_devices"] = None
        elif isinstance(limit, ColocationLimit):
            members = list(limit.group.operators)
            assert members in instance["colocation"]
            instance["colocation"] = [g for g in instance["colocation"] if g != members]
        else:
            assert instance["max_devices"] == limit.max_devices
            instance["max_devices"] = None
    return instance


def every_limit(instance):
    limits = [
        MemoryLimit((device["name"],), device["memory_bytes"])
        for device in instance["devices"]
        if device["memory_bytes"] is not None
    ]
    limits += [
        PinLimit((op["name"],), tuple(op["allowed_devices"]))
        for op in instance["operators"]
        if op["allowed_devices"] is not None
    ]
    groups = dict.fromkeys(map(tuple, instance["colocation"]))
    limits += [ColocationLimit(ColocationGroup(group)) for group in groups]
    if instance["max_devices"] is not None:
        limits.append(DeviceCountLimit(instance["max_devices"]))
    return limits


def parts_of(conflict):
    """The limits of a conflict, one device and one operator at a time."""
    for limit in conflict:
        if isinstance(limit, MemoryLimit):
            yield from (MemoryLimit((name,), limit.memory_bytes) for name in limit.devices)
        elif isinstance(limit, PinLimit):
            yield from (PinLimit((name,), limit.devices) for name in limit.operators)
        else:
            yield limit


def is_named(limit, named):
    if isinstance(limit, PinLimit):
        return any(isinstance(n, PinLimit) and n.operators == limit.operators for n in named)
    return limit in named


def with_more(instance, names, extra_bytes):
    instance = copy.deepcopy(instance)
    for device in instance["devices"]:
        if device["name"] in names:
            device["memory_bytes"] += extra_bytes
    return instance


def candidate(seed):
    """A random problem with little memory, often pinned, sometimes with few devices allowed."""
    problem = random_problem(300_000 + seed, max_operators=5)
    if seed % 4 == 1 and len(problem.devices) > 2:
        problem = problem.replace(max_devices=1 + seed % 3 % 2)
    if seed % 3:
        return problem
    share = 1 + seed % 4
    devices = [
        replace(d, memory_bytes=d.memory_bytes and max(1, d.memory_bytes * share // 5))
        for d in problem.devices
    ]
    return problem.replace(devices=devices)


@functools.cache
def infeasible_problems():
    problems = {}
    for seed in range(RANDOM):
        problem = candidate(seed)
        if not has_plan(to_instance(problem)):
            problems[seed] = problem
    return problems


def check_conflict(instance, diagnosis):
    assert diagnosis.is_minimal
    named = list(parts_of(diagnosis.conflict))
    alone = dropped(instance, [x for x in every_limit(instance) if not is_named(x, named)])
    assert not has_plan(alone)
    for limit in diagnosis.conflict:
        assert has_plan(dropped(alone, [limit])), limit
    for pin in named:
        # Of the pins each single one is needed.
        if isinstance(pin, PinLimit):
            assert has_plan(dropped(alone, [pin])), pin


def check_remedies(problem, instance, diagnosis):
    for remedy in diagnosis.remedies:
        change = remedy.change
        assert remedy.problem == changed(problem, change)
        assert evaluate(remedy.problem, remedy.plan).feasible
        if isinstance(change, MoreMemory):
            assert change.is_least
            assert change.extra_bytes > 0
            assert has_plan(with_more(instance, change.devices, change.extra_bytes))
            assert not has_plan(with_more(instance, change.devices, change.extra_bytes - 1))
        elif isinstance(change, Without):
            assert has_plan(dropped(instance, [change.limit]))
        elif isinstance(change, HigherDeviceCount):
            assert change.is_least
            assert has_plan({**instance, "max_devices": change.max_devices})
            assert not has_plan({**instance, "max_devices": change.max_devices - 1})
        else:
            assert change.is_least
            fewer = replace(change, count=change.count - 1)
            assert has_plan(to_instance(remedy.problem))
            assert not has_plan(to_instance(changed(problem, fewer)))


def check_nothing_is_missing(problem, instance, diagnosis):
    """Every single change that is enough is offered, or one that is no larger."""
    grown = {name for change in changes(diagnosis, MoreMemory) for name in change.devices}
    most = 1 << 45
    for device in problem.devices:
        if device.memory_bytes is None or not has_plan(with_more(instance, [device.name], most)):
            continue
        # Interchangeable devices are offered once.
        alike = [
            other.name
            for other in problem.devices
            if other.memory_bytes == device.memory_bytes and other.name in grown
        ]
        assert alike, device
    for group in problem.colocation:
        if has_plan(dropped(instance, [ColocationLimit(group)])):
            assert Without(ColocationLimit(group)) in changes(diagnosis, Without)


def check_diagnosis(problem, diagnosis):
    instance = to_instance(problem)
    assert diagnosis.is_proven
    assert not diagnosis.time_ran_out
    check_conflict(instance, diagnosis)
    check_remedies(problem, instance, diagnosis)
    check_nothing_is_missing(problem, instance, diagnosis)


@pytest.mark.parametrize(("chunks", "relayed"), [(2, False), (1, True), (2, True)])
@counts(6, 24)
def test_diagnoses_of_problems_with_chunks_and_relayed_values(count, chunks, relayed):
    infeasible = 0
    for seed in range(count):
        problem = random_problem(320_000 + seed, max_operators=4, relayed=relayed)
        problem = problem.replace(chunks_per_device=chunks)
        if not has_plan(to_instance(problem)):
            infeasible += 1
            check_diagnosis(problem, diagnose(problem, LIMITS))
    assert infeasible >= count // 6


@pytest.mark.parametrize("part", some(2, of=20))
def test_diagnoses_are_right_by_brute_force(part):
    assert len(infeasible_problems()) >= 100
    for seed, problem in infeasible_problems().items():
        if seed % 20 != part:
            continue
        check_diagnosis(problem, diagnose(problem, LIMITS))


def test_shortfalls_are_never_claimed_of_what_fits():
    claimed = 0
    for seed in range(RANDOM):
        problem = candidate(seed)
        if find_shortfalls(problem):
            claimed += 1
            assert seed in infeasible_problems(), seed
    assert claimed >= 40


@counts(100, 300)
def test_what_a_unit_needs_is_at_most_what_its_device_holds(count):
    for seed in range(count):
        problem = random_problem(310_000 + seed)
        result = solve(problem, LIMITS, solver="chain")
        if result.evaluation is None:
            continue
        for usage in result.evaluation.usage:
            for name in usage.operators:
                assert least_bytes_together(problem, [name]) <= usage.memory_bytes, (seed, name)


def test_graph_inputs_count_once_for_a_unit():
    problem = PartitionProblem(
        operators=(
            Operator("a", reads=("x",), storage_bytes=3, value_bytes=3),
            Operator("b", reads=("x", "a"), storage_bytes=4, value_bytes=4),
        ),
        devices=(Device("gpu", 16),),
        inputs=(GraphInput("x", 10),),
        colocation=(ColocationGroup(("a", "b")),),
    )
    assert least_bytes_together(problem, ["a", "b"]) == 10 + 4 + 3
    (shortfall,) = find_shortfalls(problem)
    assert shortfall.missing_bytes == 1


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "problem.json"
    save_problem(weighted_chain([6, 6, 6], [10, 7]), path)
    return str(path)


def test_json_has_the_diagnosis_as_a_field(saved, capsys):
    assert main(["solve", saved, "--workers", "1", "--json"]) == 1
    captured = capsys.readouterr()
    answer = json.loads(captured.out)["diagnosis"]
    assert answer["text"] == diagnose(weighted_chain([6, 6, 6], [10, 7]), LIMITS).text
    assert answer["text"] not in captured.err
    assert answer["is_proven"]
    assert answer["is_minimal"] is True
    assert answer["conflict"] == [
        {"kind": "MemoryLimit", "devices": ["gpu0"], "memory_bytes": 10},
        {"kind": "MemoryLimit", "devices": ["gpu1"], "memory_bytes": 7},
    ]
    assert [shortfall["missing_bytes"] for shortfall in answer["shortfalls"]] == [1]
    assert answer["remedies"][0] == {
        "kind": "MoreMemory",
        "devices": ["gpu0"],
        "extra_bytes": 2,
        "too_few_bytes": 1,
        "is_least": True,
        "text": "2 B more on gpu0 (one byte less is not enough)",
    }
