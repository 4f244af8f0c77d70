r"""Regular expressions of users, searched for in the names of weights.

``re`` backtracks: for ``((a+)+)+b`` it takes time exponential in the length of a name. Expressions
that it could find in very many ways are refused.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from re import _parser  # type: ignore[attr-defined]
from typing import Any, Final

from solver import PartitionError

_MOST_LETTERS: Final = 2000
_MOST_WAYS: Final = 20_000
"""Three repeats, or fourteen alternatives that may begin alike: some seconds at most."""
_REPEATED: Final = 27
"""Ways of one repeat: places in a name such as ``blk.10.ffn_gate_exps.weight``."""


class WeightPattern:
    r"""An expression as of ECMAScript, without references to groups, of an option `what`.

    Examples
    --------
    >>> names = [f"blk.{layer}.ffn_{part}.weight" for layer in (3, 34) for part in "ab"]
    >>> sorted(WeightPattern(r"blk\.(3|4)\.ffn_(up|a)", "-ot").found_in(names))
    ['blk.3.ffn_a.weight']
    """

    def __init__(self, text: str, what: str) -> None:
        self.text, self._what = text, what
        self._check(len(text) <= _MOST_LETTERS)
        try:
            parts = _parser.parse(text)
            if parts.state.flags & ~re.UNICODE:
                raise re.error("it begins with flags")
            self._check(self._ways(parts) <= _MOST_WAYS)
            self._compiled = re.compile(text)
        except (re.error, OverflowError, RecursionError) as error:
            reason = "it is too deep" if isinstance(error, RecursionError) else str(error)
            raise PartitionError(
                f"{what} has {text[:100]!r}, which is no regular expression ({reason}); write such "
                r"as blk\.(3|4)\.ffn_(up|down|gate)_exps\.weight"
            ) from None

    def found_in(self, names: Iterable[str]) -> frozenset[str]:
        """Return the names in which the expression is found."""
        return frozenset(filter(self._compiled.search, names))

    def _check(self, is_simple: bool) -> None:
        if not is_simple:
            raise PartitionError(
                f"{self._what} has {self.text[:100]!r}, which can be found in too many ways; write "
                "a shorter expression, with fewer repeats and none in repeats"
            )

    def _ways(self, parts: Any) -> int:
        """Return about the most ways in which a sequence of parts can be found from one place."""
        ways = 1
        for kind, value in ((str(part[0]), part[1]) for part in parts):
            if kind == "BRANCH":
                ways *= self._alternatives(value[1])
            elif kind == "SUBPATTERN" and not value[1] and not value[2]:
                ways *= self._ways(value[3])
            elif kind in ("MAX_REPEAT", "MIN_REPEAT"):
                least, most, body = value
                once = self._ways(body)
                # A repeat in a repeat, or of alternatives, is found in exponentially many ways.
                self._check(once == 1 or most == 1)
                ways *= once if most == least else once + 1 if most == 1 else _REPEATED
            elif kind in ("ASSERT", "ASSERT_NOT") and value[0] > 0:
                ways *= self._ways(value[1])
            elif kind not in ("AT", "LITERAL", "NOT_LITERAL", "ANY", "IN"):
                part = "flags" if kind == "SUBPATTERN" else kind.replace("_", " ").lower()
                raise PartitionError(
                    f"{self._what} has {self.text[:100]!r}, whose {part} is not read; write it "
                    "with alternatives, repeats and classes alone"
                )
            self._check(ways <= _MOST_WAYS)
        return ways

    def _alternatives(self, branches: Any) -> int:
        """Return the most ways of alternatives that may begin with the same letter."""
        of_letter: Counter[int] = Counter()
        of_any = 0
        for parts in branches:
            ways = self._ways(parts)
            if len(parts) and str(parts[0][0]) == "LITERAL":
                of_letter[parts[0][1]] += ways
            else:
                of_any += ways
        return of_any + max(of_letter.values(), default=0)
