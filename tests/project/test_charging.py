"""Who pays for transfers is decided in few places; all others ask them."""

import ast

from tests.support.sources import files, tree_of

READERS = {
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


def test_few_files_read_how_transfers_are_charged():
    found = {
        str(file)
        for file in files("solver")
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Attribute) and node.attr == "charging"
    }
    assert found == READERS
