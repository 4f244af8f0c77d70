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


@pytest.mark.parametrize("size", [10**6, 2**33, 10**12])
@pytest.mark.parametrize("presolve", [True, False])
def test_the_least_of_conditional_bounds_is_exact_above_32_bits(size, presolve):
    """Tests a fault of OR-Tools 9.15 (docs/algorithms/cp/runs.md)."""
    model = cp_model.CpModel()
    share = model.new_int_var(0, 1000, "")
    held = model.new_int_var(size // 3, 2 * size, "")
    capacities = [size, size - 7, size - 11]
    chosen = [model.new_bool_var("") for _ in capacities]
    model.add_exactly_one(chosen)
    for capacity, literal in zip(capacities, chosen, strict=True):
        model.add(1000 * held <= capacity * share).only_enforce_if(literal)
    model.minimize(share)
    solver = single_solver(seed=0)
    solver.parameters.cp_model_presolve = presolve
    assert solver.solve(model) == cp_model.OPTIMAL
    assert round(solver.objective_value) == -(-1000 * (size // 3) // size)
