"""Who is next to whom is derived once, by the instance: few files loop over arcs themselves."""

import ast

from tests.support.sources import files, tree_of

LOOP_OVER_ARCS = {
    "solver/bounds/regional/region_cuts.py",
    "solver/cp/latency_rows.py",
    "solver/cp/stage_model.py",
    "solver/heuristics/coarsening.py",
    "solver/presolve/instance.py",
    "solver/presolve/operator_blocks.py",
}
"""Files with a row or a set for each arc. This list may only shrink."""


def loops_over_arcs(tree):
    """Whether some loop is over `edges` of something, sorted or not."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension):
            loop = node.iter
            if isinstance(loop, ast.Call) and isinstance(loop.func, ast.Name):
                loop = loop.args[0] if loop.func.id == "sorted" else loop
            if isinstance(loop, ast.Attribute) and loop.attr == "edges":
                return True
    return False


def test_few_files_loop_over_arcs():
    assert {str(f) for f in files("solver") if loops_over_arcs(tree_of(f))} == LOOP_OVER_ARCS


def test_loops_over_arcs_are_found():
    assert loops_over_arcs(ast.parse("for a, b in sorted(units.edges): pass"))
    assert loops_over_arcs(ast.parse("found = {a for a, _ in self._units.edges}"))
    assert not loops_over_arcs(ast.parse("edges = quotient_arcs(units.edges, at)"))
