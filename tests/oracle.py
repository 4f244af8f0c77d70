"""Brute force for small instances, from docs/formulation.md; imports nothing that it checks.

An instance is plain data, as JSON could hold it::

    {"operators": [{"name", "latency_ns" (int, or dict by device class), "reads", "storage_bytes",
                    "value_bytes", "alias_of", "weights", "saves", "is_output",
                    "allowed_devices" (list or None), "transfer_ns", "is_backward"}, ...],
     "inputs": {name: bytes}, "weights": {key: {"size_bytes", "training_bytes"}},
     "saved": {key: bytes}, "colocation": [[operator, ...], ...],
     "devices": [{"name", "memory_bytes", "device_class", "is_host"}, ...],
     "interconnect": {"charging", "overlap", "default": {"bandwidth_bytes_per_s", "latency_ns"},
                      "links": [{"source", "target", "bandwidth_bytes_per_s", "latency_ns"}, ...]},
     "objective": [...], "memory_model", "schedule", "microbatches"}

Memory is found by playing a stage step by step with a set of live storages; stage orders and
paths by listing all of them. Nothing is pruned but pins and colocation, so that a wrong bound in a
solver cannot be repeated here.

What a device holds depends only on the set of operators that it runs, so results of playing a
stage are remembered by that set (a bit mask); this makes the enumeration fast enough.
"""

import itertools

HOST = "host"
NS_PER_S = 1_000_000_000


