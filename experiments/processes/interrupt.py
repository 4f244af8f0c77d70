"""Ctrl-C during a search.

A search runs in native code, and Python sees a signal only between two of its own
instructions. So the search runs on another thread, and the main thread waits for it in steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_STEP_S = 0.1


def run_interruptibly(function: Callable[[], T]) -> T:
    """Call `function` on another thread, and return or raise what it does.

    Raises
    ------
    KeyboardInterrupt
        At once; the thread is then left alone, and ends with the process.
    """
    answer: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            answer.append(function())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="search", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_STEP_S)
    if failure:
        raise failure[0]
    return answer[0]
