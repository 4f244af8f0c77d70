"""What runs again in the stages of a plan, so that they fit."""

import pytest

from solver import Device, Operator, PartitionPlan, PartitionProblem, evaluate
from solver.model.training import Backward
from solver.stages.recompute_chooser import RecomputeChooser
from tests.support.oracle import brute_force
from tests.support.random_problems import recomputed_problem, to_instance

SIZE = {"min_operators": 4, "max_operators": 6, "objective": ("bottleneck",)}


@pytest.mark.deep
def test_stages_of_the_best_partition_are_completed_to_the_best_plan():
    best_ones = seen = 0
    for seed in range(120):
        problem = recomputed_problem(seed, **SIZE)
        best = brute_force(to_instance(problem))
        if best is None or not problem.may_recompute or problem.chunks_per_device > 1:
            continue
        (bottleneck_ns,), assignment, _ = best
        devices = dict.fromkeys(assignment[op.name] for op in problem.operators)
        plan = PartitionPlan(assignment, tuple(devices))
        completed = evaluate(problem, RecomputeChooser(problem).completed(plan))
        assert not completed.feasible or completed.objective[0] >= bottleneck_ns
        seen += 1
        best_ones += completed.feasible and completed.objective == (bottleneck_ns,)
    # Stages that hold most while they run forward or again are completed by what is found.
    assert seen > 60
    assert best_ones > 0.75 * seen, (best_ones, seen)


def test_what_is_sent_runs_again_where_nothing_of_it_is_kept():
    """Stages of one operator each, whose residuals do not fit as often as the schedule holds."""
    layers = [
        Operator(
            f"o{at}",
            5,
            (f"o{at - 1}",) * (at > 0),
            backward=Backward(latency_ns=10, residual_bytes=100, recomputable=True),
        )
        for at in range(3)
    ]
    problem = PartitionProblem(
        layers,
        [Device(f"d{at}", 150) for at in range(3)],
        memory_model="training",
        recompute="auto",
        schedule="1f1b",
        microbatches=4,
    )
    plan = PartitionPlan({f"o{at}": f"d{at}" for at in range(3)}, ("d0", "d1", "d2"))
    assert not evaluate(problem, plan).feasible
    completed = RecomputeChooser(problem).completed(plan)
    assert completed.recomputed == {"o0", "o1"}
    assert evaluate(problem, completed).feasible
