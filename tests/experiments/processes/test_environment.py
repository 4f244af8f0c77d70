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
    limit = tmp_path / "limit"
    monkeypatch.setattr(module, "_MEMORY_LIMITS", (tmp_path / "no such file", limit))
    for text in ("max\n", str(2**62)):
        limit.write_text(text)
        assert 2**20 < available_memory_bytes() < 2**50
    limit.write_text("4096\n")
    assert available_memory_bytes() == 4096
