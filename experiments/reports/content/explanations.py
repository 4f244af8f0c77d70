"""How to read a report and where it ends, in words that Markdown and HTML share."""

from __future__ import annotations

from typing import Final

HOW_TO_READ: Final = (
    (
        "One evaluator",
        "Every plan, whoever found it, is costed by one evaluator; objective is its value, and "
        "less is better. No planner is believed about its own plan.",
    ),
    (
        "Bound and gap",
        "A bound is proven: no plan is better. The gap is how far a plan may be from the best; "
        "optimal means that bound and objective are the same number. Only our solvers prove "
        "bounds.",
    ),
    (
        "Ratios",
        "A planner's first objective divided by the exact solver's: the geometric mean over the "
        "cases where both have feasible plans, the least and the most. Above 1 the exact solver is "
        "better. Better, equal and worse compare all objectives in their order, as exact integers; "
        "only exact counts the cases where the exact solver alone has a feasible plan.",
    ),
    (
        "Best of the others",
        "For every case the best plan of all planners that prove nothing: what a person gets who "
        "runs them all and keeps the best.",
    ),
    (
        "Same results",
        "A split model is called with the inputs of the model, and all outputs are compared with "
        "the model's.",
    ),
)

LIMITS: Final = (
    "Times of operators come from a roofline of published speeds, unless devices or profiles said "
    "otherwise: no number here was measured on the devices that plans name. Ratios of objectives "
    "are ratios of the model of cost, not of measured runs.",
    "A proof of optimality holds for the problem at hand: its operators, costs, memory model and "
    "limits on stages. It says nothing of a plan that the problem does not contain, such as one "
    "that runs an operator on two devices.",
    "Memory counts tensors. What an allocator loses to fragments, and what a runtime needs for "
    "itself, must be left free in the capacity.",
    "Capacities of devices called equal and unequal follow from the model: in total a fixed slack "
    "above what the model needs on one device, more only where no contiguous cut fits in that. "
    "Each roomy device holds the whole model.",
    "Searches share the machine's cores and stop at a limit of time, so wall times, and plans that "
    "are not proven, may differ in another run; proven objectives do not.",
    "Peers plan by other terms (whole modules, weights alone). What they answer is judged by our "
    "evaluator, which counts what they do not.",
)
