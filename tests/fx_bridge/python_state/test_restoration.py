"""What forward leaves in Python is as before after a capture, and told by its note."""

import array
import collections
import contextvars
import dataclasses
import functools
import itertools
import os
import random
import secrets
import threading
import time
import types
import uuid
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from fx_bridge import capture
from solver import PartitionError
from tests.support.modules import module_with

X = torch.randn(4, 6)


def scaled(held, scale):
    """A layer, scaled by what `scale` makes of what the model holds."""
    parts = {"layer": nn.Linear(6, 6), "held": held, "scale": scale}
    return module_with(lambda self, x: self.layer(x) * self.scale(self.held), **parts)


def table():
    return torch.arange(6.0).cos()


class Store:
    table, calls = None, 0

    @classmethod
    def of_class(cls):
        if cls.table is None:
            cls.table = table()
        return cls.table

    @functools.lru_cache  # noqa: B019
    def memoised(self, size):
        return torch.arange(float(size)).cos()

    @property
    @functools.lru_cache  # noqa: B019
    def of_property(self):
        return table()

    @functools.cached_property
    def once(self):
        return table()


class Slots:
    __slots__ = ("table",)

    def __init__(self):
        self.table = None


@dataclasses.dataclass
class Record:
    table: object = None


TABLES, VARIABLE, LOCAL = {}, contextvars.ContextVar("VARIABLE", default=None), threading.local()
PLACE, KEPT = types.SimpleNamespace(table=None), Record()


def lazily(owner):
    if owner.table is None:
        owner.table = table()
    return owner.table


def in_dict(held):
    if "table" not in held:
        held["table"] = table()
    return held["table"]


def in_list(held):
    if not held:
        held.append(table())
    return held[0]


def in_variable(_):
    if VARIABLE.get() is None:
        VARIABLE.set(table())
    return VARIABLE.get()


def in_thread(_):
    if not hasattr(LOCAL, "table"):
        LOCAL.table = table()
    return LOCAL.table


def in_new_global(_):
    global NEW
    if "NEW" not in globals():
        NEW = table()
    return NEW


def in_default(_, tables={}):  # noqa: B006
    return in_dict(tables)


def in_function(_):
    if not hasattr(in_function, "table"):
        in_function.table = table()
    return in_function.table


def in_closure():
    kept = None

    def get(_):
        nonlocal kept
        if kept is None:
            kept = table()
        return kept

    return get


def memo():
    return functools.lru_cache(lambda size: torch.arange(float(size)).cos())


LAZY = {
    "object": (Store, lazily, "held.table"),
    "slot": (Slots, lazily, "held.table"),
    "dataclass": (Record, lazily, "held.table"),
    "tuple": (lambda: (Record(),), lambda held: lazily(held[0]), "held.table"),
    "namespace": (None, lambda _: lazily(PLACE), f"{__name__}.PLACE.table"),
    "class": (None, lambda _: Store.of_class(), "Store.table"),
    "cached property": (Store, lambda held: held.once, "held.once"),
    "memoised method": (Store, lambda held: held.memoised(6), "Store.memoised"),
    "memoised property": (Store, lambda held: held.of_property, "Store.of_property"),
    "memoised function": (memo, lambda held: held(6), "held"),
    "global dict": (None, lambda _: in_dict(TABLES), f"{__name__}.TABLES"),
    "new global": (None, in_new_global, f"{__name__}.NEW"),
    "closure": (None, in_closure(), "kept"),
    "default": (None, in_default, "in_default"),
    "function": (None, in_function, "in_function.table"),
    "user dict": (collections.UserDict, in_dict, "held.data"),
    "deque": (collections.deque, in_list, "held"),
    "weak reference": (lambda: weakref.ref(KEPT), lambda held: lazily(held()), "held.table"),
    "context variable": (None, in_variable, f"{__name__}.VARIABLE"),
    "thread": (None, in_thread, f"{__name__}.LOCAL.table"),
}


@pytest.mark.parametrize("case", LAZY)
def test_a_table_that_is_made_on_first_use_is_no_fake_afterwards(case):
    make, scale, named = LAZY[case]
    model = scaled(make and make(), scale)
    captured = capture(model, (X,))
    assert captured.how == "export"
    assert f"forward changes '{named}', which the graph does not" in captured.note
    found = captured.module(X)
    assert torch.equal(found, model.layer(X) * table())
    expected = model(X)
    assert not isinstance(expected, FakeTensor)
    assert torch.equal(found, expected)


