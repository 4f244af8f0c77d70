"""Seeded problems of training with writes in place and views that random problems seldom have.

Operators write in place, read what is written later, and write into each other; views have
residuals and weights, are saved or not, and may be on other stages than their storages.
"""

from __future__ import annotations

import random
from dataclasses import replace

from solver.model.devices import Device, Interconnect, Link
from solver.model.operators import Operator
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import GraphInput, Weight
from solver.model.training import Backward

_OBJECTIVES = (*4 * (("bottleneck",),), ("peak_memory", "bottleneck"), ("latency",), ("step",))
_Shape = tuple[tuple[str, tuple[int, ...]], ...]
"""By operator, whether it owns a storage, writes into one, or is a view, and what it reads."""
_WRITES: tuple[_Shape, ...] = (
    # What an operator reads as it writes is written later.
    (("owner", ()), ("owner", ()), ("writer", (0, 1)), ("writer", (1,)), ("owner", (2, 3))),
    # Two write into each other.
    (("owner", ()), ("owner", ()), ("writer", (0, 1)), ("writer", (1, 2)), ("owner", (2, 3))),
    # By a view, and before the storage has its first writer.
    (("owner", ()), ("owner", ()), ("view", (1,)), ("writer", (0, 2)), ("writer", (1,))),
    (("owner", ()), ("owner", (0,)), ("writer", (0,)), ("owner", (1, 2)), ("writer", (1, 3))),
)
_VIEWS: tuple[_Shape, ...] = (
    (("owner", ()), ("view", (0,)), ("owner", (1,)), ("owner", (2,))),
    (("owner", ()), ("view", (0,)), ("view", (1,)), ("owner", (2,)), ("owner", (3,))),
    (("owner", ()), ("owner", (0,)), ("view", (0,)), ("owner", (1, 2)), ("owner", (3,))),
    (("owner", ()), ("view", (0,)), ("owner", (1,)), ("writer", (2, 1)), ("owner", (3,))),
)


def written_problem(seed: int, *, most_devices: int = 3) -> PartitionProblem:
    """Return the problem of `seed`, whose devices have no limit of memory."""
    rng = random.Random(f"writes {seed}")
    shape = _shape(rng)
    device_count = min(rng.choice((1, 2, 2, 3)), most_devices)
    operators = [_operator(rng, number, shape) for number in range(len(shape))]
    operators = _with_backward(rng, random.Random(f"numbers {seed}"), operators)
    sizes = {key: rng.randint(0, 20) for op in operators for key in op.weights}
    return PartitionProblem(
        tuple(operators),
        tuple(Device(f"dev{number}") for number in range(device_count)),
        (GraphInput("x", rng.randint(0, 6)),),
        {key: Weight(size, size) for key, size in sizes.items()},
        interconnect=Interconnect(Link(rng.choice((None, 1_000_000_000, 400_000_000)))),
        objective=rng.choice(_OBJECTIVES),
        memory_model="training",
        schedule=rng.choice(("gpipe", "gpipe", "1f1b")),
        microbatches=rng.choice((1, 2, 3, 4, 8)),
        recompute="layers" if rng.random() < 0.1 else "auto",
        chunks_per_device=2 if (len(shape), device_count) == (4, 2) and rng.random() < 0.1 else 1,
    )


def _shape(rng: random.Random) -> _Shape:
    """Return a shape that is known to be hard, perhaps with an operator more, or any."""
    if rng.random() < 0.25:
        shape: _Shape = (("owner", ()), ("owner", ()))
        for _ in range(rng.randint(2, 4)):
            shape = (*shape, _another(rng, shape))
        return shape
    shape = rng.choice((*_WRITES, *_VIEWS))
    return (*shape, _another(rng, shape)) if rng.random() < 0.4 else shape


def _another(rng: random.Random, shape: _Shape) -> tuple[str, tuple[int, ...]]:
    kind = rng.choice(("owner", "writer", "view"))
    reads = rng.sample(range(len(shape)), 1 if kind == "view" else 2)
    return kind, tuple(reads)


def _operator(rng: random.Random, number: int, shape: _Shape) -> Operator:
    kind, reads = shape[number]
    size, names = rng.randint(1, 9), tuple(f"op{read}" for read in reads)
    return Operator(
        f"op{number}",
        rng.randint(0, 9),
        names or ("x",),
        storage_bytes=size if kind == "owner" else 0,
        workspace_bytes=rng.choice((0, 0, 0, 0, 0, 3)),
        value_bytes=size,
        alias_of=None if kind == "owner" else names[0],
        weights=(f"w{number}",) if rng.random() < 0.4 else (),
        is_output=number == len(shape) - 1 or rng.random() < 0.05,
        in_place=kind == "writer",
    )


def _with_backward(
    rng: random.Random, numbers: random.Random, operators: list[Operator]
) -> list[Operator]:
    """Return the operators with backward passes, and regions in which most may run again."""
    root_of: dict[str, str] = {}
    for op in operators:
        root_of[op.name] = root_of[op.alias_of] if op.alias_of else op.name
    saving, most_gradient = rng.choice((0.4, 0.8, 1.0)), rng.choice((0, 1))
    saves = {
        op.name: tuple(
            name for name in (*op.reads, op.name) if name != "x" and rng.random() < saving
        )
        for op in operators
    }
    saved = {root_of[name] for names in saves.values() for name in names}
    region, is_forced, found = 0, rng.random() < 0.15, []
    for op in operators:
        region += rng.random() < 0.15
        is_view = op.alias_of is not None and not op.in_place
        own_bytes = rng.randint(1, 9) if rng.random() < (0.5 if is_view else 0.15) else 0
        recomputable = op.alias_of is None and rng.random() < 0.95
        backward = Backward(
            rng.randint(0, 9),
            gradient_bytes=most_gradient * rng.choice((0, op.value_bytes)),
            passes_to=op.reads[0] if op.reads[0] != "x" and rng.random() < 0.4 else None,
            slices=tuple(read for read in op.reads if numbers.random() < 0.2),
            buffer_bytes=numbers.choice((0, 0, 0, 20)),
            kept_bytes=op.storage_bytes if op.name in saved else 0,
            residual_bytes=own_bytes,
            workspace_bytes=rng.choice((0, 0, 0, 0, 4)),
            weight_gradient_bytes=4 if op.weights and rng.random() < 0.3 else 0,
            saves=saves[op.name],
            recomputable=recomputable,
            must_recompute=recomputable and is_forced and rng.random() < 0.5,
            rng_bytes=rng.choice((0, 0, 0, 2)),
            region=region,
            number_bytes=numbers.choice((0, 0, 0, 2)),
        )
        found.append(replace(op, backward=backward))
    return found
