"""The workloads that come with the package: names, and that all can be read."""

import gzip
import json
from pathlib import Path

import pytest

import experiments
from experiments.cli import main
from experiments.workloads.catalogue import OPTIMA_MS, published_names, workload_path
from experiments.workloads.fields import InstanceSettings
from experiments.workloads.reader import load_instance
from solver import PartitionError

# Operators and edges as the papers' repositories have them.
SIZES = {
    "layer.bert24_inference": (32, 55),
    "layer.bert24_training": (64, 110),
    "layer.gnmt_inference": (96, 122),
    "layer.gnmt_training": (192, 244),
    "layer.inceptionv3_inference": (326, 363),
    "layer.inceptionv3_training": (652, 726),
    "layer.resnet50_inference": (177, 193),
    "layer.resnet50_training": (354, 386),
    "operator.bert_l-3_inference": (235, 250),
    "operator.bert_l-3_training": (600, 817),
    "operator.bert_l-6_inference": (418, 448),
    "operator.bert_l-6_training": (1071, 1462),
    "operator.bert_l-12_inference": (783, 843),
    "operator.bert_l-12_training": (2012, 2751),
    "operator.resnet50_inference": (604, 619),
    "operator.resnet50_training": (1243, 1806),
    "densenet121": (429, 487),
    "nasnetamobile": (921, 1078),
}
# Those of Piper are in another format: test_piper.py.
NAMES = {*SIZES, "piper.bert32a100", "piper.gnmt"}


def test_the_names_are_those_that_are_known():
    assert set(published_names()) == NAMES
    # All but the two profiles of PipeDream have an optimum that their authors give.
    assert set(SIZES) - set(OPTIMA_MS) == {"densenet121", "nasnetamobile"}


@pytest.mark.parametrize("name", SIZES)
def test_a_workload_has_its_nodes_and_edges_and_makes_a_problem(name):
    data = json.loads(gzip.decompress(workload_path(f"published:{name}").read_bytes()))
    assert (len(data["nodes"]), len(data["edges"])) == SIZES[name]
    problem = load_instance(f"published:{name}", InstanceSettings(1000))
    assert len(problem.operators) >= SIZES[name][0]
    assert {str(node["id"]) for node in data["nodes"]} <= set(problem.index_of)
    assert load_instance(Path(f"published:{name}")) == load_instance(f"published:{name}")


def test_the_files_say_whose_they_are():
    folder = Path(experiments.__file__).parent / "workloads" / "published"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    licences = sorted(path.name for path in folder.glob("LICENSE*"))
    assert len(licences) == 3
    for name in licences:
        assert name in readme
        assert "Microsoft Corporation" in (folder / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("layer.gnmt_train", "did you mean layer.gnmt_training"),
        ("", "there are densenet121, layer.bert24_inference"),
        ("../published/densenet121", "did you mean densenet121?"),
    ],
)
def test_an_unknown_name_is_one_line_with_those_that_come_close(name, says, capsys):
    with pytest.raises(PartitionError, match=r"published workload .* is unknown") as caught:
        load_instance(f"published:{name}")
    assert says in str(caught.value)
    assert main(["solve", f"published:{name}"]) == 2
    assert capsys.readouterr().err == f"error: {caught.value}\n"
