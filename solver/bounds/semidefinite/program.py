"""A bound of the bottleneck from which units share a device, whatever the order of the stages."""

from __future__ import annotations

import math

import numpy as np
from threadpoolctl import threadpool_limits

from solver.bounds.direct import direct
from solver.bounds.held_weights import stage_weights
from solver.bounds.semidefinite.net_cuts import NetCuts, PricedNet
from solver.bounds.semidefinite.partition_matrix import PartitionMatrix, Rows
from solver.model.clock import UNLIMITED, Clock
from solver.presolve.instance import Instance

_FEWEST_UNITS = 100
"""Models of smaller problems say more, and soon."""
_MOST_UNITS = 1_500
"""A step with this number of units takes 0.4 s."""
_STEPS = 120
_MOST_STEPS = 240
"""Steps without a clock to look at, and with one."""
_STEP_S_PER_UNIT3 = 1.2e-10
"""Work of a step; a hundred of 1,000 units take twelve seconds of one core."""
_ASK_EVERY = 10
"""Steps from one computation of the bound to the next."""
_SHARES = {10: 0.95, 20: 0.975, 40: 0.99}
"""By steps done: a bound below this share of what is known will not pass it; on wide graphs it is
at 0.96 to 0.99, 0.98 to 1.0 and 1.0 to 1.03 of what other bounds say."""
_JUDGE_FROM = 70
_JUDGED = 2
"""Steps from which on the gain of the last bounds is judged, and how many of these: earlier,
mixtures of nets are about to change."""
_HOPE = 3.0
"""Times that gain: more is not expected of all steps to come."""
_LEAST_GAIN = 0.0004
"""Of the bound; a smaller gain is not worth the time."""
_NEAR = 1.002
"""The limit that rows are made for, relative to the bound so far."""


def applies(units: Instance, slots: int) -> bool:
    """Return whether the bound is known for a problem, and worth its time.

    Parameters
    ----------
    slots : int
        The most devices that plans use.
    """
    return (
        slots > 1
        and _FEWEST_UNITS <= len(units) <= _MOST_UNITS
        and not units.problem.interconnect.overlap
        and len({device.device_class for device in units.problem.devices}) == 1
    )


def semidefinite_bound_ns(
    units: Instance,
    slots: int,
    *,
    at_least_ns: int = 0,
    ceiling_ns: int | None = None,
    clock: Clock = UNLIMITED,
) -> int:
    """Return a bottleneck that no plan is below.

    Loads add up to all work and all transfers, and a semidefinite program says what is transferred
    at least between devices none of which has more than its share. It knows neither the order of
    operators nor activations; that makes it weak for chains, and the best there is for wide graphs.

    Parameters
    ----------
    units : Instance
        Any for which :func:`applies`; true of plans of several chunks, too.
    slots : int
        The most devices that plans use.
    at_least_ns : int
        A bound that is known; the search ends when a better one is not in sight.
    ceiling_ns : int, optional
        A bound of this much is good enough.
    clock : Clock
        When to stop; one that counts work is charged. Without a limit on the wall's time the answer
        depends on nothing but the arguments and the machine's linear algebra.

    Returns
    -------
    int
        At least `at_least_ns`.

    Notes
    -----
    Proof: :class:`~solver.bounds.semidefinite.partition_matrix.PartitionMatrix`. Every unit takes
    the least time that it takes on any device, every net the least over any link. A net that p
    devices take part in is sent and received p - 1 times from peer to peer; through a host it is
    written once and read p - 1 times.
    """
    units = direct(units)
    relaxation = _relaxation(units, slots, at_least_ns, ceiling_ns)
    if relaxation is None:
        return at_least_ns
    # A second thread gains a third of the time, but loses most of it where a core is busy.
    with threadpool_limits(1, user_api="blas"):
        steps = _STEPS if clock.wall_left_s == math.inf else _MOST_STEPS
        step_s = _STEP_S_PER_UNIT3 * len(units) ** 3
        if clock.is_deterministic:
            steps = int(min(steps, clock.left_s / step_s))
        best_ns = _best_bound(relaxation, steps, at_least_ns, ceiling_ns, clock)
    clock.charge(steps * step_s)
    return max(at_least_ns, int(best_ns))


def _best_bound(
    relaxation: PartitionMatrix,
    steps: int,
    at_least_ns: int,
    ceiling_ns: int | None,
    clock: Clock,
) -> float:
    """Return the best bound of all steps until more is not in sight, not needed, or too late."""
    bests = [0.0]
    for step in range(1, steps + 1):
        if clock.is_over:
            break
        relaxation.step()
        if step % _ASK_EVERY:
            continue
        best = max(relaxation.bound(), bests[-1])
        bests.append(best)
        if ceiling_ns is not None and best >= ceiling_ns:
            break
        if best < _SHARES.get(step, 0.0) * at_least_ns:
            break
        if step >= _JUDGE_FROM:
            gain = best - bests[-1 - _JUDGED]
            if gain < _LEAST_GAIN * best or best + _HOPE * gain < at_least_ns:
                break
            relaxation.limit = min(relaxation.limit, best * _NEAR)
    return bests[-1]


def _relaxation(
    units: Instance, slots: int, at_least_ns: int, ceiling_ns: int | None
) -> PartitionMatrix | None:
    """Return the relaxation, in nanoseconds and bytes; None where loads know no transfers."""
    if units.problem.interconnect.overlap or slots < 2:
        return None
    transfers = units.transfers
    times = units.fastest_ns.astype(np.float64)
    sends = np.min([kind.send_ns.least for kind in transfers.payers], axis=0).tolist()
    receives = np.min([kind.receive_ns.least for kind in transfers.payers], axis=0).tolist()
    once = transfers.sends_once
    nets = [
        PricedNet(
            (net.producer, *net.consumers),
            each=receive if once else send + receive,
            once=send if once else 0,
            own=min(send, receive),
        )
        for net, send, receive in zip(transfers.nets, sends, receives, strict=True)
        if net.consumers and send + receive
    ]
    if not nets or not times.any():
        return None
    cuts = NetCuts(nets, len(units), slots)
    least = max(float(times.sum()) / slots, float(at_least_ns))
    limit = least if ceiling_ns is None else 0.5 * (least + max(least, float(ceiling_ns)))
    return PartitionMatrix(times, cuts, slots, _held(units), limit)


def _held(units: Instance) -> Rows | None:
    """Return what units hold, and the largest room; None where memory is not limited."""
    amounts = stage_weights(units).astype(np.float64)
    rooms = [device.memory_bytes for device in units.problem.devices]
    if None in rooms or not amounts.any():
        return None
    return Rows(amounts, float(max(room for room in rooms if room is not None)))
