"""Exact search of what is near a plan: a model in which most units keep their stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from solver.bounds.windows import StageWindows
from solver.cp.crossings import Crossings
from solver.cp.hinted_model import OutOfTime
from solver.cp.load_rows import LoadRows
from solver.cp.memory_rows import MemoryRows
from solver.cp.run import charge_run, limit_run, portfolio_solver, single_solver
from solver.cp.stage_model import StageModel
from solver.model.clock import Clock
from solver.model.plan import PartitionPlan
from solver.presolve.clusters import contract
from solver.presolve.device_kinds import interchangeable_kinds
from solver.presolve.instance import Instance

MOST_WORK_S = 3.0
"""Deterministic time of one search, in CP-SAT's units: about seconds on one core."""
_MOST_STORAGES = 20_000
"""Beyond that many, memory is left to the evaluator, which rejects plans that do not fit."""


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """Plans near a plan.

    Attributes
    ----------
    cluster_of : sequence of int
        For each unit the cluster that it moves with; in a topological order of the clusters.
    windows : StageWindows
        Of the clusters. The stages of the plan are within them.
    """

    cluster_of: Sequence[int]
    windows: StageWindows


@dataclass(frozen=True, slots=True)
class SubSolver:
    """Searches neighbourhoods for lower loads.

    Attributes
    ----------
    workers : int
        Search threads. With one, the result of a search that `clock` does not end depends on
        nothing but the arguments: it is limited in deterministic time.
    seed : int
        Of CP-SAT's random numbers.
    clock : Clock
        Ends every search, and the making of its model, and is charged with it.
    most_work_s : float
        Deterministic time of one search on each worker, in CP-SAT's units.
    """

    units: Instance
    workers: int
    seed: int
    clock: Clock
    most_work_s: float = MOST_WORK_S

    def lower(
        self,
        plan: PartitionPlan,
        largest_load_ns: int,
        neighbourhood: Neighbourhood,
        stages: range,
    ) -> PartitionPlan | None:
        """Return the plan in a neighbourhood with the least largest load that was found.

        Parameters
        ----------
        plan : PartitionPlan
            Feasible, of one chunk.
        largest_load_ns : int
            Of `plan`; no load may exceed it.
        stages : range
            Whose loads count.

        Returns
        -------
        PartitionPlan or None
            To be judged by the evaluator. None if nothing was found.
        """
        try:
            model = self._model(plan, largest_load_ns, neighbourhood, stages)
        except OutOfTime:
            return None
        # The work of a sub-solve is too little to be shared among turns.
        if self.workers == 1:
            solver = single_solver(self.seed)
        else:
            solver = portfolio_solver(self.workers, self.seed)
        limit_run(solver.parameters, self.clock, self.most_work_s * self.workers)
        status = solver.solve(model.model)
        charge_run(self.clock, solver)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        return model.plan_of(solver.value)

    def _model(
        self,
        plan: PartitionPlan,
        largest_load_ns: int,
        neighbourhood: Neighbourhood,
        stages: range,
    ) -> StageModel:
        """Return the model of a neighbourhood, with its plan for a hint."""
        windows = neighbourhood.windows
        graph = contract(self.units, neighbourhood.cluster_of, len(windows.first))
        kinds = interchangeable_kinds(graph)
        kind_of = {device.name: k for k, entry in enumerate(kinds) for device in entry.devices}
        model = StageModel(
            graph,
            windows,
            len(plan.device_order),
            order=[kind_of[device] for device in plan.device_order],
            use_all=True,
            clock=self.clock,
        )
        crossings = Crossings(model)
        if len(graph.storages) <= _MOST_STORAGES:
            MemoryRows(crossings)
        loads = LoadRows(crossings, largest_load_ns)
        if len(stages) == len(loads.loads):
            goal = loads.bottleneck
        else:
            goal = model.largest_of(loads.loads[stages.start : stages.stop])
        model.model.minimize(goal.expression)
        choice = model.choice_of(plan)
        if choice is not None:
            model.set_hint(choice)
        return model
