r"""Regular expressions of users, searched for in the names of weights in bounded time.

``re`` backtracks, which for ``((a+)+)+b`` takes time exponential in the length of a name. Here all
matches in all names are followed at once, as by a nondeterministic automaton (Thompson, "Regular
Expression Search Algorithm", 1968). The names are concatenated into one text. A set of its
positions is an integer with a bit for each, and an expression maps the positions behind it to those
before it: backwards, so that a lookahead is an expression too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property, reduce
from operator import or_
from re import _compiler, _parser  # type: ignore[attr-defined]
from typing import Any, Final

from solver import PartitionError

_MOST_STEPS: Final = 20_000
"""Parts that one search may visit: a hundred times those of common expressions."""
_END: Final = "\n"
"""Terminator of every name."""
_WORD: Final = re.compile(r"\w")


class WeightPattern:
    r"""An expression as of ECMAScript, without references to groups, of an option `what`.

    Examples
    --------
    >>> names = WeightNames(f"blk.{layer}.ffn_{part}.weight" for layer in (3, 34) for part in "ab")
    >>> sorted(names.with_pattern(WeightPattern(r"blk\.(3|4)\.ffn_(up|a)", "-ot")))
    ['blk.3.ffn_a.weight']
    """

    def __init__(self, text: str, what: str) -> None:
        self.text, self.what = text, what
        try:
            self.parts = _parser.parse(text)
            if self.parts.state.flags & ~re.UNICODE:
                raise re.error("it begins with flags")
            WeightNames([""]).with_pattern(self)
        except (re.error, OverflowError, RecursionError) as error:
            reason = "it is too deep" if isinstance(error, RecursionError) else str(error)
            raise PartitionError(
                f"{what} has {text[:100]!r}, which is no regular expression ({reason}); write such "
                r"as blk\.(3|4)\.ffn_(up|down|gate)_exps\.weight"
            ) from None


class WeightNames:
    """Names in ASCII, in which expressions are searched for."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._text = "".join(f"{name}{_END}" for name in self.names)
        self._backwards = self._text[::-1].encode("ascii")

    def with_pattern(self, pattern: WeightPattern) -> frozenset[str]:
        """Return the names in which an expression is found; PartitionError if it takes too long."""
        search = _Search(self, pattern)
        starts = search.before(pattern.parts, self.everywhere)
        found = f"{starts:b}"[::-1]
        names, at = set(), 0
        for name in self.names:
            end = at + len(name) + 1
            if "1" in found[at:end]:
                names.add(name)
            at = end
        return frozenset(names)

    @cached_property
    def everywhere(self) -> int:
        """Every position: before each character, and behind each name."""
        return (1 << len(self._text)) - 1

    @cached_property
    def ends(self) -> int:
        """The positions behind names."""
        return self.before_any(frozenset(_END))

    @cached_property
    def starts(self) -> int:
        """The positions before names."""
        return (self.ends << 1 | 1) & self.everywhere

    @cached_property
    def characters(self) -> frozenset[str]:
        """The characters of all names."""
        return frozenset(self._text) - {_END}

    def before_any(self, characters: frozenset[str]) -> int:
        """Return the positions before one of some characters."""
        table = bytes(48 + (chr(code) in characters) for code in range(256))
        return int(self._backwards.translate(table) or b"0", 2)


class _Search:
    """The search for one expression in all names."""

    def __init__(self, names: WeightNames, pattern: WeightPattern) -> None:
        self._names, self._pattern, self._steps = names, pattern, 0
        self._masks: dict[str, int] = {}

    def before(self, parts: Any, behind: int) -> int:
        """Return the positions from which a sequence of parts leads to one of `behind`."""
        for part in reversed(list(parts)):
            self._steps += 1
            if self._steps > _MOST_STEPS:
                raise PartitionError(
                    f"{self._pattern.what} has {self._pattern.text[:100]!r}, which can be found in "
                    "too many ways; write a shorter expression, without repeats in repeats"
                )
            behind = self._before_one(part, behind)
        return behind

    def _before_one(self, part: Any, behind: int) -> int:
        kind, value = str(part[0]), part[1]
        if kind == "BRANCH":
            return reduce(or_, (self.before(parts, behind) for parts in value[1]))
        if kind == "SUBPATTERN" and not value[1] and not value[2]:
            return self.before(value[3], behind)
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            least, most, parts = value
            return self._before_repeat(least, most, parts, behind)
        if kind in ("ASSERT", "ASSERT_NOT") and value[0] > 0:
            ahead = self.before(value[1], self._names.everywhere)
            return behind & (ahead if kind == "ASSERT" else ~ahead)
        if kind == "AT":
            return behind & self._anchor(str(value))
        if kind in ("LITERAL", "NOT_LITERAL", "ANY", "IN"):
            return behind >> 1 & self._before_character(part)
        raise self._unread(kind)

    def _before_repeat(self, least: int, most: int, parts: Any, behind: int) -> int:
        found = new = behind
        while new and most > least:  # ends: more repeats than the longest name add nothing
            new = self.before(parts, new) & ~found
            found |= new
            most -= 1
        for _ in range(least):
            before = self.before(parts, found)
            if before == found:
                break
            found = before
        return found

    def _before_character(self, part: Any) -> int:
        key = str(part)
        if key not in self._masks:
            one = _compiler.compile(_parser.SubPattern(self._pattern.parts.state, [part]))
            own = frozenset(filter(one.match, self._names.characters))
            self._masks[key] = self._names.before_any(own)
        return self._masks[key]

    def _anchor(self, kind: str) -> int:
        names = self._names
        if kind == "AT_BEGINNING":
            return names.starts
        if kind == "AT_END":
            return names.ends
        if kind in ("AT_BOUNDARY", "AT_NON_BOUNDARY"):
            words = names.before_any(frozenset(filter(_WORD.match, names.characters)))
            boundary = words ^ (words << 1 & names.everywhere)
            return boundary if kind == "AT_BOUNDARY" else names.everywhere & ~boundary
        raise self._unread(kind)

    def _unread(self, kind: str) -> PartitionError:
        part = "flags" if kind == "SUBPATTERN" else kind.replace("_", " ").lower()
        return PartitionError(
            f"{self._pattern.what} has {self._pattern.text[:100]!r}, whose {part} is not read; "
            "write it with alternatives, repeats and classes alone"
        )
