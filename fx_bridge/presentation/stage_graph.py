"""The quotient graph of a plan, for Graphviz or Mermaid."""

from __future__ import annotations

from typing import Final

from fx_bridge.presentation.modules import ModuleTree
from fx_bridge.presentation.quotient import stage_arcs
from solver.evaluation.evaluate import Evaluation
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.quantities import counted, format_bytes, format_ns
from solver.model.text import printable

_MOST_LETTERS: Final = 60
"""Of the modules of a stage."""


def dot_text(evaluation: Evaluation, plan: PartitionPlan) -> str:
    """Return the graph in the DOT language of Graphviz, drawn by ``dot -Tsvg``.

    Nodes are stages, labelled by device, modules and time; arcs are labelled by bytes.
    """
    lines = ["digraph plan {", "  rankdir=LR;", '  node [shape=box, fontname="sans-serif"];']
    for number, label in enumerate(_labels(evaluation, plan)):
        text = "\\n".join(map(_escaped_for_dot, label))
        lines.append(f'  s{number} [label="{text}"];')
    lines += [
        f'  s{source} -> s{target} [label="{label}"];'
        for source, target, label in _arcs(evaluation, plan)
    ]
    return "\n".join([*lines, "}", ""])


def mermaid_text(evaluation: Evaluation, plan: PartitionPlan) -> str:
    """Return the graph in the language of Mermaid, for ``mermaid`` blocks of Markdown."""
    lines = ["flowchart LR"]
    for number, label in enumerate(_labels(evaluation, plan)):
        text = "<br>".join(map(_escaped_for_mermaid, label))
        lines.append(f'  s{number}["{text}"]')
    lines += [
        f'  s{source} -->|"{label}"| s{target}' for source, target, label in _arcs(evaluation, plan)
    ]
    return "\n".join([*lines, ""])


def stage_operators(problem: PartitionProblem, plan: PartitionPlan) -> list[list[str]]:
    """Return the operators of each stage, in execution order."""
    members: list[list[str]] = [[] for _ in plan.stages]
    for op in problem.operators:
        members[plan.stage_index[op.name]].append(op.name)
    return members


def _labels(evaluation: Evaluation, plan: PartitionPlan) -> list[tuple[str, ...]]:
    """Return the lines of each stage's label."""
    tree = ModuleTree.of(evaluation.problem)
    members = stage_operators(evaluation.problem, plan)
    return [
        (
            f"stage {number}: {entry.stage}",
            tree.words(operators, _MOST_LETTERS),
            f"{counted(len(operators), 'operator')}, {format_ns(entry.time_ns)}",
        )
        for number, (entry, operators) in enumerate(zip(evaluation.stages, members, strict=True))
    ]


def _arcs(evaluation: Evaluation, plan: PartitionPlan) -> list[tuple[int, int, str]]:
    """Return source, target and label of each arc."""
    return [
        (arc.source, arc.target, format_bytes(arc.value_bytes + arc.gradient_bytes))
        for arc in stage_arcs(evaluation.problem, plan)
    ]


def _escaped_for_dot(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')


def _escaped_for_mermaid(text: str) -> str:
    """Return text with entities for the characters that Mermaid or HTML interprets."""
    return "".join(
        char if char.isalnum() or char in " .,:()-_" else f"#{ord(char)};"
        for char in printable(text)
    )
