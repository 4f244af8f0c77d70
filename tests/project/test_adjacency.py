"""Who is next to whom, and who pays for transfers, is derived once: few files say it themselves."""

import ast

import pytest

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

READ_CHARGING = {
    # The field itself, and files that hold it.
    "solver/model/devices.py",
    "solver/io/json_files.py",
    # What a problem and its holdings mean, and what a schedule allows.
    "solver/model/holdings.py",
    "solver/model/pipeline.py",
    "solver/model/problem_checks.py",
    # The evaluator, which imports none of the rooms below.
    "solver/evaluation/layout.py",
    "solver/evaluation/transfers.py",
    # Whom bounds, programs, heuristics and models ask.
    "solver/presolve/transfers.py",
}
"""Files of the solver that read how transfers are charged. This list may only shrink."""

CHARGING = {
    "charging",
    "hops",
    "is_host",
    "pays",
    "relayed",
    "relays",
    "sends_once",
    "through_host",
}
"""Names of the charging, and of what it decides."""

BRANCH_ON_CHARGING = {
    "solver/bounds/borders/bound.py",
    "solver/bounds/borders/horizons.py",
    "solver/bounds/borders/tables.py",
    "solver/bounds/parts/subproblem.py",
    "solver/bounds/regional/path_markers.py",
    "solver/bounds/regional/position_steps.py",
    "solver/bounds/regional/positions.py",
    "solver/cp/latency_rows.py",
    "solver/dp/contiguous/chain_pass.py",
    "solver/evaluation/layout.py",
    "solver/evaluation/transfers.py",
    "solver/model/holdings.py",
    "solver/model/pipeline.py",
    "solver/model/problem_checks.py",
    "solver/offload/instance.py",
    "solver/presolve/instance.py",
    "solver/presolve/transfers.py",
}
"""Files of the solver with a condition on how transfers are charged; others ask for amounts, of
which some are zero. This list may only shrink."""


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


def reads_charging(tree):
    return any(isinstance(n, ast.Attribute) and n.attr == "charging" for n in ast.walk(tree))


def conditions(tree):
    """Yield all tests, filters and parts of logical expressions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.BoolOp):
            yield node


def branches_on_charging(tree):
    parts = [part for condition in conditions(tree) for part in ast.walk(condition)]
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    names.update(part.attr for part in parts if isinstance(part, ast.Attribute))
    return any(name.removeprefix("_") in CHARGING for name in names)


@pytest.mark.parametrize(
    ("does", "allowed"), [(loops_over_arcs, LOOP_OVER_ARCS), (reads_charging, READ_CHARGING)]
)
def test_few_files_do_it_themselves(does, allowed):
    assert {str(file) for file in files("solver") if does(tree_of(file))} == allowed


def test_few_files_branch_on_charging():
    found = {str(file) for file in files("solver") if branches_on_charging(tree_of(file))}
    assert found <= BRANCH_ON_CHARGING


def test_branches_on_charging_are_found():
    assert branches_on_charging(ast.parse("x = 1 if units.transfers._hops else 2"))
    assert not branches_on_charging(ast.parse("hops = 1 if relay else 2"))


def test_loops_over_arcs_are_found():
    assert loops_over_arcs(ast.parse("for a, b in sorted(units.edges): pass"))
    assert loops_over_arcs(ast.parse("found = {a for a, _ in self._units.edges}"))
    assert not loops_over_arcs(ast.parse("edges = quotient_arcs(units.edges, at)"))
