"""Function calls on a thread, ended by a time limit or Ctrl-C.

Python handles signals between its own instructions only, not during a native search: therefore the
main thread waits in steps.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_STEP_S: Final = 0.05


class _TimeUp(BaseException):
    """Raised in a thread from outside; no handler of Exception may stop it."""


def call_within(limit_s: float | None, function: Callable[[], T]) -> T:
    """Call `function` on another thread, with a time limit.

    Native code ends when it returns to Python. Exceptions of `function` are raised again. When the
    time is up it raises TimeoutError; the thread has ended, or ends at its next Python instruction.
    KeyboardInterrupt is raised at once, and the thread ends likewise.
    """
    answer: list[T] = []
    failure: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            answer.append(function())
        except BaseException as error:
            failure.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run, name="time limit", daemon=True)
    deadline_s = float("inf") if limit_s is None else time.monotonic() + limit_s
    thread.start()
    try:
        while not done.wait(min(_STEP_S, max(0.0, deadline_s - time.monotonic()))):
            if time.monotonic() >= deadline_s:
                break
    finally:
        # Not `is_alive`: in Python 3.11 it is wrong after Ctrl-C ends a join.
        if not done.is_set():
            _raise_in(thread)
            done.wait(_STEP_S)
    if answer:
        return answer[0]
    if failure and not isinstance(failure[0], _TimeUp):
        raise failure[0]
    raise TimeoutError(f"no answer within {limit_s:g} s")


def _raise_in(thread: threading.Thread) -> None:
    # Meant for this use by Python's C API; it ignores a thread that has ended.
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(_TimeUp)
    )
