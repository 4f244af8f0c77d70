"""Folders whose files are replaced together, with an index that is written last."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from safetensors import SafetensorError

from solver import PartitionError
from solver.model.text import shown

STAGING: Final = ".fxpartition."
"""Prefix of the names of temporary files and folders."""


def made_folder(folder: str | os.PathLike[str]) -> tuple[Path, list[str]]:
    """Return the path of a folder, made if it is missing, and the names within it.

    Raises PartitionError if it cannot be made or read.
    """
    if not isinstance(folder, (str, os.PathLike)):
        raise PartitionError(
            f"folder is {shown(folder)}; write the name of a folder, such as 'stages'"
        )
    target = Path(folder)
    try:
        target.mkdir(parents=True, exist_ok=True)
        return target, sorted(path.name for path in target.iterdir())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PartitionError(
            f"cannot make the folder {folder}: {reason}; write another path"
        ) from None


@contextmanager
def replaced_together(target: Path, index: str, owned: re.Pattern[str]) -> Iterator[Path]:
    """Yield a temporary folder in `target`, whose files then replace those of `target`.

    The `index` of `target` and its files whose names match `owned` are removed once the new files
    are complete; the caller writes a new index afterwards. An interrupted run leaves the old files,
    or a folder without index.

    Raises PartitionError if the folder cannot be written.
    """
    try:
        staging = Path(tempfile.mkdtemp(dir=target, prefix=STAGING))
        try:
            yield staging
            (target / index).unlink(missing_ok=True)
            for path in list(target.iterdir()):
                # Folders and files of a run that was killed have a temporary name.
                is_left = path.name.startswith(STAGING) and path != staging
                if is_left and path.is_dir():
                    shutil.rmtree(path)
                elif is_left or owned.fullmatch(path.name):
                    path.unlink()
            for path in list(staging.iterdir()):
                path.replace(target / path.name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PartitionError(
            f"cannot write to the folder {target}: {reason}; free its disk or write another path"
        ) from None
