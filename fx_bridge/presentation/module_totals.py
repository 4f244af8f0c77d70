"""The weights, time and transfers of each module of a model under a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from fx_bridge.presentation.modules import Module, ModuleTree
from solver.evaluation.evaluate import Evaluation
from solver.evaluation.layout import Layout
from solver.evaluation.transfers import operator_passes, stage_moves
from solver.model.arrays import sums
from solver.model.plan import PartitionPlan
from solver.model.recomputation import Recomputation


@dataclass(slots=True)
class Totals:
    """The totals of some operators: times of both passes, and bytes sent between devices."""

    weights: dict[tuple[str, str], int] = field(default_factory=dict)
    """Bytes of the weights that they read, by device and weight."""
    time_ns: int = 0
    sent_bytes: int = 0
    stages: Counter[int] = field(default_factory=Counter)  # number of operators in each stage

    @property
    def weights_bytes(self) -> int:
        """Bytes of the distinct weights, of all devices that hold them."""
        return sum(self.weights.values())

    def add(self, other: Totals) -> None:
        """Add the totals of other operators."""
        self.weights.update(other.weights)
        self.time_ns += other.time_ns
        self.sent_bytes += other.sent_bytes
        self.stages.update(other.stages)


class ModuleTotals:
    """The totals of every module and operator under a plan.

    Those of the model itself, whose path is empty, are the evaluator's: weights and times of all
    devices, and `transfer_bytes`. Operators are in execution order.
    """

    def __init__(self, evaluation: Evaluation, plan: PartitionPlan) -> None:
        self.tree = ModuleTree.of(evaluation.problem)
        self.of_operator = _by_operator(evaluation, plan)
        self.of_module: dict[str, Totals] = {}
        _add_up(self.tree.root, self.of_operator, self.of_module)


def _by_operator(evaluation: Evaluation, plan: PartitionPlan) -> dict[str, Totals]:
    problem = evaluation.problem
    layout, arrays = Layout(problem, plan), problem.arrays
    recomputation = Recomputation(problem, plan.stage_index, plan.recomputed)
    passes = operator_passes(problem, layout, recomputation)
    sent = stage_moves(problem, layout).sent
    sizes_bytes = (arrays.value_bytes + arrays.gradient_bytes)[sent]
    times_ns = (passes.forward_ns + passes.backward_ns).tolist()
    sent_bytes = sums(sent, sizes_bytes, len(arrays.root)).tolist()
    found: dict[str, Totals] = {}
    for number, op in enumerate(problem.operators):
        device = plan.assignment[op.name]
        weights = {
            (device, key): problem.weights[key].held_bytes(problem.memory_model)
            for key in op.weights
        }
        stages = Counter([plan.stage_index[op.name]])
        found[op.name] = Totals(weights, times_ns[number], sent_bytes[number], stages)
    return found


def _add_up(module: Module, of_operator: Mapping[str, Totals], found: dict[str, Totals]) -> Totals:
    """Add the totals of a module, and of those within it, to `found`."""
    total = found[module.path] = Totals()
    for child in module.children.values():
        total.add(_add_up(child, of_operator, found))
    for name in module.operators:
        total.add(of_operator[name])
    return total
