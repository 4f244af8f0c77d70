"""The page of a plan: its modules, devices, memory, pipeline, transfers and proof.

A page is one file that loads no script, font or image. It follows the dark or light scheme of the
reader's system and fits narrow screens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from fx_bridge.presentation.details import pipeline_details, stage_arcs
from fx_bridge.presentation.markup import device_colours, escaped, escaped_lines, folded, table
from fx_bridge.presentation.module_totals import ModuleTotals
from fx_bridge.presentation.page_charts import memory_charts, pipeline_chart
from fx_bridge.presentation.page_modules import ModuleView
from fx_bridge.presentation.summary import STEP_HEADER, step_cells, times_line
from solver.evaluation.evaluate import Evaluation
from solver.evaluation.result import SolveResult, SolveStatus, StepRecord
from solver.evaluation.usage import DeviceUsage
from solver.model.plan import PartitionPlan
from solver.model.problem_fields import ObjectiveName
from solver.model.quantities import counted, format_bytes, format_gap, format_ns, format_value

_FACTS: Final[tuple[ObjectiveName, ...]] = ("bottleneck", "latency", "transfer", "devices")
"""Shown of every plan, after its objectives."""
_MOST_LETTERS: Final = 300
"""Of the modules of a stage."""


class HandOver(NamedTuple):
    """The text of a plan's settings for a program or, unless it `fits`, the reason against it."""

    program: str
    text: str
    fits: bool


def plan_page(
    result: SolveResult,
    *,
    title: str = "Plan",
    answer: str = "",
    command: str = "",
    hand_overs: Sequence[HandOver] = (),
) -> str:
    """Return the page of a plan, feasible or not, as HTML.

    `title` is the name of the model, and `command` the command line that made the plan. The lines
    of `answer` are on its purpose and proof, in place of those of `result`.
    """
    assert result.plan is not None
    assert result.evaluation is not None
    page = _Page(result, result.evaluation, result.plan)
    sections = [
        ("modules", "Where each module runs", page.tiles()),
        ("devices", "Devices", page.devices()),
        ("tree", "Modules", page.modules()),
        ("memory", "Memory over time", page.memory()),
        ("time", "Pipeline", page.pipeline()),
        ("transfers", "Transfers", page.transfers()),
        ("proof", "Proof", page.proof()),
        ("words", "Hand over", hand_over(hand_overs, command)),
    ]
    return page_text(title, page.answer(answer), sections, len(result.evaluation.usage))


def page_text(
    title: str, answer: str, sections: Sequence[tuple[str, str, str]], devices: int
) -> str:
    """Return a page with sections of an anchor, a name and HTML, unless that is empty.

    `answer` is the HTML below the title, and as many devices as said have a colour.
    """
    sections = [section for section in sections if section[2]]
    links = "".join(f'<a href="#{anchor}">{name}</a>' for anchor, name, _ in sections)
    body = "".join(
        f'<section id="{anchor}"><h2>{name}</h2>{content}</section>'
        for anchor, name, content in sections
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        # Nothing is loaded, even if a name contains markup.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">"
        '<link rel="icon" href="data:,">'
        f"<title>{escaped(title)}: plan</title>"
        f"<style>{_style()}{device_colours(devices)}</style></head>"
        f"<body><main><h1>{escaped(title)}</h1>{answer}<nav>{links}</nav>{body}"
        "</main></body></html>\n"
    )


@cache
def _style() -> str:
    return files("fx_bridge.presentation").joinpath("page.css").read_text(encoding="utf-8")


