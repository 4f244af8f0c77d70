"""Tests that every reader of JSON refuses what has two meanings, or would fail later."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import pytest

from experiments.problems.devices import parse_devices
from experiments.problems.plan_files import read_foreign_plan
from experiments.problems.profile import Profile
from experiments.reports.formats.study_json import read_study
from experiments.sweep.packing import unpack
from experiments.sweep.settings import read_sweep
from experiments.workloads.reader import load_instance
from fx_bridge.checkpoint.manifest import load_manifest
from solver import PartitionError, load_plan, load_problem
from solver.io.json_fields import Name, Positive, check_schema, parse_json, read_as


def refused(text):
    with pytest.raises(PartitionError) as caught:
        parse_json(text, "plan.json")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 1}',
        '{"graph": {"nodes": [{}, {"a": 0, "b": 0, "a": 0}]}}',
        '[[0, {"a": 1, "\\u0061": 2}]]',
    ],
)
def test_a_key_that_an_object_has_twice_is_named(text):
    assert refused(text) == "plan.json: the key 'a' is given twice; write it once"


def test_a_key_may_be_in_several_objects():
    assert parse_json('[{"a": {"a": 1}}, {"a": 2}]', "x") == [{"a": {"a": 1}}, {"a": 2}]


@pytest.mark.parametrize(("start", "end"), [("[", "]"), ('{"a":', "}")])
@pytest.mark.parametrize("levels", [101, 700, 100_000])
def test_what_is_nested_too_deeply_is_one_line(start, end, levels):
    assert "nested too deeply" in refused(start * levels + "1" + end * levels)


def test_what_is_nested_a_hundred_times_is_read():
    assert parse_json("[" * 100 + "]" * 100, "x")


def test_a_number_of_thousands_of_digits_is_one_line():
    assert "too many digits" in refused("9" * 5000)


def _score(path):
    read_foreign_plan(str(path), None, None)


def _sweep(path):
    settings = path.with_name("sweep.toml")
    settings.write_text(f'models = ["mlp"]\ndevices = ["{path.name}"]\n')
    read_sweep(settings)


READERS = {
    "problem.json": load_problem,
    "plan.json": load_plan,
    "map.json": _score,
    "instance.json": load_instance,
    "profile.json": Profile.load,
    "results.json": read_study,
    "devices.json": lambda path: parse_devices(str(path)),
    "chosen.json": _sweep,
    "manifest.json": lambda path: load_manifest(path.parent),
}


@pytest.mark.parametrize("name", READERS)
def test_every_reader_of_a_file_refuses_a_key_that_is_given_twice(tmp_path, name):
    path = tmp_path / name
    path.write_text('{"schema": {"key": 1, "key": 2}}', encoding="utf-8")
    with pytest.raises(PartitionError, match="the key 'key' is given twice") as caught:
        READERS[name](path)
    assert str(path) in str(caught.value)


def test_what_a_sweep_keeps_is_refused_too():
    import zlib
    from base64 import b64encode

    with pytest.raises(PartitionError, match=r"an answer.*the key 'a' is given twice"):
        unpack(b64encode(zlib.compress(b'{"a": 1, "a": 2}')), "an answer")


@pytest.mark.parametrize("version", [True, 1.0, "1", None, 2])
def test_another_version_is_refused_even_if_it_is_equal(version):
    with pytest.raises(PartitionError, match=r"version is .*; this release reads 1"):
        check_schema({"schema": "s", "version": version}, "", "s", 1)


class Place(NamedTuple):
    row: int
    column: int = 0


@dataclass(frozen=True)
class Entry:
    name: Name
    class_: Literal["fast", "slow"] = "fast"
    share: float | None = None
    places: Mapping[str, Place] | None = None
    pair: tuple[str, int] = ("", 0)
    workers: Positive = 1
    anything: Any = None

    def __post_init__(self):
        if self.share == 7:
            raise PartitionError("share is 7; write less")


def test_a_dataclass_is_read_with_the_defaults_of_what_is_left_out():
    data = {
        "name": "a",
        "class": "slow",
        "share": 1,
        "places": {"x": {"row": 3}},
        "pair": ["y", 2],
        "anything": [{"z": -1}],
    }
    entry = Entry("a", "slow", 1, {"x": Place(3)}, ("y", 2), 1, [{"z": -1}])
    assert read_as(Entry, data, "") == entry
    assert read_as(tuple[Entry, ...], [{"name": "b"}], "x") == (Entry("b"),)
    assert read_as(Entry, {"name": 3}, "", {Name: lambda value, _: str(value)}) == Entry("3")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"nane": "a"}, "x: 'nane' is unknown; did you mean name?"),
        ({"q": "a"}, "x: 'q' is unknown; the fields are name, class, share"),
        ({"name": ""}, "x: name is ''; write a non-empty string"),
        ({"class": "quick"}, "x: class is 'quick'; write one of fast, slow"),
        ({"share": True}, "x: share is True; write a number"),
        ({"share": float("nan")}, "x: share is nan; write a number"),
        ({"share": 10**400}, "write a number"),
        ({"share": -1}, "x: share is -1; write a number that is not negative"),
        ({"share": 7}, "x: share is 7; write less"),
        ({"places": []}, "x: places is not an object"),
        ({"places": {"y": {}}}, "x: places['y']: row is missing"),
        ({"places": {"y": {"row": 1.0}}}, "x: places['y']: row is 1.0; write a whole number"),
        ({"places": {"y": {"row": False}}}, "x: places['y']: row is False"),
        ({"pair": "ab"}, "x: pair is not a list; write one in brackets"),
        ({"pair": ["a"]}, "x: pair has 1 entries; write 2"),
        ({"pair": [1, 2]}, "x: pair[0] is 1; write a text"),
        ({"workers": 0}, "x: workers is 0; write at least 1"),
    ],
)
def test_a_wrong_field_is_named_with_its_place(change, says):
    with pytest.raises(PartitionError, match=re.escape(says)) as caught:
        read_as(Entry, {"name": "a", **change}, "x")
    assert "\n" not in str(caught.value)
