"""What runs again in the backward pass: rules, memory and times against an independent coding."""

import itertools
import json
import random
from dataclasses import replace

import pytest

from solver import Device, Operator, PartitionError, PartitionPlan
from solver.evaluation.evaluate import evaluate
from solver.io.json_files import plan_from_json, plan_to_json, problem_from_json, problem_to_json
from solver.model.recomputation import required, with_regions, with_required
from solver.model.training import Backward
from tests.support import graphs
from tests.support.oracle import cost
from tests.support.problem_counts import counts
from tests.support.random_problems import (
    random_plan,
    random_problem,
    restricted,
    to_instance,
    with_recomputation,
)
from tests.support.random_writes import written_problem
from tests.support.recompute_cases import SMALL, small_problem


def training_problems(count, **settings):
    """Random training problems with operators that may run again, and their seeds."""
    problems = ((seed, random_problem(seed, **settings)) for seed in itertools.count())
    trained = ((seed, p) for seed, p in problems if p.memory_model == "training")
    for seed, problem in itertools.islice(trained, count):
        yield seed, with_recomputation(problem, seed)


def owners(problem):
    return [op.name for op in problem.operators if op.alias_of is None]


def refusals(problem, plan):
    return [text for text in evaluate(problem, plan).violations if "again" in text]


def written_problems(count):
    return ((seed, written_problem(seed)) for seed in range(count))


@pytest.mark.parametrize("drawn", [written_problems, training_problems])
@counts(300, 3000)
def test_plans_of_several_stages_cost_what_the_definition_says(count, drawn):
    """Tests views elsewhere than their storages, and writers that read what is written later."""
    seen = dict.fromkeys(("allowed", "refused", "views elsewhere", "several in flight"), 0)
    for seed, problem in drawn(count):
        rng = random.Random(seed)
        problem = restricted(problem, seed) if seed % 5 == 0 else problem
        instance = to_instance(problem)
        plan = random_plan(problem, seed, draw_chunks=problem.chunks_per_device > 1)
        for share in (0.1, 0.2, 0.5, 0.8):
            again = frozenset(name for name in owners(problem) if rng.random() < share)
            plan = replace(plan, recomputed=again)
            if share > 0.1:
                plan = with_required(problem, plan)
            places = plan.assignment, plan.device_order, plan.chunks
            expected = cost(instance, *places, recomputed=plan.recomputed, with_step=True)
            found, label = evaluate(problem, plan), (seed, again)
            is_refused = "again" in expected["violations"]
            assert bool(refusals(problem, plan)) == is_refused, label
            assert found.feasible == (not expected["violations"]), label
            seen["refused" if is_refused else "allowed"] += 1
            if is_refused:
                continue
            assert [usage.memory_bytes for usage in found.usage] == expected["memory"], label
            for name in problem.objective if found.feasible else ():
                assert found.value(name) == expected[name], label
            seen["views elsewhere"] += bool(views_elsewhere(problem, plan))
            seen["several in flight"] += any(entry.in_flight > 1 for entry in found.stages)
    assert min(seen.values()) > count // 20, seen


def views_elsewhere(problem, plan):
    """Views on other stages than their storages, which run again there."""
    stage, roots = plan.stage_index, problem.root_of
    names = {op.name for op in problem.operators if roots[op.name] in plan.recomputed}
    return {name for name in names if stage[name] != stage[roots[name]]}


@pytest.mark.parametrize("case", SMALL, ids=lambda case: f"seed {case['seed']}")
def test_published_optima_are_those_of_the_evaluator(case):
    names = [op["name"] for op in case["operators"]]
    for answer in case["answers"]:
        problem = small_problem(case, answer["memory"])
        stages = [names[low:high] for low, high in itertools.pairwise(answer["cuts"])]
        devices = {name: f"d{rank}" for rank, own in enumerate(stages) for name in own}
        again = frozenset(itertools.chain(*answer["again"]))
        plan = PartitionPlan(devices, tuple(dict.fromkeys(devices.values())), recomputed=again)
        evaluation = evaluate(problem, plan)
        assert evaluation.feasible
        assert evaluation.bottleneck_ns == answer["optimum"]


