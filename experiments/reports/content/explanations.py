"""Explanations and limits that every report prints."""

from __future__ import annotations

from typing import Final

HOW_TO_READ: Final = (
    (
        "One evaluator",
        "every plan is costed by it, whoever found it; no planner is believed about its own. Less "
        "is better.",
    ),
    (
        "Bound",
        "proven: no plan of the problem is better. Optimal means that bound and objective are "
        "the same number; the gap is how far a plan may be from the best. Only our solvers prove "
        "bounds.",
    ),
    (
        "Ratios",
        "of first objectives; their means are geometric. Better, equal and worse "
        "compare all objectives in their order, as exact integers, where both have plans.",
    ),
    (
        "Best of the others",
        "for every case, the best plan of all planners that prove nothing.",
    ),
    (
        "Figures of a case",
        "its best plan: stages in the order of the pipeline, with what passes between them, "
        "blue where it passes others by; and what devices do and hold, with a dashed line at the "
        "bottleneck and black marks at capacities. Traces open in Perfetto "
        "(https://ui.perfetto.dev) and chrome://tracing.",
    ),
    (
        "Same split",
        "the model, split by the plan and called with its example inputs, gives what the "
        "model gives.",
    ),
)

LIMITS: Final = (
    "Times of operators come from a roofline of published speeds, unless devices or profiles said "
    "otherwise: nothing here was measured on the devices that plans name.",
    "A proof holds for the problem at hand: its operators, costs, memory model and limits on "
    "stages. Memory counts tensors, not what an allocator loses.",
    "Capacities of devices called equal, unequal and roomy follow from the model.",
    "Wall times, and plans that are not proven, may differ in another run; proven objectives do "
    "not.",
)
