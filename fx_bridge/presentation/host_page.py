"""The page of a plan with a host: its units with their modes, and the search."""

from __future__ import annotations

from collections.abc import Sequence

from fx_bridge.presentation.markup import escaped, escaped_lines, table
from fx_bridge.presentation.page import HandOver, hand_over, page_text, steps_of
from solver.evaluation.result import StepRecord
from solver.model.devices import STAGING_HOST
from solver.model.plan import PartitionPlan
from solver.model.quantities import format_bytes, format_ns
from solver.offload.evaluate import OffloadEvaluation


def host_page(
    cost: OffloadEvaluation,
    plan: PartitionPlan,
    log: Sequence[StepRecord],
    *,
    title: str,
    answer: str,
    command: str,
    hand_overs: Sequence[HandOver],
) -> str:
    """Return the page of a plan with a host as HTML.

    The arguments from `title` on are those of :func:`fx_bridge.presentation.page.plan_page`.
    """
    sections = [
        ("units", "Units in the order in which they run", _units(cost, plan)),
        ("proof", "Proof", steps_of(log)),
        ("words", "Hand over", hand_over(hand_overs, command)),
    ]
    lines = f"<pre>{escaped_lines(answer)}</pre>"
    return page_text(title, lines, sections, len(cost.instance.devices) + 1)


def _units(cost: OffloadEvaluation, plan: PartitionPlan) -> str:
    instance, rows = cost.instance, []
    placed = instance.units_of(plan)
    for unit in instance.units:
        device, mode = placed[unit.name]
        at = instance.device_index[device]
        place, number, times_ns = device, at, [own[at] for own in unit.run_ns]
        if mode == "host":
            place, number, times_ns = STAGING_HOST, len(instance.devices), [*unit.host_ns]
        name = f'<span class="d{number}"><i class="dot"></i>{escaped(unit.name)}</span>'
        sizes = map(format_bytes, (unit.weight_bytes, unit.cache_bytes))
        rows.append((name, escaped(place), mode, *sizes, *map(format_ns, times_ns)))
    header = ("unit", "runs on", "mode", "weights", "caches")
    times = (f"time of {escaped(phase)}" for phase in instance.phases)
    return table((*header, *times), rows, text=header[:3])
