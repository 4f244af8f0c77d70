"""Sockets of a pipeline on this machine: no other machine can reach one of them."""

import contextlib
import socket
from pathlib import Path

import pytest

from experiments.pipelines.group import PipelineGroup
from experiments.pipelines.loopback import HOST, loopback_store

LISTENING = "0A"
LOOPBACK = ("0100007F", "00000000000000000000000001000000")

pytestmark = pytest.mark.skipif(
    not Path("/proc/net/tcp").exists(), reason="needs Linux, which lists its sockets"
)


def listening_addresses(process):
    """The addresses, in hexadecimal, at which a process listens."""
    inodes = set()
    for path in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(path.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{process}/net/{table}").read_text().splitlines()[1:]
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == LISTENING and row[9] in inodes}


def test_a_store_is_reached_from_this_machine_alone():
    store = loopback_store()
    assert listening_addresses("self") <= set(LOOPBACK)
    with socket.create_connection((HOST, store.port), 10):
        pass


def test_processes_of_a_pipeline_listen_on_the_loopback_interface(monkeypatch):
    others = [name for _, name in socket.if_nameindex() if name != "lo"]
    # What is right for runs on several hosts.
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", ",".join(others))
    with PipelineGroup(2) as group:
        found = [listening_addresses(worker.pid) for worker in group._processes]
    assert all(found)
    assert set().union(*found) <= set(LOOPBACK)
