"""Import of the user's own code by strings such as ``package.module:name``."""

from __future__ import annotations

import difflib
import importlib
import sys
from pathlib import Path
from typing import Any

from experiments.zoo.building import first_line, others_code
from solver import PartitionError


def import_named(text: str, what: str, name: str) -> Any:
    """Import the target of an import string, from the current folder too.

    Parameters
    ----------
    what, name : str
        Words of messages for the target, such as ``"model"``, and for the part after the colon,
        such as ``"factory"``.

    Raises
    ------
    PartitionError
        If it is no import string, or has no target; the message has close matches.
    """
    module_name, _, attribute = text.partition(":")
    if not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise PartitionError(
            f"{what} {text!r} is not an import string; write package.module:{name}"
        )
    # Unlike `python -m`, a console script lacks the working directory on its path.
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        with others_code(f"module {module_name}"):
            target: Any = importlib.import_module(module_name)
    except PartitionError:
        raise
    except Exception as error:
        raise PartitionError(
            f"{what} {text!r}: cannot import {module_name}: "
            f"{type(error).__name__}: {first_line(error)}; write package.module:{name}"
        ) from error
    for part in attribute.split("."):
        try:
            target = getattr(target, part)
        except Exception:  # whatever a module's own __getattr__ raises
            names = [name for name in dir(target) if not name.startswith("_")]
            close = difflib.get_close_matches(part, names, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise PartitionError(
                f"{what} {text!r}: {module_name} has no {attribute!r}{hint}"
            ) from None
    return target
