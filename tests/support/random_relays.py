"""Random problems whose values are relayed at some cost, and the best plan of all ideals.

The oracle imports nothing of the solver's algorithms: it lists all chains of ideals.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

from solver import (
    ColocationGroup,
    Device,
    Interconnect,
    Link,
    Operator,
    PartitionProblem,
    Weight,
)
from solver.model.training import Backward

CLASSES = ("fast", "middle", "slow")


def relayed_problem(
    seed: int, *, most_operators: int = 9, limited: bool = False
) -> PartitionProblem:
    """Return a training problem with one to three classes, two to five devices, pins and ties.

    In some problems each unit takes more than once as long on the slower classes; with `limited`
    devices hold a part of what all operators do, which have workspaces then.
    """
    rng, bytes_rng = random.Random(f"relays {seed}"), random.Random(f"workspaces {seed}")
    most_passing = bytes_rng.choice((1, 10, 30)) if limited else 0
    count = rng.randint(4, most_operators)
    classes = CLASSES[: rng.choice((1, 2, 2, 3))]
    ratios = [rng.choice((1.0, 1.5, 2.0, 3.0)) for _ in classes[1:]]
    is_even = rng.random() < 0.4
    density, scale = rng.choice((0.15, 0.3, 0.5)), rng.choice((0.3, 1, 3, 10))
    devices = [
        Device(f"d{i}", None, rng.choice(classes)) for i in range(rng.choice((2, 2, 3, 3, 4, 5)))
    ]
    names = [device.name for device in devices]
    weights = {f"w{i}": Weight(rng.randint(1, 30)) for i in range(rng.randint(0, 4))}
    is_pinned = rng.random() < 0.3
    operators = []
    for i in range(count):
        work = rng.choice((0, rng.randint(1, 30), rng.randint(1, 100)))
        latency: dict[str, int] = {classes[0]: work}
        for name, ratio in zip(classes[1:], ratios, strict=True):
            latency[name] = int(work * ratio) + (0 if is_even else rng.randint(0, work))
        storage = rng.randint(0, 9)
        operators.append(
            Operator(
                f"o{i}",
                latency_ns=latency,
                reads=tuple(f"o{j}" for j in range(i) if rng.random() < density),
                storage_bytes=storage,
                value_bytes=rng.randint(0, 9),
                transfer_ns=rng.choice((0, int(scale * rng.randint(1, 40)))),
                is_output=rng.random() < 0.15,
                weights=tuple(key for key in weights if rng.random() < 0.3),
                allowed_devices=(
                    frozenset(rng.sample(names, rng.randint(1, len(names))))
                    if is_pinned and rng.random() < 0.25
                    else None
                ),
                workspace_bytes=bytes_rng.choice((0, bytes_rng.randint(0, most_passing))),
                backward=Backward(
                    latency_ns=rng.randint(0, work),
                    gradient_bytes=rng.randint(0, 9),
                    kept_bytes=rng.randint(0, storage),
                    workspace_bytes=bytes_rng.choice((0, bytes_rng.randint(0, most_passing))),
                ),
            )
        )
    colocation = []
    if rng.random() < 0.2:
        one, other = rng.sample(range(count), 2)
        pins = operators[one].allowed_devices
        operators[other] = replace(operators[other], allowed_devices=pins)
        colocation = [ColocationGroup((operators[one].name, operators[other].name))]
    if limited:
        room = sum(weight.size_bytes for weight in weights.values()) * 4
        room += sum(3 * op.storage_bytes + 2 * op.value_bytes for op in operators)
        devices = [
            Device(each.name, max(1, int(room * rng.uniform(0.2, 0.9))), each.device_class)
            for each in devices
        ]
    return PartitionProblem(
        operators,
        devices=devices,
        weights=weights,
        colocation=colocation,
        interconnect=Interconnect(Link(None, 0), charging="relayed"),
        memory_model="training",
        schedule="1f1b",
        microbatches=rng.choice((1, 4)),
        objective=("bottleneck",),
    )


def least_bottleneck(problem: PartitionProblem) -> int | None:
    """Return the least bottleneck of all chains of ideals, memory aside; None without a plan."""
    operators = problem.operators
    number = {op.name: i for i, op in enumerate(operators)}
    needs = [sum(1 << number[name] for name in op.reads if name in number) for op in operators]
    readers = [
        sum(1 << j for j, other in enumerate(operators) if op.name in other.reads)
        for op in operators
    ]
    groups = [sum(1 << number[name] for name in group.operators) for group in problem.colocation]
    everything = (1 << len(operators)) - 1
    ideals = [
        mask
        for mask in range(everything + 1)
        if all(not mask >> i & 1 or needs[i] & ~mask == 0 for i in range(len(operators)))
        and all(mask & group in (0, group) for group in groups)
    ]

    def crossing(mask: int) -> int:
        if mask in (0, everything):
            return 0
        return sum(
            op.transfer_ns or 0
            for i, op in enumerate(operators)
            if mask >> i & 1 and (op.is_output or readers[i] & ~mask)
        )

    def times(device: Device) -> list[int | None]:
        found: list[int | None] = []
        for op in operators:
            own = op.latency_ns
            assert op.backward is not None and isinstance(op.backward.latency_ns, int)
            time = own[device.device_class] if isinstance(own, Mapping) else own
            is_banned = op.allowed_devices is not None and device.name not in op.allowed_devices
            found.append(None if is_banned else time + op.backward.latency_ns)
        return found

    kinds: dict[tuple[int | None, ...], int] = {}
    for device in problem.devices:
        key = tuple(times(device))
        kinds[key] = kinds.get(key, 0) + 1
    crossed = {mask: crossing(mask) for mask in ideals}
    best: dict[int, dict[tuple[int, ...], int]] = {0: {(0,) * len(kinds): 0}}
    for start in ideals:
        for used, value in best.get(start, {}).items():
            for end in ideals:
                if end == start or start & ~end:
                    continue
                inside = [i for i in range(len(operators)) if (end & ~start) >> i & 1]
                for place, (own, count) in enumerate(kinds.items()):
                    parts = [own[i] for i in inside]
                    if used[place] == count or None in parts:
                        continue
                    load = sum(part or 0 for part in parts) + crossed[start] + crossed[end]
                    more = (*used[:place], used[place] + 1, *used[place + 1 :])
                    known = best.setdefault(end, {})
                    known[more] = min(known.get(more, load + value + 1), max(load, value))
    return min(best.get(everything, {}).values(), default=None)
