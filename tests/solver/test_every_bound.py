"""What all steps that bound promise, against brute force on small problems."""

import pytest

from solver.cp.cut_rows import narrowed
from solver.cp.formulation import CpSatFormulation
from solver.cp.stage_model import StageModel
from solver.evaluation.evaluate import evaluate
from solver.model.plan import PartitionPlan
from tests.support.problem_counts import counts
from tests.support.search_states import state_of
from tests.support.step_contracts import (
    BOUNDS,
    EXACT,
    Renaming,
    best_of,
    deterministic,
    make_small_large,
    problem_of,
    run_if_due,
    worst_plan,
)

SEEDS = range(90)
ENOUGH = {"decoder": 12}
"""Problems of a shape to compare with; brute force takes longest for these."""
MOST = 20
CASES = [
    (name, shape) for table in (BOUNDS, EXACT) for name, shapes in table.items() for shape in shapes
]
NARROWING = [("positions", shape) for shape in BOUNDS["positions"] if "relayed" not in shape]


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch):
    make_small_large(monkeypatch)


def most(name, shape, count):
    """Return how many problems are compared: searches take longer than bounds."""
    return (ENOUGH.get(shape, MOST) if name in BOUNDS else 12) * count // MOST


def started(shape, seed):
    """Return a state with a bad incumbent, or None if no random plan fits."""
    plan = worst_plan(shape, seed)
    return None if plan is None else state_of(problem_of(shape, seed), plan, deterministic())


@pytest.mark.parametrize(("name", "shape"), CASES)
@counts(7, 20, quick=4)
def test_no_plan_is_below_a_bound(count, name, shape):
    compared = told = 0
    for seed in SEEDS:
        state = started(shape, seed)
        if state is None or run_if_due(name, state) is None:
            continue
        values, *_ = best_of(shape, seed)
        assert state.bound <= values[0], seed
        compared += 1
        told += state.bound > 0
        if compared == most(name, shape, count):
            break
    assert compared >= min(3, most(name, shape, count))
    assert told or name not in BOUNDS


@pytest.mark.parametrize("name", BOUNDS)
def test_more_time_never_gives_a_lower_bound(name):
    for shape in BOUNDS[name]:
        for seed in SEEDS[:4]:
            bounds = []
            for slice_s in (0.0, 0.001, 0.03, 0.3):
                state = started(shape, seed)
                if state is not None:
                    run_if_due(name, state, state.clock.slice(slice_s))
                    bounds.append(state.bound)
            state = started(shape, seed)
            if state is not None:
                run_if_due(name, state)
                bounds.append(state.bound)
            assert bounds == sorted(bounds), (shape, seed)


@pytest.mark.parametrize("name", BOUNDS)
def test_names_and_the_order_of_devices_change_no_bound(name):
    compared = 0
    for shape in BOUNDS[name]:
        for seed in SEEDS[:10]:
            state = started(shape, seed)
            if state is None or run_if_due(name, state) is None:
                continue
            renaming = Renaming.of(state.problem, seed)
            plan = worst_plan(shape, seed)
            other = state_of(
                renaming.problem(state.problem),
                None if plan is None else renaming.plan(plan),
                state.limits,
            )
            assert run_if_due(name, other) is not None
            assert other.bound == state.bound, (shape, seed)
            compared += 1
    assert compared > 5


def admits(state, plan, ceiling):
    """Whether a model in the state's windows has a plan, with any order of devices and with its
    own.
    """
    plan = state._restated(plan)
    units, slots = state.presolved.units, state.presolved.slots
    idle = [device for device in state.problem.devices if device.name not in plan.device_order]
    used = [state.problem.device_of[name] for name in plan.device_order]
    own = [*idle, *used][-slots:]
    for order in (None, own):
        windows = state.stage_bounds.windows(slots, ceiling, order, state.presolved.chunks)
        windows = narrowed(units, windows, slots * state.presolved.chunks)
        if windows.empty:
            return False
        stages = StageModel(units, windows, slots, chunks=state.presolved.chunks)
        if CpSatFormulation(stages).stages.choice_of(plan) is None:
            return False
    return True


@pytest.mark.parametrize(("name", "shape"), NARROWING)
@counts(7, 20, quick=4)
def test_windows_hold_an_optimal_plan(count, name, shape):
    compared = 0
    for seed in SEEDS:
        state = started(shape, seed)
        if state is None or state.objective != "bottleneck":
            continue
        if run_if_due(name, state) is None:
            continue
        values, devices, chunks = best_of(shape, seed)
        plan = PartitionPlan.from_assignment(state.problem, devices, chunks)
        assert evaluate(state.problem, plan).objective == values
        assert admits(state, plan, values[0]), seed
        compared += 1
        if compared == most(name, shape, count):
            break
    assert compared >= min(3, most(name, shape, count))
