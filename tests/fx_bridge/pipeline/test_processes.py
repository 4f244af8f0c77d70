"""Pipelines of real processes: equal to the model in one process, in all that they compute.

One set of three processes runs the cases of ``pipeline_cases.py`` (``pipeline_worker.py``), for a
process takes seconds to start, and is given what was captured once; the tests here look at what
each case gave.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from fx_bridge import Costs, Search, Training
from fx_bridge.capture.graph import capture
from fx_bridge.checkpoint.stages import save_stages
from fx_bridge.digraph import to_digraph
from fx_bridge.partition import partition_module
from fx_bridge.pipeline.build import build_pipeline_stage
from fx_bridge.pipeline.checks import check_pipeline
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.split.colocation import colocation_groups
from solver import (
    Device,
    Interconnect,
    PartitionError,
    PartitionPlan,
    SolveLimits,
    evaluate,
    problem_from_digraph,
)
from tests.support.modules import module_with
from tests.support.paths import ROOT
from tests.support.pipeline_cases import BATCH, CASES
from tests.support.pipeline_worker import STEPS
from tests.support.problem_counts import samples
from tests.support.recomputed_stages import names_again
from tests.support.refusals import refused
from tests.support.split_checks import in_one

WORLD = 3
QUICK = (
    "chain, gpipe",
    "skips, 1f1b",
    "skips, interleaved, three ranks",
    "tied, summed",
    "autocast, 1f1b",
    "batch norm, 1f1b",
    "integers, gpipe",
    "forward only, outputs",
    "outputs, 1f1b",
    "run again, 1f1b",
)
"""One case for each kind of model and schedule; ``--deep`` runs all."""
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
DEVICES = ["cpu", pytest.param("cuda:0", marks=[pytest.mark.gpu, needs_cuda])]


def run_cases(device, cases, folder):
    """Run cases on a device; each rank writes what it found."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.support.pipeline_worker"]
    worker = subprocess.Popen(
        [*command, str(WORLD), str(folder), device, *cases],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        log, _ = worker.communicate(timeout=400)
    finally:
        # With its ranks.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
    assert worker.returncode == 0, log


@pytest.fixture(scope="module", params=DEVICES)
def results(request, tmp_path_factory):
    """What each rank found, by case; run once for all processes that share these tests."""
    cases = CASES if request.config.getoption("--deep") else QUICK
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None:
        folder = tmp_path_factory.mktemp("pipeline")
    else:
        folder = tmp_path_factory.getbasetemp().parent / f"{run}-{request.param.replace(':', '')}"
        folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            run_cases(request.param, cases, folder)
            (folder / "done").touch()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)]


@pytest.mark.parametrize("name", samples(CASES, QUICK))
def test_processes_compute_what_one_process_does(results, name):
    case = CASES[name]
    failures = [found[name]["failure"] for found in results if "failure" in found.get(name, {})]
    assert not failures, "\n\n".join(failures)
    assert [name in found for found in results] == [rank < case.ranks for rank in range(WORLD)]
    held = {own for rank in range(case.ranks) for own in results[rank][name]["parameters"]}
    model = case.captured().module
    names = dict(model.named_parameters(remove_duplicate=False))
    assert {id(names[parameter]) for parameter in held} == set(map(id, model.parameters()))
    losses = results[case.ranks - 1][name]["losses"]
    assert len(losses) == (0 if case.loss is None else case.microbatches)


@pytest.fixture
def _double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


# What the graph returns unchanged, or as a stage leaves it, is no operator's value.
@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize(
    "name", samples([n for n in CASES if "outputs" not in n and "returned" not in n], QUICK)
)
def test_every_hop_carries_what_the_evaluator_charges(results, name):
    case = CASES[name]
    captured = case.captured()
    plan = case.plan(captured)
    names = ("microbatches", "schedule", "tied_weights")
    options = {name: getattr(case, name) for name in names}
    interfaces = check_pipeline(split_by_plan(captured, plan), 0, case.ranks, **options)
    sent, returned = (
        {int(at): n for rank in results[: case.ranks] for at, n in rank[name][way].items()}
        for way in ("sent", "returned")
    )
    times = STEPS * case.microbatches
    hops = [[interfaces.values[n].size_bytes for n in p.sends] for p in interfaces.positions]
    assert [sent[at] for at in sorted(sent)] == [sum(sizes) * times for sizes in hops]
    training = Training(tied_weights=case.tied_weights) if case.loss is not None else None
    problem = problem_from_digraph(
        to_digraph(captured, training=training),
        [Device(device) for device in plan.device_order],
        memory_model="inference" if case.loss is None else "training",
        interconnect=Interconnect(charging="relayed"),
        chunks_per_device=case.rounds,
    )
    total = sum(sent.values()) + sum(returned.values())
    assert evaluate(problem, plan).transfer_bytes * times == total


