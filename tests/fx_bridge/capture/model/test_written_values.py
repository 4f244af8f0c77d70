"""What an object is, written down to be compared with that of another call."""

import collections
import dataclasses
import decimal
import enum
import fractions
import functools
import pickle
import types

import numpy as np
import pytest
import torch

from fx_bridge.capture.model.written_values import written_down


class Mode(enum.Enum):
    MEAN = 1
    SUM = 2


@dataclasses.dataclass
class Options:
    scale: float = 1.0
    names: list[str] = dataclasses.field(default_factory=list)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Text(str):
    pass


Pair = collections.namedtuple("Pair", "first second")


def times(factor):
    return lambda x: x * factor


SAME = (
    lambda: (1, True, 0.5, 1j, "a", b"ab", None, ...),
    lambda: float("nan"),
    lambda: np.float32("nan"),
    lambda: np.int64(2),
    lambda: np.arange(6.0).reshape(2, 3).T,
    lambda: np.array([None, "a"]),
    lambda: (range(2), slice(1, None, 2), bytearray(b"a")),
    lambda: (torch.channels_last, torch.Size([2, 3]), torch.float32, torch.device("cpu")),
    lambda: ({1, "a"}, frozenset([2]), {"a": [1], "b": {}}, collections.deque([1])),
    lambda: (decimal.Decimal("1.0"), fractions.Fraction(1, 2), np.dtype("f4")),
    lambda: (Options(), Pair(1, 2), Slotted([1]), types.SimpleNamespace(a=1), Mode.SUM),
    lambda: (functools.partial(max, 1), len, int, torch.relu, Options, times(2)),
)


@pytest.mark.parametrize("make", SAME)
def test_equal_values_are_written_alike(make):
    written = written_down(make())
    assert written == written_down(make())
    assert pickle.loads(pickle.dumps(written)) == written


@pytest.mark.parametrize(
    "one, other",
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        ("a", Text("a")),
        ({1}, {True}),
        ([1], (1,)),
        (np.int64(2), np.int32(2)),
        (np.zeros(3), np.zeros((3, 1))),
        (np.zeros((2, 3)), np.zeros((3, 2)).T),
        (Mode.MEAN, Mode.SUM),
        (Options(), Options(2.0)),
        (Slotted(1), Slotted(True)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (times(2), times(3)),
        (torch.Generator(), torch.Generator()),
    ],
)
def test_values_that_python_can_tell_apart_are_written_otherwise(one, other):
    assert written_down(one) != written_down(other)


def test_what_an_object_holds_is_written_as_it_is_now():
    options, array, tensor = Options(), np.zeros(2), types.SimpleNamespace(held=torch.zeros(2))
    written = [written_down(each) for each in (options, array, tensor)]
    assert [written_down(each) for each in (options, array, tensor)] == written
    options.names.append("a")
    array[0] = 1
    tensor.held.add_(1)
    for each, before in zip((options, array, tensor), written, strict=True):
        assert written_down(each) != before


def test_objects_that_hold_themselves_or_too_much_are_written():
    ring = types.SimpleNamespace()
    ring.itself = ring
    assert written_down(ring) == written_down(ring)
    large = list(range(20_000))
    assert written_down(large) == written_down(large) != written_down(list(large))
