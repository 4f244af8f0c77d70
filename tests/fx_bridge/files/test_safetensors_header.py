"""Headers of safetensors files and folders of them, whole and damaged."""

import json
import random
import struct
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file

from fx_bridge.files.pretrained import read_config, read_tensors
from fx_bridge.files.safetensors_header import read_safetensors
from solver import PartitionError
from tests.support.refusals import refused
from tests.support.safetensors_files import write_safetensors

TENSORS = {"a.weight": ("BF16", (4, 6)), "b": ("U8", ()), "c": ("F32", (0, 3)), "d": ("I32", (5,))}
INDEX = "model.safetensors.index.json"


def entry(kind="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": kind, "shape": list(shape), "data_offsets": list(offsets)}


def written(path, header, data=4, length=None):
    """A file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    path.write_bytes(struct.pack("<Q", size) + text + b"\0" * data)
    return path


def told(call):
    with refused() as error:
        call()
    assert len(str(error.value)) < 400
    return str(error.value)


def test_a_header_has_what_the_library_wrote(tmp_path):
    tensors = {
        "x": torch.ones(3, 5, dtype=torch.bfloat16),
        "eight": torch.ones(7, dtype=torch.float8_e4m3fn),
        "empty": torch.ones(0, 2),
        "flag": torch.tensor(True),
        "naïve \u202e": torch.ones(2, dtype=torch.int64),
    }
    path = tmp_path / "m.safetensors"
    save_file(tensors, path, metadata={"format": "pt", "config": '{"a": {"b": "}"}}'})
    found = {tensor.name: tensor for tensor in read_safetensors(path)}
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].shape, found[name].size_bytes) == (tuple(tensor.shape), tensor.nbytes)
    assert [found[name].type for name in ("x", "eight", "flag")] == ["BF16", "F8_E4M3", "BOOL"]
    save_file({"x": torch.ones(1)}, path, metadata={"long": "x" * 10_000})
    assert len(read_safetensors(path)) == 1
    save_file({}, path)
    assert read_safetensors(path) == ()
    write_safetensors(path, TENSORS)
    assert [tensor.size_bytes for tensor in read_safetensors(path)] == [48, 1, 0, 20]


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"[]", "its header is no JSON object"),
        (b'{"a"', "its header has no tensor at byte 9"),
        (b'{"a": {"dtype": "U8"}}', "has no type, shape and offsets"),
        (b'{"a": {}} {', "has no type, shape and offsets"),
        (b'{"a": {"dtype": U8}}', "is no JSON"),
        (b'{"\xff": {"dtype": "U8"}}', "is no JSON"),
        ({"a": entry(shape=(-1,))}, "has no type, shape and offsets"),
        ({"a": entry(shape=(2.0,))}, "has no type, shape and offsets"),
        ({"a": entry(offsets=(4, 0))}, "tensor 'a', U8 [4], is at bytes [4, 0]"),
        ({"a": entry(offsets=(0, 4, 8))}, "has no type, shape and offsets"),
        ({"a": entry(kind=["U8"])}, "has no type, shape and offsets"),
        ({"a": entry(shape=(5,))}, "tensor 'a', U8 [5], is at bytes [0, 4]"),
        ({"a": entry(kind="F64", shape=(2**60, 2**60))}, "is at bytes [0, 4]"),
        ({"a": entry(offsets=(0, 2**60))}, "U8 [4], is at bytes [0, 1152921504606846976]"),
        ({"a": entry(shape=(3,), offsets=(0, 3))}, "its tensors have 3 bytes of 4"),
        ({"a": entry(), "b": entry()}, "its tensors have 8 bytes of 4"),
        (b'{"a": %s, "a": %s}' % ((json.dumps(entry()).encode(),) * 2), "two tensors are called"),
        (b'{"\\u001b[31m\\ud800": 1}', "its header has no tensor at byte 9"),
        ({"\x1b[31m\ud800\n": entry(shape=(5,))}, r"tensor '\x1b[31m\ud800\n', U8 [5]"),
        (b'{"a": {"shape": [' + b"1" * 3000 + b"]}}", "no type, shape and offsets"),
        (b'{"a": ' + b"[" * 50_000, "its header has no tensor at byte 9"),
        (b'{"a": {"b": ' + b"[" * 3000 + b"]" * 1000 + b"}}", "is no JSON"),
    ],
)
def test_a_damaged_header_is_told_in_one_line(tmp_path, header, why):
    path = written(tmp_path / "m.safetensors", header)
    message = told(lambda: read_safetensors(path))
    assert why in message and "m.safetensors" in message


def test_lengths_that_no_file_has(tmp_path):
    path = tmp_path / "m.safetensors"
    for length in (2**60, 2**64 - 1, 2**63, 10**9):
        written(path, {"a": entry()}, length=length)
        assert f"a header of {length} bytes" in told(lambda: read_safetensors(path))
    for content in (b"", b"\1\0\0"):
        path.write_bytes(content)
        assert "it is cut off or damaged" in told(lambda: read_safetensors(path))
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    assert "pointer of Git LFS" in told(lambda: read_safetensors(path))
    assert "there is no file" in told(lambda: read_safetensors(tmp_path / "other"))
    assert "is a folder" in told(lambda: read_safetensors(tmp_path))
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 10**9) + b"{")
        file.truncate(2 * 10**9)
    said = told(lambda: read_safetensors(path))
    assert "a header of 1000000000 bytes is in a file of 2000000000" in said


def test_any_change_of_a_byte_is_read_or_refused_in_one_line(tmp_path):
    path = tmp_path / "m.safetensors"
    write_safetensors(path, TENSORS, {"format": "pt"})
    whole, chance = path.read_bytes(), random.Random(0)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(chance.choice((1, 1, 4))):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data[: chance.choice((len(data), chance.randrange(len(data))))])
        try:
            found = read_safetensors(path)
        except PartitionError as error:
            assert "\n" not in str(error) and str(error).isprintable()
        else:
            assert sum(tensor.size_bytes for tensor in found) == 69


def folder_of(tmp_path, **files):
    for name, content in {"config.json": '{"model_type": "llama"}', **files}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("{", "not valid JSON"),
        ("[]", "it holds no JSON object"),
        ("{}", "it has no model_type"),
        ('{"model_type": 3}', "it has no model_type"),
        ('{"model_type": "a", "model_type": "b"}', "the key 'model_type' is given twice"),
        ("[" * 10_000, "100"),
        ('{"a": 1' + "0" * 5000 + "}", "too many digits"),
    ],
)
def test_a_damaged_configuration_is_told_in_one_line(tmp_path, config, why):
    folder = folder_of(tmp_path, **{"config.json": config})
    assert why in told(lambda: read_config(folder))


def test_a_folder_without_a_configuration_or_weights(tmp_path):
    assert "config.json" in told(lambda: read_config(tmp_path))
    folder_of(tmp_path)
    assert "it has no model.safetensors" in told(lambda: read_tensors(tmp_path))


@pytest.mark.parametrize(
    ("index", "why"),
    [
        ("[]", "it holds no JSON object"),
        ({}, "weight_map names no files"),
        ({"weight_map": []}, "weight_map names no files"),
        ({"weight_map": {"a": 1}}, "weight_map names no files"),
        ({"weight_map": {"a": "x.safetensors"}}, "there is no file 'x.safetensors' beside it"),
        ({"weight_map": {"a": "../m.safetensors"}}, "there is no file '../m.safetensors' beside"),
        ({"weight_map": {"a": "/etc/passwd"}}, "there is no file '/etc/passwd' beside it"),
        ({"weight_map": {"a": ".."}}, "there is no file '..' beside it"),
        ({"weight_map": {"a": "a\0b\x1b[1m"}}, r"there is no file 'a\x00b\x1b[1m' beside it"),
    ],
)
def test_a_damaged_index_is_told_in_one_line(tmp_path, index, why):
    (tmp_path / "f").mkdir()
    write_safetensors(tmp_path / "m.safetensors", TENSORS)
    folder = folder_of(tmp_path / "f", **{INDEX: index})
    assert why in told(lambda: read_tensors(folder))


def test_the_files_of_the_index_are_read_and_no_others(tmp_path):
    place = {"a.weight": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors"}
    folder = folder_of(tmp_path, **{INDEX: {"weight_map": place}})
    for number in (1, 2):
        own = {name: of for name, of in TENSORS.items() if place.get(name, "2")[0] == str(number)}
        write_safetensors(tmp_path / f"{number}.safetensors", own)
    write_safetensors(tmp_path / "consolidated.safetensors", TENSORS)
    assert {tensor.name for tensor in read_tensors(folder)} == {*TENSORS}
    write_safetensors(tmp_path / "2.safetensors", TENSORS)
    assert "tensor 'a.weight' is in another file too" in told(lambda: read_tensors(folder))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc has the peak of memory")
def test_damaged_files_take_no_memory(tmp_path):
    """A header of 90 MB of nonsense, and one of one endless string."""
    paths = []
    for name, start in (("zeros", b"{"), ("text", b'{"'), ("entry", b'{"a": {'), ("list", b"{[")):
        path = tmp_path / f"{name}.safetensors"
        with path.open("wb") as file:
            file.write(struct.pack("<Q", 90_000_000) + start)
            file.truncate(90_000_020)
        paths.append(str(path))
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from fx_bridge.files.safetensors_header import read_safetensors\n"
        "from solver import PartitionError\n"
        "for path in sys.argv[1:]:\n"
        "    try: read_safetensors(path)\n"
        "    except PartitionError as error: print(len(str(error)) < 400)\n"
        # Unlike ru_maxrss, that of the process without the one that made it.
        "status = Path('/proc/self/status').read_text()\n"
        "print('torch' in sys.modules, status.split('VmHWM:')[1].split()[0])\n"
    )
    command = [sys.executable, "-c", script, *paths]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    *lines, has_torch, peak_kb = said.split()
    assert lines == ["True"] * 4
    assert has_torch == "False" and int(peak_kb) < 60_000
