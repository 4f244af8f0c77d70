"""The program of separable prices against the program over all ideals, where memory is limited."""

import math

from solver import SolveStatus, solve
from solver.dp.separable import program_of
from solver.evaluation.evaluate import evaluate
from solver.model.clock import UNLIMITED
from solver.presolve.closures import closed_units
from solver.presolve.device_kinds import capacity_bytes
from solver.presolve.instance import condense
from solver.presolve.least_held import Price
from solver.presolve.transients import Transients
from tests.support.problem_counts import counts
from tests.support.random_problems import relayed_problem

PRICES = (Price(1, 100), Price(1, 3), Price(7, 1), Price(1000, 1))


@counts(60, 4_000, quick=24)
def test_prices_bound_what_fits(count):
    tight = compared = raised = 0
    for seed in range(count):
        problem = relayed_problem(seed, limited=True)
        units = condense(problem)
        result = solve(problem, solver="ideal-dp")
        if result.status is not SolveStatus.OPTIMAL:
            continue
        assert result.objective is not None
        for price in (None, PRICES[seed % len(PRICES)]):
            program = program_of(units, closed_units(units, UNLIMITED, price))
            assert program is not None
            ratio = 0.0 if price is None else price.ns / price.size_bytes
            bound, _ = program.minimise(0, program.most_ns, UNLIMITED, ratio)
            assert bound <= result.objective, seed
        tight += bound == result.objective
        # What passes raises the bound, and so do plans that are known.
        price, most_ns = PRICES[seed % len(PRICES)], result.objective + (seed % 3) * seed
        for transients in (None, Transients(units, min(map(capacity_bytes, problem.devices)))):
            closed = closed_units(units, UNLIMITED, price, most_ns, transients)
            program = program_of(units, closed)
            assert program is not None
            if transients is not None:
                program.add_transients(transients)
            ratio = price.ns / price.size_bytes
            better, _ = program.minimise(0, most_ns, UNLIMITED, ratio)
            assert better <= result.objective, seed
        raised += better > bound
        for price in (PRICES[seed % len(PRICES)], Price(1, 0)):
            program = program_of(units, closed_units(units, UNLIMITED, price, most_ns))
            assert program is not None
            value, chain = program.minimise(0, program.most_ns, UNLIMITED, math.inf)
            if chain is not None:
                evaluation = evaluate(problem, program.plan(chain))
                assert evaluation.feasible, (seed, evaluation.violations)
                assert evaluation.bottleneck_ns == value >= result.objective, seed
        # Closures that raise no memory keep a best plan.
        assert value == result.objective, seed
        compared += 1
    assert compared > count // 4
    assert tight > compared // 3
    assert raised
