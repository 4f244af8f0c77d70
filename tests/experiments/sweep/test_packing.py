import zlib
from base64 import b64encode

import pytest

from experiments.sweep import packing
from experiments.sweep.packing import pack, unpack
from solver import PartitionError
from tests.support.refusals import refused

DATA = {"<script>": ["../../x", "a\n\x00\ud800\u2028", 1.5, None, 10**15]}


def test_data_survive_packing_and_sending():
    packed = pack(DATA)
    assert unpack(packed, "x") == DATA
    assert packed.isascii()
    assert len(pack("a" * 100_000)) < 1000


@pytest.mark.parametrize(
    "packed", ["", "nonsense", "\u20ac", pack(DATA)[:-8], b64encode(zlib.compress(b"{")), 3]
)
def test_damage_is_one_line(packed):
    with refused(starts="the problem cannot be unpacked ("):
        unpack(packed, "the problem")


def test_what_unpacks_to_more_than_memory_is_refused(monkeypatch):
    monkeypatch.setattr(packing, "_MOST_BYTES", 1000)
    assert unpack(pack("a" * 500), "x") == "a" * 500
    with pytest.raises(PartitionError, match="too long"):
        unpack(pack("a" * 2000), "x")
