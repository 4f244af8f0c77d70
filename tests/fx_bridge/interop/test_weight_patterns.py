"""Regular expressions in names of weights: as ``re`` finds them, and those with many ways."""

import random
import re

import pytest

from fx_bridge.interop.weight_patterns import WeightNames, WeightPattern
from solver import PartitionError

WORDS = ["", "a", "ab", "1a", "bca", "aab1", "a_b", "cab.a", "b1"]
LAYERS = [f"blk.{at}.ffn_{part}_exps.weight" for at in range(61) for part in ("up", "down", "gate")]


def found(text, names):
    return WeightNames(names).with_pattern(WeightPattern(text, "llama.cpp's -ot"))


def random_expression(rng, depth):
    kind = rng.random()
    if not depth or kind < 0.35:
        own = ["a", "b", "c", ".", "[ab]", "[^a]", "[a-b1]", r"\d", r"\w", r"\W", "1", "^", "$"]
        return rng.choice([*own, r"\b", ""])
    first = random_expression(rng, depth - 1)
    if kind < 0.6:
        return first + random_expression(rng, depth - 1)
    if kind < 0.75:
        return f"({first}|{random_expression(rng, depth - 1)})"
    if kind < 0.95:
        return f"(?:{first}){rng.choice(['*', '+', '?', '+?', '{2}', '{1,2}', '{0,3}', '{2,}'])}"
    return f"{rng.choice(['(?=', '(?!'])}{first})"


def test_random_expressions_are_found_where_re_finds_them():
    rng = random.Random(0)
    seen = set()
    for _ in range(3000):
        text = random_expression(rng, 4)
        expected = {word for word in WORDS if re.search(text, word)}
        assert found(text, WORDS) == expected, text
        seen.add(len(expected))
    assert seen == set(range(len(WORDS) + 1))


@pytest.mark.parametrize(
    "text",
    [
        "(([a-z0-9_.]+)+)+!",
        "(w|w)*!",
        "(.*)*!",
        ".*" * 30 + "!",
        "(.?){30}.{30}!",
        "((w{1,30}){1,30}){1,30}!",
        "(" * 40 + "w" + ")*" * 40 + "!",
        "(.|w)" * 30 + "!",
    ],
)
def test_what_has_many_ways_is_found_nowhere(text):
    assert found(text, LAYERS) == set()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(", "which is no regular expression (missing ), unterminated subpattern at position 0)"),
        ("(" * 5000 + ")" * 5000, "which is no regular expression (it is too deep)"),
        ("(?i)a", "which is no regular expression (it begins with flags)"),
        (r"(a)\1", "whose groupref is not read; write it with alternatives, repeats and classes"),
        ("|".join(["ffn_up"] * 9000 + ["x"]), "which can be found in too many ways"),
    ],
)
def test_what_is_no_expression_is_refused(text, message):
    with pytest.raises(PartitionError) as error:
        found(text, LAYERS)
    assert message in str(error.value)
    assert len(str(error.value)) < 400
