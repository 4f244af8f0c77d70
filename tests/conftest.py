"""What all tests share: the width of the terminal and Ctrl-C, whatever starts them."""

import signal

import pytest

# Shells start background jobs with SIGINT ignored, which processes inherit. Some tests send it to
# themselves, or to processes that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def without_terminal(monkeypatch):
    """Leave the width of tables open, which processes of pytest-xdist get from their parent."""
    monkeypatch.delenv("COLUMNS", raising=False)