@pytest.mark.usefixtures("_double")
@pytest.mark.parametrize(
    "name", samples([name for name, case in CASES.items() if case.recompute], QUICK)
)
def test_ranks_run_again_what_is_planned_and_hold_no_more_than_promised(results, name):
    case = CASES[name]
    captured = case.captured()
    problem, plan = case.recomputed(captured, case.plan(captured))
    names = names_again(problem, plan)
    assert {plan.assignment[again] for again in names} == {*plan.device_order}
    plans = replace(plan, recomputed=()), plan
    promised = [[u.memory_bytes for u in evaluate(problem, each).usage] for each in plans]
    for rank, device in enumerate(plan.device_order):
        own = [again for again in names if plan.assignment[again] == device]
        assert sorted(results[rank][name]["again"]) == sorted(STEPS * case.microbatches * own)
        plain, found = results[rank][name]["peaks_bytes"]
        # The numbers of microbatches, targets and losses are no parts of the model.
        others_bytes = max(plain - promised[0][rank], 0)
        if case.schedule == "gpipe" and rank:
            # torch holds the gradients that it sends to the end of the step, which shows where
            # little else is held.
            others_bytes += (case.microbatches - 1) * BATCH * 4 * 8
        assert found - promised[1][rank] <= others_bytes
        assert found < plain or case.rounds > 1


def model_and_inputs():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), (torch.ones(2, 4),)


PLAN = PartitionPlan({"linear": "a", "relu": "b", "linear_1": "b"}, ("a", "b"))


@pytest.fixture(scope="module")
def split():
    model, args = model_and_inputs()
    return split_by_plan(capture(model, args), PLAN)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"world_size": 3}, "3 processes, but the plan has 2 devices (a, b); start 2"),
        ({"rank": 2}, "rank is 2, but the plan has 2 devices; write a number from 0 to 1"),
        ({"microbatches": 0}, "microbatches is 0"),
        ({"microbatches": 1}, "microbatches is 1, but 1f1b on 2 devices needs as many"),
        ({"schedule": "zigzag"}, "schedule is 'zigzag'; write one of gpipe, 1f1b"),
        ({"tied_weights": "ignore"}, "tied_weights is 'ignore'; write one of colocate, sum"),
        ({"device": "cuda:77"}, "device 'cuda:77' is not there: this machine has"),
        ({"device": "gpu"}, "torch knows no device 'gpu'"),
    ],
)
def test_settings_are_checked_before_there_is_a_process_group(split, options, message):
    settings = {"rank": 0, "world_size": 2, "microbatches": 4} | options
    with refused(message):
        check_pipeline(split, settings.pop("rank"), settings.pop("world_size"), **settings)


def test_groups_of_interleaved_microbatches_are_equal():
    model, args = model_and_inputs()
    plan = PartitionPlan({"linear": "a", "relu": "b", "linear_1": "a"}, ("a", "b"), {"linear_1": 1})
    split = split_by_plan(capture(model, args), plan)
    with pytest.raises(PartitionError, match=r"microbatches is 5, but interleaved.*write 6"):
        check_pipeline(split, 0, 2, microbatches=5)
    check_pipeline(split, 0, 2, microbatches=6)
    check_pipeline(split, 0, 2, microbatches=5, schedule="gpipe")


def test_what_is_no_plan_is_refused(split):
    for thing in (nn.Linear(2, 2), PLAN, None):
        with pytest.raises(PartitionError, match="is no plan for a pipeline"):
            check_pipeline(thing, 0, 2, microbatches=2)
    with pytest.raises(PartitionError, match=r"there is no process group; call torch\.dist"):
        build_pipeline_stage(split, 0, microbatches=2)
    with pytest.raises(PartitionError, match="loss_fn is 3; give a function"):
        build_pipeline_stage(split, 0, microbatches=2, loss_fn=3)