class _Page:
    """The sections of a page, each as HTML; a section without content is empty."""

    def __init__(self, result: SolveResult, evaluation: Evaluation, plan: PartitionPlan) -> None:
        self._result = result
        self._evaluation = evaluation
        self._plan = plan
        self._totals = ModuleTotals(evaluation, plan)
        self._numbers = {entry.device: number for number, entry in enumerate(evaluation.usage)}
        self._words = self._totals.tree.stages(plan, _MOST_LETTERS)
        self._view = ModuleView(self._totals, plan.stages, self._numbers)

    def answer(self, lines: str) -> str:
        """Return the proof, or the given lines in its place, and the plan in numbers."""
        evaluation, result = self._evaluation, self._result
        names = dict.fromkeys((*evaluation.objective_names, *_FACTS))
        values = [(name, evaluation.value(name)) for name in names]
        facts = [(name.replace("_", " "), format_value(name, value)) for name, value in values]
        if result.objective_bound is not None:
            facts.insert(1, ("gap", format_gap(result.gap)))
        if self._plan.recomputed:
            facts.append(("operators run again", f"{len(self._plan.recomputed):,}"))
        cells = "".join(f"<div><b>{value}</b>{name}</div>" for name, value in facts)
        shown = f"<pre>{escaped_lines(lines)}</pre>" if lines else f"<p>{self._proven()}</p>"
        if evaluation.violations:
            rows = [(escaped(text),) for text in evaluation.violations]
            header = ("This plan breaks limits",)
            shown = f'<div class="bad">{table(header, rows, text=header)}</div>'
        if not lines and (origin := times_line(evaluation.problem)):
            shown += f"<p>{escaped(origin)}</p>"
        return f'{shown}<div class="facts">{cells}</div>'

    def _proven(self) -> str:
        result, evaluation = self._result, self._evaluation
        first = evaluation.objective_names[0]
        made = f"{escaped(result.solver)}, {result.wall_time_s:.2f} s"
        if result.status is SolveStatus.OPTIMAL:
            name = ", then ".join(evaluation.objective_names).replace("_", " ")
            return f"Proven optimal: no plan is better in {name} ({made})."
        if result.objective_bound is None:
            return f"A plan without a proof ({made})."
        return (
            f"Feasible; it is proven that no plan has a {first} below "
            f"{format_value(first, result.objective_bound)} ({made})."
        )

    def tiles(self) -> str:
        """Return the devices by colour, and a tile for each module."""
        tiles = self._view.tiles()
        key = "".join(
            f'<span class="d{self._numbers[device]}"><i class="dot"></i>{escaped(device)}</span>'
            for device in self._plan.device_order
        )
        return tiles and (
            "<p>In the order in which they run. A tile of several colours is divided; each leads "
            f'to its row.</p><div class="key">{key}</div>{tiles}'
        )

    def devices(self) -> str:
        """Return a card for each device, with its modules, memory and time."""
        rank = {device: at for at, device in enumerate(self._plan.device_order)}
        usage = sorted(self._evaluation.usage, key=lambda entry: rank.get(entry.device, len(rank)))
        return f'<div class="cards">{"".join(map(self._card, usage))}</div>'

    def _card(self, usage: DeviceUsage) -> str:
        number = self._numbers[usage.device]
        device_class = self._evaluation.problem.device_of[usage.device].device_class
        parts = [f'<div class="card d{number}"><h3>{escaped(usage.device)} <small>']
        parts.append(f"{escaped(device_class)}</small></h3>")
        own = [at for at, stage in enumerate(self._plan.stages) if stage.device == usage.device]
        if not own:
            return "".join((*parts, '<p class="muted">not used</p></div>'))
        for at in own:
            words = escaped(self._words[at])
            label = f'<span class="muted">stage {at}:</span> ' if len(own) > 1 else ""
            parts.append(f"<p>{label}{words}</p>")
        over = usage.capacity_bytes is not None and usage.memory_bytes > usage.capacity_bytes
        of = "" if usage.capacity_bytes is None else f" of {format_bytes(usage.capacity_bytes)}"
        share = f" ({usage.peak_memory_permille / 10:.1f} %)" if of else ""
        most_bytes = usage.capacity_bytes or max(e.memory_bytes for e in self._evaluation.usage)
        filled = min(100.0, 100 * usage.memory_bytes / max(most_bytes, 1))
        times_ns = {"compute": usage.compute_ns, "send": usage.send_ns, "receive": usage.receive_ns}
        # With overlapping transfers the parts of a load add up to more than it.
        longest_ns = (e.compute_ns + e.send_ns + e.receive_ns for e in self._evaluation.usage)
        most_ns = max(*longest_ns, 1)
        bars = "".join(
            f'<i class="{name}" style="width:{100 * time_ns / most_ns:.1f}%"></i>'
            for name, time_ns in times_ns.items()
        )
        times = ", ".join(
            f"{name} {format_ns(time_ns)}" for name, time_ns in times_ns.items() if time_ns
        )
        parts.append(
            f"<dl><dt>memory<dd>{format_bytes(usage.memory_bytes)}{of}{share}"
            f'<div class="bar{" over" if over else ""}"><i style="width:{filled:.1f}%"></i></div>'
            f"<dt>load<dd>{format_ns(usage.load_ns)}"
            f'<div class="bar" title="{times}">{bars}</div><small>{times}</small>'
            f"<dt>operators<dd>{len(usage.operators):,}</dl></div>"
        )
        return "".join(parts)

    def modules(self) -> str:
        training = " and gradients" if self._evaluation.problem.is_training else ""
        return (
            "<p>Opened where a module is divided. The browser's search finds modules and operators "
            "in closed rows too. Weights that several devices hold count for each; "
            f"<i>sends</i> is what values{training} made there move to other devices.</p>"
            f"{self._view.tree()}"
        )

    def memory(self) -> str:
        return (
            "<p>While each operator runs, in execution order; the darker part is weights, the "
            f"dashed line the capacity.</p>{memory_charts(self._evaluation, self._numbers)}"
        )

    def pipeline(self) -> str:
        """Return the pipeline chart of several devices."""
        if len(self._plan.device_order) == 1:
            return ""
        pipeline = pipeline_details(self._evaluation, self._plan)
        return pipeline_chart(pipeline, self._numbers) if pipeline.spans else ""

    def transfers(self) -> str:
        arcs = stage_arcs(self._evaluation.problem, self._plan)
        if not arcs:
            return ""
        stages, is_training = self._plan.stages, self._evaluation.problem.is_training
        rows = [
            (
                f"{arc.source}: {escaped(stages[arc.source])}",
                f"{arc.target}: {escaped(stages[arc.target])}",
                f"{arc.values:,}",
                format_bytes(arc.value_bytes),
                *([format_bytes(arc.gradient_bytes)] if is_training else []),
            )
            for arc in arcs
        ]
        header = ("from stage", "to stage", "values", "bytes", *["gradients"] * is_training)
        return table(header, rows, text=header[:2])

    def proof(self) -> str:
        """Return the value and bound of each objective, and the steps of the search, if any."""
        result, evaluation = self._result, self._evaluation
        if result.objective_bounds is None and not result.log:
            return ""
        bounds: list[int | None] = [*(result.objective_bounds or ())]
        bounds += [None] * (len(evaluation.objective) - len(bounds))
        rows = [
            (name.replace("_", " "), format_value(name, value), format_value(name, bound))
            for name, value, bound in zip(
                evaluation.objective_names, evaluation.objective, bounds, strict=True
            )
        ]
        shown = table(("objective", "plan", "bound of all plans"), rows, text=("objective",))
        return shown + steps_of(result.log)


def steps_of(log: Sequence[StepRecord]) -> str:
    """Return the steps of a search, if any, for the reader to unfold."""
    steps = [tuple(map(escaped, step_cells(record))) for record in log]
    summary = f"{counted(len(steps), 'step')} of the search"
    return folded(summary, table(STEP_HEADER, steps, text=("step",))) if steps else ""


def hand_over(hand_overs: Sequence[HandOver], command: str) -> str:
    """Return the plan as the settings of other programs, and the command that made it."""
    shown = f"<p>This plan was made by:</p><pre>{escaped(command)}</pre>" if command else ""
    shown += "".join(
        folded(escaped(entry.program), f"<pre>{escaped(entry.text)}</pre>")
        for entry in hand_overs
        if entry.fits
    )
    rows = [(escaped(entry.program), escaped(entry.text)) for entry in hand_overs if not entry.fits]
    if rows:
        reasons = table(("program", "why"), rows, text=("program", "why"))
        shown += folded("programs without words for this plan", reasons)
    return shown
