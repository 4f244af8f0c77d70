"""Share what is derived from an immutable object among those who ask for it again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

_Source = TypeVar("_Source")
_Derived = TypeVar("_Derived")


def shared_while_held(derive: Callable[[_Source], _Derived]) -> Callable[[_Source], _Derived]:
    """Return `derive` with one result for each source, as long as anyone holds that.

    Sources are told apart by identity, since to compare or to hash a large graph takes longer than
    it saves. Nothing is kept alive: who wants to share a result with what is called afterwards
    keeps it.

    Parameters
    ----------
    derive : callable
        Its results are immutable, can be referred to weakly, and hold their source, so that no
        other object can have its identity meanwhile.
    """
    known: WeakValueDictionary[int, _Derived] = WeakValueDictionary()

    @functools.wraps(derive)
    def shared(source: _Source) -> _Derived:
        derived = known.get(id(source))
        if derived is None:
            derived = known[id(source)] = derive(source)
        return derived

    return shared
