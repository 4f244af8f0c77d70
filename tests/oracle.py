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
     "objective": [...], "memory_model", "schedule", "microbatches",
     "chunks_per_device", "max_devices"}

A stage is a pair (chunk, device number). Memory is found by playing a stage step by step with a
set of live storages; orders of devices and paths by listing all of them. Nothing is pruned but
pins and colocation, so that a wrong bound in a solver cannot be repeated here.

What a stage holds depends only on the set of operators that it runs, so results of playing it
are remembered by that set (a bit mask); this makes the enumeration fast enough.
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
        self._device_memo = {}
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
        """(weight keys, other bytes, bytes per microbatch in flight) of those in mask."""
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
        if model == "weights":
            return held_weights, 0, 0
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
        return held_weights, received + peak, saved if model == "training" else 0

    def weight_bytes(self, keys):
        total = 0
        for key in keys:
            entry = self.instance["weights"][key]
            trained = self.instance["memory_model"] == "training"
            if trained and entry["training_bytes"] is not None:
                total += entry["training_bytes"]
            else:
                total += entry["size_bytes"]
        return total

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

    def in_flight(self, chunk, rank, device_count, chunk_count):
        """Microbatches in a stage: with 1F1B as many as there are places from it to the end."""
        microbatches = self.instance["microbatches"]
        if self.instance["schedule"] == "gpipe":
            return microbatches
        places = [(c, r) for c in range(chunk_count) for r in range(device_count)]
        return min(len(places) - places.index((chunk, rank)), microbatches)

    def device_bytes(self, stages):
        """(bytes whatever the schedule, [(chunk, bytes per microbatch in flight)]) of a device.

        `stages` are the chunks of the device and the operators of each (a bit mask).
        """
        if stages not in self._device_memo:
            played = [(chunk, *self.stage_bytes(mask)) for chunk, mask in stages]
            keys = set().union(*(held_weights for _, held_weights, _, _ in played))
            fixed = self.weight_bytes(keys) + sum(other for _, _, other, _ in played)
            self._device_memo[stages] = fixed, [(chunk, saved) for chunk, _, _, saved in played]
        return self._device_memo[stages]

    def memory(self, masks, device_order):
        """Bytes held by each device, given the operators of each stage (bit masks)."""
        first = min(masks)[0]
        chunk_count = max(masks)[0] + 1 - first
        held = [0] * len(self.devices)
        for rank, d in enumerate(device_order):
            own = tuple(
                (chunk - first, masks[chunk, device]) for chunk, device in masks if device == d
            )
            fixed, saved = self.device_bytes(own)
            held[d] = fixed + sum(
                size * self.in_flight(chunk, rank, len(device_order), chunk_count)
                for chunk, size in saved
                if size
            )
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

    def arcs(self, places):
        """The pairs of stages that a forward edge joins; `places` is the stage of each operator."""
        return frozenset(
            (places[i], places[j]) for i, j in self.ordering_edges if places[i] != places[j]
        )

    def device_orders(self, used, arcs):
        """All orders of the devices in which data only flows to later stages."""
        key = (used, arcs)
        if key not in self._order_memo:
            self._order_memo[key] = [
                order
                for order in itertools.permutations(used)
                if all(
                    (c, order.index(d)) < (other_c, order.index(other_d))
                    for (c, d), (other_c, other_d) in arcs
                )
            ]
        return self._order_memo[key]

    def paths(self, stages, arcs):
        """All paths through the stages, or None if one returns to where it was.

        Stages of one device are joined too, for they cannot run at once.
        """
        key = (stages, arcs)
        if key not in self._path_memo:
            steps = set(arcs)
            for d in {d for _, d in stages}:
                steps.update(itertools.pairwise(sorted(s for s in stages if s[1] == d)))
            complete = []
            unfinished = [(stage,) for stage in stages]
            while unfinished:
                walk = unfinished.pop()
                if walk[-1] in walk[:-1]:
                    complete = None
                    break
                complete.append(walk)
                unfinished += [(*walk, target) for source, target in steps if source == walk[-1]]
            self._path_memo[key] = complete
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

    def traffic(self, places):
        """(send time by stage, receive time by stage, bytes sent in all)."""
        send = dict.fromkeys(places, 0)
        receive = dict.fromkeys(places, 0)
        moved_bytes = 0
        staged = self.instance["interconnect"]["charging"] == "host_staged"
        for i, readers in enumerate(self.readers):
            home = places[i]
            arrivals = {}
            for j in readers:
                chunk, d = places[j]
                if d != home[1]:
                    # Received once by the device, when it first reads it.
                    arrivals[d] = min(arrivals.get(d, chunk), chunk)
            if not arrivals:
                continue
            moved_bytes += len(arrivals) * self.ops[i]["value_bytes"]
            here = self.devices[home[1]]["name"]
            if staged and not self.devices[home[1]]["is_host"]:
                send[home] += self.move_ns(i, here, HOST)
            for d, chunk in arrivals.items():
                if not staged:
                    cost = self.move_ns(i, here, self.devices[d]["name"])
                    send[home] += cost
                    receive[chunk, d] += cost
                elif not self.devices[d]["is_host"]:
                    receive[chunk, d] += self.move_ns(i, HOST, self.devices[d]["name"])
        return send, receive, moved_bytes

    def combine(self, *times):
        return max(times) if self.instance["interconnect"]["overlap"] else sum(times)

    def by_device(self, by_stage):
        totals = [0] * len(self.devices)
        for (_, d), value in by_stage.items():
            totals[d] += value
        return totals

    # -- one assignment --------------------------------------------------------------------------

    def masks(self, places):
        masks = {}
        for i, stage in enumerate(places):
            masks[stage] = masks.get(stage, 0) | 1 << i
        return masks

    def times(self, places, masks, *, with_latency=True):
        """Everything about time and transfers, whatever the order of the devices."""
        send, receive, moved_bytes = self.traffic(places)
        compute = {stage: self.compute_ns(stage[1], mask) for stage, mask in masks.items()}
        totals = [self.by_device(times) for times in (compute, send, receive)]
        latency = None
        paths = self.paths(tuple(sorted(masks)), self.arcs(places)) if with_latency else None
        if paths is not None:
            spent = {s: self.combine(compute[s], send[s], receive[s]) for s in masks}
            latency = max(sum(spent[stage] for stage in walk) for walk in paths)
        return {
            "compute": totals[0],
            "send": totals[1],
            "receive": totals[2],
            "load": [self.combine(*parts) for parts in zip(*totals, strict=True)],
            "transfer": moved_bytes,
            "latency": latency,
        }


