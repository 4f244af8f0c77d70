"""Tables of the zoo by greedy, contiguous and exact plans, of all planners, and plans as SVG."""

from __future__ import annotations

from typing import Final

from experiments.comparison.records import PlannerRow
from experiments.paper.bench import TIGHT, WORK, Bench
from experiments.paper.published import BY, CLOCK, SECONDS, gap_text
from experiments.paper.tables import PaperTable
from experiments.reports.content.statistics import Versus, compare_planners
from solver.model.quantities import MISSING, format_seconds, format_value

EXACT: Final = "auto"
DRAWN: Final = (("branches", "equal"),)
"""Model and devices of each drawn plan."""


def zoo(bench: Bench) -> PaperTable:
    """Plan the default models on equal and unequal devices by greedy, chain and auto."""
    rows = []
    found = bench.zoo()
    for case in found.cases:
        if case.problem is None or case.key.device_set not in TIGHT:
            continue
        answers = {row.planner: row for row in found.rows_of(case.key)}
        exact = answers[EXACT]
        rows.append(
            (
                case.key.model,
                str(len(case.problem.operators)),
                f"{len(case.problem.devices)} {case.key.device_set}",
                *(_value(answers[name]) for name in ("greedy", "chain", EXACT)),
                gap_text(exact.status, exact.gap),
                f"{exact.wall_time_s:.2f}",
                exact.answered_by,
            )
        )
    header = ("model", "operators", "devices", "greedy", "chain", EXACT, "gap", SECONDS, BY)
    return PaperTable(header, tuple(rows), CLOCK)


def planners(bench: Bench) -> PaperTable:
    """Compare every planner with the optimum over all cases of the zoo."""
    time = "median time"
    header = (
        "planner",
        "feasible",
        "mean",
        "worst",
        "ties",
        "worse",
        "better",
        "spills",
        "fails",
        time,
    )
    compared = compare_planners(bench.zoo().rows, EXACT)
    return PaperTable(header, tuple(_cells(versus) for versus in compared), frozenset({time}))


def figures(bench: Bench) -> dict[str, str]:
    """Draw the best plans of some models: file names and their SVG."""
    # Loads matplotlib.
    from experiments.reports.figures.of_study import shown_plan

    drawn: dict[str, str] = {}
    for case in bench.zoo().cases:
        key = case.key
        if case.problem is None or (key.model, key.device_set) not in DRAWN:
            continue
        # The choice among several best plans must not depend on the clock.
        name = f"{key.model} on {key.device_set} devices, to draw"
        plan = bench.solve(case.problem, name, first=WORK, otherwise=None).plan
        assert plan is not None, name
        for figure in shown_plan(f"{key.model}-{key.device_set}", case, plan).figures:
            drawn[f"{figure.name}.svg"] = figure.picture.svg
    return drawn


def _cells(versus: Versus) -> tuple[str, ...]:
    outcomes, mean, worst = versus.outcomes, versus.geometric_mean, versus.largest
    return (
        versus.planner,
        f"{outcomes['feasible']} of {sum(outcomes.values())}",
        MISSING if mean is None else f"{mean:.3f}",
        MISSING if worst is None else f"{worst[0]:.3f} ({worst[1].model}, {worst[1].device_set})",
        str(len(versus.ties)),
        str(len(versus.wins)),
        str(len(versus.losses)),
        str(outcomes["spills"]),
        str(outcomes["failures"]),
        MISSING if versus.median_s is None else format_seconds(versus.median_s),
    )


def _value(row: PlannerRow) -> str:
    if not row.feasible or row.objective is None:
        return "breaks limits" if row.plan is not None else row.status
    return format_value(row.case.objective[0], row.objective[0])
