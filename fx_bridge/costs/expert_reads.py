"""Bytes of the experts of a mixture that a call reads."""

from __future__ import annotations

from functools import cache

from fx_bridge.choices import ExpertsRead


def read_bytes(
    size_bytes: int, experts: int, chosen: int, tokens: int, experts_read: ExpertsRead
) -> int:
    """Return the bytes of the experts that some tokens read, given the bytes of all.

    Each token is routed to some `chosen`: these are the mean of tokens that choose at random, the
    largest possible number, or all experts.

    Examples
    --------
    >>> [read_bytes(800, 8, 2, 2, how) for how in ("average", "most", "all")]
    [350, 400, 800]
    """
    if experts_read == "average":
        return average_read_bytes(size_bytes, experts, chosen, tokens)
    if experts_read == "all":
        return size_bytes
    return size_bytes * min(tokens * chosen, experts) // experts


@cache
def average_read_bytes(size_bytes: int, experts: int, chosen: int, tokens: int) -> int:
    """Return the average bytes of the experts to which tokens are routed, rounded up.

    Every token is independently routed to a random set of `chosen` different experts. It leaves an
    expert out with probability 1 - chosen / experts, so that all tokens read experts (1 - (1 -
    chosen / experts)^tokens) on average.

    Examples
    --------
    >>> [average_read_bytes(800, 8, 2, tokens) for tokens in (1, 2, 32)]
    [200, 350, 800]
    """
    # More tokens leave out less than a byte: exp(-64) of all.
    tokens = min(tokens, 64 * experts)
    left_out_bytes: int = size_bytes * (experts - chosen) ** tokens // experts**tokens
    return size_bytes - left_out_bytes
