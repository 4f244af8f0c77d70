"""Let no process of a run outlive the run, and say in one line why it ends.

A process that computes or waits for another one runs code of torch in which no Python runs, so
that a handler of Python would not be called before it returns, if ever. A thread is.
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
    """Ends this process when it is told to stop, or when the one that started it is gone.

    Made before anything slow: whoever is the parent then is the one to watch.

    Parameters
    ----------
    is_first : callable
        Whether this process is the first of the run to say something; the others are silent.

    Attributes
    ----------
    doing : str
        What the process is at, for the message: such as ``"step 3"``.
    is_first : callable
        As it was given; may be replaced once the processes can ask one another.
    """

    def __init__(self, rank: int, is_first: Callable[[], bool]) -> None:
        self.doing = "its start"
        self.is_first = is_first
        self._rank = rank
        self._parent = os.getppid()
        self._once = threading.Lock()

    def start(self) -> None:
        """Watch from now on; in the main thread."""
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        # Without a handler the signal would end the process before the thread hears of it.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        threading.Thread(target=self._watch, args=(reading,), daemon=True).start()

    def end(self, message: str, code: int = EXIT_LOST, *, always: bool = False) -> NoReturn:
        """Say `message` unless another process has said why the run ends, and end.

        Parameters
        ----------
        always : bool
            Say it whatever others have said: it is the reason itself.
        """
        with self._once:
            if self._asked() or always:
                line = f"error: rank {self._rank} {message}"
                print(printable(" ".join(line.split())), file=sys.stderr, flush=True)
            # Threads of torch may wait for a process that is gone.
            os._exit(code)

    def _asked(self) -> bool:
        """Return whether this process is the first to say something, or cannot find out."""
        answers: list[bool] = []
        # The store that knows is gone with the launcher, and waits long for it to come back.
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
