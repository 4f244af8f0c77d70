"""Objective against device memory, by recomputation rules and by joint optimisation."""

from __future__ import annotations

from typing import Final

from experiments.comparison.settings import CompareSettings
from experiments.paper.bench import WORK, Bench
from experiments.paper.tables import PaperTable
from experiments.problems.devices import parse_devices
from experiments.problems.request import ProblemRequest
from experiments.reports.content.frontier import Frontier, frontier_table, frontiers
from experiments.workloads.catalogue import PREFIX

_WORKLOAD: Final = "piper.bert32a100"
_RULES: Final = ("recompute-none", "recompute-all", "recompute-every-nth", "two-steps-operators")
"""Rules without a model; ``two-steps-layers`` is left out, since the problem is one region."""
_DEVICES: Final = ("8x7GiB", "8x8GiB", "8x10GiB", "8x12GiB", "8x16GiB")


def recompute(bench: Bench) -> PaperTable:
    """Plan the training of BERT on eight devices of increasing memory."""
    made = frontier_table(_frontier(bench))
    return PaperTable(made.header, made.rows)


def recompute_figure(bench: Bench) -> dict[str, str]:
    """Draw the table of :func:`recompute`."""
    # Loads matplotlib.
    from experiments.reports.figures.frontier import frontier_figure

    name = f"{_WORKLOAD}-frontier"
    return {f"{name}.svg": frontier_figure(name, _frontier(bench)).svg}


def _frontier(bench: Bench) -> Frontier:
    settings = CompareSettings(
        ProblemRequest(with_replicas=False),
        {text: parse_devices(text) for text in _DEVICES},
        ("auto", *_RULES),
        # The choice among several best partitions must not depend on the clock.
        WORK,
    )
    (found,) = frontiers(bench.compare([f"{PREFIX}{_WORKLOAD}"], settings))
    return found
