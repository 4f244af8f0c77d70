"""Figures of plans of the zoo as SVG files, without anything that a clock says."""

from __future__ import annotations

from typing import Final

from experiments.paper.bench import WORK, Bench
from experiments.reports.content.details import plan_details
from experiments.reports.figures.whole_plan import plan_figures

DRAWN: Final = (("branches", "equal"), ("gpt2", "unequal"))
"""The model and the devices of each plan that is drawn."""


def figures(bench: Bench) -> dict[str, str]:
    """Draw the best plans of some models: file names and their SVG."""
    drawn: dict[str, str] = {}
    for answered in bench.zoo():
        key = answered.case.key
        if (key.model, key.device_set) not in DRAWN:
            continue
        # A model may have several best plans; which one is found must not depend on the clock.
        name = f"{key.model} on {key.device_set} devices, to draw"
        plan = bench.solve(answered.problem, name, first=WORK, otherwise=None).plan
        assert plan is not None, name
        for figure in plan_figures(plan_details(answered.problem, plan)):
            drawn[f"{key.model}-{key.device_set}-{figure.name}.svg"] = figure.draw()
    return drawn
