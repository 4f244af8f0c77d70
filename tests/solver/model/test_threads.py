"""Calls on several threads."""

import subprocess
import sys
import threading

import pytest

from solver.model.threads import call_all


def test_answers_come_in_the_order_of_the_functions():
    here = threading.get_ident()
    barrier = threading.Barrier(3, timeout=20)

    def answer(number):
        # All three wait for each other, so they run at the same time.
        barrier.wait()
        return number, threading.get_ident() == here

    answers = call_all([lambda number=number: answer(number) for number in range(3)])
    assert answers == [(0, True), (1, False), (2, False)]


def test_what_another_thread_raises_is_raised_here():
    done = []

    def fails():
        raise ValueError("of a thread")

    with pytest.raises(ValueError, match="of a thread"):
        call_all([lambda: None, fails, lambda: done.append(True)])
    assert done == [True]


def test_an_interrupted_process_does_not_wait_for_threads():
    script = (
        "import time\n"
        "from solver.model.threads import call_all\n"
        "def interrupted():\n"
        "    raise KeyboardInterrupt\n"
        "try:\n"
        "    call_all([interrupted, lambda: time.sleep(600)])\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    # It would be ended after a minute, and fail.
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.returncode) == ("interrupted\n", 0)