class Oracle:
    """Costs of assignments of one instance."""

    def __init__(self, instance):
        self.instance = instance
        self.ops = instance["operators"]
        self.devices = instance["devices"]
        self.names = [op["name"] for op in self.ops]
        self.number = {name: i for i, name in enumerate(self.names)}
        self.readers = [
            [j for j, other in enumerate(self.ops) if name in other["reads"]] for name in self.names
        ]
        self.edges = [(i, j) for i, js in enumerate(self.readers) for j in js]
        # Section 2, with backward operators left out of the order of stages.
        self.ordering_edges = [
            (i, j)
            for i, j in self.edges
            if not self.ops[i]["is_backward"] and not self.ops[j]["is_backward"]
        ]
        self._stage_memo = {}
        self._compute_memo = {}
        self._order_memo = {}
        self._path_memo = {}
        self._time_memo = {}

    # -- memory: play one stage -----------------------------------------------------------------

    def owner(self, name):
        """The operator or graph input in whose storage the value of `name` lives."""
        while name in self.number and self.ops[self.number[name]]["alias_of"] is not None:
            name = self.ops[self.number[name]]["alias_of"]
        return name

    def stage_bytes(self, mask):
        """(bytes whatever the schedule, bytes per microbatch in flight) of those in mask."""
        if mask not in self._stage_memo:
            members = [i for i in range(len(self.ops)) if mask >> i & 1]
            self._stage_memo[mask] = self._play(members)
        return self._stage_memo[mask]

    def _play(self, members):
        model = self.instance["memory_model"]
        held_weights = set()
        arrived = set()
        kept_for_backward = set()
        for i in members:
            held_weights.update(self.ops[i]["weights"])
            kept_for_backward.update(self.ops[i]["saves"])
            for name in self.ops[i]["reads"]:
                if name not in self.number or self.number[name] not in members:
                    arrived.add(name)
        weights = 0
        for key in held_weights:
            entry = self.instance["weights"][key]
            trained = entry["training_bytes"]
            weights += (
                trained if model == "training" and trained is not None else entry["size_bytes"]
            )
        if model == "weights":
            return weights, 0
        received = 0
        for name in arrived:
            if name in self.number:
                received += self.ops[self.number[name]]["value_bytes"]
            else:
                received += self.instance["inputs"][name]
        live = {}
        peak = 0
        for now in members:
            if self.ops[now]["alias_of"] is None:
                live[self.names[now]] = self.ops[now]["storage_bytes"]
            peak = max(peak, sum(live.values()))
            live = {s: size for s, size in live.items() if self._needed_after(s, now, members)}
        saved = sum(self.instance["saved"][key] for key in kept_for_backward)
        return weights + received + peak, saved if model == "training" else 0

    def _needed_after(self, storage, now, members):
        for i in members:
            if self.owner(self.names[i]) != storage:
                continue
            if self.ops[i]["is_output"]:
                return True
            for reader in self.readers[i]:
                if reader not in members or reader > now:
                    return True
        return False

    def in_flight(self, position, stage_count):
        microbatches = self.instance["microbatches"]
        if self.instance["schedule"] == "gpipe":
            return microbatches
        return min(stage_count - position, microbatches)

    def memory(self, masks, stages):
        """Bytes held by each device, given the stage order (device numbers)."""
        held = [0] * len(self.devices)
        for position, d in enumerate(stages):
            fixed, per_microbatch = self.stage_bytes(masks[d])
            held[d] = fixed + per_microbatch * self.in_flight(position, len(stages))
        return held

    def memory_fits(self, held):
        return all(
            device["memory_bytes"] is None or size <= device["memory_bytes"]
            for device, size in zip(self.devices, held, strict=True)
        )

    def permille(self, held):
        worst = 0
        for device, size in zip(self.devices, held, strict=True):
            if device["memory_bytes"] is not None:
                whole, rest = divmod(1000 * size, device["memory_bytes"])
                worst = max(worst, whole + (rest > 0))
        return worst

    # -- order of stages and paths: list them all -----------------------------------------------

    def arcs(self, where):
        return frozenset(
            (where[i], where[j]) for i, j in self.ordering_edges if where[i] != where[j]
        )

    def stage_orders(self, used, arcs):
        """All topological orders of the quotient graph; none if it has a cycle."""
        key = (used, arcs)
        if key not in self._order_memo:
            self._order_memo[key] = [
                order
                for order in itertools.permutations(used)
                if all(order.index(p) < order.index(q) for p, q in arcs)
            ]
        return self._order_memo[key]

    def paths(self, used, arcs):
        """All paths through an acyclic quotient graph."""
        key = (used, arcs)
        if key not in self._path_memo:
            self._path_memo[key] = [
                walk
                for length in range(1, len(used) + 1)
                for walk in itertools.permutations(used, length)
                if all(step in arcs for step in itertools.pairwise(walk))
            ]
        return self._path_memo[key]

    # -- time ------------------------------------------------------------------------------------

    def move_ns(self, i, source, target):
        key = (i, source, target)
        if key not in self._time_memo:
            self._time_memo[key] = self._move_ns(self.ops[i], source, target)
        return self._time_memo[key]

    def _move_ns(self, op, source, target):
        if op["transfer_ns"] is not None:
            return op["transfer_ns"]
        chosen = self.instance["interconnect"]["default"]
        for link in self.instance["interconnect"]["links"]:
            if link["source"] == source and link["target"] == target:
                chosen = link
        bandwidth = chosen["bandwidth_bytes_per_s"]
        if bandwidth is None:
            return chosen["latency_ns"]
        whole, rest = divmod(op["value_bytes"] * NS_PER_S, bandwidth)
        return chosen["latency_ns"] + whole + (rest > 0)

    def compute_ns(self, d, mask):
        key = (d, mask)
        if key not in self._compute_memo:
            total = 0
            for i, op in enumerate(self.ops):
                if mask >> i & 1:
                    latency = op["latency_ns"]
                    if isinstance(latency, dict):
                        latency = latency[self.devices[d]["device_class"]]
                    total += latency
            self._compute_memo[key] = total
        return self._compute_memo[key]

    def traffic(self, where):
        """(send time by device, receive time by device, bytes sent in all)."""
        send = [0] * len(self.devices)
        receive = [0] * len(self.devices)
        moved_bytes = 0
        staged = self.instance["interconnect"]["charging"] == "host_staged"
        for i, readers in enumerate(self.readers):
            home = where[i]
            away = {where[j] for j in readers}
            away.discard(home)
            if not away:
                continue
            moved_bytes += len(away) * self.ops[i]["value_bytes"]
            here = self.devices[home]["name"]
            if staged and not self.devices[home]["is_host"]:
                send[home] += self.move_ns(i, here, HOST)
            for d in away:
                if not staged:
                    cost = self.move_ns(i, here, self.devices[d]["name"])
                    send[home] += cost
                    receive[d] += cost
                elif not self.devices[d]["is_host"]:
                    receive[d] += self.move_ns(i, HOST, self.devices[d]["name"])
        return send, receive, moved_bytes

    def loads(self, masks, send, receive):
        combine = max if self.instance["interconnect"]["overlap"] else sum
        return [
            combine((self.compute_ns(d, mask), send[d], receive[d])) for d, mask in enumerate(masks)
        ]

    # -- one assignment --------------------------------------------------------------------------

    def masks(self, where):
        masks = [0] * len(self.devices)
        for i, d in enumerate(where):
            masks[d] |= 1 << i
        return masks


