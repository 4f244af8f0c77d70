"""What is built has all that it should: the wheel, the sdist, and an editable install."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import PurePosixPath

import pytest

from tests.support.paths import ROOT
from tests.support.sources import PACKAGES

KINDS = ("wheel", "sdist", "editable")
OF_A_CHECKOUT = ("*.egg-info", ".*", "__pycache__", "build", "dist", "packages", "report")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder built from, and what was built of each kind."""
    source, out = tmp_path_factory.mktemp("source") / "project", tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*OF_A_CHECKOUT))
    shutil.copytree(ROOT / ".ci", source / ".ci")
    script = (
        "import sys\nfrom setuptools import build_meta\n"
        "_, out, *kinds = sys.argv\n"
        "for kind in kinds:\n    getattr(build_meta, f'build_{kind}')(f'{out}/{kind}')\n"
    )
    for kind in KINDS:
        (out / kind).mkdir()
    words = [sys.executable, "-c", script, out, *KINDS]
    done = subprocess.run(words, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return source, {kind: next((out / kind).iterdir()) for kind in KINDS}


def files_below(folder, *names):
    return {
        path.relative_to(folder).as_posix()
        for name in names
        for path in (folder / name).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_the_wheel_has_every_file_of_the_packages_and_no_other(built):
    source, files = built
    with zipfile.ZipFile(files["wheel"]) as wheel:
        found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert found == {"fxpartition.py", *files_below(source, *PACKAGES, "fxpartition-stubs")}
    assert {f"{package}/py.typed" for package in PACKAGES} <= found


def test_the_wheel_has_licences_version_and_command(built):
    _, files = built
    with zipfile.ZipFile(files["wheel"]) as wheel:
        told = {name: wheel.read(name).decode() for name in wheel.namelist() if "-info/" in name}
    info = f"fxpartition-{VERSION}.dist-info"
    licences = {PurePosixPath(name).name for name in told if name.startswith(f"{info}/licenses/")}
    assert licences == {
        "LICENSE",
        "LICENSE.dnn-partitioning.txt",
        "LICENSE.pipedream.txt",
        "LICENSE.piper.txt",
    }
    assert "License-Expression: MIT\n" in told[f"{info}/METADATA"]
    assert "fxpartition = fxpartition:main\n" in told[f"{info}/entry_points.txt"]
    plugin = "[vllm.general_plugins]\nfxpartition = fxpartition:start_vllm\n"
    assert plugin in told[f"{info}/entry_points.txt"]


def test_the_sdist_has_all_that_the_tests_need(built):
    source, files = built
    with tarfile.open(files["sdist"]) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    pages = ("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md")
    assert names >= {*pages, "constraints.txt", "requirements.lock", "pyproject.toml"}
    folders = (*PACKAGES, "fxpartition-stubs", "tests", "docs", "benchmarks", ".ci")
    assert names >= files_below(source, *folders)


def test_an_editable_install_is_a_path_that_type_checkers_follow(built):
    source, files = built
    with zipfile.ZipFile(files["editable"]) as wheel:
        installed = {name: wheel.read(name) for name in wheel.namelist() if "-info/" not in name}
    assert [PurePosixPath(name).suffix for name in installed] == [".pth"]
    assert next(iter(installed.values())).decode().strip() == str(source)


def test_the_version_is_the_same_everywhere():
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()
    versions = re.findall(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text())
    assert versions[0] == VERSION
