"""Which searches of CP-SAT look at a model, on how many threads."""

import re

import pytest
from ortools.sat.python import cp_model

from solver.cp.run import portfolio_solver, single_solver


def packing():
    """Return a small model: items of several sizes into three bins as equally as possible."""
    model = cp_model.CpModel()
    sizes = [100 + 37 * i * i % 61 for i in range(12)]
    bins = [[model.new_bool_var("") for _ in range(3)] for _ in sizes]
    largest = model.new_int_var(0, sum(sizes), "")
    for item in bins:
        model.add_exactly_one(item)
    for own in zip(*bins, strict=True):
        model.add(sum(map(lambda size, chosen: size * chosen, sizes, own)) <= largest)
    model.minimize(largest)
    return model


def started(solver):
    """Return the complete searches, the others, and the threads that CP-SAT says it starts."""
    lines = []
    parameters = solver.parameters
    parameters.log_search_progress, parameters.log_to_stdout = True, False
    # Presolve might leave nothing to search.
    parameters.cp_model_presolve = False
    solver.log_callback = lines.append
    assert solver.solve(packing()) == cp_model.OPTIMAL
    text = "\n".join(lines)
    threads = re.search(r"Starting .*search at .* with (\d+) worker", text)
    complete = re.search(r"\d+ full problem subsolvers?: \[(.*)\]", text)
    others = re.search(r"\d+ interleaved subsolvers?: \[(.*)\]", text)
    return (
        set(complete[1].split(", ")),
        set(others[1].split(", ")) if others else set(),
        int(threads[1]),
    )


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_a_portfolio_is_complete_on_any_number_of_threads(workers):
    complete, others, threads = started(portfolio_solver(workers, seed=0))
    assert {"no_lp", "max_lp"} <= complete
    assert any(name.endswith("_lns") for name in others)
    assert threads == workers


def test_a_single_search_has_one_thread():
    complete, _, threads = started(single_solver(seed=0))
    assert (complete, threads) == ({"no_lp"}, 1)
