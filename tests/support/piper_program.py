"""Piper's problem by a program over down-sets, which shares no code with the solver."""

import math
import operator

SIZE = operator.itemgetter(1)


def down_sets(data):
    """All sets of nodes that hold what their nodes read."""
    nodes = [each["id"] for each in data["nodes"]]
    reads = {node: {e["sourceId"] for e in data["edges"] if e["destId"] == node} for node in nodes}
    found, todo = {frozenset()}, [frozenset()]
    while todo:
        made = todo.pop()
        grown = {made | {node} for node in nodes if node not in made and reads[node] <= made}
        todo += grown - found
        found |= grown
    return sorted(found, key=len)


def least_time(data, stage, in_flight, memory):
    """The least time of a stage that fits, by every sum of times and bytes that may be best."""
    options = {
        each["id"]: [
            (o["timePerSample"], o["memoryUsageA"] * in_flight + o["memoryUsageB"])
            for o in each["TMPCs"]["1"]
        ]
        for each in data["nodes"]
        if each["id"] in stage
    }
    front = [(0, 0)]
    for choices in options.values():
        sums = sorted((t + p, m + b) for t, m in front for p, b in choices if m + b <= memory)
        front = [
            one for at, one in enumerate(sums) if not at or one[1] < min(sums[:at], key=SIZE)[1]
        ]
    crosses = sum(
        e["communicationCost"]
        for e in data["edges"]
        if (e["sourceId"] in stage) != (e["destId"] in stage)
    )
    return min(front, default=(math.inf,))[0] + 2 * crosses / (25 * 2**30)


def least_bottleneck(data, devices, memory):
    """The optimum with one device a stage, by the stages that are left."""
    sets = down_sets(data)
    after, best = {sets[-1]: 0}, math.inf
    for in_flight in range(1, devices + 1):
        after = {
            before: min(
                max(rest, least_time(data, done - before, in_flight, memory))
                for done, rest in after.items()
                if before < done and rest < best
            )
            for before in sets
            if any(before < done and rest < best for done, rest in after.items())
        }
        best = min(best, after.get(sets[0], math.inf))
    return best
