"""CP-SAT variables for values that cross between stages, and for data that units share.

A place is one stage or all stages of one device (:data:`solver.cp.hinted_model.Place`); with
one chunk per device the two are the same, and so are the variables.
"""

from __future__ import annotations

from functools import cached_property

from ortools.sat.python import cp_model

from solver.cp.hinted_model import Place
from solver.cp.linear import LinearSum, Literal
from solver.cp.stage_model import StageModel
from solver.presolve.transfers import Net


class Crossings:
    """Adds crossing variables to a model on first use."""

    def __init__(self, stages: StageModel) -> None:
        self.stages = stages
        self._received: dict[tuple[int, Place], Literal] = {}
        self._crosses: dict[tuple[int, tuple[int, ...], Place], Literal] = {}
        self._held: dict[tuple[tuple[int, ...], Place], Literal] = {}
        self._carried: dict[tuple[int, int], LinearSum] = {}

    def received(self, net: Net, place: Place) -> Literal:
        """received[net, place]: read there, produced elsewhere; inputs are produced nowhere."""
        # Nets live as long as the model; hashing their consumers is slow.
        key = (id(net), place)
        if key in self._received:
            return self._received[key]
        stages = self.stages
        readers = [unit for unit in net.consumers if stages.may_be_on(unit, place)]
        producer = net.producer
        produced_here = producer >= 0 and stages.may_be_on(producer, place)
        literal: Literal
        if not readers or (produced_here and stages.is_fixed_on(producer, place)):
            literal = False
        elif not produced_here and any(stages.is_fixed_on(unit, place) for unit in readers):
            literal = True
        else:
            literal = stages.new_bool(
                lambda s: (
                    any(s.on(unit, place) for unit in net.consumers)
                    and not (producer >= 0 and s.on(producer, place))
                )
            )
            for unit in readers:
                self._force(literal, unit, producer if produced_here else -1, place)
        self._received[key] = literal
        return literal

    def leaves(self, unit: int, others: tuple[int, ...], place: Place) -> Literal:
        """leaves[unit, others, place]: unit is there, and one of others is not."""
        key = (unit, others, place)
        if key in self._crosses:
            return self._crosses[key]
        stages = self.stages
        away = [other for other in others if not stages.is_fixed_on(other, place)]
        literal: Literal
        if not stages.may_be_on(unit, place) or not away:
            literal = False
        elif stages.is_fixed_on(unit, place) and any(
            not stages.may_be_on(other, place) for other in away
        ):
            literal = True
        else:
            literal = stages.new_bool(
                lambda s: s.on(unit, place) and any(not s.on(other, place) for other in others)
            )
            for other in away:
                self._force(literal, unit, other, place)
        self._crosses[key] = literal
        return literal

    def held(self, units: tuple[int, ...], place: Place) -> Literal:
        """held[units, place]: some of the units are there."""
        key = (units, place)
        if key in self._held:
            return self._held[key]
        stages = self.stages
        here = [unit for unit in units if stages.may_be_on(unit, place)]
        literal: Literal
        if not here:
            literal = False
        elif any(stages.is_fixed_on(unit, place) for unit in here):
            literal = True
        else:
            literal = stages.new_bool(lambda s: any(s.on(unit, place) for unit in units))
            for unit in here:
                self._force(literal, unit, -1, place)
        self._held[key] = literal
        return literal

    def _force(self, literal: Literal, unit: int, other: int, place: Place) -> None:
        """Force a literal if a unit is on `place` and another one (-1: none) is not."""
        total = LinearSum().add(literal)
        self.stages.add_on(total, unit, place, -1)
        if other >= 0:
            self.stages.add_on(total, other, place)
        self.stages.add_row(total.expression >= 0)

    def hops(self, net: Net, border: int) -> LinearSum:
        """hop[net, border]: made on a position before `border` and needed there or later.

        A linear term if one unit determines the need; with several readers a variable that is at
        least each of their terms. All are 0 at the borders before the first position and after the
        last one.
        """
        # Relays live as long as the model.
        key = (id(net), border)
        if key in self._carried:
            return self._carried[key]
        stages, producer = self.stages, net.producer
        ends = [unit for unit in net.consumers if stages.reaches(unit, border) is not False]
        inside = 0 < border < len(stages.positions)
        total = LinearSum()
        if not inside or stages.reaches(producer, border) is True:
            pass
        elif net.is_output or any(stages.reaches(unit, border) is True for unit in ends):
            total = LinearSum(1).add(stages.reaches(producer, border), -1)
        elif len(ends) == 1:
            # The reader is never before the producer, so this is 0 or 1.
            total.add(stages.reaches(ends[0], border))
            total.add(stages.reaches(producer, border), -1)
        elif ends:
            literal = stages.new_bool(
                lambda s: (
                    s.position_of[producer] < border
                    and any(s.position_of[unit] >= border for unit in net.consumers)
                )
            )
            for unit in ends:
                row = LinearSum().add(literal).add(stages.reaches(unit, border), -1)
                row.add(stages.reaches(producer, border))
                stages.add_row(row.expression >= 0)
            total.add(literal)
        self._carried[key] = total
        return total

    @cached_property
    def pairs(self) -> dict[tuple[int, int], list[tuple[Net, Literal]]]:
        """pair[net, s, r]: by ordered pair of slots, the nets that it may transfer."""
        stages = self.stages
        pairs: dict[tuple[int, int], list[tuple[Net, Literal]]] = {}
        # With one chunk and no backward operators values follow the order of slots.
        forward_only = stages.is_single and not any(
            op.is_backward for op in stages.problem.operators
        )
        for net in stages.units.sent_nets:
            producer = net.producer
            for target, place in enumerate(stages.places):
                received = self.received(net, place)
                if received is False:
                    continue
                sources = [
                    source
                    for source in (range(target) if forward_only else stages.slots)
                    if source != target and stages.may_be_on(producer, stages.places[source])
                ]
                if len(sources) == 1:
                    pairs.setdefault((sources[0], target), []).append((net, received))
                    continue
                # Implied send variables: the value comes from the slot of its producer.
                total = LinearSum().add(received, -1)
                for source in sources:
                    literal = self._pair(net, stages.places[source], place)
                    total.add(literal)
                    bound = stages.on(producer, stages.places[source]).add(literal, -1)
                    stages.add_row(bound.expression >= 0)
                    pairs.setdefault((source, target), []).append((net, literal))
                stages.add_row(total.expression >= 0)
        return pairs

    def _pair(self, net: Net, source: Place, target: Place) -> cp_model.IntVar:
        return self.stages.new_bool(
            lambda s: (
                s.on(net.producer, source) and any(s.on(unit, target) for unit in net.consumers)
            )
        )
