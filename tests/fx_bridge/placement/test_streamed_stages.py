"""Stages that run on copies of their weights: the same values, and no more memory than slots."""

import contextlib
import copy
import gc
import itertools
import random
import subprocess
import sys
import time

import pytest
import torch
from torch import fx, nn

import tests.support.program_checks as program_checks
from fx_bridge.checkpoint.stages import save_stages
from fx_bridge.placement import links, streaming
from fx_bridge.placement.model import place, place_all
from fx_bridge.split.by_plan import split_by_plan
from fx_bridge.storages.mutations import memory_of
from solver import PartitionError
from tests.support.modules import module_with
from tests.support.paths import ROOT
from tests.support.placement_models import build, captured_and_split, split_at
from tests.support.random_modules import random_program
from tests.support.refusals import refused
from tests.support.tensor_wrappers import Int8

STAGES = tuple(f"submod_{index}" for index in range(5))
CUTS = ("linear", "linear_1", "linear_2", "linear_3")
ALONE = dict.fromkeys([f"d{index}" for index in range(5)], "cpu:0")
IN_TURN = {f"d{index}": f"cpu:{index % 2}" for index in range(5)}
SUBSETS = [s for count in range(6) for s in itertools.combinations(STAGES, count)]


class Five(nn.Module):
    """Its head is its embedding, it writes a buffer, and hands a part of a weight on."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.first, self.second, self.third = nn.Linear(16, 24), nn.Linear(24, 16), nn.Linear(16, 9)
        self.token = nn.Parameter(torch.randn(1, 1, 9))
        self.register_buffer("total", torch.zeros(16))
        self.register_buffer("scale", torch.full((9,), 1.5), persistent=False)
        self.fourth = nn.Linear(9, 16)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.first(self.embedding(tokens))
        token = self.token.expand(3, 1, 9)
        x = torch.tanh(self.second(x))
        self.total.add_(x.mean((0, 1)))
        x = self.third(x + self.total) * self.scale + token
        return self.head(self.fourth(x))


def five():
    torch.manual_seed(0)
    model, tokens = Five().requires_grad_(False), torch.randint(1, 17, (3, 4))
    return model, tokens, split_at(model, (tokens,), {}, *CUTS)


@pytest.fixture(scope="module")
def made():
    return five()


def streams_of(placed):
    found = {id(s): s for s in (getattr(placed, n).meta.get("streamed") for n in STAGES) if s}
    return {id(stage.stream): stage.stream for stage in found.values()}.values()


def outputs(model, tokens, calls=3):
    """Of several calls, each of which changes the buffer."""
    return [model(tokens + call) for call in range(-1, calls - 1)]


def same(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def fresh(model, placed):
    """A copy of the model with an empty buffer, and the placed one with an empty one."""
    model = copy.deepcopy(model)
    for owner in (model, placed):
        for name, buffer in owner.named_buffers():
            if name.endswith("total"):
                buffer.zero_()
    return model


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("mapping", [ALONE, IN_TURN], ids=["one device", "two devices"])
def test_every_subset_of_stages(made, mapping, slots):
    model, tokens, split = made
    for streamed in SUBSETS:
        placed = place(
            split, mapping, tied_weights="copy", copy=True, streamed=set(streamed), slots=slots
        )
        assert placed.meta["streamed"] == streamed
        assert same(outputs(placed, tokens), outputs(fresh(model, placed), tokens)), streamed
        assert bytes_on_devices(placed) == expected_bytes(model, mapping, streamed, slots)


def bytes_on_devices(placed):
    """Of the slots of each device, and of what stages have there besides."""
    found = {}
    for name, device in placed.devices.items():
        stage = getattr(placed, name)
        own = stage.meta.get("streamed")
        travels = {id(tensor) for _, tensor in own.own} if own else set()
        tensors = [t for t in (*stage.parameters(), *stage.buffers()) if id(t) not in travels]
        tensors += own.stream.slots.memory if own else ()
        for tensor in tensors:
            found[str(device), memory_of(tensor)] = tensor.untyped_storage().nbytes()
    held = {}
    for (device, _), size in found.items():
        held[device] = held.get(device, 0) + size
    return held


def expected_bytes(model, mapping, streamed, slots):
    """The same by hand: a slot for the largest stage, places of 256 bytes, the rest as it is."""
    tied = {"embedding"}
    reads = (tied, {"first", "token"}, {"second", "total"}, {"third", "scale"}, {"fourth", *tied})
    placed_on = [mapping[f"d{index}"] for index in range(5)]
    held = {}
    for device in dict.fromkeys(placed_on):
        mine = [index for index in range(5) if placed_on[index] == device]
        stays = {"total"} if 2 in mine else set()
        stays |= {name for i in mine if STAGES[i] not in streamed for name in reads[i]}
        loads = [reads[i] - stays for i in mine if STAGES[i] in streamed]
        sizes = [[t.nbytes for name in load for t in tensors_of(model, name)] for load in loads]
        sizes = [sum(-(-size // 256) * 256 for size in each) for each in sizes if each]
        own = sum(t.nbytes for name in stays for t in tensors_of(model, name))
        held[device] = own, min(slots, len(sizes)) * max(sizes, default=0)
    return {device: sum(size) for device, size in held.items()}


def tensors_of(model, name):
    value = getattr(model, name)
    return [value] if isinstance(value, torch.Tensor) else list(value.parameters())


def test_what_travels_is_the_models_own_memory(made):
    model, _, split = made
    placed = place(split, ALONE, streamed=set(STAGES))
    own = {memory_of(tensor) for tensor in model.state_dict().values()}
    for name, tensor in placed.model_state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])
        assert (memory_of(tensor) in own) == (name != "total")
    assert placed.state_dict().keys() == split.state_dict().keys()
    assert "call_streamed(submod_1, {}, [" in placed.code


def test_kernels_that_are_chosen_by_what_is_trained():
    """Of a weight that is trained, matmul folds batches, and autocast keeps a copy."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 12, bias=False), nn.Linear(12, 4, bias=False))
    args = (torch.randn(2, 3, 4).transpose(0, 1),)
    split = split_at(model, args, {}, "linear_1")
    placed = place(split, "cpu:0", copy=True, streamed=split.meta["stages"], slots=2)
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        parameter.data.mul_(2.0)
    for is_trained in (True, False):
        for each in (model, other, placed):
            each.requires_grad_(is_trained)
        for is_enabled in (False, True):
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=is_enabled):
                for now in (model, model, other):
                    placed.load_model_state_dict(now.state_dict())
                    assert torch.equal(placed(*args), now(*args)), (is_trained, is_enabled)


