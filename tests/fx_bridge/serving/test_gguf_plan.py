"""Plans for models in GGUF files, against enumeration of all that llama.cpp can run."""

import itertools
import random
import shlex
from dataclasses import replace
from fractions import Fraction

import pytest

from fx_bridge.costs.device_presets import DEVICE_SPECS
from fx_bridge.files.gguf_header import read_gguf
from fx_bridge.files.gguf_layers import gguf_model
from fx_bridge.options import Costs
from fx_bridge.serving.gguf_job import GgufJobs
from fx_bridge.serving.gguf_plan import plan_gguf
from fx_bridge.serving.request import Request
from solver import Device, Interconnect, Link, PartitionError, SolveLimits, SolveResult, SolveStatus
from solver.model.job import Host
from solver.offload import labels
from tests.support import gguf_oracle
from tests.support.gguf_models import small_jobs, write_small
from tests.support.llama_cpp_models import write_model
from tests.support.problem_counts import counts


@counts(30, 300)
def test_plans_of_ik_llama_cpp_are_the_best_of_all_and_their_words_come_back(tmp_path, count):
    refused = 0
    for seed in range(count):
        draw = random.Random(seed)
        path = write_small(tmp_path / "m.gguf", draw, 4)
        jobs = small_jobs(path, draw, has_host=True, most_devices=1, engine="ik_llama.cpp")
        found = plan_gguf(jobs, "request", LIMITS)
        best = best_of_orders(jobs, found.context, of_request)
        if best is None:
            assert found.solved.plan is None
            continue
        assert found.solved.status is SolveStatus.OPTIMAL and found.evaluation.value_ns == best
        on = [found.plan.assignment[unit.name] for unit in jobs.units]
        if on[-1] != "host" and {*on[:-1]} == {"host"}:
            refused += 1
            with pytest.raises(PartitionError, match="without a layer there"):
                found.line(found.plan)
            continue
        words = found.line(found.plan)
        text = shlex.join(words[words.index("-dev" if "-dev" in words else "-ngl") :])
        given = found.host_words.read(text)
        assert given.plan.assignment == found.plan.assignment
        assert given.evaluation.value_ns == best and not given.notes
    assert refused < count / 10


LIMITS = SolveLimits(60.0, workers=1, deterministic=True)
OBJECTIVES = ("request", "token", "throughput", "context")


