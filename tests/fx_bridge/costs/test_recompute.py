"""What a person says of recomputation, by modules: in the operator graph, and in plans."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fx_bridge import Costs, Pipeline, Recompute, Search, Training, capture, partition_module
from fx_bridge.costs.recomputation import recomputation_regions
from solver import Device, Interconnect, PartitionError, SolveLimits, SolveStatus, solve
from solver.model.recomputation import required
from tests.support.modules import module_with
from tests.support.refusals import refused
from tests.support.training_models import Block

LAYERS = tuple(f"h.{number}" for number in range(4))
LIMITS = SolveLimits(workers=1, time_limit_s=60, deterministic=True)


@pytest.fixture(scope="module")
def captured():
    model = module_with(
        lambda self, tokens: self.head(self.h(self.embed(tokens))),
        embed=nn.Embedding(100, 32),
        h=nn.Sequential(*(Block() for _ in LAYERS)),
        head=nn.Linear(32, 100),
    )
    return capture(model, (torch.arange(20).reshape(2, 10),))


@pytest.fixture(scope="module")
def inside(captured):
    """The operators of every module."""
    return {path: frozenset(names) for path, names in captured.modules.operators.items()}


@pytest.fixture(scope="module")
def planned(captured):
    """A plan in which all layers run again."""
    return partition_module(
        captured,
        devices=[Device("x"), Device("y")],
        objective="bottleneck",
        costs=Costs(Interconnect()),
        training=Training(recompute="all"),
        pipeline=Pipeline("gpipe", microbatches=4),
        search=Search(LIMITS, "chain"),
    )


def marked(problem, field):
    return frozenset(op.name for op in problem.operators if getattr(op.backward, field))


def asking(planned, captured, recompute):
    """The problem of the plan, of which something else is asked."""
    recompute = Recompute.of(recompute)
    may, must = recompute.choices(captured, marked(planned.problem, "recomputable"))

    def asked(op):
        choices = {"recomputable": op.name in may, "must_recompute": op.name in must}
        return replace(op, backward=replace(op.backward, **choices))

    operators = [asked(op) for op in planned.problem.operators]
    return planned.problem.replace(operators=operators, recompute=recompute.problem_rule)


@pytest.mark.parametrize(
    ("recompute", "may", "must"),
    [
        ("auto", "*", ()),
        ("layers", LAYERS, ()),
        ("all", LAYERS, LAYERS),
        (["h.1"], ["h.1"], ["h.1"]),
        (["h.?.up", "h.2"], ["h.0.up", "h.1.up", "h.2", "h.3.up"], None),
        (Recompute("auto", always=["h.0"]), "*", ["h.0"]),
        (Recompute("layers", ["h.*"], ["h.1"]), ["h.0", "h.2", "h.3"], ["h.0", "h.2", "h.3"]),
        (Recompute("layers", always=["head"]), [*LAYERS, "head"], ["head"]),
        (Recompute("all", never=["h.*"]), (), None),
        (Recompute(["h.*"], never=["h.3", "h.2"]), ["h.0", "h.1"], None),
    ],
)
def test_modules_say_which_operators_may_and_which_must(captured, inside, recompute, may, must):
    every = frozenset(node.name for node in captured.operators)
    outside = every - frozenset().union(*(inside[path] for path in LAYERS))

    def meant(paths):
        if paths == "*":
            return every
        return frozenset().union(*(inside.get(path, outside) for path in paths))

    found = Recompute.of(recompute).choices(captured, every)
    assert found == (meant(may), meant(may if must is None else must))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rule": "all", "always": ["h.0"]}, "always is given with rule 'all', which decides no"),
        ({"rule": ["h.1"], "always": ["h.0"]}, "always is given with rule ('h.1',), which decides"),
        ({"rule": "none", "never": ["h.0"]}, "never is given with rule 'none'; leave it out"),
    ],
)
def test_rules_that_leave_nothing_to_say_are_refused(fields, message):
    with refused(starts=message):
        Recompute(**fields)


def test_regions_are_the_named_modules(captured, inside):
    by_layer = recomputation_regions(captured)
    # The embedding is before the first layer, the head behind the last.
    assert len(set(by_layer.values())) == 6
    assert [name for name, region in by_layer.items() if region == 5] == [*inside["head"]]
    for patterns in (["h.?"], LAYERS, ["h.0", "h.*"]):
        assert recomputation_regions(captured, patterns) == by_layer
    assert len(set(recomputation_regions(captured, ["h"]).values())) == 3
    finer = recomputation_regions(captured, ["h.*.up", "h.*.first"])
    assert len(set(finer.values())) == 10
    assert {name for name in finer if finer[name] == 9} == inside["head"]
    for path in LAYERS:
        assert len({finer[name] for name in inside[path]}) == 2
    with pytest.raises(PartitionError, match=r"^the model has no module 'layers\.\*'; "):
        recomputation_regions(captured, ["layers.*"])


def whole(problem, plan, names):
    """What of some operators runs again if all of it does."""
    regions = {problem.operators[problem.index_of[name]].backward.region for name in names}
    problem = problem.replace(recompute="layers")
    return required(problem, plan.stage_index, (), regions=regions) & names


def check_layers(problem, plan, inside, paths):
    for path in LAYERS:
        own = plan.recomputed & inside[path]
        assert own == (whole(problem, plan, inside[path]) if path in paths else set()), path
        assert bool(own) == (path in paths)


def test_all_runs_again_in_the_plan_of_a_model(planned, inside):
    assert marked(planned.problem, "must_recompute") == marked(planned.problem, "recomputable")
    plan = planned.solved.plan
    assert len(plan.device_order) == 2
    assert planned.solved.evaluation.feasible
    check_layers(planned.problem, plan, inside, LAYERS)


@pytest.mark.parametrize(
    ("recompute", "paths"),
    [(["h.1", "h.3"], ["h.1", "h.3"]), (Recompute(always=["h.2"]), ["h.2"])],
)
def test_what_must_runs_again_in_every_plan(planned, captured, inside, recompute, paths):
    problem = asking(planned, captured, recompute)
    result = solve(problem, LIMITS, solver="chain")
    check_layers(problem, result.plan, inside, paths)


def test_layers_run_again_as_a_whole(planned, captured, inside):
    """Tests a device on which one of four layers must."""
    values = {}
    for rule in ("auto", "layers"):
        problem = asking(planned, captured, rule).replace(devices=[Device("x")])
        roomy = solve(problem, LIMITS)
        assert not roomy.plan.recomputed
        (usage,) = roomy.evaluation.usage
        problem = problem.replace(devices=[Device("x", usage.memory_bytes * 85 // 100)])
        result = solve(problem, LIMITS)
        assert result.status is SolveStatus.OPTIMAL
        values[rule] = result.objective
    again = [path for path in LAYERS if result.plan.recomputed & inside[path]]
    assert 0 < len(again) < len(LAYERS)
    check_layers(problem, result.plan, inside, again)
    assert values["auto"] < values["layers"]