def check_streamed(program, plans=3):
    """Place a random program with some stages streamed; return how often any was."""
    case = program_checks._Case(program)
    captured = program_checks._captured(case)
    rng, count, case.gradients = random.Random(program.seed), 0, False
    for _ in range(plans):
        split = split_by_plan(captured, program_checks._random_plan(captured, rng))
        devices = split.meta["plan"].device_order
        placed = place(
            split,
            {name: f"cpu:{index % 2}" for index, name in enumerate(devices)},
            tied_weights=rng.choice(["sum", "copy"]),
            streamed=[name for name in split.meta["stages"] if rng.random() < 0.7],
            slots=rng.choice([1, 2, 3]),
        )
        with torch.no_grad():
            for call in range(2):
                case.compare(f"{placed.meta['streamed']}, call {call}", placed)
        count += any("streamed" in placed.get_submodule(n).meta for n in split.meta["stages"])
    return count


def test_random_programs():
    assert sum(check_streamed(random_program(seed)) for seed in range(3000, 3008)) >= 12


@pytest.mark.parametrize(
    "context", [torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_inference_mode_and_autocast(made, context):
    model, tokens, split = made

    def placed_now():
        return place(split, IN_TURN, copy=True, streamed=set(STAGES), tied_weights="copy")

    before = placed_now()
    with context():
        for placed in (before, placed_now()):
            assert same(outputs(placed, tokens), outputs(fresh(model, placed), tokens))
    assert same(outputs(before, tokens), outputs(fresh(model, before), tokens))


def slow_copy(copies):
    """Leave garbage in a slot for long, so that reading early shows."""
    for destination, _ in copies:
        destination.fill_(255)
    time.sleep(0.01)
    for destination, source in copies:
        destination.copy_(source)


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_a_slow_copy_changes_no_value(made, slots, monkeypatch):
    model, tokens, split = made
    monkeypatch.setattr(links, "_copy", slow_copy)
    placed = place(split, IN_TURN, copy=True, streamed=set(STAGES), slots=slots)
    assert same(outputs(placed, tokens, 4), outputs(fresh(model, placed), tokens, 4))


def test_while_a_stage_runs_the_next_ones_load(made, monkeypatch):
    _, tokens, split = made
    events = []
    load = links.ThreadLink.load

    def noted(self, slot, copies):
        events.append(f"load {sizes[sum(raw.numel() for _, raw in copies)]}")
        return load(self, slot, copies)

    sizes = {24 * 16 * 4 + 24 * 4 + 36: 1, 9 * 16 * 4 + 36 + 36: 3, 16 * 9 * 4 + 16 * 4: 4}
    monkeypatch.setattr(links.ThreadLink, "load", noted)
    streamed = {"submod_1", "submod_3", "submod_4"}
    placed = place(split, ALONE, copy=True, streamed=streamed, slots=2)
    assert events == ["load 1", "load 3"]
    for index in (1, 3, 4):
        getattr(placed, f"submod_{index}").register_forward_pre_hook(
            lambda *_, index=index: events.append(f"run {index}")
        )
    for _ in range(2):
        events.clear()
        placed(tokens)
        assert events == ["run 1", "load 4", "run 3", "load 1", "run 4", "load 3"]


def test_after_an_error_the_next_call_is_right(made):
    model, tokens, split = made
    placed = place(split, ALONE, copy=True, streamed=set(STAGES), slots=2)
    for name in STAGES:
        handle = getattr(placed, name).register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            placed(tokens)
        handle.remove()
        expected = fresh(model, placed)
        assert same(outputs(placed, tokens, 2), outputs(expected, tokens, 2))


def test_splits_share_slots_and_what_one_keeps_the_other_does_not_load(made):
    model, tokens, split = made
    other = split_at(model, (tokens,), {}, "linear_1", "linear_3")
    streamed = {"submod_1", "submod_2", "submod_3", "submod_4"}
    for slots in (1, 2):
        one, two = place_all((split, other), "cpu:0", copy=True, streamed=streamed, slots=slots)
        # The first stage of the other split has the embedding and the first layer.
        assert "streamed" not in one.submod_1.meta
        assert one.submod_3.meta["streamed"].stream is two.submod_1.meta["streamed"].stream
        expected = fresh(model, one)
        for placed in (one, two, two, one, two):
            assert torch.equal(placed(tokens), expected(tokens))


def test_threads_end_with_the_model(made):
    _, tokens, split = made
    placed = place(split, IN_TURN, streamed=set(STAGES))
    placed(tokens)
    ((thread,), (second,)) = (stream._link._thread._threads for stream in streams_of(placed))
    assert thread.is_alive() and second.is_alive()
    del placed
    gc.collect()
    for ended in (thread, second):
        ended.join(10)
        assert not ended.is_alive()


def test_the_interpreter_ends():
    script = (
        "from tests.fx_bridge.placement.test_streamed_stages import *\n"
        "links._copy = slow_copy\n"
        "model, tokens, split = five()\n"
        "placed = place(split, ALONE, streamed=set(STAGES))\n"
        "placed(tokens)\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True, timeout=300)


class _Stream:
    """A stream of CUDA as far as order goes: what is done before the next operation on it."""

    def __init__(self, device=None):
        self.before = set()

    def wait_event(self, event):
        self.before |= event.before

    def run(self, operation, *needs):
        assert self.before.issuperset(needs), (operation, needs)
        self.before.add(operation)


class _Event:
    before = frozenset()

    def record(self, stream):
        self.before = set(stream.before)


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_streams_and_events_order_loads_and_readers(made, slots, monkeypatch):
    """Every reader comes after the load that it reads, and every load after the last reader."""
    model, tokens, split = made
    main, numbers, touched = _Stream(), itertools.count(), {}
    current = [main]

    @contextlib.contextmanager
    def within(stream):
        current.append(stream)
        yield
        current.pop()

    def copied(copies):
        memory, operation = memory_of(copies[0][0]), f"load {next(numbers)}"
        current[-1].run(operation, *touched.get(memory, ()))
        touched[memory] = [operation]
        slow_copy(copies)

    def reads(stage, _):
        memory = memory_of(next(p for p in stage.parameters() if id(p) not in own))
        operation = f"run {next(numbers)}"
        main.run(operation, touched[memory][0])
        touched[memory].append(operation)

    for name, value in {"Stream": _Stream, "Event": _Event, "stream": within}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: main)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: None)
    monkeypatch.setattr(links, "_copy", copied)
    monkeypatch.setattr(streaming, "link_to", links.CudaLink)
    placed = place(split, ALONE, copy=True, streamed=set(STAGES), slots=slots)
    own = {id(p) for p in placed.parameters()}
    for name in STAGES:
        getattr(placed, name).register_forward_pre_hook(reads)
    assert same(outputs(placed, tokens), outputs(fresh(model, placed), tokens))
    assert next(numbers) == 2 * 5 * 3 + slots


def test_states_are_written_at_the_host_and_loaded_anew(made):
    model, tokens, split = made
    placed = place(split, ALONE, copy=True, streamed=set(STAGES), slots=2)
    placed(tokens)
    other = Five().requires_grad_(False)
    placed.load_model_state_dict(other.state_dict())
    assert same(outputs(placed, tokens), outputs(fresh(other, placed), tokens))
    placed.load_state_dict(split.state_dict())
    assert same(outputs(placed, tokens), outputs(fresh(model, placed), tokens))
    with torch.no_grad():
        placed.submod_1.first.weight.add_(1.0)
        expected = fresh(model, placed)
        expected.first.weight.add_(1.0)
    assert same(outputs(placed, tokens), outputs(expected, tokens))
    assert {t.device.type for t in placed.state_dict().values()} == {"cpu"}


def test_stage_files_are_read_into_host_memory(tmp_path):
    model, tokens, _ = five()
    captured, split = captured_and_split(model, (tokens,), {}, *CUTS)
    save_stages(split, captured, tmp_path)
    with torch.device("meta"):
        empty = Five().requires_grad_(False)
    empty = split_at(empty, (tokens,), {}, *CUTS)
    for mapping, streamed in itertools.product((ALONE, IN_TURN), ((), STAGES[1:3], STAGES)):
        placed = place(empty, mapping, weights=tmp_path, tied_weights="copy", streamed=streamed)
        assert same(outputs(placed, tokens), outputs(fresh(model, placed), tokens))
        if streamed == STAGES:
            assert bytes_on_devices(placed) == expected_bytes(model, mapping, streamed, 2)


def test_wrappers_are_loaded_by_their_parts():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3))).requires_grad_(False)
    for layer in model:
        layer.weight = nn.Parameter(Int8.of(layer.weight), requires_grad=False)
    args = (torch.randn(2, 6),)
    split = split_at(model, args, {}, "linear_1", "linear_2")
    placed = place(split, "cpu:0", streamed={"submod_0", "submod_2"}, slots=1)
    for _ in range(2):
        assert torch.equal(placed(*args), model(*args))
    (stream,) = {stage.meta["streamed"].stream for stage in (placed.submod_0, placed.submod_2)}
    assert [memory.numel() for memory in stream.slots.memory] == [3 * 256]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"streamed": {"submod_9"}}, "streamed names 'submod_9', but the stages are 'submod_0', "),
        (
            {"streamed": "submod_1"},
            "streamed is 'submod_1'; write a set of names of stages, such as {'submod_0'}",
        ),
        ({"streamed": {"submod_1"}, "slots": 0}, "slots is 0; write at least 1"),
        ({"streamed": {"submod_1"}, "slots": 1.5}, "slots is 1.5"),
        ({"streamed": {"submod_1"}, "devices": "meta"}, "'submod_1' is to be streamed to 'meta',"),
    ],
)
def test_what_cannot_be_streamed_is_refused(made, options, message):
    _, _, split = made
    with refused(message):
        place(split, **{"devices": "cpu:0", **options})


