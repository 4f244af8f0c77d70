"""What host compute and copies keep of their rates while both run.

    python benchmarks/bench_overlap.py [--gb SIZE] [--rounds N]

A matrix-vector product streams through weights in one thread; another copies between buffers. Each
runs alone, and both at once; all arrays are larger than caches. Host memory stands in for a device,
so a copy reads and writes host memory: it takes twice its rate from the host, a GPU's copy once.
Rates are bytes in a second of the thread's own processor time. `on cores` says how much of the time
both threads had a core while both ran: below 95 %, others used the machine, and the rates of both
at once say too little.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time

import torch

GB = 10**9
ROWS = 4096


def rate_of(act, size_bytes, seconds, stop=None):
    """Repeat an act for a time, or until `stop` is set.

    Return bytes in a second of processor time, and the part of the time that the thread had a core.
    """
    start, used, count = time.perf_counter(), time.thread_time(), 0
    while True:
        act()
        count += 1
        elapsed = time.perf_counter() - start
        if elapsed >= seconds if stop is None else stop.is_set():
            own = time.thread_time() - used
            return count * size_bytes / own, own / elapsed


def both(compute, copy, size_bytes, seconds):
    """Rates, and part of the time on cores: copies go on for as long as products are timed."""
    stop, found = threading.Event(), []
    thread = threading.Thread(target=lambda: found.append(rate_of(copy, size_bytes, 0, stop)))
    thread.start()
    computed = rate_of(compute, size_bytes, seconds)
    stop.set()
    thread.join()
    return computed[0], found[0][0], min(computed[1], found[0][1])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=0.5, help="of the weights, and of each buffer")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement")
    parser.add_argument("--rounds", type=int, default=7, help="of which the median is printed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        "| dtype | product alone | copy alone | product with copy | copy with product | kept"
        " | on cores |"
    )
    print("|---|---|---|---|---|---|---|")
    for dtype in (torch.bfloat16, torch.float32):
        columns = int(options.gb * GB) // (ROWS * dtype.itemsize)
        weights = torch.ones(ROWS, columns, dtype=dtype)
        vector = torch.ones(columns, dtype=dtype)
        out = torch.empty(ROWS, dtype=dtype)
        source, target = torch.ones_like(weights), torch.ones_like(weights)
        size = weights.nbytes

        def compute(weights=weights, vector=vector, out=out):
            torch.mv(weights, vector, out=out)

        def copy(source=source, target=target):
            target.copy_(source)

        compute()
        copy()
        rounds = []
        for _ in range(options.rounds):
            alone = [rate_of(act, size, options.seconds)[0] for act in (compute, copy)]
            rounds.append((*alone, *both(compute, copy, size, options.seconds)))
        mv, moved, mv_both, moved_both, on_cores = (
            statistics.median(column) for column in zip(*rounds, strict=True)
        )
        kept = f"{100 * mv_both / mv:.0f} and {100 * moved_both / moved:.0f} %"
        cells = [str(dtype).removeprefix("torch.")]
        cells += [f"{rate / GB:.1f} GB/s" for rate in (mv, moved, mv_both, moved_both)]
        print(f"| {' | '.join(cells)} | {kept} | {100 * on_cores:.0f} % |", flush=True)


if __name__ == "__main__":
    main()
