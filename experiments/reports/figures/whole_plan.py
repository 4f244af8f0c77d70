"""The figures of a report, as SVG that stands in a page by itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from experiments.comparison.records import SearchPoint
from experiments.reports.content.details import PlanDetails
from experiments.reports.figures.alive import alive_figure
from experiments.reports.figures.load import load_figure
from experiments.reports.figures.memory import memory_figure
from experiments.reports.figures.pipeline import pipeline_figure
from experiments.reports.figures.quotient import quotient_figure
from experiments.reports.figures.search import search_figure


class Figure(NamedTuple):
    """A figure with what a page says of it.

    Attributes
    ----------
    name : str
        Of letters alone; for identifiers and file names.
    title : str
        A few words, for its heading.
    caption : str
        What is to be seen and how to read it; no name of a model is in it.
    svg : str
        The whole image as text.
    """

    name: str
    title: str
    caption: str
    svg: str


def plan_figures(details: PlanDetails) -> tuple[Figure, ...]:
    """Return all figures of one plan, in the order in which a report shows them."""
    return (
        Figure(
            "quotient",
            "Stages and what passes between them",
            "The quotient graph of the plan. Each box is a stage: operators on one device that "
            "run one after another. An arc says how many bytes of values, each counted once, the "
            "reader takes from the maker for each microbatch; blue arcs pass other stages by.",
            quotient_figure(details),
        ),
        Figure(
            "memory",
            "Memory of every device",
            "Memory while each operator of a device runs, all devices in one scale. The band "
            "below is weights, the dashed line the capacity, the dot the peak.",
            memory_figure(details),
        ),
        Figure(
            "alive",
            "What is alive at the peak",
            "What each device holds at its peak, by kind; below, the largest by name. The sizes "
            "add up to the peak.",
            alive_figure(details),
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
            load_figure(details),
        ),
        Figure(
            "pipeline",
            "The plan as a pipeline",
            "Boxes are passes of a microbatch, whose number they carry; the strip below them "
            "shows sends and receives. To the right, the share of the step in which a device "
            "does nothing.",
            pipeline_figure(details),
        ),
    )


def trace_figure(points: Sequence[SearchPoint]) -> Figure:
    """Return the figure of one search."""
    return Figure(
        "search",
        "Incumbent and bound over time",
        "The best plan found so far and the bound below which no plan is, for each objective in "
        "turn. Where the lines meet, the plan is proven optimal.",
        search_figure(points),
    )
