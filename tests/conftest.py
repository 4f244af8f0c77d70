"""What all tests share: a plan of a small model, the width of the terminal, threads and Ctrl-C."""

import gc
import os
import signal
from pathlib import Path

import pytest

# A failed assertion there says what its values were, as one in a test does.
pytest.register_assert_rewrite("tests.support.recomputed_stages")

from tests.support.paths import ROOT  # noqa: E402
from tests.support.sources import tests_of  # noqa: E402

# Shells start background jobs with SIGINT ignored, which processes inherit. Some tests send it to
# themselves, or to processes that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Files run side by side, so more threads for each would only wait for each other. torch reads this
# when it is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Without it cuBLAS refuses to compute the same twice; read when its first kernel runs.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def pytest_addoption(parser):
    """Let the command line ask for what compares with oracles at length."""
    parser.addoption("--deep", action="store_true", help="run tests that are marked deep too")
    parser.addoption("--source", metavar="FILE", help="run the tests of this source file alone")


def pytest_configure(config):
    """Take the tests of a source file in the place of paths."""
    source = config.getoption("--source")
    if source is not None and not hasattr(config, "workerinput"):
        found = tests_of(Path(os.path.relpath(source, ROOT)))
        if not found:
            raise pytest.UsageError(f"--source {source} is no source file that tests import")
        config.args[:] = [str(ROOT / file) for file in found]


def pytest_collection_modifyitems(config, items):
    """Skip what is marked deep unless it is asked for."""
    if not config.getoption("--deep"):
        for item in items:
            if item.get_closest_marker("deep"):
                item.add_marker(pytest.mark.skip(reason="deep: --deep runs it"))


def pytest_collection_finish():
    """Tell the garbage collector that what is imported by now stays."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def without_terminal(monkeypatch):
    """Leave the width of tables open, which processes of pytest-xdist get from their parent."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """The folder of a plan, and of a problem of the five-layer model."""
    from experiments.cli import main

    path = tmp_path_factory.mktemp("all")
    for command, name in (("plan", "plan.json"), ("export", "problem.json")):
        assert main([command, "mlp", "--devices", "2x400KiB", "--out", str(path / name)]) == 0
    return path


@pytest.fixture
def inside(planned, monkeypatch):
    """The current folder, which has a plan and a problem."""
    monkeypatch.chdir(planned)
    return planned
