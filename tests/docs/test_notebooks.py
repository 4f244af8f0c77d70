"""The notebooks of the pages run, and print what they show."""

import pytest

from tests.support.documents import difference

notebooks = pytest.importorskip("tests.support.notebooks", reason="needs the extra docs")


@pytest.mark.parametrize("path", notebooks.NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.deep
def test_a_notebook_prints_what_it_shows(path):
    shown = notebooks.outputs(notebooks.nbformat.read(path, as_version=4))
    assert any(shown), f"{path.name} was never run: python -m tests.support.notebooks"
    printed = notebooks.outputs(notebooks.executed(path))
    for cell, (old, new) in enumerate(zip(shown, printed, strict=True)):
        assert difference(old, new) is None, f"{path.name}: block {cell}: {difference(old, new)}"
