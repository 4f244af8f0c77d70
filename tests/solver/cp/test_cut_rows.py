"""Windows and rows of cuts and pinned stages against all feasible plans of small problems."""

import itertools

from ortools.sat.python import cp_model

from solver.bounds.windows import StageWindows
from solver.cp.cut_rows import add_cuts, add_pinned_stages, narrowed
from solver.cp.stage_model import StageModel
from solver.evaluation.evaluate import evaluate
from solver.model.devices import Device, Interconnect
from solver.model.plan import PartitionPlan
from solver.presolve.instance import condense
from tests.support.random_problems import hand_made_problem


def plain_problem(seed):
    """A problem of which nothing but order, colocation, cuts and stages decides feasibility."""
    problem = hand_made_problem(
        seed, min_operators=3, max_operators=4, draw_chunks=seed % 2 == 0, max_devices=None
    )
    return problem.replace(
        operators=tuple(
            op.__class__(op.name, reads=op.reads, is_backward=op.is_backward, stage=op.stage)
            for op in problem.operators
        ),
        devices=tuple(Device(device.name) for device in problem.devices),
        interconnect=Interconnect(),
        memory_model="weights",
    )


def feasible_positions(problem, units, slots, chunks):
    """The positions of all units in every plan that the evaluator accepts."""
    names = [device.name for device in problem.devices]
    unit_of = units.unit_of_operator
    found = set()
    for positions in itertools.product(range(slots * chunks), repeat=len(units)):
        at = {op.name: positions[unit_of[i]] for i, op in enumerate(problem.operators)}
        used = sorted({position % slots for position in positions})
        plan = PartitionPlan(
            {name: names[position % slots] for name, position in at.items()},
            tuple(names[slot] for slot in used),
            {name: position // slots for name, position in at.items()},
        )
        if evaluate(problem, plan).feasible:
            found.add(positions)
    return found


class Solutions(cp_model.CpSolverSolutionCallback):
    """Collects the positions of all units in every solution."""

    def __init__(self, stages):
        super().__init__()
        self.stages = stages
        self.found = set()

    def on_solution_callback(self):
        def reached(unit, position):
            literal = self.stages.reaches(unit, position)
            return literal if isinstance(literal, bool) else bool(self.value(literal))

        self.found.add(
            tuple(
                sum(reached(unit, position) for position in self.stages.positions[1:])
                for unit in range(len(self.stages.units))
            )
        )


def positions_of_model(units, windows, slots, chunks):
    stages = StageModel(units, windows, slots, chunks=chunks)
    add_cuts(stages)
    add_pinned_stages(stages)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.enumerate_all_solutions = True
    solutions = Solutions(stages)
    status = solver.solve(stages.model, solutions)
    assert status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return solutions.found


def test_windows_and_rows_hold_exactly_the_plans_that_keep_cuts_and_pinned_stages():
    some = none = tighter = 0
    for seed in range(80):
        problem = plain_problem(seed)
        units = condense(problem)
        slots, chunks = len(problem.devices), problem.chunks_per_device
        if (slots * chunks) ** len(units) > 300:
            continue
        expected = feasible_positions(problem, units, slots, chunks)
        count = slots * chunks
        every = StageWindows((0,) * len(units), (count - 1,) * len(units))
        assert positions_of_model(units, every, slots, chunks) == expected, seed
        windows = narrowed(units, every, count)
        tighter += windows != every
        if windows.empty:
            assert not expected, seed
        else:
            assert positions_of_model(units, windows, slots, chunks) == expected, seed
        some += bool(expected)
        none += not expected
    assert min(some, none, tighter) >= 5, (some, none, tighter)
