"""Refutes limits on the bottleneck by models of one order of devices after the other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum, auto
from itertools import chain

from solver.bounds.windows import BorderIdeals, StageWindows, WindowSource
from solver.cp.border_rows import add_border_ideals
from solver.cp.cut_rows import narrowed
from solver.cp.formulation import CpSatFormulation
from solver.cp.hinted_model import OutOfTime
from solver.cp.pull_rows import PullRows
from solver.cp.queue import ModelQueue, Verdict
from solver.cp.stage_model import StageModel
from solver.evaluation.evaluate import evaluate
from solver.model.clock import Clock
from solver.model.cuts import is_hand_made
from solver.presolve.device_kinds import Order
from solver.presolve.symmetry import IdenticalBlocks
from solver.search.branches import Branch
from solver.search.state import SearchState


class LimitStatus(Enum):
    """What models say of a limit."""

    REFUTED = auto()
    """No plan is within it."""
    SOLVED = auto()
    """A model has a solution: it is the incumbent now, or it does not fit, and from now on models
    know all memory."""
    OPEN = auto()
    """The time is over."""
    DECLINED = auto()
    """Orders, or what is before borders, are too many."""


class LimitRefutation:
    """Asks models whether there are plans within a limit.

    The ideals of a skeleton at all borders are known
    (:meth:`solver.bounds.windows.WindowSource.border_ideals`). At first devices hold weights alone:
    then most operators that are not of the skeleton have one best place
    (:class:`solver.cp.pull_rows.PullRows`), and the model is refuted several times sooner
    than that of all plans. What activations say against a plan is lost, but for what the ideals
    know of it; as soon as a plan is found that does not fit, models know them.

    If devices differ, each order of them that is still possible within the limit has a model: all
    of them together take less time than the one that decides the order.

    Parameters
    ----------
    state : SearchState
        With the branches of the objective ``bottleneck``.
    """

    def __init__(self, state: SearchState) -> None:
        self._state = state
        self._presolved = state.presolved
        self._stage_bounds = state.stage_bounds
        self._knows_weights_alone = True
        # Of each order, or of all at once.
        self._refuted_ns: dict[Order | None, int] = {}
        self._listed: tuple[int, list[Order]] | None = None

    @property
    def applies(self) -> bool:
        """Whether ideals are known, and plans stay plans if operators are pulled to readers."""
        state, presolved = self._state, self._presolved
        return (
            self._stage_bounds.is_narrowed
            and state.objective == "bottleneck"
            and state.is_first
            and not presolved.depends_on_count
            and not is_hand_made(presolved.problem)
        )

    def ask(self, branch: Branch, limit_ns: int, clock: Clock) -> LimitStatus:
        """Ask whether a branch has plans within a limit; if it has none, its bound grows.

        Parameters
        ----------
        branch : Branch
            One that covers all plans.
        limit_ns : int
            Of every load.
        clock : Clock
            When models end.
        """
        source = self._stage_bounds.source(branch.slots, limit_ns)
        orders = None if source is None else self._orders(branch, source, limit_ns)
        if source is None or orders is None:
            return LimitStatus.DECLINED
        with ModelQueue(self._state.limits, clock) as queue:
            for order in orders:
                if self._refuted_ns.get(order, -1) >= limit_ns:
                    continue
                if clock.is_over:
                    return LimitStatus.OPEN
                windows = self._windows(branch.slots, limit_ns, order)
                if windows.empty:
                    self._refuted_ns[order] = limit_ns
                    continue
                ideals = source.border_ideals(limit_ns, self._presolved.devices(order))
                if ideals is None:
                    return LimitStatus.DECLINED
                try:
                    model = self._model(order, windows, ideals, limit_ns)
                except OutOfTime:
                    return LimitStatus.OPEN
                queue.add(order, model)
                if queue.is_full:
                    finding = self._learn(queue.next(), limit_ns)
                    if finding is not LimitStatus.REFUTED:
                        return finding
            while len(queue):
                finding = self._learn(queue.next(), limit_ns)
                if finding is not LimitStatus.REFUTED:
                    return finding
        branch.bound = max(branch.bound, limit_ns + 1)
        return LimitStatus.REFUTED

    def _orders(
        self, branch: Branch, source: WindowSource, limit_ns: int
    ) -> Sequence[Order | None] | None:
        """Return the orders to ask for one by one, if they are known."""
        if branch.order is not None or len(self._presolved.kinds) == 1:
            return [branch.order]
        if self._listed is not None and limit_ns <= self._listed[0]:
            # Lower limits have no other orders.
            return self._listed[1]
        kinds = [kind.device for kind in self._presolved.kinds]
        orders = source.orders(limit_ns, kinds, self._state.clock)
        if orders is not None:
            self._listed = limit_ns, orders
        return orders

    def _windows(self, slots: int, limit_ns: int, order: Order | None) -> StageWindows:
        devices = self._presolved.devices(order)
        windows = self._stage_bounds.windows(slots, limit_ns, devices)
        return narrowed(self._presolved.units, windows, slots)

    def _model(
        self, order: Order | None, windows: StageWindows, ideals: BorderIdeals, limit_ns: int
    ) -> StageModel:
        units, identical = self._presolved.units, self._presolved.identical
        pulls = None
        if self._knows_weights_alone:
            kept = _unmoved(ideals, identical, windows)
            pulls = PullRows(units, kept)
        formulation = CpSatFormulation(
            units,
            windows,
            len(ideals.inside) - 1,
            largest_load_ns=limit_ns,
            order=order,
            identical=identical,
            pulls=pulls,
            clock=self._state.clock,
        )
        stages = formulation.stages
        add_border_ideals(stages, ideals)
        stages.add_row(formulation.objective("bottleneck").expression <= limit_ns)
        return stages

    def _learn(self, verdict: Verdict, limit_ns: int) -> LimitStatus:
        """Note what a model says of its order, and offer its plan if that fits."""
        if verdict.is_refuted:
            self._refuted_ns[verdict.order] = limit_ns
            return LimitStatus.REFUTED
        if verdict.plan is None:
            return LimitStatus.OPEN
        if evaluate(self._presolved.problem, verdict.plan).feasible:
            self._state.offer_plan(verdict.plan)
        else:
            self._knows_weights_alone = False
        return LimitStatus.SOLVED


def _unmoved(
    ideals: BorderIdeals, identical: IdenticalBlocks, windows: StageWindows
) -> Collection[int]:
    """Return the units that rows elsewhere place.

    Blocks in order are no obstacle to moves if all may be moved to the same stages: after the last
    move they can be exchanged until they are in order again.
    """
    kept = set(ideals.units)
    for blocks in identical.groups:
        for units in zip(*blocks, strict=True):
            ranges = {(windows.first[unit], windows.last[unit]) for unit in units}
            if len(ranges) > 1 or not kept.isdisjoint(units):
                kept.update(chain.from_iterable(blocks))
                break
    return kept
