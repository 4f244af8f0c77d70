"""Tests of .pt2 files: what they hold, and what is wrong with those that cannot be read."""

import os
import pathlib
import zipfile

import pytest
import torch
from torch import nn

from fx_bridge.capture.graph import capture
from solver import PartitionError
from tests.support.modules import module_with
from tests.support.refusals import refused
from tests.support.split_checks import check_values


def program():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    return torch.export.export(model, (torch.ones(2, 4),), strict=False)


@pytest.mark.parametrize("kind", [str, pathlib.Path])
def test_a_file_is_captured_with_weights_values_and_inputs(tmp_path, kind):
    torch.export.save(program(), tmp_path / "model.pt2")
    captured = capture(kind(tmp_path / "model.pt2"))
    assert (captured.how, captured.note) == ("exported_program", "")
    check_values(captured)
    names = {name for name, _ in captured.module.named_parameters()}
    assert names == {"0.bias", "0.weight", "2.bias", "2.weight"}
    assert captured.module(*captured.args).shape == (2, 2)


def test_symbolic_sizes_of_a_file_keep_their_hints(tmp_path):
    options = {"dynamic_shapes": ({0: torch.export.Dim("batch")},), "strict": False}
    dynamic = torch.export.export(nn.Linear(4, 4), (torch.ones(3, 4),), **options)
    torch.export.save(dynamic, tmp_path / "model.pt2")
    captured = capture(tmp_path / "model.pt2")
    assert captured.storage_table.value_bytes["linear"] == 3 * 4 * 4
    assert captured.module(torch.ones(5, 4)).shape == (5, 4)


def write_zip(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.txt", "x")


def truncate(path):
    torch.export.save(program(), path)
    os.truncate(path, path.stat().st_size // 2)


def damage(path):
    torch.export.save(program(), path)
    data = bytearray(path.read_bytes())
    start = data.index(b'"graph_module"')
    data[start : start + 400] = b"\xff" * 400
    path.write_bytes(data)


NO_PROGRAMS = {
    "missing": (lambda path: None, "there is no file"),
    "folder": (lambda path: path.mkdir(), "is a folder"),
    "junk": (lambda path: path.write_bytes(b"hello"), "it is no exported program"),
    "empty": (lambda path: path.touch(), "it is no exported program"),
    "weights": (
        lambda path: torch.save(nn.Linear(2, 2).state_dict(), path),
        "a checkpoint holds weights without a model",
    ),
    "zip": (write_zip, "it is no exported program"),
    "truncated": (truncate, "it is no exported program"),
    "changed": (damage, "the file is damaged"),
}


@pytest.mark.parametrize("what", NO_PROGRAMS)
def test_a_file_that_is_no_program_is_one_line(tmp_path, what, capfd):
    path = tmp_path / "model.pt2"
    write, message = NO_PROGRAMS[what]
    write(path)
    with refused(message, path=path):
        capture(path)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("path", ["", "a\0b", "no/such/file.pt2"])
def test_nonsense_paths(path):
    with pytest.raises(PartitionError, match=r"there is no file|is a folder"):
        capture(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
def test_a_pipe_is_no_program(tmp_path):
    os.mkfifo(tmp_path / "model.pt2")
    for path in (tmp_path / "model.pt2", "/dev/zero"):
        with pytest.raises(PartitionError, match=r"is a (pipe|device), not a file; give the path"):
            capture(path)


def test_an_operator_that_is_not_registered_is_named(tmp_path):
    path = tmp_path / "model.pt2"
    with torch.library._scoped_library("elsewhere", "DEF") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
        model = module_with(lambda self, x: torch.ops.elsewhere.double(x))
        torch.export.save(torch.export.export(model, (torch.ones(2),)), path)
    with refused("elsewhere.double"):
        capture(path)
