"""Small problems of one shape each: by hand, or drawn from a seed."""

import random
from dataclasses import replace

from solver import Device, GraphInput, Interconnect, Link, Operator, PartitionProblem, Weight

LINK = Interconnect(default=Link(bandwidth_bytes_per_s=10**9, latency_ns=0))


def chain(
    names="abcd", *, latency_ns=None, value_bytes=None, weight_bytes=None, of=None, **settings
):
    """Operators in a row, on the devices p and q with links of one byte per nanosecond.

    Parameters
    ----------
    names : str, list of str or int
        Of the operators; a number stands for op0, op1 and so on.
    latency_ns : int or list of int, optional
        Of every operator, or of each; 1, 2, 4, … if not given.
    value_bytes : int or list of int, optional
        Of the values and their storages; 1, 10, 100, … if not given.
    weight_bytes : int or list of int, optional
        Of a weight that each operator has alone, under its own name.
    of : dict, optional
        More fields of single operators, by name.
    **settings
        Fields of the problem.
    """
    names = [f"op{i}" for i in range(names)] if isinstance(names, int) else list(names)
    times = _for_each(names, latency_ns, lambda i: 2**i)
    sizes = _for_each(names, value_bytes, lambda i: 10**i)
    operators = [
        Operator(
            **{
                "name": name,
                "latency_ns": times[i],
                "reads": names[max(i - 1, 0) : i],
                "storage_bytes": sizes[i],
                "value_bytes": sizes[i],
                "weights": () if weight_bytes is None else (name,),
                "is_output": i == len(names) - 1,
                **(of or {}).get(name, {}),
            }
        )
        for i, name in enumerate(names)
    ]
    weights = {}
    if weight_bytes is not None:
        weights = dict(zip(names, map(Weight, _for_each(names, weight_bytes)), strict=True))
    fields = {
        "operators": operators,
        "devices": (Device("p"), Device("q")),
        "interconnect": LINK,
        "weights": weights,
    }
    return PartitionProblem(**{**fields, **settings})


def _for_each(names, given, default=None):
    if given is None:
        return [default(i) for i in range(len(names))]
    return [given] * len(names) if isinstance(given, int) else list(given)


def diamond(**settings):
    """a reads the input x and feeds b and c, which feed d; devices p, q and r."""
    operators = (
        Operator("a", reads=("x",)),
        Operator("b", reads=("a",)),
        Operator("c", reads=("a",)),
        Operator("d", reads=("b", "c")),
    )
    fields = {
        "operators": operators,
        "devices": tuple(Device(name) for name in "pqr"),
        "inputs": (GraphInput("x"),),
    }
    return PartitionProblem(**{**fields, **settings})


def two_towers(layers):
    """Two chains of large values whose operators take turns in the execution order."""
    operators = [
        Operator(f"{tower}{i}", 10, (f"{tower}{i - 1}",) if i else (), value_bytes=100)
        for i in range(layers)
        for tower in "ab"
    ]
    return PartitionProblem(operators, (Device("p"), Device("q")), interconnect=LINK)