def test_the_memory_of_devices_is_the_largest_over_time():
    peaks = 0
    for seed, problem in training_problems(120):
        plan = random_plan(problem, seed)
        if plan is None:
            continue
        rng = random.Random(seed)
        chosen = {name for name in owners(problem) if rng.random() < 0.4}
        plan = replace(plan, recomputed=chosen)
        usage = evaluate(problem, plan).usage
        for entry in usage:
            assert max(entry.timeline_bytes, default=0) == entry.memory_bytes
            peaks += entry.memory_bytes > 0
    assert peaks


TRAINED = {"memory_model": "training", "devices": (Device("x"), Device("y"))}


def chain(**changes):
    """Four operators in two regions; the third writes into the storage of the second."""
    backward = {
        "a": Backward(kept_bytes=8, recomputable=True),
        "b": Backward(kept_bytes=8, recomputable=True, saves=("a",)),
        "c": Backward(),
        "d": Backward(kept_bytes=8, recomputable=True, saves=("b", "d")),
        **changes,
    }
    of = {name: {"backward": backward[name]} for name in "abcd"}
    of["c"] |= {"storage_bytes": 0, "value_bytes": 0, "alias_of": "b", "in_place": True}
    return graphs.chain(latency_ns=1, value_bytes=8, of=of, **TRAINED, recompute="auto")


def on(problem, *devices, again):
    names = [op.name for op in problem.operators]
    used = tuple(dict.fromkeys(devices))
    return PartitionPlan(dict(zip(names, devices, strict=True)), used, recomputed=again)


@pytest.mark.parametrize(
    ("changes", "devices", "again", "message"),
    [
        ({}, "xxxx", {"c"}, "'c' cannot run again: it is an alias of 'b'"),
        ({"a": Backward(kept_bytes=8)}, "xxxx", {"a"}, "'a' cannot run again: it is not recom"),
        ({"d": Backward(region=1, saves=("b",), kept_bytes=8)}, "xxxx", {"b"}, "'d', of another"),
        ({}, "xyyy", {"a"}, "'a' cannot run again: nothing needs what it makes"),
        ({}, "xxyy", {"b"}, "'b' cannot run again: "),
        ({"c": Backward(residual_bytes=4)}, "xxxx", {"b"}, "'c', which writes into its storage, k"),
    ],
)
def test_rules_are_told_in_words(changes, devices, again, message):
    problem = chain(**changes)
    found = refusals(problem, on(problem, *devices, again=again))
    assert len(found) == 1
    assert message in found[0]


def without_writes(must=(), **settings):
    """Three operators in a row, in two regions; each saves what it reads, and itself."""
    of = {
        name: {
            "backward": Backward(
                kept_bytes=8,
                saves=("a",) if name == "a" else (chr(ord(name) - 1), name),
                recomputable=True,
                must_recompute=name in must,
                region=int(name > "b"),
            )
        }
        for name in "abc"
    }
    return graphs.chain("abc", latency_ns=1, value_bytes=8, of=of, **TRAINED, **settings)


@pytest.mark.parametrize(
    ("settings", "again", "messages"),
    [
        (
            {"recompute": "auto", "must": "a"},
            "",
            ["operator 'a' does not run again, but it must wherever its region needs it"],
        ),
        ({"recompute": "auto", "must": "a"}, "a", []),
        # Another region needs b.
        ({"recompute": "auto", "must": "ab"}, "a", []),
        ({"recompute": "none", "must": "ab"}, "", []),
        ({"recompute": "layers"}, "c", []),
        (
            {"recompute": "layers"},
            "b",
            [
                "operator 'b' cannot run again: recompute is 'layers', and not its region alone "
                "needs it",
                "operator 'a' does not run again, but others of region 0 do, and recompute is "
                "'layers'",
            ],
        ),
    ],
)
def test_what_must_run_again_is_told_in_words(settings, again, messages):
    problem = without_writes(**settings)
    plan = on(problem, *"xxx", again={*again})
    found = evaluate(problem, plan).violations
    assert list(found) == messages


def test_whole_regions_are_all_that_their_stages_need():
    problem = without_writes(recompute="layers")
    stages = dict.fromkeys("abc", 0)
    assert required(problem, stages, "", regions={0, 1}) == {"a", "c"}
    # Alone, b saves itself.
    problem = problem.replace(operators=problem.operators[:2])
    assert required(problem, stages, "a") == {"a", "b"}
    assert not evaluate(problem, on(problem, *"xy", again={*"ab"})).violations
    assert evaluate(problem, on(problem, *"xy", again={"a"})).violations == (
        "operator 'b' does not run again, but others of region 0 do, and recompute is 'layers'",
    )


