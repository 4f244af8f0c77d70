"""What the contract tests of steps share: small problems, plans to start from, and which step is
which.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

import pytest

from solver.evaluation.evaluate import evaluate
from solver.heuristics import local_search
from solver.model.clock import Clock
from solver.model.devices import Device, Interconnect
from solver.model.limits import SolveLimits
from solver.model.operators import Operator
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import ColocationGroup
from solver.presolve import presolved
from solver.search.findings import Finding
from solver.search.schedule import SCHEDULES, Step
from solver.search.state import SearchState
from tests.support.graphs import decoder, layers, streams, unequal_chain
from tests.support.oracle import brute_force
from tests.support.random_problems import (
    hand_made_problem,
    random_plan,
    random_problem,
    recomputed_problem,
    relayed_problem,
    to_instance,
)
from tests.support.search_states import take

PRESOLVE: Final = ("pins", "byte sums", "dominance")
BOUNDS: Final[Mapping[str, tuple[str, ...]]] = {
    "averages": ("any", "relayed", "chunks", "steps"),
    "averages of units": ("any", "relayed", "chunks", "steps"),
    "closed ideals": ("relayed bottleneck", "relays"),
    "positions": ("any", "relayed", "relayed bottleneck", "streams", "decoder"),
    "borders": ("bottleneck", "relayed bottleneck", "layers", "decoder"),
    "least loads": ("any", "relayed bottleneck", "interleaved", "streams", "decoder"),
    "parts": ("bottleneck", "streams", "decoder"),
    "without limits": ("recomputed one chunk", "recomputed", "recomputed relayed"),
    "recomputed stages": ("recomputed", "recomputed relayed", "recomputed steps"),
}
"""Steps that bound, and the shapes of the problems to try them on."""
HEURISTICS: Final[Mapping[str, tuple[str, ...]]] = {
    "contiguous": ("any", "hand made", "chunks", "relayed"),
    "greedy": ("any", "hand made", "chunks", "relayed"),
    "without host": ("bottleneck", "streams"),
    "local search": ("any", "hand made", "relayed"),
    "rotations": ("interleaved",),
    "cluster cuts": ("any", "hand made", "chunks"),
    "unit cuts": ("any",),
    "clusters annealed": ("any", "hand made", "chain"),
    "recomputed cuts": ("recomputed", "recomputed relayed"),
    "cuts with everything again": ("recomputed", "recomputed relayed"),
}
"""Steps that find plans or improve them."""
EXACT: Final[Mapping[str, tuple[str, ...]]] = {
    "ideals": ("any", "layers", "chain"),
    "branches": ("any", "hand made", "relayed", "chunks", "interleaved"),
}
"""Steps that find plans and bound too."""


def pinned_chain(seed: int) -> PartitionProblem:
    """Return a chain whose ends share a device, so that all do, with pins to one or the other."""
    rng = random.Random(seed)
    ends, middle = rng.choices(("d0", "d1"), k=2)
    return PartitionProblem(
        operators=(
            Operator("a", rng.randint(1, 9), allowed_devices={ends}),
            Operator("b", rng.randint(1, 9), ("a",), allowed_devices={middle}),
            Operator("c", rng.randint(1, 9), ("b",)),
            Operator("d", rng.randint(1, 9), ("c",)),
        ),
        devices=(Device("d0"), Device("d1")),
        colocation=(ColocationGroup(("a", "c")),),
    )


SHAPES: Final[Mapping[str, Callable[[int], PartitionProblem]]] = {
    "any": lambda seed: random_problem(seed, max_operators=5),
    "bottleneck": lambda seed: random_problem(seed, max_operators=6, objective=("bottleneck",)),
    "relayed": lambda seed: random_problem(seed, max_operators=5, relayed=True),
    "chunks": lambda seed: random_problem(seed, max_operators=4, draw_chunks=True),
    "interleaved": lambda seed: random_problem(
        seed, max_operators=5, draw_chunks=True, objective=("bottleneck",)
    ),
    "relayed bottleneck": lambda seed: random_problem(
        seed, max_operators=6, relayed=True, objective=("bottleneck",)
    ),
    "relays": lambda seed: relayed_problem(seed, most_operators=6, limited=True),
    "steps": lambda seed: random_problem(seed, max_operators=5, steps=True),
    "pinned": pinned_chain,
    "hand made": lambda seed: hand_made_problem(seed, max_operators=5),
    "decoder": lambda seed: decoder(seed, layers=3),
    "layers": layers,
    "streams": streams,
    "chain": unequal_chain,
    "recomputed": lambda seed: recomputed_problem(
        seed, is_restricted=seed % 2 > 0, max_operators=5, objective=("bottleneck",)
    ),
    "recomputed steps": lambda seed: recomputed_problem(
        seed, max_operators=5, objective=("step",)
    ).replace(chunks_per_device=1, cuts=(), microbatches=2 + seed % 5),
    "recomputed one chunk": lambda seed: recomputed_problem(
        seed, max_operators=5, objective=("bottleneck",)
    ).replace(chunks_per_device=1, cuts=()),
    "recomputed relayed": lambda seed: recomputed_problem(
        seed,
        is_restricted=seed % 2 > 0,
        max_operators=5,
        relayed=True,
        objective=("bottleneck",),
    ),
}
"""Small problems by their shape, drawn from a seed."""

Best = tuple[tuple[int, ...], dict[str, str], dict[str, int]]


@cache
def problem_of(shape: str, seed: int) -> PartitionProblem:
    """Return a small problem of a shape."""
    return SHAPES[shape](seed)


@cache
def best_of(shape: str, seed: int) -> Best | None:
    """Return what brute force finds: values, devices and chunks; None without a plan."""
    return brute_force(to_instance(problem_of(shape, seed)))


@cache
def worst_plan(shape: str, seed: int) -> PartitionPlan | None:
    """Return the worst feasible plan of some random ones; None if none fits."""
    problem = problem_of(shape, seed)
    plans = [
        random_plan(problem, number, draw_chunks=problem.chunks_per_device > 1)
        for number in range(30)
    ]
    values = [(evaluate(problem, plan), plan) for plan in plans]
    fit = [(found.objective, plan) for found, plan in values if found.feasible]
    return max(fit, key=lambda entry: entry[0])[1] if fit else None


def make_small_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let steps for large graphs apply to small ones."""
    monkeypatch.setattr(presolved, "_LARGE_FROM", 1)
    monkeypatch.setattr(local_search, "_FEW_UNITS", 2)


