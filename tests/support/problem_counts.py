"""How many random problems a comparison looks at: some in the default run, all in the nightly."""

import pytest


def counts(default: int, nightly: int) -> pytest.MarkDecorator:
    """Call a test with `count`, the number of its problems, which the nightly run has more of."""
    more = pytest.param(nightly, marks=pytest.mark.nightly)
    return pytest.mark.parametrize("count", [default, more])


def some(default: int, *, of: int) -> list[object]:
    """Return the numbers below `of` as parameters; the default run takes the first alone."""
    more = (pytest.param(number, marks=pytest.mark.nightly) for number in range(default, of))
    return [*range(default), *more]