def tied():
    case = CASES["tied, summed"]
    captured = case.captured()
    return case, captured, case.plan(captured)


def test_trained_weights_on_several_ranks_are_refused_unless_summed():
    case, captured, plan = tied()
    split, options = split_by_plan(captured, plan), {"microbatches": case.microbatches}
    with refused("is trained and held by d0, d2; plan for training, ", "'sum'"):
        check_pipeline(split, 0, 3, **options)
    for more in ({"training": False}, {"tied_weights": "sum"}):
        check_pipeline(split, 0, 3, **options, **more)


def test_readers_of_a_summed_weight_may_be_apart_and_each_device_pays():
    _, captured, plan = tied()
    together = colocation_groups(captured, training=True)
    apart = colocation_groups(captured, training=True, tied_weights="sum")
    assert set(together) - set(apart)
    assert not any("diverge" in group.reason for group in apart)
    graph = to_digraph(captured, training=Training(tied_weights="sum"))
    devices = [Device(device) for device in plan.device_order]
    problem = problem_from_digraph(graph, devices, memory_model="training")
    assert evaluate(problem, plan).feasible
    [key] = {key for op in problem.operators for key in op.weights if "head" in key or "wte" in key}
    alone = PartitionPlan(dict.fromkeys(plan.assignment, "d0"), ("d0",))
    usages = (evaluate(problem, which).usage for which in (plan, alone))
    held, once = (sum(entry.weights_bytes for entry in usage) for usage in usages)
    # The second device holds a gradient and optimiser state too.
    assert held - once == problem.weights[key].training_bytes > problem.weights[key].size_bytes


def transposed():
    """Two parameters in one memory, one of them the transpose of the other."""
    torch.manual_seed(0)
    layers = {name: nn.Linear(4, 4) for name in ("first", "second", "last")}
    model = module_with(lambda self, x: self.last(self.second(self.first(x)).tanh()), **layers)
    model.second.weight = nn.Parameter(model.first.weight.data.t())
    return model


