"""Notebooks of the pages, run by a kernel of their own.

``python -m tests.support.notebooks`` runs all of them again and keeps what they print.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

from tests.support.paths import ROOT

NOTEBOOKS: Final = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
_LIMIT_S: Final = 120


def executed(path: Path) -> nbformat.NotebookNode:
    """Return a notebook with what its cells print now; an error of a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        # Sockets in a folder: no port that others on this machine could speak to.
        transport = {"transport": "ipc", "ip": str(Path(folder, "kernel"))}
        NotebookClient(
            notebook,
            config=Config(KernelManager=transport),
            timeout=_LIMIT_S,
            record_timing=False,
            # Where the kernel is: modules are those of this tree.
            resources={"metadata": {"path": str(ROOT)}},
        ).execute()
    for cell in notebook.cells:
        # Warnings of libraries are not part of the page.
        if "outputs" in cell:
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
    return notebook


def outputs(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the text that each cell of code printed or shows."""
    return ["".join(map(_text, cell.outputs)) for cell in notebook.cells if "outputs" in cell]


def _text(output: Any) -> str:
    return str(output.get("text") or output["data"]["text/plain"] + "\n")


if __name__ == "__main__":
    for path in NOTEBOOKS:
        nbformat.write(executed(path), path)