def cost(instance, assignment, stages, oracle=None):
    """Everything about one plan; `latency` is None when the stages form a cycle.

    `violations` is a set of kinds: "order", "memory", "pin", "colocation".
    """
    oracle = oracle or Oracle(instance)
    index = {device["name"]: d for d, device in enumerate(oracle.devices)}
    where = [index[assignment[name]] for name in oracle.names]
    order = tuple(index[name] for name in stages)
    used = tuple(sorted(set(where)))
    assert sorted(order) == sorted(used)
    masks = oracle.masks(where)
    arcs = oracle.arcs(where)
    orders = oracle.stage_orders(used, arcs)
    held = oracle.memory(masks, order)
    send, receive, moved_bytes = oracle.traffic(where)
    loads = oracle.loads(masks, send, receive)
    violations = set()
    if order not in orders:
        violations.add("order")
    if not oracle.memory_fits(held):
        violations.add("memory")
    for op in oracle.ops:
        if (
            op["allowed_devices"] is not None
            and assignment[op["name"]] not in op["allowed_devices"]
        ):
            violations.add("pin")
    for group in instance["colocation"]:
        if len({assignment[name] for name in group}) > 1:
            violations.add("colocation")
    latency = None
    if orders:
        latency = max(sum(loads[d] for d in walk) for walk in oracle.paths(used, arcs))
    return {
        "memory": held,
        "compute": [oracle.compute_ns(d, mask) for d, mask in enumerate(masks)],
        "send": send,
        "receive": receive,
        "load": loads,
        "devices": len(used),
        "transfer": moved_bytes,
        "bottleneck": max(loads),
        "latency": latency,
        "peak_memory": oracle.permille(held),
        "violations": violations,
    }


def units(instance):
    """Operators that must share a device, by merging groups until nothing changes."""
    groups = [{op["name"]} for op in instance["operators"]]
    for members in instance["colocation"]:
        touched = [group for group in groups if group & set(members)]
        groups = [group for group in groups if not group & set(members)]
        groups.append(set().union(*touched))
    return groups


def brute_force(instance):
    """The best objective tuple and an assignment that has it, or None if there is no plan."""
    oracle = Oracle(instance)
    number_of = {device["name"]: d for d, device in enumerate(oracle.devices)}
    choices = []
    unit_numbers = []
    for unit in units(instance):
        allowed = set(number_of)
        for name in unit:
            own = oracle.ops[oracle.number[name]]["allowed_devices"]
            if own is not None:
                allowed &= set(own)
        choices.append(sorted(number_of[name] for name in allowed))
        unit_numbers.append([oracle.number[name] for name in unit])
    order_matters = instance["memory_model"] == "training" and instance["schedule"] == "1f1b"
    needs_time = bool({"bottleneck", "latency"} & set(instance["objective"]))
    needs_traffic = needs_time or "transfer" in instance["objective"]
    where = [0] * len(oracle.ops)
    best = None
    best_where = None
    for picks in itertools.product(*choices):
        for numbers, d in zip(unit_numbers, picks, strict=True):
            for i in numbers:
                where[i] = d
        used = tuple(sorted(set(where)))
        arcs = oracle.arcs(where)
        orders = oracle.stage_orders(used, arcs)
        if not orders:
            continue
        masks = oracle.masks(where)
        permilles = []
        for order in orders if order_matters else orders[:1]:
            held = oracle.memory(masks, order)
            if oracle.memory_fits(held):
                permilles.append(oracle.permille(held))
        if not permilles:
            continue
        values = {"devices": len(used), "peak_memory": min(permilles)}
        if needs_traffic:
            send, receive, values["transfer"] = oracle.traffic(where)
        if needs_time:
            loads = oracle.loads(masks, send, receive)
            values["bottleneck"] = max(loads)
            if "latency" in instance["objective"]:
                values["latency"] = max(
                    sum(loads[d] for d in walk) for walk in oracle.paths(used, arcs)
                )
        objective = tuple(values[name] for name in instance["objective"])
        if best is None or objective < best:
            best = objective
            best_where = list(where)
    if best is None:
        return None
    return best, {
        name: oracle.devices[d]["name"] for name, d in zip(oracle.names, best_where, strict=True)
    }
