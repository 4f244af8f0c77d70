"""What parts of regions may run again, by a price for each byte that is kept.

For a fixed price the cheapest operators to run again are a minimum cut: u is made again (source
side) or kept (sink side); what reads u and runs again needs it there, made again or as an anchor.
The choices that are cheapest for some price are the lower hull of all pairs of bytes kept and time
added; they are found by bisection over prices (Eisner and Severance, "Mathematical techniques for
efficient record segmentation in large shared databases", J. ACM 23, 1976). Alike parts, as those of
identical layers, are solved once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import networkx as nx
import numpy as np

from solver.model.problem import PartitionProblem
from solver.model.recomputation import required
from solver.stages.minimum_cut import UNCUT, PricedNetwork

_LARGEST = float(1 << 44)
"""Capacities of arcs, at most."""


class Choice(NamedTuple):
    """Operators of a part that run again.

    Attributes
    ----------
    extra_ns : int
        Their time.
    held_bytes : int
        What the part keeps of a microbatch.
    again : tuple of int
        Their places in the part.
    """

    extra_ns: int
    held_bytes: int
    again: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """The operators of one region on one stage.

    Attributes
    ----------
    members : tuple of int
        In the execution order.
    is_first, is_last : bool
        The stage begins, or ends, with it.
    """

    members: tuple[int, ...]
    is_first: bool
    is_last: bool


class RecomputeHulls:
    """The hulls of parts on one class of devices.

    Parameters
    ----------
    problem : PartitionProblem
        Of training.
    device_class : str
        Whose times count.
    """

    def __init__(self, problem: PartitionProblem, device_class: str) -> None:
        self._problem = problem
        forward, _ = problem.arrays.pass_latency_ns(device_class)
        self._latency_ns: list[int] = forward.tolist()
        self.structure = problem.storage_graph
        self._known: dict[tuple[object, ...], tuple[Choice, ...]] = {}
        self._numbers: dict[tuple[object, ...], int] = {}

    @cached_property
    def regions(self) -> list[int]:
        """The region of every operator."""
        return [op.backward.region for op in self._problem.operators]

    @cached_property
    def _roots(self) -> list[int]:
        """The owner of every operator's storage; -1 for that of a graph input."""
        problem = self._problem
        return [problem.index_of.get(problem.root_of[op.name], -1) for op in problem.operators]

    @cached_property
    def _alike(self) -> list[int]:
        """Operators by all that matters of them within a part, as numbers."""
        return [self._number(index) for index in range(len(self._problem.operators))]

    def _number(self, index: int) -> int:
        op, region = self._problem.operators[index], self.regions[index]
        backward, problem_index = op.backward, self._problem.index_of

        def relative(others: list[int]) -> tuple[object, ...]:
            return tuple(
                index - other if self.regions[other] == region else self.regions[other] > region
                for other in others
            )

        reads = [self._roots[problem_index[name]] for name in op.reads if name in problem_index]
        outer = tuple(self.anchor_bytes(root, region) for root in reads if root >= 0)
        key = (
            self._latency_ns[index],
            op.storage_bytes,
            backward.kept_bytes,
            backward.residual_bytes,
            backward.rng_bytes,
            backward.recomputable,
            backward.must_recompute,
            self.structure.inner[index],
            op.in_place,
            relative([root for root in self._roots[index : index + 1] if root >= 0]),
            relative([root for root in reads if root >= 0]),
            outer,
            relative(self.structure.savers[index]),
            relative(self.structure.readers[index]),
        )
        return self._numbers.setdefault(key, len(self._numbers))

    def parts(self, members: Sequence[int]) -> list[Part]:
        """Return the parts of a stage, given its operators in the execution order."""
        runs = [tuple(run) for _, run in itertools.groupby(members, self.regions.__getitem__)]
        last = len(runs) - 1
        return [Part(run, number == 0, number == last) for number, run in enumerate(runs)]

    def anchor_bytes(self, root: int, region: int) -> int:
        """Return what an owner takes besides as an anchor of a region; of the first one behind it.

        What several regions read is kept once.
        """
        op, own = self._problem.operators[root], self.regions[root]
        if region != own:
            later = (self.regions[reader] for reader in self.structure.readers[root])
            if region != min((other for other in later if other > own), default=region):
                return 0
        return op.storage_bytes - op.backward.kept_bytes

    def hull(self, part: Part) -> tuple[Choice, ...]:
        """Return the choices that are cheapest for some price, those that keep most first."""
        first = part.members[0]
        alike = tuple((index - first, self._alike[index]) for index in part.members)
        key = (alike, part.is_first, part.is_last)
        if key not in self._known:
            self._known[key] = _hull(_PartCuts(self, part))
        return self._known[key]


