"""Relaxation of relayed transfers to direct ones, for bounds without borders."""

from __future__ import annotations

from dataclasses import replace

from solver.model.problem import PartitionProblem
from solver.presolve.instance import Instance
from solver.presolve.transfers import Transfers


def direct_problem(problem: PartitionProblem) -> PartitionProblem:
    """Return a problem in which no plan of `problem` costs or holds more; itself unless relayed.

    Values are staged through a host over a link as fast as the fastest between two devices. The
    objective ``step`` is excepted: where transfers overlap, a write and the read after it may take
    longer than the one hop between neighbours.

    Proof. Let a feasible plan of the relayed problem have a value made at position s and read at t
    > s. With one device nothing takes time in either problem. With more, position s + 1 is on
    another device than s, so the producer's device pays for at least one hop in the relayed
    problem, and for one write in the other. A device that reads the value at t, and is not the
    producer's, receives it by the hop from t - 1, which is on another device; it pays for at least
    one hop, and for one read. Each hop takes at least as long as over the fastest link. So no
    device sends or receives for longer, nor does a stage: the write belongs to the stage that makes
    the value, the read to the first stage that reads it, and both have hops of their own for it.
    Bytes count once for each reading device, which are no more than hops. Every arc between stages
    is a path of hops, so the longest path is no longer. What a stage receives from another has come
    by a hop to it, and its gradient buffers for values that others read are among those of its
    hops. Order, pins and colocation are the same.
    """
    transfers = Transfers(problem)
    if transfers.direct is problem.interconnect:
        return problem
    # Hosts have no special role in a pipeline.
    devices = tuple(replace(device, is_host=False) for device in problem.devices)
    return problem.replace(devices=devices, interconnect=transfers.direct)


def direct(units: Instance) -> Instance:
    """Return `units` with the direct transfers of :func:`direct_problem`."""
    problem = direct_problem(units.problem)
    return units if problem is units.problem else replace(units, problem=problem, relays=())
