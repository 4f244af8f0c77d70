"""What a study says of where it was made."""

from experiments.processes import environment as module
from experiments.processes.environment import available_memory_bytes


def test_available_memory_is_that_of_the_machine_and_its_limits(tmp_path, monkeypatch):
    limit = tmp_path / "limit"
    monkeypatch.setattr(module, "_MEMORY_LIMITS", (tmp_path / "no such file", limit))
    for text in ("max\n", str(2**62)):
        limit.write_text(text)
        assert 2**20 < available_memory_bytes() < 2**50
    limit.write_text("4096\n")
    assert available_memory_bytes() == 4096
