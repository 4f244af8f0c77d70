"""The best plan of all chains of ideals where values are relayed, listed without any algorithm."""

from __future__ import annotations

from solver import Device, PartitionProblem


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
        kind = device.device_class
        return [
            op.latency_on(kind) + op.backward.latency_on(kind)
            if op.allowed_devices is None or device.name in op.allowed_devices
            else None
            for op in operators
        ]

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
