"""All names of :mod:`fx_bridge` and :mod:`solver`, and the command as ``python -m fxpartition``.

Importing this module loads neither package; the first name that is asked for does.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fx_bridge import *  # noqa: F403
    from solver import *  # noqa: F403

    __version__: str
else:

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            return import_module("importlib.metadata").version("fxpartition")
        if not name.startswith("__") or name == "__all__":
            if hidden := _hidden("solver", "fx_bridge"):
                raise ImportError(hidden)
            packages = [import_module("fx_bridge"), import_module("solver")]
            if name == "__all__":
                return sorted({each for package in packages for each in package.__all__})
            for package in packages:
                if name in package.__all__:
                    globals()[name] = getattr(package, name)
                    return globals()[name]
        raise AttributeError(f"module 'fxpartition' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__getattr__("__all__"), "__version__"})


def main() -> int:
    """Run the command ``fxpartition``.

    Returns
    -------
    int
        The exit code.
    """
    if hidden := _hidden("solver", "fx_bridge", "experiments"):
        sys.stderr.write(f"error: {hidden}\n")
        return 2  # bad input, as `experiments.console.exit_codes` says where it can be read
    from experiments.cli import main as run

    return run()


def start_vllm() -> None:
    """Start vLLM with the layers of the plan that ``FXPARTITION_PLAN`` names.

    vLLM calls it in each of its processes; without the variable it does nothing.
    """
    if path := os.environ.get("FXPARTITION_PLAN"):
        import_module("fx_bridge.interop.vllm_start").apply_plan(path)


def _hidden(*packages: str) -> str | None:
    """Name the file that hides a package beside this module; None if there is none."""
    own = Path(__file__).parent.resolve()
    for name in packages:
        loaded = sys.modules.get(name)
        spec = find_spec(name) if loaded is None else loaded.__spec__
        places = (spec.submodule_search_locations or [spec.origin]) if spec else [None]
        place = next(iter(places)) or getattr(loaded, "__file__", None)
        if place is not None and Path(place).parent.resolve() != own:
            return (
                f"{place} hides the package {name!r} of fxpartition; rename it, or keep its folder "
                "out of Python's path (python -P leaves out the script's, or the current one)"
            )
    return None


if __name__ == "__main__":
    sys.exit(main())
