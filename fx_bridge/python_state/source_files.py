"""Distinguish source files of a model from those of torch, Python and this package."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Final

import torch

_TORCH: Final = str(Path(torch.__file__).parent)
_HERE: Final = str(Path(__file__).parents[1])
_STANDARD_LIBRARY: Final = sysconfig.get_path("stdlib")


def is_foreign(file: str) -> bool:
    """Return True if a source file is torch's, Python's or this package's, or no file."""
    return is_of_standard_library(file) or file.startswith(
        (_TORCH, _HERE, "<eval_with_key>", "<frozen")
    )


def is_of_standard_library(file: str) -> bool:
    """Return True if a source file belongs to Python's standard library."""
    return file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file