def test_what_is_written_after_it_was_read_cannot_be_read_again():
    saver = Backward(saves=("e",), kept_bytes=0)
    again = Backward(kept_bytes=8, recomputable=True)
    problem = chain()
    problem = problem.replace(
        operators=[
            *problem.operators[:2],
            Operator("e", 1, ("b",), storage_bytes=8, backward=again),
            *problem.operators[2:],
            Operator("f", 1, ("e",), backward=saver),
        ]
    )
    plan = on(problem, *"xxxxxx", again={"e"})
    assert refusals(problem, plan) == [
        "operator 'e' cannot run again: 'c' writes into 'b' after it has read it"
    ]
    assert not refusals(problem, replace(plan, recomputed={"b", "e"}))
    # On another stage it writes into what that stage has received, which no anchor is there.
    assert not refusals(problem, on(problem, *"xxxyyx", again={"e"}))
    # Nor is it one because of what runs again elsewhere.
    more = Operator("g", 1, ("b",), storage_bytes=8, backward=replace(again, saves=("g",)))
    problem = problem.replace(operators=[*problem.operators, more])
    assert not refusals(problem, on(problem, *"xxyyyyx", again={"e", "g"}))


def test_nothing_runs_again_without_a_backward_pass():
    problem = chain().replace(memory_model="inference")
    plan = on(problem, *"xxxx", again={"b"})
    assert evaluate(problem, plan).violations == (
        "operators run again, but the memory model has no backward pass",
    )


def test_a_file_has_what_runs_again():
    problem = chain()
    must = Backward(kept_bytes=8, recomputable=True, must_recompute=True)
    for made in (problem, chain(a=must).replace(recompute="layers")):
        assert problem_from_json(json.loads(json.dumps(problem_to_json(made)))) == made
    assert "must_recompute" not in json.dumps(problem_to_json(problem))
    plan = on(problem, *"xxyy", again={"a", "b"})
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
    with pytest.raises(PartitionError, match=r"recomputed\[0\] is 3; write a"):
        plan_from_json(plan_to_json(plan) | {"recomputed": [3]})
    for field in ("recomputed", "region_starts"):
        with pytest.raises(PartitionError, match=f"{field} names 'z', which has no device"):
            plan_from_json(plan_to_json(plan) | {field: ["z"]})


def test_a_plan_says_the_regions_by_which_operators_run_again():
    problem = without_writes(recompute="auto")
    assert problem.region_starts == ("a", "c")
    assert with_required(problem, on(problem, *"xxy", again=())).region_starts == ()
    plan = with_required(problem, on(problem, *"xxy", again={"a"}))
    assert plan.region_starts == ("a", "c")
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
    assert replace(plan, recomputed=()).region_starts == ()
    assert not evaluate(problem, plan).violations
    finer = with_regions(problem, replace(plan, region_starts=("a", "b", "c")))
    assert [op.backward.region for op in finer.operators] == [0, 1, 2]
    assert with_regions(finer, plan) == problem
    assert evaluate(finer, plan).violations == (
        "a region begins at operator 'b' in the problem, but not in the plan",
        "operator 'a' cannot run again: 'b', of another region, needs it",
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"saves": ("d",)}, "saves 'd', which does not come before it"),
        ({"saves": "a"}, "write a list of names"),
        ({"recomputable": 1}, "recomputable is 1; write true or false"),
        ({"must_recompute": None}, "must_recompute is None; write true or false"),
        ({"must_recompute": True}, "must_recompute is true, but recomputable is not"),
        ({"region": -1}, "region is -1"),
    ],
)
def test_bad_data_is_refused(changes, message):
    with pytest.raises(PartitionError, match=message):
        chain(b=replace(Backward(), **changes))


def test_regions_and_owners_are_checked():
    with pytest.raises(PartitionError, match="region is 0 after 2; regions are numbered"):
        chain(a=Backward(region=2))
    with pytest.raises(PartitionError, match="recomputable, but its value is an alias of 'b'"):
        chain(c=Backward(recomputable=True))
    with pytest.raises(PartitionError, match="in_place is set, but it is an alias of nothing"):
        Operator("a", in_place=True)
