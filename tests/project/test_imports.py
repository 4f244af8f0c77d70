"""Imports run one way: experiments -> fx_bridge -> solver; OR-Tools loads only to solve."""

import ast
import json
import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT


def modules_of(package):
    """All modules of a package, by name, found on disk and without importing any."""
    names = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for file in (ROOT / package).rglob("*.py")
        if file.name != "__main__.py"
    }
    assert any(name.count(".") > 1 for name in names)
    return sorted(names)


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


def imported_by(file):
    """The modules that any import statement of a file names, wherever it stands."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # What is imported may be a module itself. A relative import stays in its package.
            module = node.module if node.module and not node.level else ""
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return names


def packages_imported_by(file):
    """The top-level packages of those modules."""
    return {name.split(".")[0] for name in imported_by(file)}


def test_import_solver_loads_neither_torch_nor_ortools():
    loaded = loaded_by("import solver")
    assert "solver" in loaded and "networkx" in loaded
    assert not loaded & {"torch", "ortools", "fx_bridge", "experiments"}


def test_all_of_solver_loads_no_torch():
    loaded = loaded_by("\n".join(f"import {name}" for name in modules_of("solver")))
    assert "ortools" in loaded  # the exact solver is among them
    assert not loaded & {"torch", "fx_bridge", "experiments"}


def test_all_of_fx_bridge_loads_no_ortools():
    loaded = loaded_by("\n".join(f"import {name}" for name in modules_of("fx_bridge")))
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


def test_constraint_programming_loads_ortools_and_no_torch():
    script = (
        "from solver import *\n"
        "problem = PartitionProblem((Operator('a', 3),), (Device('d'),))\n"
        "assert solve(problem, solver='cp-sat').objective == 3\n"
    )
    loaded = loaded_by(script)
    assert "ortools" in loaded
    assert "torch" not in loaded


@pytest.mark.parametrize(
    ("package", "forbidden"),
    [
        ("solver", {"torch", "fx_bridge", "experiments"}),
        ("fx_bridge", {"ortools", "experiments"}),
    ],
)
def test_no_statement_imports_against_the_direction(package, forbidden):
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    wrong = {
        str(file.relative_to(ROOT)): sorted(packages_imported_by(file) & forbidden)
        for file in files
        if packages_imported_by(file) & forbidden
    }
    assert wrong == {}


def test_entry_points_alone_import_commands():
    room = "experiments.commands"
    importing = {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / "experiments").rglob("*.py")
        if file.parent != ROOT / "experiments" / "commands"
        and any(name == room or name.startswith(f"{room}.") for name in imported_by(file))
    }
    assert importing == {"experiments/cli.py", "experiments/run_pipeline/command.py"}


def test_the_oracle_imports_nothing_that_it_checks():
    parts = {f"tests.support.{name}" for name in ("oracle", "step_oracle", "pipeline_simulator")}
    for part in parts:
        for name in imported_by(ROOT / f"{part.replace('.', '/')}.py"):
            is_standard = name.split(".")[0] in sys.stdlib_module_names
            assert is_standard or any(
                name.startswith(f"{other}.") or name == other for other in parts
            )