def registers(self, x):
    if not hasattr(self, "made"):
        self.register(self)
    return self.layer(x) * self.made if torch.is_tensor(self.made) else self.made(x)


REGISTERS = {
    "buffer": lambda model: model.register_buffer("made", table()),
    "buffer by name": lambda model: setattr(model, "made", nn.Buffer(table())),
    "parameter": lambda model: setattr(model, "made", nn.Parameter(table())),
    "parameter by name": lambda model: model.register_parameter("made", nn.Parameter(table())),
    "module": lambda model: setattr(model, "made", nn.Linear(6, 6)),
    "module by name": lambda model: model.add_module("made", nn.Linear(6, 6)),
}


@pytest.mark.parametrize("kind", REGISTERS)
def test_what_forward_registers_on_first_use_is_computed_in_every_call(kind):
    """Of a buffer torch.export makes a write to an input."""
    model, x = module_with(registers, layer=nn.Linear(6, 6), register=REGISTERS[kind]), X.clone()
    captured = capture(model, (x,))
    assert "forward changes 'made', which the graph does not" in captured.note
    assert not hasattr(model, "made")
    torch.manual_seed(0)
    found = captured.module(x)
    torch.manual_seed(0)
    assert torch.equal(found, model(x))
    assert torch.equal(x, X)


def test_a_memoised_table_that_is_there_is_the_models_own():
    """Also one that is another each time it is made; what was asked is not forgotten."""
    model = scaled(functools.lru_cache(lambda size, scale=1: torch.rand(size) * scale), None)
    model.scale = lambda held: held(6, scale=3)
    expected, asked = model(X), model.held.cache_info()
    captured = capture(model, (X,))
    assert torch.equal(captured.module(X), expected)
    assert captured.note == ""
    assert model.held.cache_info() == asked
    assert torch.equal(model(X), expected)


def plus_one(held, name):
    held[name] += 1
    return float(held[name])


COUNT = 0


def global_count(_):
    global COUNT
    COUNT += 1
    return float(COUNT)


def numbers():
    n = 0.0
    while True:
        yield n
        n += 1


def attribute(owner):
    owner.calls += 1
    return float(owner.calls)


def environment(_):
    os.environ["CALLS"] = str(int(os.environ.get("CALLS", "0")) + 1)
    return float(os.environ["CALLS"])


def size_of_set(held):
    held.add(len(held))
    return float(len(held))


COUNTS = {
    "object": (Store, attribute, "held.calls"),
    "class": (None, lambda _: attribute(Store), "Store.calls"),
    "list in a tuple": (lambda: ([0],), lambda held: plus_one(held[0], 0), "held"),
    "global": (None, global_count, f"{__name__}.COUNT"),
    "counter": (collections.Counter, lambda held: plus_one(held, "n"), "held"),
    "default dict": (lambda: collections.defaultdict(int), lambda h: plus_one(h, "n"), "held"),
    "set": (set, size_of_set, "held"),
    "numpy": (lambda: np.zeros(1), lambda held: plus_one(held, 0), "held"),
    "array": (lambda: array.array("d", [0.0]), lambda held: plus_one(held, 0), "held"),
    "range": (lambda: iter(range(9)), lambda held: float(next(held)), "held"),
    "count": (itertools.count, lambda held: float(next(held)), "held"),
    "zip": (lambda: zip([1.0, 2.0], [3.0, 4.0], strict=True), lambda h: next(h)[1], "held"),
    "cycle": (lambda: itertools.cycle([1.0, 2.0]), next, "held"),
    "generator": (numbers, next, "held"),
    "environment": (None, environment, "os.environ"),
}


@pytest.mark.parametrize("case", COUNTS)
def test_what_forward_counts_is_noted_and_as_before(case):
    make, scale, named = COUNTS[case]
    model, other = (scaled(make and make(), scale) for _ in range(2))
    other.load_state_dict(model.state_dict())
    captured = capture(model, (X,))
    assert f"forward changes '{named}', which the graph does not" in captured.note
    first = model(X)
    assert torch.equal(captured.module(X), first), "the graph is of the first call"
    if make is not None:
        assert torch.equal(first, other(X))
        assert torch.equal(model(X), other(X))


DRAWS = {
    "random": (None, lambda _: random.random()),
    "numpy.random": (None, lambda _: np.random.rand()),
    "held": (lambda: random.Random(0), lambda held: held.gauss()),
    "held of numpy": (lambda: np.random.default_rng(0), lambda held: held.normal()),
    "held of old numpy": (lambda: np.random.RandomState(0), lambda held: held.randn()),
}