def after_one_step(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(x).square().sum().backward()
    optimizer.step()
    return model(x).detach()


def test_parameters_that_share_memory_without_being_one_stay_together():
    """Tests a step of stages that own their weights, as those of processes do."""
    x = torch.randn(2, 4)
    result = partition_module(
        transposed(),
        (x,),
        devices=[Device("a"), Device("b")],
        training=Training(tied_weights="sum"),
        # The best plan of all would cut between the two.
        costs=Costs(
            latency_ns={"linear": 100_000, "linear_1": 100_000, "tanh": 1, "linear_2": 1},
            backward_latency_ns={"linear": 0, "linear_1": 0, "tanh": 0, "linear_2": 0},
        ),
        search=Search(limits=SolveLimits(workers=1)),
    )
    split = result.split()
    check_pipeline(split, 0, len(result.plan.device_order), microbatches=2, tied_weights="sum")
    stages = split_by_plan(capture(transposed(), (x,)), result.plan)
    for name, _ in split.named_children():
        own = split_by_plan(capture(transposed(), (x,)), result.plan)
        setattr(stages, name, own.get_submodule(name))
    assert torch.equal(after_one_step(stages, x), after_one_step(transposed(), x))
    apart = dict.fromkeys(result.plan.assignment, "b") | {"linear": "a"}
    found = evaluate(result.problem, PartitionPlan(apart, ("a", "b")))
    assert any("its copies would diverge" in violation for violation in found.violations)


def alone(**options):
    """A model, and its pipeline in this process."""
    model, args = model_and_inputs()
    return model, build_pipeline_stage(in_one(capture(model, args), "cpu"), 0, **options)


@pytest.mark.usefixtures("_group")
def test_batches_that_do_not_fit_are_refused_before_anything_runs():
    _, pipeline = alone(microbatches=3, loss_fn=nn.functional.mse_loss)
    batch, target = torch.ones(6, 4), torch.ones(6, 4)
    with refused("has shape [4, 4], but the pipeline takes [6, 4]"):
        pipeline.step(torch.ones(4, 4), target=target)
    with pytest.raises(PartitionError, match=r"the target has shape .* no 3 equal parts"):
        pipeline.step(batch, target=torch.ones(4, 4))
    assert pipeline.step(batch, target=target).shape == (6, 4)
    assert len(pipeline.losses) == 3
    names = [name for name, _ in pipeline.named_parameters()]
    assert names == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.usefixtures("_group")
def test_without_a_loss_nothing_is_differentiated():
    model, pipeline = alone(microbatches=2, schedule="gpipe")
    x = torch.randn(4, 4, requires_grad=True)
    found = pipeline.step(x)
    assert not found.requires_grad
    torch.testing.assert_close(found, model(x).detach())
    assert pipeline.losses == ()
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_several_rounds_on_one_device(schedule):
    model, args = model_and_inputs()
    plan = PartitionPlan(
        dict.fromkeys(PLAN.assignment, "cpu"), ("cpu",), {"relu": 1, "linear_1": 2}
    )
    split = split_by_plan(capture(model, args), plan)
    options = {"microbatches": 2, "schedule": schedule}
    pipeline = build_pipeline_stage(split, 0, loss_fn=nn.functional.mse_loss, **options)
    x = torch.randn(4, 4)
    torch.testing.assert_close(pipeline.step(x, target=x), model(x).detach())
    with refused("3 chunks on one device, which torch's schedules take"):
        build_pipeline_stage(split, 0, **options)


@pytest.mark.usefixtures("_group")
def test_a_sum_of_losses_and_a_model_that_returns_its_loss():
    def forward(self, x, y):
        return {"loss": (self.linear(x) - y).square().sum(), "twice": (x * 2,)}

    model = module_with(forward, linear=nn.Linear(4, 4))
    args = (torch.randn(2, 4), torch.randn(2, 4))
    options = {"microbatches": 3, "loss_fn": lambda outputs, _: outputs["loss"]}
    split = in_one(capture(model, args), "cpu")
    pipeline = build_pipeline_stage(split, 0, **options, scale_grads=False)
    x, y = torch.randn(6, 4), torch.randn(6, 4)
    found = pipeline.step(x, y)
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    expected = model(x, y)
    model.zero_grad()
    expected["loss"].backward()
    torch.testing.assert_close(found, {"loss": expected["loss"].detach(), "twice": (x * 2,)})
    torch.testing.assert_close(gradients, [parameter.grad for parameter in model.parameters()])


@pytest.mark.usefixtures("_group")
def test_other_losses_ranks_and_groups_are_refused():
    model, pipeline = alone(microbatches=2, loss_fn=lambda out, _: out)
    args = (torch.ones(2, 4),)
    with pytest.raises(PartitionError, match="loss_fn does not return a tensor of one element"):
        pipeline.step(torch.ones(4, 4))
    with pytest.raises(PartitionError, match="1 process, but the plan has 2 devices"):
        build_pipeline_stage(split_by_plan(capture(model, args), PLAN), 1, microbatches=2)
    on_meta = in_one(capture(model.to("meta"), args), "cpu")
    with pytest.raises(PartitionError, match=r"'0\.weight' is on the meta device and has"):
        build_pipeline_stage(on_meta, 0, microbatches=2)


@pytest.mark.usefixtures("_group")
def test_weights_come_from_the_files_of_the_stages_that_a_rank_runs(tmp_path):
    folder = tmp_path / "stages"
    case = CASES["tied, one rank"]
    torch.manual_seed(0)
    args, _ = case.inputs(2)
    model = case.model()
    captured = capture(model, args)
    plan = case.plan(captured)
    plan = PartitionPlan(dict.fromkeys(plan.assignment, "cpu"), ("cpu",), plan.chunks)
    assert len(plan.stages) == 2
    save_stages(split_by_plan(captured, plan), captured, folder)
    x = case.inputs(4)[0][0]
    expected = model(x)
    with torch.device("meta"):
        empty = capture(case.model(), args)
    split = split_by_plan(empty, plan)
    pipeline = build_pipeline_stage(
        split, 0, microbatches=2, weights=folder, loss_fn=lambda out, _: out.sum()
    )
    torch.testing.assert_close(pipeline.step(x), expected.detach())
    # The embedding and the head are in both stages, and one.
    assert len(list(pipeline.parameters())) == 5
    other = PartitionPlan(plan.assignment, ("cpu",))
    with pytest.raises(PartitionError, match="stage files were written with another plan"):
        check_pipeline(split_by_plan(empty, other), 0, 1, microbatches=2, weights=folder)
