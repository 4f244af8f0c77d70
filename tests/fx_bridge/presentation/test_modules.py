"""The words for sets of operators."""

import pytest

from fx_bridge.presentation.modules import ModuleTree
from solver import PartitionPlan


def tree(*paths):
    """A tree of one operator for each path, named by its number."""
    return ModuleTree({str(number): path for number, path in enumerate(paths)})


LAYERS = [f"m.h.{i}{part}" for i in range(12) for part in (".ln", ".attn", "")]
BLOCKS = tree("m.wte", *LAYERS, "m.ln_f", "head")


def numbers(first, last):
    return [str(number) for number in range(first, last + 1)]


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (numbers(0, 38), "the whole model"),
        (numbers(0, 18), "m.wte, h.0-5"),
        (numbers(0, 20), "m.wte, h.0-5, part of h.6 (ln, attn)"),
        (numbers(21, 37), "part of m.h.6, h.7-11, ln_f"),
        (numbers(34, 38), "m.h.11, ln_f, head"),
        (["38"], "head"),
        (["1", "2", "3", "7", "8", "9"], "m.h.0, h.2"),
        ([], ""),
    ],
)
def test_rows_of_modules_are_folded(held, words):
    assert BLOCKS.words(held) == words


@pytest.mark.parametrize(
    ("width", "words"),
    [
        (60, "m.wte, h.0-5, part of h.6 (ln, attn)"),
        (30, "m.wte, h.0-5, part of h.6"),
        (20, "m.wte and 2 more"),
        (4, "m.w…"),
    ],
)
def test_words_fit_a_width(width, words):
    assert BLOCKS.words(numbers(0, 20), width) == words
    assert len(words) <= width


def test_each_stage_of_a_plan_has_a_line(monkeypatch):
    plan = PartitionPlan(
        {name: "x" if name < "3" else "y" for name in "012345"}, ("x", "y"), {"2": 1, "5": 1}
    )
    layers = tree(*(f"layers.{number}.{part}" for number in range(3) for part in "ab"))
    words = ["layers.0", "part of layers.1 (b), part of layers.2 (a)", "part of layers.1 (a)"]
    assert list(layers.stages(plan)) == [*words, "part of layers.2 (b)"]
    monkeypatch.setenv("COLUMNS", "40")
    assert layers.stage_lines(plan) == [
        "x: layers.0",
        "y: part of layers.1-2",
        "x (chunk 1): part of layers.1 (a)",
        "y (chunk 1): part of layers.2 (b)",
    ]


def test_without_modules_operators_in_a_row_are_said_by_the_first_and_the_last():
    plain = ModuleTree({"conv": "", "relu": "", "pool": ""})
    assert plain.words(["conv"]) == "operator conv"
    assert plain.words(["conv", "relu"]) == "operators conv to relu"
    assert plain.words(["conv", "relu"], 17) == "operators conv t…"
    numbered = ModuleTree({str(number): "" for number in range(200)})
    held = ["11", *"01246789"]
    assert numbered.words(held) == "operators 0 to 2, 4, 6 to 9, 11"
    assert numbered.words(held, 30) == "operators 0 to 2, 4 and 5 more"
    every_third = numbered.words(str(number) for number in range(0, 200, 3))
    assert every_third.startswith("operators 0, 3, 6, ") and every_third.endswith(" more")
    assert len(every_third) <= 100


def test_modules_may_be_within_each_other_without_end():
    deep = tree(".".join("a" * 3000), ".".join("a" * 3000) + ".b", "c")
    assert deep.words(["2"]) == "c"
    assert deep.words(["0"]) == "part of a (part of a (part of a))"
    assert len(deep.words(["0"], 40)) <= 40