class _PartCuts:
    """The minimum cut of a part for any price."""

    def __init__(self, hulls: RecomputeHulls, part: Part) -> None:
        self._hulls, self._part = hulls, part
        problem, structure = hulls._problem, hulls.structure
        operators = problem.operators
        inside = self._inside = frozenset(part.members)
        self.is_whole = problem.recompute == "layers"
        self.required = self._required()
        self.whole = self._required(hulls.regions[part.members[0]])
        self.candidates = [i for i in part.members if i in self.whole or self._may_run_again(i)]
        number = self._number = {index: 2 + place for place, index in enumerate(self.candidates)}
        # Arcs with their times and bytes; source 0 is what runs again.
        arcs: list[tuple[int, int, int, int]] = []
        nodes = 2 + len(self.candidates)
        self.kept_bytes = sum(operators[i].backward.saved_bytes for i in part.members)
        latency_ns = hulls._latency_ns
        for index, node in number.items():
            backward = operators[index].backward
            family = [m for m in structure.families[index] if operators[m].in_place]
            time_ns = latency_ns[index] + sum(latency_ns[m] for m in family)
            arcs.append((node, 1, time_ns, backward.rng_bytes))
            # Nothing drops what is saved elsewhere alone.
            is_needed = backward.residual_bytes or any(
                saver in inside for saver in structure.savers[index]
            )
            arcs.append((0, node, 0, backward.saved_bytes if is_needed else 0))
        read_by: dict[int, list[int]] = {}
        for index in self.candidates:
            for member in structure.families[index]:
                if member == index or operators[member].in_place:
                    for read in operators[member].reads:
                        root = problem.index_of.get(problem.root_of[read], -1)
                        if root >= 0 and root != index:
                            read_by.setdefault(root, []).append(index)
        for root, readers in read_by.items():
            if root in number and operators[root].backward.must_recompute:
                arcs += [(number[reader], number[root], UNCUT, 0) for reader in set(readers)]
            released_bytes = hulls.anchor_bytes(root, hulls.regions[part.members[0]])
            is_before = not part.is_first and hulls.regions[root] < hulls.regions[part.members[0]]
            is_held = is_before or root in inside
            if released_bytes <= 0 or not is_held:
                continue
            for reader in set(readers):
                arcs.append((number[reader], nodes, UNCUT, 0))
            arcs.append((nodes, number.get(root, 1), 0, released_bytes))
            nodes += 1
        arcs += [(0, number[index], UNCUT, 0) for index in self.required]
        self._nodes, self._network = nodes, PricedNetwork(arcs)

    def _required(self, *regions: int) -> list[int]:
        """Return what of the part must run again, if all of some regions does that may."""
        problem = self._hulls._problem
        stage_of = {problem.operators[index].name: 0 for index in self._part.members}
        names = required(problem, stage_of, (), regions=regions)
        return sorted(problem.index_of[name] for name in names)

    def _may_run_again(self, index: int) -> bool:
        """Whether the rules let an operator run again whatever else does."""
        hulls = self._hulls
        if not hulls._problem.operators[index].backward.recomputable:
            return False
        structure = hulls.structure
        others = {*structure.savers[index], *structure.readers[index]} - self._inside
        # What reads it in another region could run again as well; what is sent to another stage
        # takes more room there if it is no longer kept. Of a value that never is, a residual may
        # be spared.
        own, backward = hulls.regions[index], hulls._problem.operators[index].backward
        only_residual = backward.residual_bytes and not backward.kept_bytes
        if others and not (only_residual and all(hulls.regions[o] == own for o in others)):
            return False
        for member in structure.families[index]:
            other = hulls._problem.operators[member]
            if other.in_place and (member not in self._inside or other.backward.residual_bytes):
                return False
        return True

    def choice(self, time: int, size: int) -> Choice:
        """Return the cheapest choice if `size` bytes are worth `time` nanoseconds."""
        costs = self._network.costs(time, size)
        # Of integers whose sums fit; what is lost makes a choice a little less than the cheapest.
        costs *= min(1.0, _LARGEST / max(float(costs.max(initial=0.0)), 1.0))
        again = self._network.cut(costs).is_before
        return self.measured([i for i in self.candidates if again[self._number[i]]])

    def measured(self, chosen: list[int]) -> Choice:
        """Return what a choice takes and keeps, by its cut."""
        network = self._network
        is_before = np.zeros(self._nodes, dtype=np.bool_)
        is_before[[0, *(self._number[index] for index in chosen)]] = True
        # Anchors are there with what reads them.
        is_before[network.heads[network.is_uncut & is_before[network.tails]]] = True
        extra_ns, cut_bytes = network.measured(is_before)
        held_bytes = self.kept_bytes - int(network.bytes[network.tails == 0].sum()) + cut_bytes
        places = tuple(self._part.members.index(index) for index in sorted(chosen))
        return Choice(extra_ns, held_bytes, places)

    def between(self, first: Choice, last: Choice) -> list[Choice]:
        """Return choices on the line between two, if these differ in independent operators."""
        more = set(last.again) - set(first.again)
        if len(more) < 2 or not set(first.again) < set(last.again):
            return []
        links = nx.Graph()
        links.add_nodes_from(self._number[self._part.members[place]] for place in more)
        arcs = zip(self._network.tails.tolist(), self._network.heads.tolist(), strict=True)
        links.add_edges_from(arc for arc in arcs if not {0, 1} & {*arc})
        chosen = [self._part.members[place] for place in first.again]
        found: list[Choice] = []
        for component in nx.connected_components(links):
            own = [i for i in self.candidates if self._number[i] in component]
            own = [i for i in own if self._part.members.index(i) in more]
            if own:
                chosen = chosen + own
                found.append(self.measured(chosen))
        return found[:-1]


def _hull(cuts: _PartCuts) -> tuple[Choice, ...]:
    first = cuts.measured(cuts.required)
    last = cuts.measured(cuts.whole) if cuts.is_whole else cuts.choice(1 << 20, 1)
    if last.held_bytes >= first.held_bytes:
        return (first,)
    if cuts.is_whole:
        return first, last
    found = [first, *_between(cuts, first, last), last]
    return tuple(found)


def _between(cuts: _PartCuts, first: Choice, last: Choice) -> list[Choice]:
    """Return the choices of the hull between two of them."""
    time, size = last.extra_ns - first.extra_ns, first.held_bytes - last.held_bytes
    middle = cuts.choice(time, size)
    cost = middle.extra_ns * size + middle.held_bytes * time
    if cost >= first.extra_ns * size + first.held_bytes * time:
        return cuts.between(first, last)
    return [*_between(cuts, first, middle), middle, *_between(cuts, middle, last)]
