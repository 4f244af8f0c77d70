"""Code that has no end is ended."""

import _thread
import contextlib
import threading
import time

import pytest

from experiments.processes.time_limit import call_within


def running():
    return [thread for thread in threading.enumerate() if thread.name == "time limit"]


def endless():
    while True:
        # Code that swallows what it can.
        with contextlib.suppress(Exception):
            sum(range(1000))


def test_an_answer_in_time():
    assert call_within(60.0, lambda: 3) == 3
    assert call_within(None, lambda: None) is None


def test_what_the_function_raises():
    with pytest.raises(ValueError, match="of its own"):
        call_within(60.0, lambda: (_ for _ in ()).throw(ValueError("of its own")))


def test_code_without_end_is_ended_and_leaves_no_thread():
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"):
        call_within(0.1, endless)
    for thread in running():
        thread.join(30)
    assert not running()


def test_native_code_ends_when_it_returns_to_python():
    done = []

    def slow():
        time.sleep(0.3)
        done.append(True)

    with pytest.raises(TimeoutError):
        call_within(0.05, slow)
    for thread in running():
        thread.join(30)
    assert done == []


def test_ctrl_c_ends_the_wait_at_once_and_then_the_thread():
    ended = threading.Event()

    def search():
        try:
            endless()
        finally:
            ended.set()

    threading.Timer(0.2, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        call_within(None, search)
    assert ended.wait(30)
