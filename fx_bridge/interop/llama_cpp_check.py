"""Bytes that llama.cpp itself counts for a line, where its ``llama-fit-params`` is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from solver import PartitionError
from solver.model.text import shortened, shown

PROGRAM: Final = "llama-fit-params"
_ROW: Final = re.compile(r"^(\S+) (\d+) (\d+) (\d+) ?$", re.MULTILINE)
_STAMP: Final = re.compile(r"^[\d.]+ [A-Z] ")
_FAILED: Final = re.compile(r"error|fail|invalid", re.IGNORECASE)
_MIB: Final = 2**20
_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class EngineUse:
    """Bytes that the program counts on a device, rounded up to MiB.

    Attributes
    ----------
    device : str
        As it calls it, such as ``CUDA0``, or ``Host``.
    weight_bytes, cache_bytes, buffer_bytes : int
        Of tensors, of caches, and of intermediate results.
    """

    device: str
    weight_bytes: int
    cache_bytes: int
    buffer_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of them."""
        return self.weight_bytes + self.cache_bytes + self.buffer_bytes


def check_by_engine(
    line: Sequence[str], *, program: str = PROGRAM, seconds: float = _SECONDS
) -> tuple[EngineUse, ...]:
    """Return the bytes on each device for a line, without loading the model.

    Parameters
    ----------
    line : sequence of str
        Arguments with the model, such as ``["-m", "m.gguf", "-c", "4096", "-ngl", "all"]``.
    program : str
        Name or path of ``llama-fit-params``.
    seconds : float
        Limit of time.

    Raises
    ------
    PartitionError
        If the program is missing, fails, or takes too long.
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
    found = [
        EngineUse(name, *((int(size) + 1) * _MIB for size in sizes))
        for name, *sizes in _ROW.findall(done.stdout)
    ]
    if done.returncode or not found:
        said = [_STAMP.sub("", text) for text in done.stderr.splitlines() if text.strip()]
        cause = next((text for text in said if _FAILED.search(text)), "nothing")
        raise PartitionError(
            f"{PROGRAM} refuses the line and says {shown(cause)}; run it by hand, or leave --check "
            "out"
        )
    return tuple(found)