def oracle_case(jobs, context, runs):
    """The parts and the machine of a job for the oracle, with the times of some runs."""
    job = jobs.at(context)
    first = job.phases[job.token_phase]
    classes = [device.device_class for device in jobs.devices]

    def part(unit):
        cache, at = first.weights.get(f"{unit.name}.cache"), first.index_of[unit.name]
        run = runs(job).items()
        times = [(count, job.phases[phase].operators[at].latency_ns) for phase, count in run]
        on_host = None
        if all("ddr5-5600" in by_class or "cpu" in by_class for _, by_class in times):
            on_host = sum(n * (ns.get("ddr5-5600") or ns.get("cpu")) for n, ns in times)
        size_bytes = first.weights[unit.name].size_bytes
        by_class = {kind: sum(n * ns[kind] for n, ns in times) for kind in classes}
        return gguf_oracle.Part(size_bytes, cache.size_bytes if cache else 0, by_class, on_host)

    hop_ns = 0
    for phase, count in runs(job).items():
        tokens = int(phase.split()[0])
        sent = 4 * jobs.model.width * tokens * jobs.request.batch
        hop_ns += count * (10_000 + -(-sent // 25))
    sizes = [device.memory_bytes for device in first.devices]
    machine = gguf_oracle.Machine(sizes, classes, job.host.memory_bytes, hop_ns, hop_ns)
    groups = [[part(jobs.units[at]) for at in group.units] for group in jobs.groups]
    (embedding,), *layers, (output,) = groups
    return embedding, layers, output, machine


def of_request(job):
    return job.request_runs


def of_token(job):
    return {job.token_phase: 1}


def best_of_orders(jobs, context, runs):
    """The least time in any order of the devices; copies of prompts go to the first of them.

    A device alone is asked too, since batches take no turns there, and buffers are smaller.
    """
    found = []
    lengths = {1, len(jobs.devices)}
    for order in itertools.chain(*(itertools.permutations(jobs.devices, n) for n in lengths)):
        case = oracle_case(jobs.on(order), context, runs)
        takes_turns = len(order) > 1 and gguf_oracle.has_room(*case)
        if not takes_turns:
            # Buffers are smaller where a part is elsewhere, or batches do not take turns.
            case = oracle_case(jobs.on(order, may_fill=False), context, runs)
        found.append(gguf_oracle.best(*case, may_cross=not takes_turns))
    return min((value for value in found if value is not None), default=None)


@pytest.mark.parametrize("has_host", [False, True])
@counts(60, 500)
def test_plans_are_the_best_of_all(tmp_path, count, has_host):
    seen = set()
    for seed in range(count):
        draw = random.Random(seed)
        path = write_small(tmp_path / "m.gguf", draw, 4 if has_host else 8)
        jobs = small_jobs(path, draw, has_host=has_host)
        objective = OBJECTIVES[seed % len(OBJECTIVES)]
        found = plan_gguf(jobs, objective, LIMITS)
        runs = of_request if objective == "request" else of_token
        if objective == "context":
            # No plan needs less memory with a longer context.
            longer = found.context + 256 if found.solved.plan else 256
            if longer <= jobs.model.longest_context:
                assert best_of_orders(jobs, longer, runs) is None
        best = best_of_orders(jobs, found.context, runs)
        seen.add(best is None)
        if best is None:
            assert found.solved.status is SolveStatus.INFEASIBLE
            continue
        assert found.solved.status is SolveStatus.OPTIMAL
        cost = found.solved.evaluation
        assert cost.value_ns == best
        metrics = found.metrics
        assert found.solved.objective == {
            "throughput": Fraction(jobs.request.batch * 10**9) / best,
            "context": jobs.request.batch * found.context,
        }.get(objective, best)
        rate = Fraction(jobs.request.batch * 10**9) / metrics.token_ns
        assert metrics.tokens_per_s == pytest.approx(float(rate))
    assert seen == {True, False}


@counts(40, 300, quick=20)
def test_searches_that_end_early_bound_all_orders(tmp_path, monkeypatch, count):
    monkeypatch.setattr(labels, "_WIDTHS", (1,))
    statuses = []
    for seed in range(count):
        draw = random.Random(seed)
        jobs = small_jobs(write_small(tmp_path / "m.gguf", draw, 8), draw, has_host=seed % 4 > 0)
        solved = plan_gguf(jobs, ("token", "throughput")[seed % 2], LIMITS).solved
        best = best_of_orders(jobs, jobs.request.context, of_token)
        statuses.append(solved.status)
        if best is None:
            assert solved.plan is None
        elif seed % 2:
            rate = Fraction(jobs.request.batch * 10**9) / best
            assert (solved.objective or 0) <= rate <= solved.objective_bound
        else:
            assert solved.objective_bound <= best <= (solved.objective or best)
    assert SolveStatus.FEASIBLE in statuses


@pytest.mark.parametrize("has_host", [False, True])
def test_words_are_read_as_the_plan_that_was_written(tmp_path, has_host):
    planned = 0
    for seed in range(20):
        draw = random.Random(seed)
        jobs = small_jobs(write_small(tmp_path / "m.gguf", draw, 8), draw, has_host=has_host)
        found = plan_gguf(jobs, "token", LIMITS)
        if found.solved.plan is None:
            continue
        planned += 1
        words = found.line(found.solved.plan)
        assert words[:3] == ["llama-server", "-m", str(tmp_path / "m.gguf")]
        text = " ".join(f"'{word}'" for word in words[words.index("-dev") :])
        assert found.host_words.read(text).plan.assignment == found.solved.plan.assignment
        assert found.host_words.read(text).plan.modes == found.solved.plan.modes
    assert planned > 5


def test_devices_that_are_full_take_one_batch_at_a_time(tmp_path):
    path = write_model(tmp_path, "qwen2", "Q8_0", layers=6)
    model = gguf_model(read_gguf(path))
    devices = [Device(f"cuda:{at}", 2 * 2**30, "rtx-3060") for at in range(2)]
    costs = Costs(specs=DEVICE_SPECS)
    jobs = GgufJobs(model, Request(), devices, costs, Host(None, "ddr5-5600"))
    fills, turns = jobs.on(devices, may_fill=False), jobs.on(devices, may_fill=True)
    longest = {
        case: max(at for at in range(4096, 131072, 4096) if _has_room(case, at))
        for case in (fills, turns)
    }
    assert longest[turns] < longest[fills]
    for context, is_apart in ((longest[turns], False), (longest[fills], True)):
        request = Request(context=context)
        for host in (None, Host(None, "ddr5-5600")):
            found = plan_gguf(GgufJobs(model, request, devices, costs, host), "token", LIMITS)
            line = found.line(found.plan)
            assert (line[-2:] == ["-ot", r"blk\.6\.=CPU"]) is is_apart
            assert found.jobs.takes_turns is not is_apart
            text = shlex.join(line[line.index("-dev") :])
            assert found.host_words.read(text).plan.modes == found.plan.modes


def _has_room(jobs, context):
    _, *layers, output = (jobs.group_bytes(at, context) for at in range(len(jobs.groups)))
    room = jobs.devices[0].memory_bytes - jobs.buffer_bytes(context)
    return any(
        sum(layers[:cut]) <= room and sum(layers[cut:]) + output <= room
        for cut in range(len(layers) + 1)
    )


def test_what_devices_hold_is_what_the_evaluator_counts(tmp_path):
    for seed in range(20):
        draw = random.Random(seed)
        jobs = small_jobs(write_small(tmp_path / "m.gguf", draw, 8), draw, has_host=seed % 2 == 1)
        found = plan_gguf(jobs, "token", LIMITS)
        if found.solved.plan is None:
            continue
        held = found.solved.evaluation.held_bytes
        buffer_bytes = found.jobs.buffer_bytes(found.context)
        for use, device in zip(found.uses(found.solved.plan), found.jobs.devices, strict=True):
            taken = use.weight_bytes + use.cache_bytes + use.buffer_bytes
            assert taken == held[device.name] + buffer_bytes * bool(taken)
            assert use.free_bytes == device.memory_bytes - taken >= 0
            assert use.has_output == (use.device == found.solved.plan.assignment["output"]) or (
                found.solved.plan.assignment["output"] == "host"
            )


def test_equal_cards_with_unlike_links_are_put_in_the_best_order(tmp_path):
    draw = random.Random(7)
    jobs = small_jobs(write_small(tmp_path / "m.gguf", draw, 8), draw, has_host=False)
    # With calls of few tokens a card alone needs hardly less room.
    request = replace(jobs.request, chunk=16)
    kind, names = jobs.devices[0].device_class, ("cuda:0", "cuda:2", "cuda:1")
    slow, fast = Link(10**6, 10**6), Link(None, 10)
    links = {pair: fast if "cuda:1" in pair else slow for pair in itertools.permutations(names, 2)}
    costs = Costs(interconnect=Interconnect(links=links), specs={kind: DEVICE_SPECS[kind]})
    three = [Device(name, None, kind) for name in names]
    jobs = GgufJobs(jobs.model, request, three, costs)
    sizes = [jobs.group_bytes(number, 256) for number in range(1, len(jobs.groups))]
    # Three cards have room for all layers, and two have not.
    room = jobs.buffer_bytes(256) + sum(sizes) // 3 + max(sizes) // 2
    devices = [Device(name, room, kind) for name in names]
    found = plan_gguf(jobs.on(devices), "token", LIMITS)
    used = [use.device for use in found.uses(found.solved.plan) if use.weight_bytes]
    assert len(used) == 3 and used[1] == "cuda:1"


def test_room_is_made_for_the_calls_of_the_line(tmp_path):
    path = write_model(tmp_path, "gpt-oss", "MXFP4", layers=2)
    model = gguf_model(read_gguf(path))
    specs = {"rtx-3090": DEVICE_SPECS["rtx-3090"]}
    card = [Device("cuda:0", 24 * 10**9, "rtx-3090")]
    short, usual, several, large = (
        GgufJobs(model, request, card, Costs(specs=specs))
        for request in (
            Request(prompt=3, generate=1, chunk=None),
            Request(prompt=2048),
            Request(batch=4, prompt=512),
            Request(prompt=4096, context=8192, chunk=4096),
        )
    )
    # Without -ub a call has 512 tokens, of a short prompt as well as of four sequences.
    assert (short.calls, usual.calls, several.calls) == ({3: 1}, {512: 4}, {128: 4})
    buffers = [jobs.buffer_bytes(4096, has_output=True) for jobs in (short, usual)]
    assert buffers[0] == buffers[1] < large.buffer_bytes(4096, has_output=True)
    # A window of 128 tokens, and a call of 512, take 768 cells of 8 heads of 64 in f16.
    windowed = usual.units[1]
    assert usual.cache_bytes(windowed, 4096) == 768 * 2 * 8 * 64 * 2
    assert several.cache_bytes(windowed, 4096) == 4 * usual.cache_bytes(windowed, 4096)
    for jobs, options in (
        (short, "-c 4096 -np 1 -dev"),
        (several, "-c 16384 -np 4 -dev"),
        (large, "-c 8192 -np 1 -ub 4096 -b 4096 -dev"),
    ):
        found = plan_gguf(jobs, "token", LIMITS)
        assert options in " ".join(found.line(found.plan))


def test_one_card_that_needs_less_room_alone_is_known(tmp_path):
    path = write_model(tmp_path, "llama", "Q8_0")
    model = gguf_model(read_gguf(path))
    specs = {"rtx-3090": DEVICE_SPECS["rtx-3090"]}
    large, small = Device("cuda:0", 216 * 10**8, "rtx-3090"), Device("cuda:1", 10**8, "rtx-3090")
    for host in (None, Host(64 * 10**9, "cpu")):
        jobs = (
            GgufJobs(model, Request(), cards, Costs(specs=specs), host)
            for cards in ([large], [large, small], [small, large])
        )
        alone, beside, behind = (plan_gguf(each, "context", LIMITS) for each in jobs)
        assert alone.context == beside.context == behind.context
        assert {found.solved.status for found in (alone, beside, behind)} == {SolveStatus.OPTIMAL}
        assert alone.uses(alone.plan)[0] in beside.uses(beside.plan)
        assert alone.uses(alone.plan)[0] in behind.uses(behind.plan)


def test_orders_that_are_refuted_late_leave_no_plan(tmp_path, monkeypatch):
    draw = random.Random(1)
    jobs = small_jobs(write_small(tmp_path / "m.gguf", draw, 4), draw, has_host=True)
    seen = set()

    def search(instance, *_, **__):
        # Each order is open once, and refuted when it is searched again.
        is_late = instance.devices in seen
        seen.add(instance.devices)
        status = SolveStatus.INFEASIBLE if is_late else SolveStatus.UNKNOWN
        return SolveResult("auto", status, None, None, None if is_late else (Fraction(0),), 0.0)

    monkeypatch.setattr("fx_bridge.serving.gguf_plan.plan_host_first", search)
    assert plan_gguf(jobs, "token", LIMITS).solved.status is SolveStatus.INFEASIBLE
