"""Catalogue of tables and figures, in the order of their making."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from experiments.paper.bench import Bench
from experiments.paper.llama import llama
from experiments.paper.published import huge, interleaved, nasnet, published
from experiments.paper.recompute import recompute, recompute_figure
from experiments.paper.tables import PaperTable
from experiments.paper.zoo import figures, planners, zoo


@dataclass(frozen=True, slots=True)
class Entry:
    """A table, or a group of figures.

    Attributes
    ----------
    build : callable
        Returns a table, or SVG texts by file name.
    all_planners : bool
        It needs the answers of all planners to the zoo.
    """

    description: str
    build: Callable[[Bench], PaperTable | dict[str, str]]
    all_planners: bool = False


ENTRIES: Final[Mapping[str, Entry]] = {
    "published": Entry("the workloads of Tarnawski et al., NeurIPS 2020", published),
    "interleaved": Entry("several stages on each accelerator", interleaved),
    "nasnet": Entry("NASNet mobile, and generated graphs of its kind", nasnet),
    "llama": Entry("Llama-3-70B beside planners of transformers and accelerate", llama),
    "zoo": Entry("seven models by greedy, chain and auto", zoo),
    "planners": Entry("all planners side by side, on the zoo", planners, all_planners=True),
    "recompute": Entry("rules for what runs again, by the memory of devices", recompute),
    "frontier": Entry("the same as SVG", recompute_figure),
    "figures": Entry("plans of the zoo as SVG", figures),
    "huge": Entry("a graph of 100,000 operators", huge),
}
