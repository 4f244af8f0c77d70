"""Seeded small problems with blocks that repeat in parallel, to be compared exactly."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

from solver.model.operators import Operator
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import Weight
from tests.support.random_problems import random_problem


def problem_with_blocks(seed: int, *, most_operators: int = 7, **settings: Any) -> PartitionProblem:
    """Return a random problem in which an operator, or two in a row, are there two or three times.

    The copies read the same, their values are read by the same, and each has weights of its own or
    shares them; they run one after the other, or in turn. What else there is, is random:
    memory models, charging, pins, colocation of others, alias and backward passes.
    """
    rng = random.Random(f"blocks {seed}")
    problem = random_problem(seed, min_operators=3, max_operators=4, **settings)
    operators = list(problem.operators)
    start = rng.randrange(len(operators))
    block = [operators[start]]
    readers = [op for op in operators if block[0].name in op.reads]
    if readers and rng.random() < 0.5:
        block.append(readers[0])
    copies = min(rng.choice((2, 2, 3)), 1 + (most_operators - len(operators)) // len(block))
    names = {op.name for op in block}
    own_weights = rng.random() < 0.7
    in_turn = rng.random() < 0.3
    weights = dict(problem.weights)

    def copy_of(op: Operator, number: int) -> Operator:
        def renamed(name: str | None) -> str | None:
            return f"{name}.{number}" if name in names else name

        keys = op.weights
        if own_weights and number:
            keys = tuple(f"{key}.{op.name}.{number}" for key in op.weights)
            weights.update(
                (new, Weight(weights[old].size_bytes, weights[old].training_bytes))
                for new, old in zip(keys, op.weights, strict=True)
            )
        return dataclasses.replace(
            op,
            name=str(renamed(op.name)),
            reads=tuple(str(renamed(name)) for name in op.reads),
            alias_of=renamed(op.alias_of),
            weights=keys,
            backward=dataclasses.replace(
                op.backward,
                passes_to=renamed(op.backward.passes_to),
                slices=tuple(str(renamed(name)) for name in op.backward.slices),
            ),
        )

    placed: list[list[Operator]] = [[copy_of(op, i) for op in block] for i in range(copies)]
    by_turns = [op for same in zip(*placed, strict=True) for op in same]
    row = by_turns if in_turn else [op for copy in placed for op in copy]
    others: list[Operator] = []
    for op in operators:
        if op.name in names:
            continue
        reads = tuple(
            new
            for name in op.reads
            for new in ([f"{name}.{i}" for i in range(copies)] if name in names else [name])
        )
        alias_of = None if op.alias_of in names else op.alias_of
        passes_to = op.backward.passes_to
        others.append(
            dataclasses.replace(
                op,
                reads=reads,
                alias_of=alias_of,
                backward=dataclasses.replace(
                    op.backward,
                    passes_to=f"{passes_to}.0" if passes_to in names else passes_to,
                    slices=tuple(
                        f"{name}.0" if name in names else name for name in op.backward.slices
                    ),
                ),
            )
        )
    # What the blocks need runs before them, everything else that was behind their first after.
    needed = _needed(operators, block)
    before = [op for op in others if op.name in needed]
    after = [op for op in others if op.name not in needed]
    colocation = tuple(
        group for group in problem.colocation if not names.intersection(group.operators)
    )
    return problem.replace(
        operators=(*before, *row, *after), weights=weights, colocation=colocation
    )


def _needed(operators: list[Operator], block: list[Operator]) -> set[str]:
    """Return the names of all ancestors of `block`, and of all that ran before its first."""
    names = {op.name for op in block}
    first = min(i for i, op in enumerate(operators) if op.name in names)
    needed = {op.name for op in operators[:first]}
    pending = [name for op in block for name in op.reads]
    by_name = {op.name: op for op in operators}
    while pending:
        name = pending.pop()
        if name in by_name and name not in names and name not in needed:
            needed.add(name)
            pending.extend(by_name[name].reads)
    return needed
