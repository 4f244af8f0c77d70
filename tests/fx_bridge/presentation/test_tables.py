"""Tables and sentences in terminals of any width."""

import pytest

from fx_bridge.presentation.tables import fits, names_width, table_lines, terminal_width, wrapped

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


def test_a_narrower_terminal_folds_names_of_columns_and_then_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")
    assert fits(HEADER, ROWS) and names_width() == 70
    assert lines()[:3] == [
        "device  what it is                                                  peak",
        "                                                                    load",
        "-" * 72,
    ]
    monkeypatch.setenv("COLUMNS", "40")
    assert not fits(HEADER, ROWS)
    assert lines() == [
        "device  what it is                  peak",
        "                                    load",
        "-" * 40,
        "cuda:0  a card that is told in      1 ms",
        "        many words, more than a",
        "        line has",
        "  layers.0-5",
        "cuda:1  one                      12.5 ms",
        "        and two",
        "  layers.6-11, norm, lm_head and what is",
        "    below it",
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


def test_a_rule_at_the_end_is_an_empty_line_below_blocks(monkeypatch):
    monkeypatch.setenv("COLUMNS", "25")
    assert table_lines(HEADER, ROWS, rules=[len(ROWS)])[-1] == ""


def test_a_long_name_is_broken_behind_a_separator(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    lines = table_lines(["model", "load"], [("published:gnmt_inference", "5 ms")])
    assert [line.split()[0] for line in lines[2:]] == ["published:", "gnmt_inference"]


@pytest.mark.parametrize("odd", ["0", "-5", "abc", ""])
def test_an_odd_number_of_columns_is_none(monkeypatch, odd):
    monkeypatch.setenv("COLUMNS", odd)
    assert terminal_width() is None


def test_sentences_break_between_words_alone(monkeypatch):
    sentence = "wrote /a/path/without/blanks/and/long/plan.json in time"
    assert wrapped([sentence]) == [sentence]
    monkeypatch.setenv("COLUMNS", "20")
    broken = ["wrote", "  /a/path/without/blanks/and/long/plan.json", "  in time", "", "end"]
    assert wrapped([sentence, "", "end"], "  ") == broken
