"""Stand-ins, during a trace, for memoised functions and iterators, whose state cannot be set."""

from __future__ import annotations

import functools
import gc
import itertools
import types
from collections.abc import Iterator
from typing import Any, Final

from fx_bridge.storages.tensor_subclasses import tensor_leaves

LRU_CACHE: Final[Any] = type(functools.lru_cache(len))
"""The class of a memoised function."""
_WRAPPERS: Final = (property, classmethod, staticmethod)
_LINK: Final = "_lru_list_elem"


def memoised(value: Any) -> Any:
    """Return the memoised function that `value` is or wraps for a class, or None."""
    kind = type(value)
    if kind in _WRAPPERS:
        value = value.fget if kind is property else value.__func__
    return value if type(value) is LRU_CACHE else None


class Memo:
    """Stands for a function under ``functools.lru_cache``, and leaves its cache unchanged.

    Cached results of the original, or of one in a property or the like, are used; others are
    computed and cached here. `value` is the function to call, bound as a method if it is an
    attribute of a class.
    """

    def __init__(self, original: Any) -> None:
        cached = memoised(original)
        self._known, mark = _entries(cached)
        self._made: dict[Any, Any] = {}
        is_typed = cached.cache_parameters()["typed"]

        @functools.wraps(cached.__wrapped__)
        def call(*args: Any, **kwargs: Any) -> Any:
            key = _key(args, kwargs, is_typed, mark)
            for table in (self._known, self._made):
                if key in table:
                    return table[key]
            return self._made.setdefault(key, cached.__wrapped__(*args, **kwargs))

        own: Any = call
        own.cache_clear = self._clear
        own.cache_info = cached.cache_info
        own.cache_parameters = cached.cache_parameters
        self.value: Any = own if original is cached else type(original)(own)

    def _clear(self) -> None:
        self._known, self._made = {}, {}

    @property
    def is_used(self) -> bool:
        """True if the function would now hold tensors that it did not hold before."""
        return any(tensor_leaves(made) for made in self._made.values())


class Replayed:
    """Stands for an iterator: `value` takes from a copy of it, or from itself if it has none."""

    def __init__(self, original: Iterator[Any]) -> None:
        self._taken: list[Any] = []
        self._is_copy = True
        try:
            source = _like(original)
        except TypeError:
            # Generators cannot be copied.
            source, self._is_copy = original, False
        self.value = _noting(source, self._taken)

    @property
    def is_used(self) -> bool:
        """True if anything was taken."""
        return bool(self._taken)

    def restored(self, original: Iterator[Any]) -> Iterator[Any]:
        """Return an iterator that continues as `original` would have done before."""
        if self._is_copy or not self._taken:
            return original
        return itertools.chain(self._taken, original)


def _noting(source: Iterator[Any], taken: list[Any]) -> Iterator[Any]:
    for value in source:
        taken.append(value)
        yield value


def _like(iterator: Any) -> Any:
    """Return a copy of an iterator; raise TypeError if its state is inaccessible."""
    if isinstance(iterator, types.GeneratorType):
        raise TypeError("a generator")
    make, args, *state = iterator.__reduce__()
    own = [_like(each) if hasattr(type(each), "__next__") else each for each in args]
    made = make(*own)
    if state and state[0] is not None:
        inner = state[0]
        if isinstance(inner, tuple):
            inner = tuple(_like(x) if hasattr(type(x), "__next__") else x for x in inner)
        made.__setstate__(inner)
    return made


def _key(args: tuple[Any, ...], kwargs: dict[str, Any], is_typed: bool, mark: Any) -> Any:
    """Return the key of a call, as ``functools`` makes it."""
    if not kwargs and not is_typed:
        is_one = len(args) == 1 and type(args[0]) in (int, str)
        return args[0] if is_one else args
    key = (*args, *((mark,) if kwargs else ()), *(each for pair in kwargs.items() for each in pair))
    if is_typed:
        key += (*map(type, args), *map(type, kwargs.values()))
    return key


def _entries(cached: Any) -> tuple[dict[Any, Any], object]:
    """Return the cache of a memoised function, and its mark between positions and names.

    Only the garbage collector can see them: each entry as key, value and the class of a link,
    followed by their table; without a limit of size, only the table of values.
    """
    held = gc.get_referents(cached)
    mark = next((each for each in held if type(each) is object), object())
    table = next((each for each in held if type(each) is dict and each is not vars(cached)), {})
    links = {
        id(key): value
        for key, value, link in zip(held, held[1:], held[2:], strict=False)
        if isinstance(link, type) and link.__name__ == _LINK
    }
    if not any(type(each).__name__ == _LINK for each in table.values()):
        return dict(table), mark
    return {key: links[id(key)] for key in table if id(key) in links}, mark
