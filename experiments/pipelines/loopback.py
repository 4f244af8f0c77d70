"""Sockets for processes of this machine, which no other machine can reach."""

from __future__ import annotations

import datetime
import os
import socket
from typing import Final

from torch.distributed import TCPStore  # type: ignore[attr-defined]

HOST: Final = "127.0.0.1"


def loopback_store(
    port: int = 0, timeout: datetime.timedelta = datetime.timedelta(minutes=5)
) -> TCPStore:
    """Return a store hosted by this process for a group of processes of this machine.

    torch itself would listen on every interface, even with a given host. Port 0 takes a free one;
    `timeout` is the longest wait for a key.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        port = listener.getsockname()[1]
        return TCPStore(
            HOST,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=timeout,
            # The store closes it.
            master_listen_fd=listener.detach(),
        )


def keep_gloo_on_loopback() -> None:
    """Let gloo listen on the loopback interface instead of that of the host name."""
    names = [name for _, name in socket.if_nameindex()]
    loopback = next((name for name in names if name in ("lo", "lo0")), None)
    if loopback is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = loopback
