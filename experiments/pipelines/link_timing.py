"""The latency and bandwidth of gloo's link between two processes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from solver import Link, PartitionError

if TYPE_CHECKING:
    import torch

SIZES: Final = tuple(4**power for power in range(3, 13))
"""Bytes of the messages, 64 B to 16 MiB."""
_BYTES_OF_A_SIZE: Final = 32 * 2**20
_MOST_REPEATS: Final = 40


def ping_pong(rank: int) -> list[tuple[int, int]]:
    """Time messages sent back and forth between ranks 0 and 1 of the process group.

    Returns bytes and median nanoseconds of one direction, by size; nothing at rank 1.

    The calls are those of ``torch.distributed.pipelining``, whose schedules send values by batches
    of such operations, so the time of the calls is part of the latency.
    """
    import torch

    found: list[tuple[int, int]] = []
    for size_bytes in SIZES:
        # Received in fresh memory only once, as pipelines keep their buffers.
        buffer = torch.zeros(size_bytes, dtype=torch.uint8)
        repeats = max(6, min(_MOST_REPEATS, _BYTES_OF_A_SIZE // size_bytes))
        times_ns: list[int] = []
        for repeat in range(repeats + 2):
            start_ns = time.perf_counter_ns()
            for sends in (rank == 0, rank == 1):
                _move(buffer, 1 - rank, sends=sends)
            if repeat >= 2:
                times_ns.append(time.perf_counter_ns() - start_ns)
        if rank == 0:
            found.append((size_bytes, round(statistics.median(times_ns) / 2)))
    return found


def _move(buffer: torch.Tensor, peer: int, *, sends: bool) -> None:
    from torch import distributed

    call = distributed.isend if sends else distributed.irecv
    for work in distributed.batch_isend_irecv([distributed.P2POp(call, buffer, peer)]):
        work.wait()


def fit_link(samples: Sequence[tuple[int, int]]) -> Link:
    """Return the link that fits measured times best, by least squares of the relative errors.

    So small messages determine the latency and large ones the bandwidth. If time does not grow with
    size, the bandwidth is unlimited; the latency is never negative. Raises PartitionError if there
    are fewer than two sizes, or a time is not positive.

    Examples
    --------
    >>> fit_link([(1000, 6000), (2000, 7000), (10_000, 15_000)])
    Link(bandwidth_bytes_per_s=1000000000, latency_ns=5000)
    """
    sizes = np.array([size for size, _ in samples], dtype=np.float64)
    times = np.array([time_ns for _, time_ns in samples], dtype=np.float64)
    if len(set(sizes.tolist())) < 2 or times.min() <= 0:
        raise PartitionError(
            "the times of a link cannot be fitted; give positive times of at least two sizes"
        )
    # Rows of 1 = latency / time + size / time * ns per byte.
    rows = np.stack([1 / times, sizes / times], axis=1)
    (latency_ns, ns_per_byte), *_ = np.linalg.lstsq(rows, np.ones(len(samples)), rcond=None)
    if latency_ns < 0:
        latency_ns, ns_per_byte = 0.0, rows[:, 1].sum() / (rows[:, 1] ** 2).sum()
    # A slope below the resolution of the largest message is due to rounding.
    if ns_per_byte * sizes.max() < 1e-6 * times.max():
        return Link(None, round(rows[:, 0].sum() / (rows[:, 0] ** 2).sum()))
    return Link(max(1, round(1e9 / ns_per_byte)), round(latency_ns))
