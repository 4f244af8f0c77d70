"""What the ranks of a pipeline raise when one of them fails: all of them the reason."""

import multiprocessing
import os
import signal

import pytest
import torch
import torch.distributed as dist
from torch import nn

from experiments.pipelines.loopback import HOST, loopback_store
from fx_bridge.capture.graph import capture
from fx_bridge.pipeline import failures
from fx_bridge.pipeline.build import build_pipeline_stage
from fx_bridge.pipeline.failures import Failures
from fx_bridge.split.by_plan import split_by_plan
from solver import PartitionError, PartitionPlan

WORLD = 3
NUMBERS = (0, 0, 1, 1, 2)


def broken_loss(outputs, target):
    raise ValueError("a loss\nof two lines")


def batch_of(samples):
    def fail(pipeline, rank):
        pipeline.step(torch.ones(samples if rank == 0 else 6, 4), target=torch.ones(6, 4))

    return fail


def no_weight(pipeline, rank):
    if rank == 1:
        next(pipeline.parameters()).data = torch.ones(5, 4)
    batch_of(6)(pipeline, rank)


def killed(pipeline, rank):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    batch_of(6)(pipeline, rank)


def again(pipeline, rank):
    """The first rank refuses a batch, goes on, and is killed later."""
    if rank == 0:
        with pytest.raises(PartitionError, match=r"has shape \[3, 4\]"):
            batch_of(3)(pipeline, rank)
    batch_of(6)(pipeline, rank)
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    batch_of(6)(pipeline, rank)


def run(rank, split, init, answers, fail, options):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=WORLD)
    try:
        pipeline = build_pipeline_stage(split, rank, microbatches=3, **options(rank))
        fail(pipeline, rank)
    except Exception as error:
        answers.put((rank, type(error).__name__, str(error), error.__cause__ is None))
    answers.close()
    answers.join_thread()


def answers_of(folder, fail, options=None, *, store="file"):
    """What each rank raised: the name of the type, the text, and whether it has no cause."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    captured = capture(model, (torch.ones(2, 4),))
    names = [node.name for node in captured.operators]
    devices = [f"d{number}" for number in NUMBERS]
    plan = PartitionPlan(dict(zip(names, devices, strict=True)), ("d0", "d1", "d2"))
    split = split_by_plan(captured, plan)
    init = f"file://{folder / 'store'}"
    if store == "tcp":
        init = f"tcp://{HOST}:{loopback_store().port}"
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    given = options or (lambda rank: {"device": "cpu", "loss_fn": nn.functional.mse_loss})
    ranks = [
        context.Process(target=run, args=(rank, split, init, answers, fail, given))
        for rank in range(WORLD)
    ]
    for process in ranks:
        process.start()
    try:
        for process in ranks:
            process.join(120)
            assert process.exitcode is not None
    finally:
        for process in ranks:
            process.kill()
    found = [answers.get(timeout=10) for process in ranks if process.exitcode == 0]
    return {rank: said for rank, *said in sorted(found)}


# With tcp the first rank keeps the store, and ends with the refusal.
@pytest.mark.parametrize("store", ["file", "tcp"])
def test_a_refused_batch_is_refused_by_every_rank(tmp_path, store):
    found = answers_of(tmp_path, batch_of(3), store=store)
    reason = (
        "input 'input_1' has shape [3, 4], but the pipeline takes [6, 4], 3 microbatches along "
        "dimension 0; pass that, or capture microbatches of another size"
    )
    own, other = (["PartitionError", f"{by}{reason}", True] for by in ("", "rank 0: "))
    assert found == {0: own, 1: other, 2: other}


# A file keeps the reason when its rank has ended, which the others see no sooner.
@pytest.fixture
def _short_stay(monkeypatch):
    monkeypatch.setattr(failures, "_STAY_S", 0.1)


@pytest.mark.usefixtures("_short_stay")
def test_an_error_of_one_rank_is_said_by_every_other(tmp_path):
    found = answers_of(tmp_path, batch_of(6), lambda _: {"device": "cpu", "loss_fn": broken_loss})
    other = ["PartitionError", "rank 2: ValueError: a loss of two lines", True]
    assert found == {0: other, 1: other, 2: ["ValueError", "a loss\nof two lines", True]}


@pytest.mark.usefixtures("_short_stay")
def test_an_error_within_a_stage_is_said_without_what_torch_says_around_it(tmp_path):
    found = answers_of(tmp_path, no_weight)
    assert found[1][0] == "RuntimeError"
    assert found[0] == found[2]
    kind, said, _ = found[0]
    assert kind == "PartitionError"
    assert said.startswith("rank 1: RuntimeError: The expanded size of the tensor")


def test_a_stage_that_cannot_be_built_is_said_by_every_rank(tmp_path):
    def options(rank):
        return {"device": "none" if rank == 1 else "cpu", "loss_fn": None}

    found = answers_of(tmp_path, batch_of(6), options)
    reason = "torch knows no device 'none'; write one such as 'cuda:0' or 'cpu'"
    other = f"rank 1: {reason}"
    assert [said[1] for said in found.values()] == [other, reason, other]


def test_a_rank_that_is_killed_leaves_no_reason(tmp_path):
    found = answers_of(tmp_path, killed)
    assert {rank: said[0] for rank, said in found.items()} == {0: "RuntimeError", 2: "RuntimeError"}


def test_a_refusal_that_was_caught_is_no_reason_any_more(tmp_path):
    found = answers_of(tmp_path, again)
    assert {rank: said[0] for rank, said in found.items()} == {1: "RuntimeError", 2: "RuntimeError"}


def test_without_a_process_group_an_error_is_what_it_is():
    found, error, refusal = Failures(None), RuntimeError("wrong"), PartitionError("refused")
    wrapper = RuntimeError("around it")
    wrapper.__cause__ = refusal
    found.begin()
    with pytest.raises(RuntimeError, match="wrong"), found.telling():
        raise error
    assert found.to_raise(error) is error
    assert found.to_raise(wrapper) is refusal
