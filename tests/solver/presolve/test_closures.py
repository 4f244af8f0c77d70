"""Closures against all ideals, by an oracle that shares no code with them."""

from solver.dp.separable import program_of
from solver.evaluation.evaluate import evaluate
from solver.model.clock import UNLIMITED
from solver.presolve.closures import applies, closed_units
from solver.presolve.instance import condense
from tests.support.ideal_oracle import least_bottleneck
from tests.support.problem_counts import counts
from tests.support.random_problems import relayed_problem


@counts(300, 20_000, quick=40)
def test_some_best_plan_without_limits_has_closed_ideals_alone(count):
    merged = 0
    for seed in range(count):
        problem = relayed_problem(seed)
        best = least_bottleneck(problem)
        units = condense(problem)
        if units.pins_contradict:
            assert best is None, seed
            continue
        assert applies(units)
        closed = closed_units(units, UNLIMITED)
        merged += closed.count < len(units)
        program = program_of(units, closed)
        assert program is not None
        value, chain = program.minimise(0, program.most_ns, UNLIMITED)
        if best is None:
            assert chain is None, seed
            continue
        assert chain is not None, seed
        assert value == best, seed
        evaluation = evaluate(problem, program.plan(chain))
        assert evaluation.feasible, (seed, evaluation.violations)
        assert evaluation.bottleneck_ns == best, seed
    assert merged > count // 2
