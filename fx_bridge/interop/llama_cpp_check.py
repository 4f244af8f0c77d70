"""Bytes that llama.cpp itself counts for a line, where its ``llama-fit-params`` is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

from solver import PartitionError
from solver.model.text import shortened, shown

PROGRAM: Final = "llama-fit-params"
_ROW: Final = re.compile(r"^(\S+) (\d+) (\d+) (\d+) ?$", re.MULTILINE)
_STAMP: Final = re.compile(r"^[\d.]+ [A-Z] ")
_FAILED: Final = re.compile(r"error|fail|invalid", re.IGNORECASE)
_MIB: Final = 2**20
_SECONDS: Final = 60.0


def check_by_engine(
    line: Sequence[str], *, program: str = PROGRAM, seconds: float = _SECONDS
) -> dict[str, int]:
    """Return the bytes for a line by the program's names of devices, without loading the model.

    They are those of weights, caches and intermediate results, each rounded up to MiB. `line` has
    the arguments with the model, such as ``["-m", "m.gguf", "-c", "4096", "-ngl", "all"]``;
    `program` is the name or path of ``llama-fit-params``, which may take `seconds`.
    """
    path = shutil.which(program)
    if path is None:
        raise PartitionError(
            f"{shortened(program)} is not installed; build it with llama.cpp, or leave --check out"
        )
    try:
        done = subprocess.run(
            [path, *line, "-fitp", "on"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PartitionError(
            f"{PROGRAM} did not answer in {seconds:g} s; run it by hand, or leave --check out"
        ) from None
    except OSError as error:
        raise PartitionError(f"{shortened(path)}: {error.strerror}; leave --check out") from None
    # It leaves out what is less than a MiB.
    found = {
        name: sum(int(size) + 1 for size in sizes) * _MIB
        for name, *sizes in _ROW.findall(done.stdout)
    }
    if done.returncode or not found:
        said = [_STAMP.sub("", text) for text in done.stderr.splitlines() if text.strip()]
        cause = next((text for text in said if _FAILED.search(text)), "nothing")
        raise PartitionError(
            f"{PROGRAM} refuses the line and says {shown(cause)}; run it by hand, or leave --check "
            "out"
        )
    return found