def cost(instance, assignment, device_order, chunks=None, oracle=None):
    """Everything about one plan; `latency` is None when the stages form a cycle.

    `chunks` names the chunk of each operator that is not in chunk 0. `violations` is a set of
    kinds: "order", "memory", "pin", "colocation", "chunks", "devices".
    """
    oracle = oracle or Oracle(instance)
    index = {device["name"]: d for d, device in enumerate(oracle.devices)}
    chunks = chunks or {}
    places = [(chunks.get(name, 0), index[assignment[name]]) for name in oracle.names]
    order = tuple(index[name] for name in device_order)
    used = tuple(sorted({d for _, d in places}))
    assert sorted(order) == sorted(used)
    masks = oracle.masks(places)
    held = oracle.memory(masks, order)
    values = oracle.times(places, masks)
    violations = set()
    if order not in oracle.device_orders(used, oracle.arcs(places)):
        violations.add("order")
    if not oracle.memory_fits(held):
        violations.add("memory")
    numbers = [chunk for chunk, _ in places]
    if max(numbers) - min(numbers) >= instance["chunks_per_device"]:
        violations.add("chunks")
    if instance["max_devices"] is not None and len(used) > instance["max_devices"]:
        violations.add("devices")
    for op in oracle.ops:
        if (
            op["allowed_devices"] is not None
            and assignment[op["name"]] not in op["allowed_devices"]
        ):
            violations.add("pin")
    for group in instance["colocation"]:
        if len({places[oracle.number[name]] for name in group}) > 1:
            violations.add("colocation")
    return {
        **values,
        "memory": held,
        "devices": len(used),
        "bottleneck": max(values["load"]),
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
    """The best objective tuple with an assignment and chunks that have it; None without a plan."""
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
        choices.append(
            [
                (chunk, number_of[name])
                for chunk in range(instance["chunks_per_device"])
                for name in sorted(allowed)
            ]
        )
        unit_numbers.append([oracle.number[name] for name in unit])
    most_devices = instance["max_devices"] or len(number_of)
    order_matters = instance["memory_model"] == "training" and instance["schedule"] == "1f1b"
    needs_time = bool({"bottleneck", "latency", "transfer"} & set(instance["objective"]))
    places = [None] * len(oracle.ops)
    best = None
    best_places = None
    for picks in itertools.product(*choices):
        for numbers, stage in zip(unit_numbers, picks, strict=True):
            for i in numbers:
                places[i] = stage
        used = tuple(sorted({d for _, d in places}))
        if len(used) > most_devices:
            continue
        orders = oracle.device_orders(used, oracle.arcs(places))
        if not orders:
            continue
        masks = oracle.masks(places)
        permilles = []
        for order in orders if order_matters else orders[:1]:
            held = oracle.memory(masks, order)
            if oracle.memory_fits(held):
                permilles.append(oracle.permille(held))
        if not permilles:
            continue
        values = {"devices": len(used), "peak_memory": min(permilles)}
        if needs_time:
            with_latency = "latency" in instance["objective"]
            values.update(oracle.times(places, masks, with_latency=with_latency))
            values["bottleneck"] = max(values["load"])
        objective = tuple(values[name] for name in instance["objective"])
        if best is None or objective < best:
            best = objective
            best_places = list(places)
    if best is None:
        return None
    named = list(zip(oracle.names, best_places, strict=True))
    return (
        best,
        {name: oracle.devices[d]["name"] for name, (_, d) in named},
        {name: chunk for name, (chunk, _) in named},
    )