def decoder(seed, layers, devices=3):
    """A chain of layers that read wide values by units of their own, as masks and encodings are."""
    rng = random.Random(seed)
    classes = ("fast", "slow")[: rng.choice((1, 1, 2))]
    memory = rng.random() < 0.5

    def operator(name, most_ns, *reads):
        latency = {kind: rng.randint(0, most_ns) for kind in classes}
        return Operator(
            name,
            latency if len(classes) == 2 else latency["fast"],
            reads,
            value_bytes=1,
            transfer_ns=rng.randint(0, 8),
            weights=(f"w.{name}",) if memory else (),
        )

    operators = [operator("mask", 2)]
    if rng.random() < 0.5:
        operators.append(operator("bias", 3))
    wide = [op.name for op in operators]
    split = rng.randint(1, max(1, layers - 3))
    for layer in range(layers):
        before = (f"layer{layer - 1}",) if layer else ()
        if layer < split:
            head = tuple(name for name in wide if rng.random() < 0.9)
        else:
            head = (f"layer{split - 1}",)
        feeders: tuple[str, ...] = ()
        if rng.random() < 0.8 and head:
            own: tuple[str, ...] = ()
            if rng.random() < 0.3:
                operators.append(operator(f"own{layer}", 2))
                own = (f"own{layer}",)
            operators.append(operator(f"feed{layer}", 3, *head, *own))
            feeders = (f"feed{layer}",)
            if rng.random() < 0.3:
                operators.append(operator(f"copy{layer}", 2, *feeders))
                feeders = (f"copy{layer}",)
            elif rng.random() < 0.3:
                operators += [operator(f"{name}{layer}", 2, *feeders) for name in ("key", "value")]
                feeders = (f"key{layer}", f"value{layer}")
        elif rng.random() < 0.5:
            feeders = head[:1]
        operators.append(operator(f"layer{layer}", 12, *dict.fromkeys((*before, *feeders))))
    sizes = {op.weights[0]: Weight(rng.randint(0, 9)) for op in operators if op.weights}
    total = sum(weight.size_bytes for weight in sizes.values())
    return PartitionProblem(
        operators=operators,
        devices=[
            Device(
                f"d{i}",
                max(1, total * rng.choice((4, 5, 7)) // 10) if memory else None,
                rng.choice(classes),
            )
            for i in range(devices)
        ],
        weights=sizes,
        interconnect=LINK,
        memory_model="weights",
    )


def weighted_chain(sizes, capacities, **settings):
    """A chain of operators of 7 ns with a weight of each size, on devices gpu0, gpu1, …"""
    devices = [Device(f"gpu{i}", capacity) for i, capacity in enumerate(capacities)]
    fields = {"devices": devices, "memory_model": "weights", **settings}
    names = "abcdefgh"[: len(sizes)]
    return chain(names, latency_ns=7, value_bytes=0, weight_bytes=sizes, **fields)


def layers(seed, *, charging="peer_to_peer"):
    """Small layers of two branches, a residual, and a mask beside them that every layer reads.

    With odd seeds the last operator reads the weight of the first one again.
    """
    rng = random.Random(seed)
    classes = ("fast", "slow")[: rng.choice((1, 1, 2))]

    def operator(name, *reads, weight=0):
        latency = {kind: rng.randint(0, 9) for kind in classes}
        weights.update({f"w{name}": Weight(weight)} if weight else {})
        return Operator(
            name,
            latency if len(classes) == 2 else latency["fast"],
            reads,
            storage_bytes=rng.randint(0, 2),
            value_bytes=rng.randint(0, 4),
            weights=(f"w{name}",) if weight else (),
        )

    weights: dict[str, Weight] = {}
    operators = []
    beside = rng.random() < 0.7
    if beside:
        operators.append(operator("mask"))
    operators.append(operator("first"))
    last = "first"
    count = rng.choice((2, 3))
    for layer in range(1 if count == 3 else 2):
        reads = [last]
        if beside:
            operators.append(operator(f"view{layer}", "mask"))
            reads.append(rng.choice(("mask", f"view{layer}")))
        operators.append(operator(f"up{layer}", *reads, weight=rng.choice((5, 7, 8))))
        if rng.random() < 0.5:
            operators.append(operator(f"gate{layer}", last, weight=rng.choice((5, 7, 8))))
            operators.append(operator(f"mul{layer}", f"up{layer}", f"gate{layer}"))
        reads = [operators[-1].name, *([last] if rng.random() < 0.5 else [])]
        operators.append(operator(f"down{layer}", *reads, weight=rng.choice((0, 5, 9))))
        last = f"down{layer}"
    if seed % 2:
        weights["tied"] = Weight(rng.choice((2, 4, 8)))
        first = next(number for number, op in enumerate(operators) if op.name == "first")
        operators[first] = replace(operators[first], weights=("tied",))
        operators.append(replace(operator("head", last), weights=("tied",)))
    total = sum(weight.size_bytes for weight in weights.values())
    share = 10 // count
    devices = [
        Device(f"d{i}", total * rng.choice((share, share + 1, share + 4)) // 10 + 4, classes[i % 2])
        if len(classes) == 2
        else Device(f"d{i}", total * rng.choice((share, share + 1, share + 4)) // 10 + 4)
        for i in range(count)
    ]
    return PartitionProblem(
        operators=operators,
        devices=devices,
        weights=weights,
        memory_model=rng.choice(("weights", "inference")),
        interconnect=Interconnect(Link(10**9, rng.randint(0, 2)), charging=charging),
    )


def streams(seed, layers=3):
    """Operators side by side that read the two layers before them; no unit is before all others."""
    rng = random.Random(seed)
    charging = rng.choice(("peer_to_peer", "host_staged"))
    classes = ("fast", "slow")[: rng.choice((1, 1, 2))]
    memory = rng.random() < 0.4
    operators, before, last = [], [], []
    for layer in range(layers):
        names = [f"op{layer}.{i}" for i in range(rng.choice((1, 2, 2)))]
        for name in names:
            latency = {kind: rng.randint(0, 9) for kind in classes}
            reads = {rng.choice(last)} if last else set()
            reads |= {other for other in last + before if rng.random() < 0.3}
            operators.append(
                Operator(
                    name,
                    latency if len(classes) == 2 else latency["fast"],
                    tuple(sorted(reads)),
                    value_bytes=rng.randint(0, 6),
                    weights=(f"w{name}",) if memory else (),
                    allowed_devices={"d0", "d1"} if rng.random() < 0.05 else None,
                )
            )
        before, last = last, names
    sizes = {op.weights[0]: Weight(rng.randint(0, 9)) for op in operators if op.weights}
    total = sum(weight.size_bytes for weight in sizes.values())
    devices = [
        Device(
            f"d{i}",
            max(1, total * rng.choice((4, 5, 7)) // 10) if memory else None,
            rng.choice(classes),
            is_host=charging == "host_staged" and rng.random() < 0.25,
        )
        for i in range(rng.choice((2, 3)))
    ]
    return PartitionProblem(
        operators=operators,
        devices=devices,
        weights=sizes,
        memory_model="weights",
        interconnect=Interconnect(Link(10**9, rng.randint(0, 2)), charging=charging),
    )


def grid(width, length, seed=0, **settings):
    """Rows of operators that read their own row, and sometimes a neighbour."""
    rng = random.Random(seed)
    ops, weights = [], {}
    for column in range(length):
        for row in range(width):
            reads = [f"o{row}.{column - 1}"] if column else []
            if column and rng.random() < 0.3:
                reads.append(f"o{(row + 1) % width}.{column - 1}")
            name = f"o{row}.{column}"
            weights[name] = Weight(rng.randint(1, 50))
            size = rng.randint(1, 40)
            ops.append(
                Operator(name, rng.randint(10, 200), tuple(reads), size, size, weights=(name,))
            )
    interconnect = Interconnect(Link(10**9))
    return PartitionProblem(
        tuple(ops), weights=weights, **{"interconnect": interconnect, **settings}
    )


def unequal_chain(seed, *, devices=3, count=7):
    """A short chain with branches, weights in lumps, and devices of all kinds."""
    rng = random.Random(seed)
    weights, operators = {}, []
    for i in range(count):
        if rng.random() < 0.6:
            weights[f"w{i}"] = Weight(rng.randint(3, 12))
        operators.append(
            Operator(
                f"op{i}",
                {"fast": rng.randint(2, 9), "slow": rng.randint(9, 30)},
                [f"op{i - 1}"] * (i > 0) + [f"op{i - 2}"] * (i > 1 and rng.random() < 0.3),
                weights=(f"w{i}",) if f"w{i}" in weights else (),
                allowed_devices=("d0", "d1") if rng.random() < 0.1 else None,
            )
        )
    total = sum(weight.size_bytes for weight in weights.values())
    return PartitionProblem(
        operators=operators,
        devices=[
            Device(f"d{i}", total * rng.randint(3, 8) // 10 + 4, rng.choice(("fast", "slow")))
            for i in range(devices)
        ],
        weights=weights,
        memory_model="weights",
    )
