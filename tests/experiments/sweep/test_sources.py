import json
from pathlib import Path

import pytest

from experiments.sweep.sources import ModelSource, read_model
from solver import Device, Operator, PartitionError, PartitionProblem, save_problem

GENERATOR = {"generate": "layered", "operators": 12, "width": 3, "seed": 5, "devices": 2}


@pytest.fixture
def saved(tmp_path):
    save_problem(PartitionProblem((Operator("a", 3),), (Device("x"),)), tmp_path / "p.json")
    return tmp_path


@pytest.mark.parametrize(
    "value", ["mlp", "p.json", GENERATOR, {"file": "p.json", "name": "<b>'; DROP TABLE cells"}]
)
def test_a_model_survives_its_way_to_another_machine(saved, value):
    source = read_model(value, "here", saved)
    again = ModelSource.from_json(json.loads(json.dumps(source.to_json())))
    assert again == source
    assert again.own == source.own
    assert again.identity() == source.identity()


def test_a_file_is_told_apart_by_its_content(saved):
    before = read_model("p.json", "here", saved)
    save_problem(PartitionProblem((Operator("a", 4),), (Device("x"),)), saved / "p.json")
    assert read_model("p.json", "here", saved).identity() != before.identity()


def test_a_generator_is_told_apart_by_what_it_is_asked():
    one = read_model(GENERATOR, "here", Path())
    other = read_model({**GENERATOR, "seed": 6, "name": one.name}, "here", Path())
    assert one.name == other.name == "layered operators=12 width=3 seed=5 devices=2"
    assert one.identity() != other.identity()


@pytest.mark.parametrize("text", ["os:system", "model.pt2", "os:system.json:x"])
def test_a_file_never_names_code(tmp_path, text):
    with pytest.raises(PartitionError, match="runs code, which no file may name"):
        read_model(text, "here", tmp_path)


def command_line_model(text):
    return read_model(text, f"--model {text!r}", Path(), may_run_code=True)


def test_the_command_line_may(saved, monkeypatch):
    monkeypatch.chdir(saved)
    assert command_line_model("os:system") == ModelSource("os:system", "code")
    assert command_line_model("model.pt2").is_code
    assert command_line_model("mlp").kind == "zoo"
    assert command_line_model("p.json").own.operators[0].name == "a"
    with pytest.raises(PartitionError, match="model 'mpl' is unknown; did you mean mlp"):
        command_line_model("mpl")
    with pytest.raises(PartitionError, match=r"--model 'no\.json'"):
        command_line_model("no.json")
    with pytest.raises(PartitionError, match="is not UTF-8"):
        command_line_model("caf\udce9:make")
