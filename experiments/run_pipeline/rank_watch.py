"""A watch that ends every process of a run with the run, and reports the reason in one line.

It is a thread: a process that computes or waits for another one is in native code of torch, during
which Python's signal handlers are not called.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Callable
from typing import Final, NoReturn

from experiments.console.exit_codes import EXIT_INTERRUPTED, EXIT_TERMINATED
from solver.model.text import printable

EXIT_LOST: Final = 1
_POLL_S: Final = 0.5
_ANSWER_S: Final = 2.0


class RankWatch:
    """End this process on a signal, or once its parent has ended.

    Create it before anything slow: it watches the parent at that time. `doing` is its current
    activity, for the message: such as ``"step 3"``. `is_first` returns True if this process is the
    first of the run to report; the others are silent. It may be replaced once the processes can
    communicate.
    """

    def __init__(self, rank: int, is_first: Callable[[], bool]) -> None:
        self.doing = "its start"
        self.is_first = is_first
        self._rank = rank
        self._parent = os.getppid()
        self._once = threading.Lock()

    def start(self) -> None:
        """Start to watch; called in the main thread."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        # Without a handler the signal would end the process before the thread sees it.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        threading.Thread(target=self._watch, args=(reading,), daemon=True).start()

    def end(self, message: str, code: int = EXIT_LOST, *, always: bool = False) -> NoReturn:
        """End this process, with `message` if no other process has reported, or `always`."""
        with self._once:
            if self._is_first() or always:
                line = f"error: rank {self._rank} {message}"
                print(printable(" ".join(line.split())), file=sys.stderr, flush=True)
            # Threads of torch may wait for a process that has ended.
            os._exit(code)

    def _is_first(self) -> bool:
        """Return True if this process is the first to report, or cannot find out."""
        answers: list[bool] = []
        # The store ends with the launcher, and its client waits long for it to return.
        asking = threading.Thread(target=lambda: answers.append(self.is_first()), daemon=True)
        asking.start()
        asking.join(_ANSWER_S)
        return answers[0] if answers else True

    def _watch(self, reading: int) -> None:
        while True:
            ready, _, _ = select.select([reading], [], [], _POLL_S)
            signals = os.read(reading, 64) if ready else b""
            if signal.SIGINT in signals:
                self.end(f"was interrupted in {self.doing}", EXIT_INTERRUPTED)
            if signal.SIGTERM in signals:
                self.end(
                    f"was stopped in {self.doing}: another process of the run has ended, or "
                    "torchrun was told to stop",
                    EXIT_TERMINATED,
                )
            if os.getppid() != self._parent:
                self.end(f"ends in {self.doing}: torchrun, which started it, is gone")
