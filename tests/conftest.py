"""What all tests share: the width of the terminal, whatever starts them."""

import pytest


@pytest.fixture(autouse=True)
def without_terminal(monkeypatch):
    """Leave the width of tables open, which processes of pytest-xdist get from their parent."""
    monkeypatch.delenv("COLUMNS", raising=False)
