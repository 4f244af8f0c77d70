"""Share results derived from an immutable object among callers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

_Source = TypeVar("_Source")
_Derived = TypeVar("_Derived")


def shared_while_held(derive: Callable[[_Source], _Derived]) -> Callable[[_Source], _Derived]:
    """Cache the result of `derive` for each source, as long as a caller holds the result.

    Sources are compared by identity, since comparing or hashing a large graph takes longer than it
    saves. The cache keeps nothing alive: to share a result with later calls, hold it. Results must
    be immutable and weakly referable, and must hold their source, so that no other object can take
    its identity meanwhile.
    """
    known: WeakValueDictionary[int, _Derived] = WeakValueDictionary()

    @functools.wraps(derive)
    def shared(source: _Source) -> _Derived:
        derived = known.get(id(source))
        if derived is None:
            derived = known[id(source)] = derive(source)
        return derived

    return shared
