"""What the shell is offered, by the protocol that bash, zsh and fish speak."""

import os
import subprocess
import sys

from experiments.commands.completions import SOLVER_DESCRIPTIONS, complete_devices, complete_from
from experiments.commands.problem_files import KINDS
from fx_bridge.costs.device_presets import DEVICE_SPECS
from solver import OBJECTIVES, SOLVERS


def names(complete, typed):
    return [name for name, _ in complete(typed)]


def test_names_are_completed_also_behind_commas():
    complete = complete_from(OBJECTIVES, several=True)
    assert names(complete, "") == list(OBJECTIVES)
    assert names(complete, "b") == ["bottleneck"]
    others = [f"devices,{name}" for name in OBJECTIVES if name != "devices"]
    assert names(complete, "devices,") == others
    assert names(complete, "devices,bottleneck,la") == ["devices,bottleneck,latency"]
    assert names(complete, "nothing") == []
    assert complete_from({"25GB/s,10us": "PCIe"})("25") == [("25GB/s,10us", "PCIe")]


def test_devices_are_classes_behind_a_memory():
    offered = names(complete_devices, "24GiB,2x80GiB@a100")
    assert offered == [f"24GiB,2x80GiB@{name}" for name in DEVICE_SPECS if name.startswith("a100")]
    assert offered
    assert len(complete_devices("80GB")) == len(DEVICE_SPECS)
    assert complete_devices("4x") == complete_devices("four.toml") == []


def test_what_is_offered_is_what_is_known():
    from experiments.problems.generators import GENERATORS

    assert tuple(SOLVER_DESCRIPTIONS) == tuple(SOLVERS)
    assert tuple(GENERATORS) == KINDS


def ask(shell, line):
    """What the program answers a shell that completes `line` at its end."""
    words = line.split(" ")
    asked = {"_FXPARTITION_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        asked |= {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
    else:
        asked |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    script = (
        "import sys\nfrom experiments.cli import main\n"
        "try:\n    code = main()\nexcept SystemExit as error:\n    code = error.code\n"
        "heavy = {'torch', 'ortools', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **asked}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_bash_is_answered_in_lines():
    assert ask("bash", "fxpartition pl").split() == ["plan", "planners"]
    offered = ask("bash", "fxpartition plan mlp --objective devices,b").splitlines()
    assert offered == ["devices,bottleneck"]
    # bash then offers files.
    assert ask("bash", "fxpartition split mlp --plan ").split() == []
