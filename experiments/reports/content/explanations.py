"""Explanations and limits that every report prints."""

from __future__ import annotations

from typing import Final

HOW_TO_READ: Final = (
    (
        "One evaluator",
        "it costs every plan, whichever planner found it; no planner is trusted about its own. "
        "Less is better.",
    ),
    (
        "Bound",
        "proven: no plan of the problem is better. Optimal means that bound and objective are "
        "equal; the gap limits the distance of a plan from the best. Only our solvers prove "
        "bounds.",
    ),
    (
        "Ratios",
        "of first objectives; their means are geometric. Better, equal and worse "
        "compare all objectives in their order, as exact integers, where both have plans.",
    ),
    ("Best of the others", "for every case, the best plan of all planners that prove nothing."),
    (
        "Figures of a case",
        "its best plan: stages in the order of the pipeline, with the bytes sent between them, "
        "blue where they skip a stage; and load and memory of the devices, with a dashed line at "
        "the bottleneck and black marks at capacities. Traces open in Perfetto "
        "(https://ui.perfetto.dev) and chrome://tracing.",
    ),
    (
        "Same split",
        "the model, split by the plan and called with its example inputs, returns the outputs of "
        "the model.",
    ),
)

LIMITS: Final = (
    "Times of operators come from a roofline of published speeds, unless devices or profiles give "
    "others: nothing here was measured on the devices of the plans.",
    "A proof holds for the given problem: its operators, costs, memory model and limits on "
    "stages. Memory counts tensors, without fragmentation.",
    "Capacities of devices called equal, unequal and roomy follow from the model.",
    "Wall times, and plans that are not proven, may differ in another run; proven objectives do "
    "not.",
)
