"""Imports run downward: through the packages, and through the layers of rooms of each of them.

A room is a folder of a package, or a file beside its folders. OR-Tools loads only to solve.
"""

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.sources import (
    PACKAGES,
    circles,
    files,
    files_imported_by,
    imported_by,
    module_of,
    tests_of,
    tree_of,
)

LAYERS = {
    "solver": """
        model < evaluation < io < presolve < stages < dp < bounds < cp < heuristics, offload
        < search < diagnosis, serving
    """,
    "fx_bridge": """
        choices, presentation, files < storages < python_state < equivalence < capture
        < costs, checkpoint, memory, recomputation < batch, split < options
        < interop, placement, digraph < partition, serving < pipeline
    """,
    "experiments": """
        console < processes < workloads < zoo < problems < planners < comparison < pipelines
        < sweep < reports < commands < run_pipeline < cli
    """,
}
"""Rooms, lowest first. A room imports rooms that stand before a ``<`` that it stands after."""

CLOCK = "solver/model/clock.py"

HEAVY = {"torch", "ortools", "transformers"}


def levels_of(package):
    """The number of its layer, by room."""
    layers = [layer.split(",") for layer in LAYERS[package].split("<")]
    levels = {room.strip(): level for level, layer in enumerate(layers) for room in layer}
    # What a user of the package imports is above them all.
    return {**levels, "__init__": len(layers)}


def room_of(file):
    """The folder of the package, or the file of it, that a file belongs to."""
    return file.parts[1].removesuffix(".py")


def own_files(file):
    """The files of the same package that a file imports."""
    return {other for other in files_imported_by(file) if other.parts[0] == file.parts[0]}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_has_a_layer(package):
    rooms = {room_of(file) for file in files(package)}
    assert rooms == set(levels_of(package))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_room_imports_upward_or_sideways(package):
    levels = levels_of(package)
    wrong = [
        f"{file} imports {other}"
        for file in files(package)
        for other in own_files(file)
        if room_of(file) != room_of(other) and levels[room_of(file)] <= levels[room_of(other)]
    ]
    assert not wrong


def folder_of(file):
    """The folder of a file; the file itself if that is the package, or names what a room offers."""
    return file.parent if len(file.parts) > 2 and file.name != "__init__.py" else file


def test_folders_import_in_no_circle():
    arrows = {}
    for file in (file for package in PACKAGES for file in files(package)):
        folders = {folder_of(other) for other in own_files(file)} - {folder_of(file)}
        arrows.setdefault(folder_of(file), set()).update(folders)
    assert not circles(arrows)


def test_files_import_in_no_circle():
    arrows = {file: own_files(file) for package in PACKAGES for file in files(package)}
    assert not circles(arrows)


def test_no_file_stands_beside_a_folder_of_its_name():
    every = [file for package in PACKAGES for file in files(package)]
    assert not [str(file) for file in every if (ROOT / file.with_suffix("")).is_dir()]


def words_of(name):
    """The words of a name, each in the singular."""
    return {word.removesuffix("s") for word in name.split("_")}


def test_no_file_is_called_like_its_folder():
    every = {file for package in PACKAGES for file in files(package) if len(file.parts) > 2}
    found = {str(file) for file in every if words_of(file.stem) & words_of(file.parent.name)}
    assert not found


def test_the_clock_alone_reads_the_time():
    found = {str(file) for file in files("solver") if "time" in imported_by(file)}
    assert found == {CLOCK}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_source_file_has_tests(package):
    sources = [file for file in files(package) if not file.name.startswith("__")]
    assert not [str(file) for file in sources if not tests_of(file)]


def test_tests_are_found_by_name_or_by_imports():
    assert tests_of(Path("solver/model/plan.py")) == (Path("tests/solver/model/test_plan.py"),)
    found = tests_of(Path("solver/bounds/regional/region_cuts.py"))
    assert Path("tests/solver/bounds/regional/test_positions.py") in found
    assert all("bounds" in file.parts for file in found)


def test_no_test_imports_a_test():
    wrong = [
        f"{file} imports {name}"
        for file in files("tests")
        for name in imported_by(file)
        if any(part.startswith("test_") for part in name.split("."))
    ]
    assert not wrong


def test_the_graph_of_imports_is_read_right(tmp_path):
    """Tests the reader on statements of every kind, and circles on one graph that has two."""
    source = tmp_path / "source.py"
    source.write_text(
        "from typing import TYPE_CHECKING\n"
        "import solver.model.plan as plan\n"
        "from solver.model import problem\n"
        "if TYPE_CHECKING:\n    from solver import Device\n"
        "def lazy():\n    from fx_bridge.capture.graph import capture, no_such_module\n"
    )
    names = {"solver.model.plan", "solver.model.problem", "solver.Device", "typing"}
    assert names < imported_by(source)
    assert set(map(str, files_imported_by(source))) == {
        "solver/model/plan.py",
        "solver/model/problem.py",
        "solver/__init__.py",
        "fx_bridge/capture/graph.py",
    }
    arrows = {1: {2}, 2: {3}, 3: {1, 4}, 4: {5}, 5: {4}, 6: {6}}
    assert sorted(circles(arrows)) == [[1, 2, 3], [4, 5]]


