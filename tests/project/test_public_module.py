"""The one module with all public names, and what it says where a file hides a package."""

import importlib.metadata
import os
import subprocess
import sys

import pytest

import fx_bridge
import fxpartition
import solver
from tests.support.paths import ROOT

COMMAND = ("-m", "fxpartition", "devices")
NAME = ("-c", "from fxpartition import Device")
STAR = ("-c", "from fxpartition import *")


def run(words, folder, **more):
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **more},
        capture_output=True,
        text=True,
    )


def test_its_names_are_those_of_both_packages():
    assert {*fxpartition.__all__} == {*solver.__all__, *fx_bridge.__all__}
    for package in (solver, fx_bridge):
        for name in package.__all__:
            assert getattr(fxpartition, name) is getattr(package, name)
    assert {*dir(fxpartition)} >= {*fxpartition.__all__, "main", "__version__"}
    assert fxpartition.__version__ == importlib.metadata.version("fxpartition")
    with pytest.raises(AttributeError, match="'fxpartition' has no attribute 'no_such_name'"):
        _ = fxpartition.no_such_name


def test_type_checkers_are_told_of_the_same_packages():
    stub = (ROOT / "fxpartition-stubs" / "__init__.pyi").read_text()
    source = (ROOT / "fxpartition.py").read_text()
    for package in ("solver", "fx_bridge"):
        line = f"from {package} import *  # noqa: F403\n"
        assert line in stub and f"    {line}" in source
    assert "def main() -> int:" in stub and "def main() -> int:" in source


@pytest.mark.parametrize(
    ("file", "hides", "words"),
    [
        ("solver.py", "solver", COMMAND),
        ("fx_bridge/__init__.py", "fx_bridge", NAME),
        ("experiments/__init__.py", "experiments", COMMAND),
    ],
)
def test_a_file_that_hides_a_package_is_named_in_one_line(tmp_path, file, hides, words):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("x = 1\n")
    done = run(words, tmp_path)
    place = path.parent if path.name == "__init__.py" else path
    says = f"rror: {place} hides the package {hides!r} of fxpartition; rename it, or "
    assert says in done.stderr.splitlines()[-1]
    assert (done.returncode, done.stdout) == (2 if words is COMMAND else 1, "")
    if words is COMMAND:
        assert len(done.stderr.splitlines()) == 1
    # As the line says, Python without the current folder finds what is ours.
    assert run(("-P", *words), tmp_path).returncode == 0


@pytest.mark.parametrize("words", [COMMAND, STAR])
def test_what_hides_nothing_is_no_error(tmp_path, words):
    for name in ("solver", "fx_bridge", "experiments"):
        (tmp_path / name).mkdir()  # without an __init__.py, Python goes on to ours
    (tmp_path / "experiments" / "mine.py").write_text("x = 1\n")
    assert run(words, tmp_path).returncode == 0