@pytest.mark.parametrize("case", DRAWS)
def test_what_forward_draws_outside_of_torch_is_noted_and_drawn_again(case):
    make, scale = DRAWS[case]
    model = scaled(make and make(), scale)
    captured = capture(model, (X,))
    assert captured.note == (
        f"forward draws random numbers from '{case.partition(' ')[0]}', which are in the graph as "
        "they were drawn; draw them with torch, or pass them"
    )
    assert torch.equal(captured.module(X), model(X))


READS = {
    "time.time": time.time,
    "time.perf_counter_ns": time.perf_counter_ns,
    "time.monotonic": lambda: time.monotonic(),
    "os.urandom": lambda: uuid.uuid4().int + secrets.randbits(8),
}


@pytest.mark.parametrize("name", READS)
def test_what_forward_reads_of_the_world_is_noted(name):
    captured = capture(scaled(READS[name], lambda held: float(held() % 2)), (X,))
    assert captured.note == (
        f"forward calls '{name}', whose result is in the graph as it was; pass it as an input"
    )


def test_a_generator_of_torch_is_in_the_graph():
    model = scaled(torch.Generator().manual_seed(1), lambda held: torch.rand(6, generator=held))
    captured = capture(model, (X,))
    expected = model.layer(X) * torch.rand(6, generator=torch.Generator().manual_seed(1))
    assert torch.equal(captured.module(X), expected)
    assert captured.note == ""


@pytest.mark.parametrize(
    ("make", "of"),
    [
        (lambda t: t, lambda held: held),
        (lambda t: [t], lambda held: held[0]),
        (Record, lambda held: held.table),
    ],
)
def test_a_plain_tensor_that_forward_writes_is_written_by_runs_alone(make, of):
    tensor = torch.zeros(())
    model = scaled(make(tensor), lambda held: of(held).add_(1))
    captured = capture(model, (X,))
    capture(model, (torch.cat([X, X]),))
    assert captured.note == ""
    assert (tensor.item(), tensor._version) == (0, 0)
    assert torch.equal(captured.module(X), model.layer(X))
    assert torch.equal(model(X), model.layer(X) * 2)


def test_what_a_written_tensor_decides_is_refused():
    model = scaled(torch.zeros(()), lambda held: 2.0 if held.add_(1) > 1 else 3.0)
    with pytest.raises(PartitionError, match=r"attribute 'held' decides .* forward changes it"):
        capture(model, (X,))
    assert model.held == 0


def test_switches_of_torch_are_as_before():
    def switches(_):
        torch.set_default_dtype(torch.float64)
        return 2.0

    capture(scaled(None, switches), (X,))
    assert torch.get_default_dtype() is torch.float32


class Refused(nn.Module):
    """Runs, but cannot be captured; changes all that it has."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6)
        self.other, self.seen = nn.Parameter(torch.ones(6)), []
        self.calls = types.SimpleNamespace(calls=0)
        self.steps = torch.zeros(3)

    def forward(self, x):
        self.calls.calls += 1
        self.seen.append(x)
        self.steps[self.calls.calls] = random.random()
        with torch.no_grad():
            self.layer.weight.mul_(0.5)
        y = self.norm(self.layer(x)) * self.other
        y.sum().backward(retain_graph=True)
        self.other.data.mul_(2)
        self.layer.bias.requires_grad_(False)
        return y * 2 if torch.rand(()) > y.sum() else y


def test_a_refused_capture_leaves_weights_gradients_and_random_numbers():
    model = Refused()
    model(X)
    model.layer.bias.requires_grad_(True)
    before = [(t, t.clone(), t.data_ptr(), t._version, t.grad) for t in kept(model)]
    gradients = [t.grad.clone() for t in model.parameters() if t.grad is not None]
    states = torch.get_rng_state(), random.getstate()
    with pytest.raises(PartitionError, match="the model runs on these inputs"):
        capture(model, (X,))
    after = kept(model)
    for (tensor, value, address, version, gradient), now in zip(before, after, strict=True):
        assert now is tensor and torch.equal(now, value)
        assert (now.data_ptr(), now._version, now.grad) == (address, version, gradient)
    left = [t.grad for t in model.parameters() if t.grad is not None]
    assert all(map(torch.equal, gradients, left)) and len(gradients) == 5
    assert model.layer.bias.requires_grad
    assert (model.calls.calls, len(model.seen)) == (1, 1)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


def kept(model):
    return [*model.parameters(), *model.buffers(), model.steps]
