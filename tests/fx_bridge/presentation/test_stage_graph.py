"""Graphs of stages as Graphviz and Mermaid read them: every stage and arc, and names as text."""

import re

import pytest

from fx_bridge.presentation.quotient import stage_arcs
from fx_bridge.presentation.stage_graph import dot_text, mermaid_text
from solver import evaluate
from tests.support.report_plans import PLANS

# The grammar of Graphviz: a quoted text ends at the first quote without a backslash before it.
DOT_NODE = re.compile(r'  s(\d+) \[label="((?:[^"\\]|\\.)*)"\];')
DOT_ARC = re.compile(r'  s(\d+) -> s(\d+) \[label="([^"\\]*)"\];')
MERMAID_NODE = re.compile(r'  s(\d+)\["([\w .,:()<>#;-]*)"\]')
MERMAID_ARC = re.compile(r'  s(\d+) -->\|"([\w .]*)"\| s(\d+)')


def arcs_of(problem, plan):
    return {(arc.source, arc.target) for arc in stage_arcs(problem, plan)}


@pytest.mark.parametrize("name", PLANS)
def test_every_stage_is_a_node_and_every_arc_is_there(name):
    problem, plan = PLANS[name]()
    evaluation, stages = evaluate(problem, plan), range(len(plan.stages))

    first, *settings, last, end = dot_text(evaluation, plan).split("\n")
    assert (first, last, end) == ("digraph plan {", "}", "")
    nodes = [found for line in settings if (found := DOT_NODE.fullmatch(line))]
    arcs = [found for line in settings if (found := DOT_ARC.fullmatch(line))]
    assert len(nodes) + len(arcs) == len(settings) - 2
    assert [int(node[1]) for node in nodes] == [*stages]
    assert {(int(arc[1]), int(arc[2])) for arc in arcs} == arcs_of(problem, plan)

    first, *lines, end = mermaid_text(evaluation, plan).split("\n")
    assert (first, end) == ("flowchart LR", "")
    nodes = [found for line in lines if (found := MERMAID_NODE.fullmatch(line))]
    arcs = [found for line in lines if (found := MERMAID_ARC.fullmatch(line))]
    assert len(nodes) + len(arcs) == len(lines)
    assert [int(node[1]) for node in nodes] == [*stages]
    assert {(int(arc[1]), int(arc[3])) for arc in arcs} == arcs_of(problem, plan)
    # The only markup is the break between lines.
    assert all(set(re.findall("<.*?>", node[2])) == {"<br>"} for node in nodes)


def test_a_stage_is_said_by_its_modules():
    problem, plan = PLANS["modular"]()
    text = dot_text(evaluate(problem, plan), plan)
    assert r'"stage 0: cuda:0\nmodel.embed, layers.0-1, part of layers.2 (attn)\n' in text
    assert '  s0 -> s1 [label="500 B"];\n' in text