def rows_of(name: str) -> list[Step]:
    """Return the rows of a step in all schedules."""
    return [step for steps in SCHEDULES.values() for step in steps if step.name == name]


def run_if_due(name: str, state: SearchState, clock: Clock | None = None) -> list[Finding] | None:
    """Let a step run as a schedule would; return what it found, or None if it is not due."""
    for row in rows_of(name):
        if not state.is_closed and row.when(state):
            return take(state, row.run, clock)
    return None


def deterministic(limit_s: float | None = None, seed: int = 0) -> SolveLimits:
    """Return limits that count work."""
    return SolveLimits(limit_s, workers=1, seed=seed, deterministic=True)


@dataclasses.dataclass(frozen=True)
class Renaming:
    """Other names, and another order of devices."""

    name_of: Mapping[str, str]
    places: tuple[int, ...]

    @classmethod
    def of(cls, problem: PartitionProblem, seed: int) -> Renaming:
        """Draw one."""
        rng = random.Random(seed)
        names = [op.name for op in problem.operators]
        names += [each.name for each in problem.inputs]
        names += [*problem.weights, *(device.name for device in problem.devices)]
        names = list(dict.fromkeys(names))
        numbers = rng.sample(range(len(names)), len(names))
        places = rng.sample(range(len(problem.devices)), len(problem.devices))
        return cls(
            {name: f"z{number}" for name, number in zip(names, numbers, strict=True)},
            tuple(places),
        )

    def _all(self, names):
        return None if names is None else [self.name_of[name] for name in names]

    def problem(self, problem: PartitionProblem) -> PartitionProblem:
        """Return the same problem under other names."""
        name_of = self.name_of
        operators = [
            dataclasses.replace(
                op,
                name=name_of[op.name],
                reads=self._all(op.reads),
                alias_of=None if op.alias_of is None else name_of[op.alias_of],
                weights=self._all(op.weights),
                allowed_devices=self._all(op.allowed_devices),
                backward=dataclasses.replace(
                    op.backward,
                    passes_to=None
                    if op.backward.passes_to is None
                    else name_of[op.backward.passes_to],
                    slices=self._all(op.backward.slices),
                    saves=self._all(op.backward.saves),
                ),
            )
            for op in problem.operators
        ]
        devices = [
            dataclasses.replace(device, name=name_of[device.name]) for device in problem.devices
        ]
        interconnect: Interconnect = dataclasses.replace(
            problem.interconnect,
            links={
                (name_of.get(source, source), name_of.get(target, target)): link
                for (source, target), link in problem.interconnect.links.items()
            },
        )
        return problem.replace(
            operators=operators,
            devices=[devices[place] for place in self.places],
            inputs=[dataclasses.replace(each, name=name_of[each.name]) for each in problem.inputs],
            weights={name_of[key]: weight for key, weight in problem.weights.items()},
            colocation=[
                ColocationGroup(tuple(self._all(group.operators)), group.reason)
                for group in problem.colocation
            ],
            cuts=tuple(self._all(problem.cuts)),
            interconnect=interconnect,
        )

    def plan(self, plan: PartitionPlan) -> PartitionPlan:
        """Return the same plan under other names."""
        name_of = self.name_of
        return PartitionPlan(
            {name_of[name]: name_of[device] for name, device in plan.assignment.items()},
            tuple(self._all(plan.device_order)),
            {name_of[name]: chunk for name, chunk in plan.chunks.items()},
            frozenset(self._all(plan.recomputed)),
        )
