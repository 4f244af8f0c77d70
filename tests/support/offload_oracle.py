"""Brute force for offload plans, from docs/offload.md; imports nothing that it checks.

An instance is plain data::

    {"units": [{"weight", "padding", "cache", "runs": [ns by device], "host": ns or None,
                "written", "places": positions of devices or None}, ...],
     "devices": [{"memory", "rate": bytes a ns as (bytes, ns), "latency"}, ...],
     "host_memory": bytes or None, "stage_hop": [[ns by device] by device], "host_hop"}

The timeline is played event by event until a round begins as an earlier one began.
"""

import itertools
from fractions import Fraction


def load_time(device, size):
    """The time of a load, rounded up."""
    size_bytes, time = device["rate"]
    return device["latency"] + -(-size * time // size_bytes)


def fits(case, places, modes, prefetch="buffer"):
    """Whether a plan may exist."""
    if any(after < before for before, after in itertools.pairwise(places)):
        return False
    held = [0] * len(case["devices"])
    largest = [0] * len(case["devices"])
    before = [0] * len(case["devices"])
    host = 0
    for unit, place, mode in zip(case["units"], places, modes, strict=True):
        if mode != "host" and unit["places"] is not None and place not in unit["places"]:
            return False
        if mode == "streamed":
            if unit["written"] or not unit["weight"]:
                return False
            held[place] += unit["cache"]
            loaded = unit["weight"] + unit["padding"]
            largest[place] = max(largest[place], before[place] + loaded)
            before[place] = loaded if prefetch == "next" else 0
            host += unit["weight"]
        elif mode == "host":
            if unit["host"] is None:
                return False
            host += unit["weight"] + unit["cache"]
        else:
            held[place] += unit["weight"] + unit["cache"]
    memory = case["host_memory"]
    return (memory is None or host <= memory) and all(
        taken + load <= device["memory"]
        for taken, load, device in zip(held, largest, case["devices"], strict=True)
    )


def jobs_of(case, places, modes):
    """What a round runs: (hop before it, run, link or None, load, size)."""
    jobs = []
    for index, (unit, place, mode) in enumerate(zip(case["units"], places, modes, strict=True)):
        hop = 0
        if index:
            before = index - 1
            hosts = [modes[before] == "host", mode == "host"]
            if hosts == [False, False]:
                hop = case["stage_hop"][places[before]][place] if places[before] != place else 0
            elif hosts != [True, True]:
                hop = case["host_hop"]
        run = unit["host"] if mode == "host" else unit["runs"][place]
        link = place if mode == "streamed" else None
        load = load_time(case["devices"][place], unit["weight"])
        jobs.append((hop, run, link, load, unit["weight"] + unit["padding"]))
    return jobs


def may_begin(prefetch, order, number, jobs, started, ended, is_due):
    """Whether load `number` of a link may begin, but for the room of its buffer."""
    lap, turn = divmod(number, len(order))
    if prefetch == "next" and turn:
        return started > lap * len(jobs) + order[turn - 1]
    own = lap * len(jobs) + order[turn]
    return prefetch == "buffer" or (ended == own and is_due)


def play(jobs, rooms, prefetch="buffer"):
    """Mean time of a round in the steady state."""
    streamed = {
        link: [i for i, job in enumerate(jobs) if job[2] == link]
        for link in {job[2] for job in jobs} - {None}
    }
    begun = dict.fromkeys(streamed, 0)
    arrived = dict.fromkeys(streamed, 0)
    gone = dict.fromkeys(streamed, 0)
    held = dict.fromkeys(streamed, 0)
    loading = {}
    running = None
    now, turn, due = 0, 0, jobs[0][0]
    ended = 0
    seen = {}
    while True:
        moved = True
        while moved:
            moved = False
            for link, end in list(loading.items()):
                if end == now:
                    del loading[link]
                    arrived[link] += 1
                    moved = True
            if running == now:
                running, moved = None, True
                _, _, link, _, size = jobs[turn]
                if link is not None:
                    held[link] -= size
                    gone[link] += 1
                turn += 1
                ended += 1
                if turn == len(jobs):
                    turn = 0
                    state = tuple(
                        (begun[d] - gone[d], arrived[d] - gone[d], loading.get(d, now) - now)
                        for d in sorted(streamed)
                    )
                    if state in seen:
                        rounds, time = seen[state]
                        return Fraction(now - time, seen["rounds"] + 1 - rounds)
                    seen["rounds"] = seen.get("rounds", 0) + 1
                    seen[state] = (seen["rounds"], now)
                due = now + jobs[turn][0]
            for link, order in streamed.items():
                started = ended + (running is not None)
                due_now = running is None and due <= now
                if link in loading or not may_begin(
                    prefetch, order, begun[link], jobs, started, ended, due_now
                ):
                    continue
                _, _, _, load, size = jobs[order[begun[link] % len(order)]]
                if held[link] + size <= rooms[link]:
                    held[link] += size
                    begun[link] += 1
                    loading[link] = now + load
                    moved = moved or load == 0
            if running is None and due <= now:
                _, run, link, _, _ = jobs[turn]
                if link is None or arrived[link] > gone[link]:
                    running = now + run
                    moved = True
        ends = list(loading.values())
        if running is not None:
            ends.append(running)
        elif due > now:
            ends.append(due)
        now = min(ends)


def value_of(case, places, modes, most=None, prefetch="buffer"):
    """The objective of a plan that fits; None if it is certainly above `most`."""
    jobs = jobs_of(case, places, modes)
    if most is not None:
        loads = {}
        for _, _, link, load, _ in jobs:
            loads[link] = loads.get(link, 0) + load
        loads.pop(None, None)
        if max([sum(job[0] + job[1] for job in jobs), *loads.values()]) > most:
            return None
    rooms = [device["memory"] for device in case["devices"]]
    for unit, place, mode in zip(case["units"], places, modes, strict=True):
        rooms[place] -= {
            "resident": unit["weight"] + unit["cache"],
            "streamed": unit["cache"],
            "host": 0,
        }[mode]
    return play(jobs, rooms, prefetch)


def plans(case):
    """All plans that fit."""
    count = len(case["units"])
    for places in itertools.combinations_with_replacement(range(len(case["devices"])), count):
        for modes in itertools.product(("resident", "streamed", "host"), repeat=count):
            if fits(case, places, modes):
                yield places, modes


def optimum(case):
    """The least objective of all plans; None if none fits."""
    best = None
    for places, modes in plans(case):
        found = value_of(case, places, modes, best)
        if found is not None and (best is None or found < best):
            best = found
    return best
