"""The size of a model, before it is built."""

from __future__ import annotations

from collections.abc import Iterable

from solver.bounds.windows import StageWindows
from solver.presolve.device_kinds import interchangeable_kinds
from solver.presolve.instance import Instance

_ROWS_OF_AN_ORDER = 4


def link_terms(
    units: Instance,
    windows: StageWindows,
    slots: int,
    chunks: int = 1,
    *,
    decides_order: bool = True,
) -> int:
    """Return about the number of terms of the times on links in a model.

    A round has `slots` devices, and there are `chunks` rounds. If the model decides the device
    order, every possible transfer from one slot to another is a term for each pair of kinds of
    devices on them (:meth:`solver.cp.load_rows.LoadRows.link_time`). In a model of one order it is
    a term of the load of both slots, and of the rows of both between two borders. If links are
    uniform, or a host stages all values, few rows depend on the order: the answer is 0.

    >>> from solver import Device, Interconnect, Link, Operator, PartitionProblem
    >>> from solver.presolve.instance import condense
    >>> operators = [Operator("a", 10, value_bytes=1), Operator("b", 10, ("a",))]
    >>> fast = Interconnect(Link(), {("d0", "d1"): Link(1)})
    >>> problem = PartitionProblem(operators, [Device("d0"), Device("d1")], interconnect=fast)
    >>> link_terms(condense(problem), StageWindows((0, 0), (1, 1)), 2)
    4
    """
    if not units.transfers.depends_on_pair:
        return 0
    either_way = chunks > 1 or any(op.is_backward for op in units.problem.operators)
    count = sum(
        source < target or (either_way and source != target)
        for net in units.direct_nets
        for target in _slots_of(net.consumers, windows, slots)
        for source in _slots_of([net.producer], windows, slots)
    )
    # Each border has one pair of slots.
    count += (slots * chunks - 1) * len(units.relays)
    each = len(interchangeable_kinds(units)) ** 2 if decides_order else _ROWS_OF_AN_ORDER
    return count * each


def _slots_of(units: Iterable[int], windows: StageWindows, slots: int) -> set[int]:
    return {
        position % slots
        for unit in units
        for position in range(windows.first[unit], windows.last[unit] + 1)
    }
