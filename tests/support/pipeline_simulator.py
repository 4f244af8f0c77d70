"""A discrete-event simulation of one step of a pipeline; it imports nothing of the project.

Ranks and links are served by a clock: whenever something ends, whoever is idle and has all that
the next thing on the list needs begins it. Nothing is known of longest paths.
"""

import heapq
import itertools

HOST = "host"


def pipeline_tables(schedule, microbatches, devices, chunks, trains):
    """By rank, the actions (position, microbatch, is_backward), by looking at the steps ahead."""
    return [
        _rank_table(schedule, microbatches, devices, chunks, trains, rank)
        for rank in range(devices)
    ]


def _rank_table(schedule, microbatches, devices, chunks, trains, rank):
    size = 1 if chunks == 1 else -(-microbatches // max(1, microbatches // devices))
    if schedule == "gpipe":
        size = microbatches
    groups = [range(k, k + size) for k in range(0, microbatches, size)]
    order = [(chunk, i) for group in groups for chunk in range(chunks) for i in group]
    back = [(chunk, i) for group in groups for chunk in reversed(range(chunks)) for i in group]
    if schedule == "gpipe":
        ahead = len(order)
        if chunks > 1:
            back = list(reversed(order))
    elif chunks == 1:
        ahead = devices - rank
    else:
        ahead = (chunks - 1) * size + 2 * (devices - 1 - rank) + 1
    table = []
    for step in range(len(order) + len(back)):
        # Backward step k is due once `ahead` + k forward steps are made, or none is left.
        if step < len(order):
            table.append((step, 0, *order[step], False))
        if step < len(back):
            table.append((min(step + ahead, len(order)) - 1, 1 + step, *back[step], True))
    table.sort()
    return [
        (chunk * devices + rank, i, is_backward)
        for _, _, chunk, i, is_backward in table
        if i < microbatches and (trains or not is_backward)
    ]


def simulate_step(tables, compute_ns, messages, staged, overlap):
    """The time at which everything has ended; None if that never happens.

    Parameters
    ----------
    tables : list of list of (position, microbatch, is_backward)
    compute_ns : dict of (position, is_backward) to int
    messages : dict of (source, target, is_backward) to int
        What is sent when the action of `source` is over, and needed by that of `target`.
    staged : dict of (position, is_backward) to (int, int), or None
        Where everything goes through the host: the time to read before, and to write after.
    overlap : bool
    """
    ranks = len(tables)
    needs, gives = {}, {}
    for source, target, is_backward in messages:
        needs.setdefault((target, is_backward), []).append(source)
        gives.setdefault((source, is_backward), []).append(target)
    clock = [(0, 0, "begin", None)]
    count = itertools.count(1)
    turn = [0] * ranks
    is_busy = [False] * ranks
    arrived = set()
    written = set()
    # Of every link, what waits for it; of reads, all of the step in the order of their need.
    queues = {}
    is_carrying = set()
    if staged is not None and overlap:
        for rank, table in enumerate(tables):
            queues[HOST, rank] = [
                ("read", action)
                for action in table
                if any((s - rank) % ranks for s in needs.get((action[0], action[2]), []))
            ]

    def serve(now):
        for link, queue in queues.items():
            if not queue or link in is_carrying:
                continue
            kind, what = queue[0]
            if kind == "read":
                position, i, is_backward = what
                sources = [s for s in needs[position, is_backward] if (s - position) % ranks != 0]
                if not all((s, i, is_backward) in written for s in sources):
                    continue
                spent = staged[position, is_backward][0]
            elif kind == "write":
                spent = staged[what[0], what[2]][1]
            else:
                source, target, i, is_backward = what
                spent = messages[source, target, is_backward]
            queue.pop(0)
            is_carrying.add(link)
            heapq.heappush(clock, (now + spent, next(count), kind, (link, what)))
        for rank, table in enumerate(tables):
            if is_busy[rank] or turn[rank] == len(table):
                continue
            position, i, is_backward = table[turn[rank]]
            wanted = [(s, position, i, is_backward) for s in needs.get((position, is_backward), [])]
            if not all(message in arrived for message in wanted):
                continue
            spent = compute_ns[position, is_backward]
            if not overlap:
                for (source, target, is_back), time_ns in messages.items():
                    if staged is None and is_back == is_backward and position in (source, target):
                        spent += time_ns
                if staged is not None:
                    spent += sum(staged[position, is_backward])
            is_busy[rank] = True
            event = (now + spent, next(count), "action", (rank, position, i, is_backward))
            heapq.heappush(clock, event)

    now = 0
    while clock:
        now, _, kind, what = heapq.heappop(clock)
        if kind == "action":
            rank, position, i, is_backward = what
            is_busy[rank] = False
            turn[rank] += 1
            targets = gives.get((position, is_backward), [])
            away = [t for t in targets if (t - position) % ranks != 0]
            for target in sorted(targets):
                if not overlap or target not in away:
                    arrived.add((position, target, i, is_backward))
                elif staged is None:
                    message = ("message", (position, target, i, is_backward))
                    queues.setdefault((rank, target % ranks), []).append(message)
            if overlap and staged is not None and away:
                action = (position, i, is_backward)
                queues.setdefault((rank, HOST), []).append(("write", action))
        elif kind != "begin":
            link, content = what
            is_carrying.discard(link)
            if kind == "message":
                arrived.add(content)
            elif kind == "write":
                written.add(content)
            else:
                position, i, is_backward = content
                for s in needs[position, is_backward]:
                    if (s - position) % ranks:
                        arrived.add((s, position, i, is_backward))
        serve(now)
    if any(turn[rank] < len(table) for rank, table in enumerate(tables)):
        return None
    return now
