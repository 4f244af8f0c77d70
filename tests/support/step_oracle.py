"""The step of a plan from docs/definition.md, by the discrete-event simulation of this folder."""

from tests.support.pipeline_simulator import HOST, pipeline_tables, simulate_step


def step_ns(oracle, places, masks, device_order, again=0):
    """The time of one step; None where something would travel to an earlier stage.

    Parameters
    ----------
    oracle : oracle.Oracle
    places : list of (chunk, device)
        The stage of each operator.
    masks : dict of (chunk, device) to int
        The operators of each stage, as bit masks.
    device_order : tuple of int
    again : int
        The operators that run again, as a bit mask.
    """
    instance = oracle.instance
    trains = instance["memory_model"] == "training"
    chain = oracle.chain(masks, device_order)
    position = {stage: p for p, stage in enumerate(chain)}
    ranks, chunks = len(device_order), len(chain) // len(device_order)
    if any(position[places[i]] > position[places[j]] for i, j in oracle.ordering_edges):
        return None
    compute = {}
    for stage, p in position.items():
        compute[p, 0], compute[p, 1] = oracle.pass_ns(stage[1], masks.get(stage, 0), again)
    messages, staged = {}, None
    if instance["interconnect"]["charging"] == "host_staged":
        staged = _staged(oracle, places, position, messages)
    else:
        for i, giver, taker in _travels(oracle, places, masks, device_order):
            there, back = 0, 0
            if giver[1] != taker[1]:
                names = [oracle.devices[d]["name"] for _, d in (giver, taker)]
                there, back = _both_ways(oracle, i, *names)
            pair = position[giver], position[taker]
            messages[(*pair, False)] = messages.get((*pair, False), 0) + there
            messages[(*pair[::-1], True)] = messages.get((*pair[::-1], True), 0) + back
    tables = pipeline_tables(instance["schedule"], instance["microbatches"], ranks, chunks, trains)
    return simulate_step(tables, compute, messages, staged, instance["interconnect"]["overlap"])


def _both_ways(oracle, i, source, target):
    """Time of the value of operator i, and of its gradient."""
    op = oracle.ops[i]
    gradient_bytes = oracle._gradient_bytes(op)
    if op["transfer_ns"] is not None:
        back = op["transfer_ns"] // 2 if gradient_bytes else 0
        return op["transfer_ns"] - back, back
    back = oracle._link_ns(gradient_bytes, target, source) if gradient_bytes else 0
    return oracle._link_ns(op["value_bytes"], source, target), back


def _arrivals(oracle, places, i):
    """The stages that receive the value of operator i: the first of each other device."""
    found = {}
    for j in oracle.readers[i]:
        chunk, d = places[j]
        if d != places[i][1]:
            found[d] = min(found.get(d, chunk), chunk)
    return [(chunk, d) for d, chunk in found.items()]


def _travels(oracle, places, masks, device_order):
    """(operator, from stage, to stage) of everything that travels between stages."""
    if oracle.relays:
        return oracle.carried(masks, device_order)
    return [
        (i, places[i], stage)
        for i in range(len(oracle.ops))
        for stage in _arrivals(oracle, places, i)
    ]


def _staged(oracle, places, position, messages):
    """Times to read and to write of every position and pass; who waits goes to `messages`."""
    staged = {(p, k): [0, 0] for p in position.values() for k in (False, True)}
    for i in range(len(oracle.ops)):
        stages = _arrivals(oracle, places, i)
        home = places[i]
        for stage in stages:
            messages[position[home], position[stage], False] = 0
            messages[position[stage], position[home], True] = 0
            if not oracle.devices[stage[1]]["is_host"]:
                there, back = _both_ways(oracle, i, HOST, oracle.devices[stage[1]]["name"])
                staged[position[stage], False][0] += there
                staged[position[stage], True][1] += back
        if stages and not oracle.devices[home[1]]["is_host"]:
            there, back = _both_ways(oracle, i, oracle.devices[home[1]]["name"], HOST)
            staged[position[home], False][1] += there
            staged[position[home], True][0] += back
    return {key: tuple(times) for key, times in staged.items()}
