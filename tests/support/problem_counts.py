"""How many random problems a comparison looks at: few by default, more with --deep and nightly."""

from collections.abc import Collection, Iterable

import pytest

QUICK = 4
"""The default run looks at the first of this many problems that `--deep` looks at."""

LEAST = 4
"""It looks at no fewer problems than this where there are as many."""


def counts(deep: int, most: int, *, quick: int | None = None) -> pytest.MarkDecorator:
    """Call a test with `count`, the number of its problems: more with `--deep`, most nightly.

    `quick` is that of the default run where fewer show too little of what a test counts.
    """
    if quick is None:
        quick = max(min(deep, LEAST), -(-deep // QUICK))
    more = [pytest.param(deep, marks=pytest.mark.deep)] if quick < deep else []
    most_of_all = pytest.param(most, marks=pytest.mark.nightly)
    return pytest.mark.parametrize("count", [quick, *more, most_of_all])


def samples(names: Iterable[object], quick: Collection[object]) -> list[object]:
    """Return all names as parameters; those that are not in `quick` are for `--deep`."""
    return [name if name in quick else pytest.param(name, marks=pytest.mark.deep) for name in names]


def some(deep: int, *, of: int) -> list[object]:
    """Return the numbers below `of` as parameters, each of which is a problem or a block of them.

    The default run takes the first alone, `--deep` those below `deep` too.
    """
    first = -(-deep // QUICK)
    return [
        *range(first),
        *(pytest.param(number, marks=pytest.mark.deep) for number in range(first, deep)),
        *nightly(range(deep, of)),
    ]


def nightly(numbers: Iterable[object]) -> list[object]:
    """Return parameters for the nightly run alone, several where an entry is a tuple."""
    mark = pytest.mark.nightly
    return [pytest.param(*(n if isinstance(n, tuple) else (n,)), marks=mark) for n in numbers]
