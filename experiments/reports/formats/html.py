"""A report as one self-contained HTML page: no scripts, nothing from elsewhere.

Names reach the page as text alone: the template escapes all that it shows, and a content security
policy in the page forbids scripts and whatever else a page can load. Only figures that
:mod:`experiments.reports.figures.svg` drew are put in as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from experiments.comparison.records import PlannerRow
from experiments.reports.content.comparisons import Comparison
from experiments.reports.content.details import PlanDetails
from experiments.reports.content.explanations import HOW_TO_READ, LIMITS
from experiments.reports.content.page import Page
from experiments.reports.content.plan_tables import (
    alive_table,
    arc_table,
    device_table,
    stage_table,
)
from experiments.reports.content.table import Table
from experiments.reports.figures.ratio import ratio_figure
from experiments.reports.figures.whole_plan import Figure, plan_figures, trace_figure
from solver.model.quantities import printable

if TYPE_CHECKING:
    from markupsafe import Markup


def to_html(page: Page) -> str:
    """Return a report as HTML."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("experiments.reports"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        page=page,
        drawn=_drawn(Markup),
        comparison_figures=_comparison_figures,
        plan_figures=plan_figures,
        search_figure=_search_figure,
        plan_numbers=_plan_numbers,
        how_to_read=HOW_TO_READ,
        limits=LIMITS,
    )


def _shown(value: Any) -> Any:
    """Return text without what turns its direction or is no text; markup of our own as it is."""
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return "\n".join(printable(line) for line in value.split("\n"))
    return value


def _drawn(markup: type[Markup]) -> Callable[[Figure], Markup]:
    """Return what puts the drawing of a figure into a page: nothing else goes in unescaped."""
    return lambda figure: markup(figure.svg)


def _comparison_figures(comparison: Comparison) -> tuple[Figure, ...]:
    svg = ratio_figure(comparison.compared)
    if svg is None:
        return ()
    caption = (
        "For each planner its objective divided by the exact solver's: a dot for every case where "
        "both have plans, with the number of those that do not fit into a stack, a bar for the "
        "geometric mean. To the right of 1 the exact solver is better."
    )
    title = "Objectives in multiples of the exact solver's"
    if comparison.objective:
        title += f", {comparison.objective}"
    return (Figure("ratios", title, caption, svg),)


def _search_figure(row: PlannerRow) -> Figure:
    figure = trace_figure(row.trace)
    return figure._replace(title=f"{figure.title}, {row.label}")


def _plan_numbers(details: PlanDetails) -> tuple[Table, ...]:
    return (device_table(details), stage_table(details), arc_table(details), alive_table(details))