def test_training_conversions_copies_and_other_weights_are_refused():
    model, args, kwargs = build("chain")
    split = split_at(model, args, kwargs, 0.5)
    placed = place(split, "cpu:0", copy=True, streamed={"submod_1"})
    with pytest.raises(PartitionError, match=r"weights of stage 1 are streamed .*no_grad\(\)"):
        placed(*args)
    placed.requires_grad_(False)
    assert placed(*args).shape == model(*args).shape
    with pytest.raises(PartitionError, match="weights of stage 1 are streamed and gone when"):
        placed(args[0].clone().requires_grad_())
    with pytest.raises(PartitionError, match="convert the model, capture it and place its split"):
        placed.half()
    with pytest.raises(PartitionError, match="cannot be copied or pickled; place its split again"):
        copy.deepcopy(placed)
    placed.load_state_dict(split.state_dict(), assign=True)
    with torch.no_grad(), pytest.raises(PartitionError, match="is streamed and was replaced"):
        placed(*args)


def test_recurrent_modules_are_refused():
    def forward(self, x):
        return self.cells(self.layer(x))[0]

    traced = fx.symbolic_trace(module_with(forward, layer=nn.Linear(4, 4), cells=nn.LSTM(4, 4)))
    split = split_at(traced, (torch.ones(2, 3, 4),), {}, "cells")
    with pytest.raises(PartitionError, match="stage 'submod_1' calls a LSTM as a whole, whose"):
        place(split, "cpu:0", streamed=split.meta["stages"])
    placed = place(split, "cpu:0", streamed={"submod_0"})
    with torch.no_grad():
        assert torch.equal(placed(torch.ones(2, 3, 4)), traced(torch.ones(2, 3, 4)))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("late", ["copies", "kernels", "nothing"])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_cuda(slots, late, monkeypatch):
    """Copies that come late would be read early; kernels that run late would find what is next."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(5))).requires_grad_(False)
    args = (torch.randn(64, 1024),)
    split = split_at(model, args, {}, *(f"linear_{index}" for index in range(1, 5)))
    resident = place(split, "cuda:0", output_device="cuda:0")
    # What kernels allocate for good.
    resident(args[0])
    copied = links._copy

    def slow(copies):
        for destination, _ in copies:
            destination.fill_(255)
        torch.cuda._sleep(20_000_000)
        copied(copies)

    if late == "copies":
        monkeypatch.setattr(links, "_copy", slow)
    for streamed in (STAGES, STAGES[1:4], STAGES[::2]):
        placed = place(split, "cuda:0", output_device="cuda:0", streamed=streamed, slots=slots)
        assert all(p.is_pinned() for n in streamed for p in getattr(placed, n).parameters())
        if late == "kernels":
            for name in STAGES:
                getattr(placed, name).register_forward_pre_hook(
                    lambda *_: torch.cuda._sleep(20_000_000)
                )
        held = torch.cuda.memory_allocated()
        # Nothing waits between the calls.
        found = [placed(args[0] + call) for call in range(4)]
        expected = [resident(args[0] + call) for call in range(4)]
        assert same(found, expected)
        del found, expected
        assert torch.cuda.memory_allocated() == held
