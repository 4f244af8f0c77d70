"""What a study says of where it was made."""

import importlib.metadata
import platform

from experiments.processes import environment as module
from experiments.processes.environment import (
    available_memory_bytes,
    environment,
    peak_rss_bytes,
    releases,
)


def test_a_package_that_is_missing_is_said_to_be():
    assert releases("networkx", "no-such-package") == {
        "python": platform.python_version(),
        "networkx": importlib.metadata.version("networkx"),
        "no-such-package": "not installed",
    }


def test_a_study_names_python_cores_and_libraries():
    found = dict(environment())
    assert list(found)[:3] == ["python", "cpu count", "fxpartition"]
    assert int(found["cpu count"]) >= 1


def test_memory_is_in_bytes():
    held = b"x" * (64 * 2**20)
    peak_bytes = peak_rss_bytes()
    assert peak_bytes is None or len(held) < peak_bytes < 2**45


def test_available_memory_is_that_of_the_machine_and_its_limits(tmp_path, monkeypatch):
    found = available_memory_bytes()
    assert found is None or 2**20 < found < 2**50
    memory, limit = tmp_path / "meminfo", tmp_path / "limit"
    monkeypatch.setattr(module, "_MEMORY", memory)
    monkeypatch.setattr(module, "_MEMORY_LIMITS", (tmp_path / "no such file", limit))
    assert available_memory_bytes() is None
    memory.write_text("MemTotal: 9000 kB\nMemAvailable:  5000 kB\nSwapFree: 100 kB\n")
    assert available_memory_bytes() == 5100 * 1024
    for text, expected in (("max\n", 5100 * 1024), ("4096\n", 4096), (str(2**62), 5100 * 1024)):
        limit.write_text(text)
        assert available_memory_bytes() == expected
    memory.write_text("MemTotal: 9000 kB\nnothing else\n")
    assert available_memory_bytes() is None
