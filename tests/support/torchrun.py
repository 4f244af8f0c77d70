"""Start the command run_pipeline under torchrun, for its tests."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT


def command(*words, processes=2, options=("--standalone",)):
    """Return the words of a command line."""
    launcher = [sys.executable, "-m", "torch.distributed.run", *options]
    launcher += [f"--nproc_per_node={processes}", "-m", "experiments.run_pipeline"]
    return [*launcher, *words]


def environment(**more):
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


def run(*words, cwd, processes=2, **more):
    """Run to the end; return what subprocess.run returns."""
    return subprocess.run(
        command(*words, processes=processes),
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=240,
    )


def start(*words, cwd, **keywords):
    """Start a run, and return its process."""
    return subprocess.Popen(
        command(*words, **keywords),
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def errors(text):
    """Return the lines of the command's own that say what is wrong."""
    return [line for line in text.splitlines() if line.startswith("error:")]


def workers(launcher):
    """Return the process ids of what a launcher started, by rank."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((path / "stat").read_text().rpartition(") ")[2].split()[1])
            if parent == launcher:
                variables = (path / "environ").read_bytes().split(b"\0")
                rank = next(v for v in variables if v.startswith(b"RANK="))
                found[int(rank.removeprefix(b"RANK="))] = int(path.name)
        except (OSError, StopIteration):
            continue  # gone meanwhile, or no worker
    return found


def is_running(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