# -- packages -----------------------------------------------------------------------------------


def modules_of(package):
    """All modules of a package, by name, found on disk and without importing any."""
    names = [module_of(file) for file in files(package) if file.name != "__main__.py"]
    assert any(name.count(".") > 1 for name in names)
    return names


def loaded_by(script):
    """The top-level packages in sys.modules after `script` ran in a process of its own."""
    report = "import json, sys; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    finished = subprocess.run(
        [sys.executable, "-c", f"{script}\n{report}"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    return set(json.loads(finished.stdout.splitlines()[-1]))


def offering():
    """The ``__init__`` of every package that offers names of its modules."""
    every = [file for package in PACKAGES for file in files(package) if file.name == "__init__.py"]
    return [file for file in every if "solver.model.lazy_package" in imported_by(file)]


@pytest.mark.parametrize("file", offering(), ids=str)
def test_what_a_package_offers_is_what_it_says_to_type_checkers(file):
    package = importlib.import_module(module_of(file))
    (block,) = (node for node in tree_of(file).body if isinstance(node, ast.If))
    told = {alias.name: line.module for line in block.body for alias in line.names}
    assert told == package.module_of
    assert sorted(package.__all__) == sorted(told)
    for name in told:
        assert getattr(package, name) is getattr(importlib.import_module(told[name]), name)
        assert name in dir(package)
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = package.no_such_name


def test_importing_a_package_loads_nothing_heavy():
    assert not loaded_by("import fxpartition") & {*HEAVY, *PACKAGES}
    loaded = loaded_by(
        "import fx_bridge.serving, fx_bridge.interop\nfrom fxpartition import Device"
    )
    assert {"solver", "fx_bridge"} <= loaded
    assert not loaded & {*HEAVY, "networkx", "numpy", "experiments"}


def test_options_are_read_without_torch():
    script = (
        "from fx_bridge import DEVICE_SPECS, Costs, Placement, Training\n"
        "from fx_bridge.serving import Request\n"
        "Training('sgd', tied_weights='sum', recompute=['h.*'])\n"
        "Placement({'a': 1}, ['b'], ['c'])\n"
        "Costs(attention='flash', specs=DEVICE_SPECS)\nRequest(1, 2, 1, 1)\n"
    )
    assert not loaded_by(script) & {*HEAVY, "experiments"}


def test_all_of_fx_bridge_loads_no_ortools_and_takes_the_place_of_no_function():
    """Tests that a function is still there once a room that is called like it is loaded."""
    script = (
        "import fx_bridge.capture.modules\nimport fx_bridge, types\n"
        "from fx_bridge import capture\nassert isinstance(capture, types.FunctionType)\n"
        "import fx_bridge.capture.digest\nassert fx_bridge.capture is capture\n"
    )
    loaded = loaded_by(script + "\n".join(f"import {name}" for name in modules_of("fx_bridge")))
    assert "torch" in loaded
    assert not loaded & {"ortools", "experiments"}


def test_what_needs_no_ortools_loads_none():
    script = (
        "from solver import *\n"
        "problem = PartitionProblem((Operator('a', 3),), (Device('d'),))\n"
        "for name in ('greedy', 'chain', 'ideal-dp', 'auto'):\n"
        "    assert solve(problem, solver=name).objective == 3\n"
    )
    assert "ortools" not in loaded_by(script)


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("solver", {"torch", "fx_bridge", "experiments", "fxpartition", "tests"}),
        ("fx_bridge", {"ortools", "experiments", "fxpartition", "tests"}),
        ("experiments", {"fxpartition", "tests"}),
    ],
)
def test_no_statement_imports_against_the_direction(package, forbidden):
    wrong = [
        f"{file} imports {name}"
        for file in files(package)
        for name in imported_by(file)
        if name.split(".")[0] in forbidden
    ]
    assert not wrong


def test_the_oracle_imports_nothing_that_it_checks():
    names = ("oracle", "recompute_oracle", "step_oracle", "pipeline_simulator", "offload_oracle")
    parts = {f"tests.support.{name}" for name in names}
    for part in parts:
        for name in imported_by(Path(*part.split(".")).with_suffix(".py")):
            is_own = any(f"{name}.".startswith(f"{other}.") for other in parts)
            assert is_own or name.split(".")[0] in sys.stdlib_module_names
