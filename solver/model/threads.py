"""Calls on several threads, which end with the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def call_all(functions: Sequence[Callable[[], T]]) -> list[T]:
    """Call functions at the same time; return what they return, in their order.

    The first runs on the thread of the caller. Those of an executor would keep an interrupted
    process alive until all are done; the threads of these do not.

    Parameters
    ----------
    functions : sequence of callable
        At least one.

    Raises
    ------
    BaseException
        Of the first function that raises one, after all others are done; what the first function
        raises, such as an interrupt, at once.
    """
    answers: dict[int, T] = {}
    failures: dict[int, BaseException] = {}

    def call(number: int) -> None:
        try:
            answers[number] = functions[number]()
        except BaseException as error:
            failures[number] = error

    threads = [
        threading.Thread(target=call, args=(number,), daemon=True)
        for number in range(1, len(functions))
    ]
    for thread in threads:
        thread.start()
    answers[0] = functions[0]()
    for thread in threads:
        thread.join()
    for number in sorted(failures):
        raise failures[number]
    return [answers[number] for number in range(len(functions))]
