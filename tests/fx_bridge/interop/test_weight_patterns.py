"""Regular expressions in names of weights: as ``re`` finds them, and those with many ways."""

import re

import pytest

from fx_bridge.interop.weight_patterns import WeightPattern
from solver import PartitionError
from tests.support.refusals import refused

WORDS = ["", "a", "ab", "1a", "bca", "aab1", "a_b", "cab.a", "b1"]
LAYERS = [f"blk.{at}.ffn_{part}_exps.weight" for at in range(61) for part in ("up", "down", "gate")]


def found(text, names):
    return WeightPattern(text, "llama.cpp's -ot").found_in(names)


@pytest.mark.parametrize(
    "text",
    [
        *("a", "^a", r"\bb1$", "(?:ab)?c", "a+b?1", "a{2}", "[^a]b", "(a|ab|abc)b", "^(?!a)"),
        *(r".*\d", "(?=.*b)a", "a.*b.*1"),
    ],
)
def test_expressions_are_found_where_re_finds_them(text):
    assert found(text, WORDS) == {word for word in WORDS if re.search(text, word)}


def test_usual_expressions_are_read():
    layers = "|".join(map(str, range(61)))
    for text in (rf"blk\.({layers})\.ffn_.*_exps.*", r"\.ffn_(up|down|gate)_exps\.weight$"):
        assert len(found(text, LAYERS)) == len(LAYERS)
    assert found(r"blk\.(?:[0-9]|[1-3][0-9])\.ffn_up", LAYERS) == {
        f"blk.{at}.ffn_up_exps.weight" for at in range(40)
    }


@pytest.mark.parametrize(
    "text",
    [
        "(([a-z0-9_.]+)+)+!",
        "(w|w)*!",
        "(.*)*!",
        ".*" * 30 + "!",
        "(.|b)(.|l)(.|k)" * 9 + "!",
        "(.?){30}.{30}!",
        "((w{1,30}){1,30}){1,30}!",
        "(" * 40 + "w" + ")*" * 40 + "!",
        "(.|w)" * 30 + "!",
    ],
)
def test_what_has_many_ways_is_refused(text):
    with pytest.raises(PartitionError, match="which can be found in too many ways; write a short"):
        found(text, LAYERS)


@pytest.mark.parametrize("text", [".*.*.*!", "(.|b)(.|l)(.|k)" * 4 + "!", "(.?)" * 14 + "!"])
def test_what_has_as_many_ways_as_may_be_ends(text):
    assert found(text, LAYERS) == set()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(", "which is no regular expression (missing ), unterminated subpattern at position 0)"),
        ("(" * 900 + ")" * 900, "which is no regular expression (it is too deep)"),
        ("(?i)a", "which is no regular expression (it begins with flags)"),
        (r"(a)\1", "whose groupref is not read; write it with alternatives, repeats and classes"),
        ("|".join(["ffn_up"] * 9000 + ["x"]), "which can be found in too many ways"),
    ],
)
def test_what_is_no_expression_is_refused(text, message):
    with refused(message) as error:
        found(text, LAYERS)
    assert len(str(error.value)) < 400
