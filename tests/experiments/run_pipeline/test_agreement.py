import datetime
import errno
import os
import socket
import sys
import threading

import pytest

from experiments.run_pipeline.agreement import Agreement, RefusedError
from experiments.run_pipeline.launch import Launch
from solver import PartitionError

TIMEOUT = datetime.timedelta(seconds=20)


@pytest.fixture
def launcher(monkeypatch):
    """An address at which rank 0 keeps the store."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", str(port))
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)


def in_parallel(count, function):
    """Call `function` with the agreement of each rank in a thread of its own."""
    results = [None] * count
    first = []
    ready = threading.Event()

    def call(rank):
        agreement = Agreement(Launch(rank, count, rank, count), TIMEOUT)
        if rank == 0:
            # The store ends with it.
            first.append(agreement)
            ready.set()
        try:
            results[rank] = function(agreement)
        except (RefusedError, PartitionError) as error:
            results[rank] = error

    threads = [threading.Thread(target=call, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert ready.is_set()
    return results


def test_all_know_what_all_say(launcher):
    def talk(agreement):
        rank = agreement.launch.rank
        heard = agreement.exchange("number", {"rank": rank, "text": "ä\n"})
        gathered = agreement.gather("square", rank * rank)
        agreement.agree(None)
        return heard, gathered

    found = in_parallel(3, talk)
    heard = [{"rank": rank, "text": "ä\n"} for rank in range(3)]
    assert [pair[0] for pair in found] == [heard] * 3
    assert [pair[1] for pair in found] == [[0, 1, 4], [], []]


@pytest.mark.parametrize(
    ("problems", "messages"),
    [
        (["a", "a", "a"], ["a", None, None]),
        ([None, "b", None], [None, "rank 1: b", None]),
        ([None, "b", "b"], [None, "rank 1: b", None]),
        (["c", "b", "c"], ["rank 0: c", "rank 1: b", None]),
    ],
)
def test_every_problem_is_reported_once_and_ends_all(launcher, problems, messages):
    found = in_parallel(3, lambda agreement: agreement.agree(problems[agreement.launch.rank]))
    assert all(isinstance(error, RefusedError) for error in found)
    assert [error.message for error in found] == messages


def test_one_is_the_first_to_report(launcher):
    def asked(agreement):
        first = agreement.is_first_to_report()
        agreement.exchange("asked", True)
        return first

    assert sorted(in_parallel(3, asked)) == [False, False, True]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other loopback addresses")
def test_a_store_that_a_process_keeps_is_for_this_host_alone(launcher):
    found = []

    def others(agreement):
        with socket.socket() as other:
            # An address of the loopback interface at which nothing listens but what listens at all.
            found.append(other.connect_ex(("127.0.0.2", int(os.environ["MASTER_PORT"]))))
        agreement.exchange("looked", True)

    in_parallel(2, others)
    assert found == [errno.ECONNREFUSED] * 2


def test_the_environment_of_torchrun_is_read():
    variables = {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "1",
    }
    assert Launch.from_environment(variables) == Launch(3, 4, 1, 2)
    for name in variables:
        without = {key: value for key, value in variables.items() if key != name}
        with pytest.raises(PartitionError, match=f"not started by torchrun .{name} is not set"):
            Launch.from_environment(without)
    with pytest.raises(PartitionError, match="damaged"):
        Launch.from_environment({**variables, "RANK": "first"})
