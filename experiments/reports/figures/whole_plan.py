"""The figures of a report."""

from __future__ import annotations

from functools import partial

from experiments.comparison.records import PlannerRow
from experiments.reports.content.blocks import Figure
from experiments.reports.content.frontier import Frontier, frontier_table
from experiments.reports.content.plan_tables import (
    alive_table,
    arc_table,
    device_table,
    search_table,
    stage_table,
)
from experiments.reports.content.statistics import Comparison
from experiments.reports.figures.bars import alive_figure, load_figure
from experiments.reports.figures.frontier import frontier_figure
from experiments.reports.figures.memory import memory_figure
from experiments.reports.figures.pipeline import pipeline_figure
from experiments.reports.figures.quotient import quotient_figure
from experiments.reports.figures.ratio import ratio_figure
from experiments.reports.figures.search import search_figure
from fx_bridge.presentation.details import PlanDetails


def plan_figures(details: PlanDetails) -> tuple[Figure, ...]:
    """Return all figures of one plan, in the order in which a report shows them."""
    return (
        Figure(
            "quotient",
            "Stages and what passes between them",
            "The quotient graph of the plan. Each box is a stage: operators on one device that "
            "run one after another. An arc says how many bytes of values, each counted once, the "
            "reader takes from the maker for each microbatch; blue arcs pass other stages by.",
            partial(quotient_figure, details),
            (stage_table(details), arc_table(details)),
        ),
        Figure(
            "memory",
            "Memory of every device",
            "Memory while each operator of a device runs, all devices in one scale. The band "
            "below is weights, the dashed line the capacity, the dot the peak.",
            partial(memory_figure, details),
        ),
        Figure(
            "alive",
            "What is alive at the peak",
            "What each device holds at its peak, by kind; the table has the largest by name. The "
            "sizes add up to the peak.",
            partial(alive_figure, details),
            (alive_table(details),),
        ),
        Figure(
            "load",
            "Load of every device",
            "Time for each sample, in training for each microbatch with its backward pass. "
            + (
                "Compute, send and receive overlap, so that the longest of them is the load. "
                if details.overlap
                else "The load is the sum of compute, send and receive. "
            )
            + "The largest load is the bottleneck.",
            partial(load_figure, details),
            (device_table(details),),
        ),
        Figure(
            "pipeline",
            "The plan as a pipeline",
            "Boxes are passes of a microbatch, whose number they carry; the strip below them "
            "shows sends and receives. To the right, the share of the step in which a device "
            "does nothing.",
            partial(pipeline_figure, details),
        ),
    )


def trace_figure(row: PlannerRow) -> Figure:
    """Return the figure of a planner's search."""
    return Figure(
        "search",
        f"Incumbent and bound over time, {row.label}",
        "The best plan found so far and the bound below which no plan is, for each objective in "
        "turn. Where the lines meet, the plan is proven optimal.",
        partial(search_figure, row.trace),
        (search_table(row),),
    )


def comparison_figure(comparison: Comparison) -> Figure:
    """Return the figure of planners beside the exact solver, where any ratio is known."""
    return Figure(
        "ratios",
        f"Objectives in multiples of the exact solver's, {', '.join(comparison.objective)}",
        "For each planner its objective divided by the exact solver's: a dot for every case where "
        "both have plans, with the number of those that do not fit into a stack, a bar for the "
        "geometric mean. To the right of 1 the exact solver is better.",
        partial(ratio_figure, comparison.compared),
    )


def memory_against_time_figure(frontier: Frontier) -> Figure:
    """Return the figure of what less memory costs."""
    return Figure(
        "frontier",
        f"Memory of each device against {frontier.objective}, {frontier.model}",
        f"What each planner reaches on {frontier.devices} of more and more memory, by letting "
        f"operators run again in the backward pass. The line is {frontier.exact}, which decides "
        "that together with the partition; each mark is a planner with a rule of its own. Where "
        "a planner has no mark, none of its plans fits.",
        partial(frontier_figure, frontier),
        (frontier_table(frontier),),
    )
