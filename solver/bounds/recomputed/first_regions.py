"""What the first region of a stage costs at least, given what the stage receives.

A flow of the whole graph (:mod:`solver.bounds.recomputed.prices`) may go through any value that a
stage S receives, so that f microbatches of these pay for what S adds. But what is before a border
for certain is not on S. Let region r be that of the first chosen unit behind the border, and take
for r a flow that neither starts at operators before the border nor goes through what they make. Of
it no more leaves S than F(u) through every value u that S receives and r pays for. So S costs, at a
price of mu for a byte, what starts on S in this flow, and mu / f times m microbatches of u but for
F(u). Flows of regions have no arc in common, so that the others stay as they are.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np

from solver.bounds.recomputed.borders import BorderBytes, BorderCut
from solver.bounds.recomputed.prices import MemoryPrices
from solver.bounds.recomputed.skeleton import Pairs, bits_of
from solver.model.arrays import Bools, Floats, Ints
from solver.model.clock import Clock


class _Received(NamedTuple):
    """An operator on a border.

    Attributes
    ----------
    unit : int
        As its cut numbers it.
    value_bytes, gradient_bytes : int
        Of a microbatch, and of the gradient; 0 of what counts by itself.
    arc : int
        What its value goes through; -1 if its region does not pay for it.
    """

    unit: int
    value_bytes: int
    gradient_bytes: int
    arc: int


class _Border(NamedTuple):
    """What alike borders have in common, and the pairs that have them.

    Attributes
    ----------
    through : array of float
        By price and arc, what flows.
    """

    cut: BorderCut
    received: tuple[_Received, ...]
    through: Floats
    pairs: list[Ints]


class FirstRegions:
    """The first regions of the stages of pairs of ideals, on a class of devices.

    Parameters
    ----------
    clock : Clock
        When it is over, nothing is known of the other pairs.

    Attributes
    ----------
    region : array of int
        By pair, the one that has a flow of its own.
    is_known : array of bool
        By pair, whether there is one.
    costs : Floats, shape (prices, pairs)
        What that flow costs more than that of the whole graph; mostly less.
    """

    def __init__(
        self, pairs: Pairs, borders: BorderBytes, prices: MemoryPrices, clock: Clock
    ) -> None:
        self._pairs, self._units, self._prices = pairs, pairs.skeleton.units, prices
        self._problem = self._units.problem
        self._value_bytes, self._gradient_bytes = borders.value_bytes
        self.region = np.zeros(len(pairs), dtype=np.int64)
        self.is_known = np.zeros(len(pairs), dtype=np.bool_)
        self.costs = np.zeros((len(prices.prices), len(pairs)))
        self._borders: dict[tuple[object, ...], _Border] = {}
        flows, chosen = prices.flows, pairs.skeleton.chosen
        unit_of = np.array(self._units.unit_of_operator)
        networks = {region: flows.region(region) for region in set(flows.regions)}
        whole = np.array(
            [
                flows.starting(at) - flows.kept_bytes * prices.byte_cost(number)
                for number, at in enumerate(prices.prices.tolist())
            ]
        )
        for cut, first, before, behind, own in borders.starts:
            if clock.is_over:
                break
            regions = {flows.regions[i] for i in self._units.members[chosen[bits_of(behind)[0]]]}
            region = min(regions)
            if region in self._mixed:
                continue
            network = networks[region]
            is_before = self._is_before(before)[unit_of]
            without = is_before[network.owners]
            received = tuple(
                _Received(
                    unit,
                    int(self._value_bytes[index]),
                    int(self._gradient_bytes[index]),
                    network.values.get(index, -1),
                )
                for unit in cut.owners.tolist()
                for index in self._units.members[unit + first]
            )
            key = network.key, without.tobytes(), id(cut), received
            if key not in self._borders:
                through = [network.through(at, without) for at in prices.prices.tolist()]
                self._borders[key] = _Border(cut, received, np.array(through), [])
            border = self._borders[key]
            border.pairs.append(own)
            self.region[own], self.is_known[own] = region, True
            sources = network.owners[network.starts]
            more = border.through[:, network.starts] - whole[:, sources]
            by_unit = np.zeros((len(more), len(self._units)))
            np.add.at(by_unit.T, unit_of[sources], more.T)
            self.costs[:, own] = pairs.sums(by_unit, own)

    @cached_property
    def _mixed(self) -> set[int]:
        """Regions that share units with others, whose costs are no sums over regions."""
        of = self._prices.flows.regions
        every = [{of[index] for index in own} for own in self._units.members]
        return {region for own in every if len(own) > 1 for region in own}

    @cached_property
    def _ancestors(self) -> list[int]:
        """By unit, itself and what it needs, as bits."""
        found: list[int] = []
        for unit, every in enumerate(self._units.predecessors):
            mask = 1 << unit
            for other in every:
                mask |= found[other]
            found.append(mask)
        return found

    def _is_before(self, places: int) -> Bools:
        """Return by unit whether it is one of some chosen units, or needed by them."""
        mask, count = 0, len(self._units)
        for place in bits_of(places):
            mask |= self._ancestors[self._pairs.skeleton.chosen[place]]
        own = np.frombuffer(mask.to_bytes(-(-count // 8), "little"), dtype=np.uint8)
        return np.unpackbits(own, bitorder="little", count=count).astype(np.bool_)

    @cached_property
    def _pairs_of(self) -> list[tuple[_Border, Ints]]:
        return [(own, np.concatenate(own.pairs)) for own in self._borders.values()]

    def received_bytes(self, number: int, flying: int) -> Floats:
        """Return what stages receive, with gradients, but for what pays for the flow at a price.

        Parameters
        ----------
        number : int
            Of the price.
        flying : int
            Microbatches in flight.
        """
        byte, batches = self._prices.byte_cost(number), self._problem.microbatches
        result = np.zeros(len(self._pairs))
        for border, pairs in self._pairs_of:
            sizes = np.full(1 + int(border.cut.owners.max()), -1, dtype=np.int64)
            for unit, value_bytes, gradient_bytes, arc in border.received:
                paying = flying * float(value_bytes)
                if arc >= 0:
                    paying = min(paying, flying / byte * float(border.through[number, arc]))
                size = batches * value_bytes - math.ceil(paying) + gradient_bytes
                sizes[unit] = size if sizes[unit] < 0 else min(size, sizes[unit])
            result[pairs] = border.cut.least(sizes, np.zeros_like(sizes))
        return result
