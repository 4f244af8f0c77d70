"""A plan's placement of operators, as arrays."""

from __future__ import annotations

import numpy as np

from solver.evaluation.relays import NO_HOPS, Hops, relay_hops
from solver.model.arrays import unique_pairs
from solver.model.plan import PartitionPlan, check_assignment
from solver.model.problem import PartitionProblem


class Layout:
    """A plan's placement of operators, as arrays; a plan that leaves out an operator is refused.

    `stage` gives the stage number by operator, and -1 for graph inputs; `order` lists the operators
    stage after stage, each in execution order; `arcs` are the pairs of stages crossed by a forward
    edge, and `paths` the pairs of places of which one waits for the other: the same or, of relayed
    values, neighbours.

    A *place* holds memory and spends time: a stage or, under relayed charging, a chain position
    without operators (numbered after the stages). `device_of_place` and `position`, the chain
    position, are indexed by place, `place` by chain position with a place. `hops` are those of the
    values of operators before `first_received`: of all or, under other charging, of none.
    """

    def __init__(self, problem: PartitionProblem, plan: PartitionPlan) -> None:
        check_assignment(problem, plan.assignment)
        device_number = {device.name: number for number, device in enumerate(problem.devices)}
        index = plan.stage_index
        count = len(problem.operators)
        arrays = problem.arrays
        self.stage = np.full(len(arrays.root), -1, dtype=np.int64)
        self.stage[:count] = [index[op.name] for op in problem.operators]
        numbers = [device_number[stage.device] for stage in plan.stages]
        self.device_of_stage = np.array([*numbers, -1], dtype=np.int64)
        self.order = np.argsort(self.stage[:count], kind="stable")
        self.stage_count = len(plan.stages)
        rank = {device: number for number, device in enumerate(plan.device_order)}
        positions = [stage.chunk * len(rank) + rank[stage.device] for stage in plan.stages]
        self.position = np.array(positions, dtype=np.int64)
        reader, read = arrays.reads.pairs(np.arange(count, dtype=np.int64))
        forward = read < count
        reader, read = reader[forward], read[forward]
        crossing = self.stage[read] != self.stage[reader]
        self.reader, self.read = reader[crossing], read[crossing]
        forward = ~(arrays.is_backward[self.read] | arrays.is_backward[self.reader])
        sources, targets = unique_pairs(
            self.stage[self.read[forward]], self.stage[self.reader[forward]], self.stage_count
        )
        self.arcs = list(zip(sources.tolist(), targets.tolist(), strict=True))
        self.paths = self.arcs
        self.hops, self.first_received = NO_HOPS, 0
        self.place = np.arange(self.stage_count, dtype=np.int64)
        self.device_of_place = self.device_of_stage[:-1]
        if problem.interconnect.charging == "relayed":
            self.hops = relay_hops(problem, plan, self.position[self.stage[:count]])
            self.first_received = count
            self._add_relays(self.hops, plan, device_number)

    def _add_relays(self, hops: Hops, plan: PartitionPlan, device_number: dict[str, int]) -> None:
        empty = np.setdiff1d(np.arange(hops.position_count, dtype=np.int64), self.position)
        self.position = np.concatenate([self.position, empty])
        self.place = np.argsort(self.position)
        devices = np.array([device_number[name] for name in plan.device_order], dtype=np.int64)
        self.device_of_place = np.concatenate(
            [self.device_of_place, devices[empty % hops.device_count]]
        )
        before = np.unique(hops.source)
        ends = self.place[before].tolist(), self.place[before + 1].tolist()
        self.paths = list(zip(*ends, strict=True))
