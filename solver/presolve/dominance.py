"""Dominance reductions: units merged because some best plan keeps them together anyway.

:mod:`solver.presolve.instance` merges units that every plan keeps together. Here a unit v is merged
with its *anchor* u if moving v to u's stage makes no plan worse. The merged problem then has a best
plan of the original one, for every tuple of objectives, and :meth:`Simplified.repair` turns any
feasible plan into one that respects the merges, is feasible, and is no worse in any objective of
the problem.

The move
--------
Take a feasible plan with u on stage p of device P and v on another stage q of device Q. Put v on p;
if q is then empty, remove it (and Q, if it has no other stage) from the plan. This is done for
every merge in the order in which they were made, so each argument is about units as merged so
far. In the end every unit is where the last anchor of its chain has been all along.

A device less lowers the number of devices, and no stage has more places after it: with D devices
and C chunks, (C - c) D - r from chunk c and rank r on. So no more microbatches are in flight.

Conditions and proofs
---------------------
*Pins.* v may run wherever u may.

*Cuts* (:mod:`solver.model.cuts`). v is in the block of u, or in none. Then the stages of every
block stay among those that it had, and removed stages leave the others in their order. But they
change the numbers of later stages: with *pinned stages* nothing is merged.

*Order.* (a) u is a predecessor of v, and so are only predecessors of u besides; or (b) u is a
successor of v, and so are only successors of u besides; or (c) all predecessors and successors
of v are those of u. Then arcs stay monotone: in (a) the successors of v are on stages >= q >= p,
its other predecessors on stages <= p; (b) mirrors this. A new arc joins stages that a path joined
before, in (a) and (b) perhaps through q. Hence no path gets longer unless a stage does. Contracting
u and v closes no cycle, and the merged unit can keep u's number in the topological order.

*Times* (for the objectives ``bottleneck`` and ``latency``). Transfers change only for nets n that v
reads and m that it makes:

=================================  ========================  =====================================
net                                certain savings           possible costs
=================================  ========================  =====================================
n of u, read by v alone            send at P, receive at Q   none
n that u makes or reads, others    none                      none
n that u neither makes nor reads   none                      receive at P; send at Q if made there
m, read by u alone                 send at Q, receive at P   none
m, read by u and others            send at Q, receive at P   sends at P, receive at Q
m, not read by u                   none                      sends at P, receive at Q
=================================  ========================  =====================================

Under host-staged charging "sends" are one write, and the costs of third devices do not change.
Under peer-to-peer charging they are at most one for each other reader, and for each other device;
there the move is declined if a third device could pay more: if its sender or receiver changes
and not all links take equally long for the net, or if it might send n, which others read too, to
one device more. A move within a device changes no time. So no load grows if time of v + costs <=
savings holds for every device that may be P, and costs <= time of v + savings for every device
that may be Q. If transfers overlap compute, this must hold for compute, sends and receives each.
With several chunks the time of a stage does not follow from its device, so nothing is merged for
``latency``.

*Bytes sent* (for the objective ``transfer``). The same table, each value counted once for P and Q.

*Memory*, unless the devices that may be P (or Q) are unlimited, or could hold everything at once
and ``peak_memory`` is no objective. P: storages and saved bytes of v + weights and inputs of v that
u does not have + values of nets that P may newly receive <= values that it certainly no longer
receives. Q: values that it may newly receive <= values that it certainly no longer receives +
inputs, and with one chunk weights, that v alone has; and each storage that v reads is u's or read
by u as well, so that none begins to wait for the end of its stage. Nothing else in the rows of
``docs/definition.md``, section 3, can grow: storages on p lose a reader elsewhere or keep it, a
storage of v adds to any row at most its size, third stages hold and receive the same. The rows are
those of stages, and so is the argument, for any number of chunks.

Rules
-----
A unit tries its last predecessor and its first successor, since no other can satisfy (a) or (b);
without arcs, as for backward operators, its neighbours by nets. Moves of units that take no time
are *free* (views, elements of tuples, sources and sinks without cost), others *cheap*.

*Fans*: all readers S of a value of u move to u at once, so that it never leaves u. Let e(v) >= 0 be
the excess of v in an inequality. If in each the sum of e(v) is at most the cost of the value there,
no plan gets worse: whichever of S were elsewhere, P saves a send of the value and each of their
devices a receive. All other changes are moves of one unit after the other, and the table is about
any plan, so also about those in between, whatever S reads elsewhere or of each other.

Under relayed charging a value crosses every border between its producer and its last reader, and
a moved unit may lengthen the route of values that it does not read: nothing is merged.

Merging goes on until no rule applies. Units with many neighbours do not move, so that each trial
takes constant time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from solver.model.plan import PartitionPlan
from solver.model.sharing import shared_while_held
from solver.presolve.dominance_blocks import Blocks
from solver.presolve.instance import Instance, contract

_LARGEST_FAN = 8


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Simplified:
    """A unit graph without dominated choices."""

    original: Instance
    units: Instance  # plans of these are plans of `original` at the same cost
    merges: tuple[tuple[int, int], ...]
    """Units of `original`, with all units merged into them before, that move to the stage of their
    anchor, and the anchors; in the order in which they were made."""
    anchor_of: tuple[int, ...]
    """For each unit of `original` the one whose stage it takes, perhaps itself."""

    @classmethod
    def unchanged(cls, units: Instance) -> Simplified:
        """Return a unit graph with all choices."""
        return cls(units, units, (), tuple(range(len(units))))

    def repair(self, plan: PartitionPlan) -> PartitionPlan:
        """Return a plan of `units` that is no worse than a feasible `plan` in any objective."""
        if not self.merges:
            return plan
        names = [op.name for op in self.original.problem.operators]
        leader = [names[members[0]] for members in self.original.members]
        assignment = dict(plan.assignment)
        chunks: dict[str, int] = dict(plan.chunks)
        for unit, anchor in enumerate(self.anchor_of):
            if unit != anchor:
                device, chunk = plan.assignment[leader[anchor]], plan.chunks.get(leader[anchor], 0)
                for index in self.original.members[unit]:
                    assignment[names[index]] = device
                    chunks[names[index]] = chunk
        used = set(assignment.values())
        order = tuple(device for device in plan.device_order if device in used)
        return PartitionPlan(assignment, order, chunks)


@shared_while_held
def simplify(units: Instance) -> Simplified:
    """Merge units as long as some best plan certainly survives; see the module for proofs."""
    problem = units.problem
    merges: list[tuple[int, int]] = []
    # The proofs are about loads of devices: not about stages of several chunks, nor about a step.
    by_device = "latency" not in problem.objective or problem.chunks_per_device == 1
    by_device &= "step" not in problem.objective
    if by_device and units.moves_freely:
        merges = _merge_all(Blocks(units))
    if not merges:
        return Simplified.unchanged(units)
    anchor = list(range(len(units)))
    for unit, other in reversed(merges):
        # An anchor moves only after the units merged into it.
        anchor[unit] = anchor[other]
    # The numbers of anchors are in a topological order.
    number = {unit: i for i, unit in enumerate(sorted(set(anchor)))}
    merged = contract(units, [number[unit] for unit in anchor], len(number))
    return Simplified(units, merged, tuple(merges), tuple(anchor))


def _merge_all(blocks: Blocks) -> list[tuple[int, int]]:
    """Apply the rules until none applies to any unit."""
    merges: list[tuple[int, int]] = []
    waiting = set(range(blocks.count))
    queue = deque(range(blocks.count))

    def wake(units: Iterable[int]) -> None:
        for unit in units:
            if unit not in waiting:
                waiting.add(unit)
                queue.append(unit)

    def merge(unit: int, anchor: int) -> None:
        merges.append((unit, anchor))
        neighbours = blocks.neighbours(unit)
        blocks.merge(unit, anchor)
        wake((*neighbours, anchor))

    while queue:
        unit = queue.popleft()
        waiting.discard(unit)
        if blocks.is_merged(unit):
            continue
        for anchor in blocks.anchors(unit):
            if blocks.may_move(unit, anchor):
                merge(unit, anchor)
                break
        else:
            for fan in blocks.fans(unit, _LARGEST_FAN):
                if not any(map(blocks.is_merged, fan)) and blocks.may_gather(fan, unit):
                    for reader in fan:
                        merge(reader, unit)
    return merges
