"""Rows that bring operators to the stage of their readers, for a model that knows weights alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from ortools.sat.python import cp_model

from solver.cp.crossings import Crossings
from solver.cp.linear import Literal
from solver.cp.memory_rows import MemoryRows
from solver.presolve.instance import Instance
from solver.presolve.transfers import Net

_MOST_CONES = 12
"""Cones that end in the same unit; each has one unit more than the one before."""


@dataclass(frozen=True, slots=True)
class Cone:
    """A fanout-free cone: units of which nothing but one unit's values is read outside.

    The term is that of logic synthesis (J. Cong, Y. Ding, "On area/depth trade-off in LUT-based
    FPGA technology mapping", IEEE Transactions on VLSI Systems 2, 1994).

    Attributes
    ----------
    head : int
        The unit that is read outside.
    units : tuple of int
        The head, and units all of whose readers are among them.
    readers : tuple of int
        What reads the head, or has to come after it.
    inputs : tuple of Net
        What is read of other units.
    weight_bytes : int
        Of all weights that some of the units read.
    """

    head: int
    units: tuple[int, ...]
    readers: tuple[int, ...]
    inputs: tuple[Net, ...]
    weight_bytes: int


class PullRows:
    """Finds cones, and pulls them to their readers.

    Parameters
    ----------
    units : Instance
        With peer-to-peer transfers, one chunk per device and loads that add up.
    kept : collection of int
        Units that stay where they are: rows elsewhere say where those can be.

    Notes
    -----
    Take a plan of bottleneck T and regard weights as all that devices hold. Let all readers of a
    cone be on stage k, and its head before k. Its units then are all before k, since each has a
    way to the head. If stage k receives every input of the cone anyway, moving the cone to k
    costs k its work, and saves it the values of the head; if these take as long at least, the load
    of k does not grow. Other loads do not either: makers of inputs send to k already, and who had
    the units loses them, what they received and what they sent. No arc is broken, for what is
    received at k comes from before, and what comes after the cone is on k. So if
    the weights of the cone fit on k and the windows of its units let them be there, the plan
    that is moved is as good. Every move brings units to later stages, so there is a last one, and
    the plan that it leaves satisfies, for all cones and stages k:

        all readers on k, all inputs received on k, what k holds and the cone fit  =>  head on k

    The moves change nothing but the stages of units outside `kept`. They may increase
    activations: so the rows belong to a model that ignores these. If it has no solution within a
    limit, there is no plan within it.

    Rows that ask for blocks in order, or for stages that are not empty, may exclude that last plan:
    what they speak of has to be kept. Dominance in all plans alike
    (:mod:`solver.presolve.dominance`) cannot say this much: it depends on what else a stage
    receives.
    """

    def __init__(self, units: Instance, kept: Collection[int]) -> None:
        self._units = units
        self._kept = frozenset(kept)

    @cached_property
    def _sent_ns(self) -> list[int]:
        """The least time of all that each unit sends to one device."""
        sent_ns = [0] * len(self._units)
        transfers = self._units.transfers
        for net, time_ns in zip(transfers.nets, transfers.least_ns, strict=True):
            sent_ns[net.producer] += time_ns
        return sent_ns

    def cones(self) -> Iterator[Cone]:
        """Yield cones that no load grows by, if they are pulled."""
        slowest_ns = self._units.slowest_ns.tolist()
        before, after = self._units.predecessors, self._units.successors
        for head, readers in enumerate(after):
            if not readers or not self._may_move(head):
                continue
            inside, work_ns = {head}, slowest_ns[head]
            for _ in range(_MOST_CONES):
                if work_ns > self._sent_ns[head]:
                    break
                yield self._cone(head, inside)
                more = {
                    unit
                    for member in inside
                    for unit in before[member]
                    if unit not in inside and inside.issuperset(after[unit])
                    if self._may_move(unit)
                }
                if not more:
                    break
                nearest = max(more)
                inside.add(nearest)
                work_ns += slowest_ns[nearest]

    def _may_move(self, unit: int) -> bool:
        return unit not in self._kept and self._units.allowed_devices[unit] is None

    def _cone(self, head: int, inside: set[int]) -> Cone:
        inputs = {
            number: self._units.nets[number]
            for unit in sorted(inside)
            for number in self._units.nets_read[unit]
            if self._units.nets[number].producer not in inside
        }
        return Cone(
            head,
            tuple(sorted(inside)),
            self._units.successors[head],
            tuple(inputs.values()),
            sum(
                entry.size_bytes
                for entry in self._units.weights
                if not inside.isdisjoint(entry.units)
            ),
        )

    def add_to(self, crossings: Crossings, memory: MemoryRows) -> None:
        """Add the rows of all cones to a model.

        Parameters
        ----------
        crossings : Crossings
            Of the model, with the same units.
        memory : MemoryRows
            Of weights alone.
        """
        for cone in self.cones():
            for position in crossings.stages.positions:
                premise = _premise(crossings, cone, position)
                if premise is None:
                    continue
                true, false = premise
                if cone.weight_bytes:
                    conditions = [*true, *(~literal for literal in false)]
                    memory.leave_no_room(position, cone.weight_bytes, conditions)
                else:
                    crossings.stages.model.add_bool_or(*(~literal for literal in true), *false)


def _premise(
    crossings: Crossings, cone: Cone, position: int
) -> tuple[list[cp_model.IntVar], list[cp_model.IntVar]] | None:
    """Return what is true and what is false if a cone could be pulled to a position and is not.

    None if that never is so.
    """
    stages, here = crossings.stages, (position,)
    if not all(stages.may_be_on(unit, here) for unit in (*cone.units, *cone.readers)):
        return None
    true: list[Literal] = [stages.reaches(reader, position) for reader in cone.readers]
    true.extend(crossings.received(net, here) for net in cone.inputs)
    false = [stages.reaches(reader, position + 1) for reader in cone.readers]
    false.append(stages.reaches(cone.head, position))
    if any(literal is False for literal in true) or any(literal is True for literal in false):
        return None
    return (
        [literal for literal in true if not isinstance(literal, bool)],
        [literal for literal in false if not isinstance(literal, bool)],
    )
