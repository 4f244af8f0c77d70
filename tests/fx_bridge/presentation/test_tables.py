"""Tables and sentences in terminals of any width."""

import pytest

from fx_bridge.presentation.tables import fits, table_lines, terminal_width

HEADER = ("device", "what it is", "peak load")
ROWS = [
    ("cuda:0", "a card that is told in many words, more than a line has", "1 ms"),
    ("cuda:1", ("one", "and two"), "12.5 ms"),
]
BELOW = [["layers.0-5"], ["layers.6-11, norm, lm_head and what is below it"]]


def lines(**kwargs):
    return table_lines(HEADER, ROWS, text=["what it is"], below=BELOW, **kwargs)


def test_a_pipe_has_rows_as_wide_as_they_are():
    assert terminal_width() is None and fits(HEADER, ROWS)
    assert lines(rules=[1, 2]) == [
        "device  what it is                                               peak load",
        "-" * 74,
        "cuda:0  a card that is told in many words, more than a line has       1 ms",
        "  layers.0-5",
        "-" * 74,
        "cuda:1  one                                                        12.5 ms",
        "        and two",
        "  layers.6-11, norm, lm_head and what is below it",
        "-" * 74,
    ]


def test_where_no_row_fits_each_is_a_block(monkeypatch):
    monkeypatch.setenv("COLUMNS", "25")
    rows = [*ROWS, ("cuda:2", "", "-")]
    assert table_lines(HEADER, rows, text=["what it is"], below=BELOW)[-10:] == [
        "",
        "device      cuda:1",
        "what it is  one, and two",
        "peak load   12.5 ms",
        "  layers.6-11, norm,",
        "    lm_head and what is",
        "    below it",
        "",
        "device      cuda:2",
        "peak load   -",
    ]


@pytest.mark.parametrize("odd", ["0", "-5", "abc", ""])
def test_an_odd_number_of_columns_is_none(monkeypatch, odd):
    monkeypatch.setenv("COLUMNS", odd)
    assert terminal_width() is None
