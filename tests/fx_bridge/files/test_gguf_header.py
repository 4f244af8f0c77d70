"""Headers of GGUF files, whole, in parts, and damaged."""

import os
import random
import struct
import subprocess
import sys
import tracemalloc

import pytest

from fx_bridge.files.gguf_header import read_gguf
from fx_bridge.files.mapped import StoredTensor
from fx_bridge.files.stored_types import GGML_NUMBERS
from solver import PartitionError
from tests.support.gguf_files import TYPES, text, value, write_gguf
from tests.support.refusals import refused

METADATA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.rope.freq_base": 0.5,
    "llama.attention.head_count_kv": [8, 4],
    "tokenizer.ggml.tokens": ["a", "bc", "🏖"],
    "tokenizer.ggml.add_bos_token": True,
}
TENSORS = [
    ("token_embd.weight", "Q6_K", (512, 100)),
    ("blk.0.ffn_down.weight", "Q4_K", (256, 6)),
    ("blk.1.ffn_gate_exps.weight", "MXFP4", (64, 5, 4)),
    ("output_norm.weight", "F32", (512,)),
]


def test_metadata_and_sizes_are_those_of_the_file(tmp_path):
    found = read_gguf(write_gguf(tmp_path / "m.gguf", METADATA, TENSORS))
    kept = {"llama.attention.head_count_kv": (8, 4), "tokenizer.ggml.tokens": 3}
    assert found.metadata == METADATA | kept
    assert found.tensors == (
        StoredTensor("token_embd.weight", "Q6_K", (512, 100), 2 * 210 * 100),
        StoredTensor("blk.0.ffn_down.weight", "Q4_K", (256, 6), 144 * 6),
        StoredTensor("blk.1.ffn_gate_exps.weight", "MXFP4", (64, 5, 4), 2 * 17 * 20),
        StoredTensor("output_norm.weight", "F32", (512,), 2048),
    )


def test_torch_is_not_imported(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", METADATA, TENSORS)
    code = (
        "import sys; from fx_bridge.files.gguf_header import read_gguf; "
        f"read_gguf({str(path)!r}); print('torch' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"


def test_types_of_the_test_files_are_those_of_ggml():
    numbers = {name: (number, *sizes) for number, (name, *sizes) in GGML_NUMBERS.items()}
    assert TYPES.items() <= numbers.items()


def test_parts_with_names_of_others_are_refused(tmp_path):
    for number, name in ((1, "m-00001"), (0, "m-00002")):
        keys = {"split.count": 2, "split.no": number}
        write_gguf(tmp_path / f"{name}-of-00002.gguf", METADATA | keys, TENSORS[:2])
    with pytest.raises(PartitionError, match=r"called part 1 and holds another one, split.no = 1;"):
        read_gguf(tmp_path / "m-00001-of-00002.gguf")
    for name, count in (("m-00000-of-00000.gguf", 2), ("m.gguf", "two")):
        path = write_gguf(tmp_path / name, METADATA | {"split.count": count}, TENSORS[:2])
        with pytest.raises(PartitionError, match=f"a part of {count!r} files without a name"):
            read_gguf(path)


def test_parts_are_read_together(tmp_path):
    count = {"split.count": 2}
    first = write_gguf(tmp_path / "m-00001-of-00002.gguf", METADATA | count, TENSORS[:2])
    with pytest.raises(PartitionError, match=r"part 2 of 2 is missing; put 'm-00002-of-00002"):
        read_gguf(first)
    second = write_gguf(tmp_path / "m-00002-of-00002.gguf", count, TENSORS[2:])
    for path in (first, second):
        assert [tensor.name for tensor in read_gguf(path).tensors] == [name for name, *_ in TENSORS]
    with pytest.raises(PartitionError, match="it is a part of 2 files"):
        read_gguf(first.rename(tmp_path / "m.gguf"))


def raw(tmp_path, data):
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    return path


def head(tensors=0, pairs=0, version=3, magic=b"GGUF"):
    return struct.pack("<4sIQQ", magic, version, tensors, pairs)


def tensor(name="t", shape=(32,), kind=8, dimensions=None):
    dimensions = len(shape) if dimensions is None else dimensions
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", dimensions) + sizes + struct.pack("<IQ", kind, 0)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "the file is empty"),
        (b"GG", "it ends within 'its magic'"),
        (head(magic=b"PK\3\4"), "it does not begin with GGUF"),
        (head(version=1), "it has version 1 of GGUF"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "it is big-endian"),
        (head(2**60), f"it ends within '{2**60} tensors'"),
        (head(0, 2**60), f"it ends within '{2**60} keys'"),
        (head(0, 1) + struct.pack("<Q", 2**63) + bytes(9), "it ends within 'a key'"),
        (head(0, 1) + text("k") + struct.pack("<I", 77) + bytes(8), "a value of type 77"),
        (head(0, 1) + text("k") + struct.pack("<IIQ", 9, 9, 1), "an array in an array"),
        (head(0, 1) + text("k") + struct.pack("<IIQ", 9, 12, 2**61), "it ends within 'k'"),
        (head(0, 1) + text("k") + struct.pack("<IIQ", 9, 8, 2**61), "texts of key 'k'"),
        (head(0, 1) + text("general.alignment") + value(0), "general.alignment is 0"),
        (head(1) + tensor(dimensions=9) + bytes(99), "has 9 dimensions"),
        (head(1) + tensor(kind=31) + bytes(99), "has type 31, which is unknown"),
        (head(1) + tensor(shape=(31,)) + bytes(99), "has shape 31, whose first size"),
        (head(1) + tensor(shape=(32, 0)) + bytes(99), "has shape 32x0"),
        (head(1) + tensor(shape=(2**40, 2**40)) + bytes(99), "it is cut off"),
        (head(2) + 2 * tensor() + bytes(99), "two tensors are called 't'"),
        (head(1) + tensor("\x1b[31m\n") + bytes(9), r"tensor '\x1b[31m\n' ends at byte"),
    ],
)  # fmt: skip
def test_damaged_files_are_refused_in_one_line(tmp_path, data, says):
    with refused(says):
        read_gguf(raw(tmp_path, data))


def test_a_folder_and_a_missing_file_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.gguf"):
        with pytest.raises(PartitionError, match=r"give a \.gguf file"):
            read_gguf(path)


@pytest.mark.parametrize("seed", range(200))
def test_random_damage_is_refused_or_harmless_and_takes_no_memory(tmp_path, seed):
    random_ = random.Random(seed)
    data = bytearray(write_gguf(tmp_path / "m.gguf", METADATA, TENSORS[1:]).read_bytes())
    if seed % 4 == 0:
        del data[random_.randrange(len(data)) :]
    for _ in range(seed % 4):
        place = random_.randrange(600)
        data[place : place + 8] = random_.choice([b"\xff" * 8, random_.randbytes(8), bytes(8)])
    path = raw(tmp_path, bytes(data))
    tracemalloc.start()
    try:
        read_gguf(path)
    except PartitionError as error:
        assert "\n" not in str(error)
    finally:
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak_bytes < 10**6


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX only")
def test_a_pointer_and_a_pipe_are_no_files_of_models(tmp_path):
    pointer = raw(tmp_path, b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(PartitionError, match="it is a pointer of Git LFS"):
        read_gguf(pointer)
    pipe = tmp_path / "pipe.gguf"
    os.mkfifo(pipe)
    with pytest.raises(PartitionError, match="is a pipe, not a file"):
        read_gguf(pipe)
