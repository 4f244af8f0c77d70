"""Brute force for small instances, from docs/definition.md; imports nothing that it checks.

An instance is plain data, as JSON could hold it::

    {"operators": [{"name", "latency_ns" (int, or dict by device class), "reads", "storage_bytes",
                    "workspace_bytes", "value_bytes", "alias_of", "weights", "is_output",
                    "allowed_devices" (list or None), "transfer_ns", "received_bytes" (or None),
                    "is_backward", "stage", "in_place",
                    "backward": {"latency_ns", "gradient_bytes", "passes_to", "slices",
                                 "buffer_bytes", "kept_bytes", "residual_bytes", "workspace_bytes",
                                 "weight_gradient_bytes", "saves", "recomputable", "rng_bytes",
                                 "region", "number_bytes"}},
                   ...],
     "inputs": {name: bytes}, "weights": {key: {"size_bytes", "training_bytes"}},
     "colocation": [[operator, ...], ...],
     "devices": [{"name", "memory_bytes", "device_class", "is_host"}, ...],
     "interconnect": {"charging", "overlap", "default": {"bandwidth_bytes_per_s", "latency_ns"},
                      "links": [{"source", "target", "bandwidth_bytes_per_s", "latency_ns"}, ...]},
     "objective": [...], "memory_model", "schedule", "microbatches",
     "chunks_per_device", "max_devices", "cuts": [operator, ...], "recompute"}

A stage is a pair (chunk, device number). Under relayed charging values are carried from stage to
stage one step at a time. Memory is found by playing a stage step by step with a
set of live storages; orders of devices and paths by listing all of them. Nothing is pruned but
pins and colocation, so that a wrong bound in a solver cannot be repeated here. What runs again in
the backward pass is a bit mask over all operators that are named; :mod:`tests.support.
recompute_oracle` says which may be, and what that costs.

What a stage holds depends only on the set of operators that it runs, so results of playing it
are remembered by that set (a bit mask); this makes the enumeration fast enough. Many tests ask for
the best plan of the same instance, so it is remembered too.
"""

import functools
import itertools
import json

from tests.support.recompute_oracle import Recomputing
from tests.support.step_oracle import step_ns

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
        self.relays = instance["interconnect"]["charging"] == "relayed"
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
        self._flight_memo = {}
        self.recomputing = Recomputing(self)

    # -- memory: play one stage -----------------------------------------------------------------

    def owner(self, name):
        """The operator or graph input in whose storage the value of `name` lives."""
        while name in self.number and self.ops[self.number[name]]["alias_of"] is not None:
            name = self.ops[self.number[name]]["alias_of"]
        return name

    def members(self, mask):
        return [i for i in range(len(self.ops)) if mask >> i & 1]

    def stage_bytes(self, mask, again=0):
        """(weight keys, other bytes, bytes per microbatch in flight) of those in mask."""
        again &= mask
        if (mask, again) not in self._stage_memo:
            members = self.members(mask)
            if again:
                found = self.recomputing.stage_bytes(members, set(self.members(again)))
                self._stage_memo[mask, again] = (self.stage_bytes(mask)[0], *found)
            else:
                self._stage_memo[mask, again] = self._play(members)
        return self._stage_memo[mask, again]

    def _play(self, members):
        model = self.instance["memory_model"]
        held_weights = set()
        arrived = set()
        for i in members:
            held_weights.update(self.ops[i]["weights"])
            for name in self.ops[i]["reads"]:
                if name not in self.number or self.number[name] not in members:
                    arrived.add(name)
        if model == "weights":
            return held_weights, 0, 0
        training = model == "training"
        batches = self.instance["microbatches"]
        received = 0
        for name in arrived:
            if name in self.number and self.relays:
                pass  # it comes by a relay, which `relayed_bytes` adds
            elif name in self.number:
                received += batches * self._held_value_bytes(self.number[name])
                if training:
                    received += self._received_gradient_bytes(self.number[name])
            else:
                received += batches * self.instance["inputs"][name]
        if training:
            saved = sum(self._saved_bytes(i) for i in members)
            return held_weights, received + self._training_peak(members), saved
        live = {}
        peak = 0
        earlier = sum(
            (batches - 1) * self.ops[i]["storage_bytes"]
            for i in members
            if self._leaves(i, members)
        )
        for now in members:
            if self.ops[now]["alias_of"] is None:
                live[self.names[now]] = self.ops[now]["storage_bytes"]
            peak = max(peak, sum(live.values()) + self.ops[now]["workspace_bytes"])
            live = {s: size for s, size in live.items() if self._needed_after(s, now, members)}
        return held_weights, received + earlier + peak, 0

    def _leaves(self, i, members):
        """Whether what lives in the storage of `i` is returned, or read in another stage."""
        name = self.ops[i]["name"]
        family = [j for j, other in enumerate(self.names) if self.owner(other) == name]
        return any(
            self.ops[j]["is_output"] or any(reader not in members for reader in self.readers[j])
            for j in family
        )

    def _training_peak(self, members):
        """The most that the operators of a stage make it hold, apart from earlier microbatches."""
        batches = self.instance["microbatches"]
        for_others = 0
        for i in members:
            op = self.ops[i]
            family = [j for j, name in enumerate(self.names) if self.owner(name) == op["name"]]
            if any(self.ops[j]["is_output"] for j in family):
                for_others += batches * op["storage_bytes"]
            elif any(reader not in members for j in family for reader in self.readers[j]):
                kept = op["backward"]["kept_bytes"]
                for_others += batches * (op["storage_bytes"] - kept) + kept
            if any(reader not in members for reader in self.readers[i]) and not self.relays:
                for_others += batches * op["backward"]["gradient_bytes"]
        while_running = (sum(self._training_need(i, now) for i in members) for now in members)
        return for_others + max(while_running)

    def _saved_bytes(self, i):
        """What is kept of one microbatch of operator `i` until its backward pass."""
        names = ("kept_bytes", "residual_bytes", "number_bytes")
        return sum(self.ops[i]["backward"][name] for name in names)

    def _training_need(self, i, now):
        """What operator `i` makes its stage hold while `now` runs, forward or backward."""
        op = self.ops[i]
        backward = op["backward"]
        released = op["storage_bytes"] - backward["kept_bytes"]
        need = 0
        if now >= i:
            need += self._saved_bytes(i)
        if now == i:
            in_backward = backward["workspace_bytes"]
            if self.instance["microbatches"] > 1:
                in_backward += backward["weight_gradient_bytes"]
            need += max(in_backward, op["workspace_bytes"])
        members = [j for j, name in enumerate(self.names) if self.owner(name) == op["name"]]
        last = max([i, *(reader for j in members for reader in self.readers[j])])
        # The gradient is there from the backward pass of the last reader to that of `i`, or to that
        # of what `i` passes it to. In its place is, forward, what nobody keeps.
        if self._gradient_place(i) == i:
            others = [j for j in range(len(self.ops)) if self._gradient_place(j) == i]
            end = max([i, *(reader for j in others for reader in self.readers[j])])
            there = backward["gradient_bytes"]
            if end >= last:
                there = max(there, released)
                released = 0
            if i <= now and (now <= end or any(self.ops[j]["is_output"] for j in others)):
                need += there
        if i <= now <= last:
            need += released
        return need + self.sliced_bytes(i, now)

    def sliced_bytes(self, i, now):
        """What is there while `now` runs of buffers of which a slice ends at `i`."""
        total = 0
        for u, op in enumerate(self.ops):
            given = [self.number[s] for s in op["backward"]["slices"] if s in self.number]
            size = {j: self.ops[j]["backward"]["gradient_bytes"] for j in given}
            # The gradient of what a later reader reads is no slice of this.
            end = {j: self._slice_end(j) for j in given if max(self.readers[j]) == u}
            if i not in end.values():
                continue
            if now == i:
                total += sum(size[j] for j in end if end[j] == i and self._adds(i, j))
            if i <= now < min([u, *(e for e in end.values() if e > i)]):
                total += sum(size[j] for j in end if end[j] > i)
                total += max(0, op["backward"]["gradient_bytes"] - sum(size.values()))
        return total

    def _given(self, i):
        """To what `i` gives its gradient, or slices of it."""
        backward = self.ops[i]["backward"]
        names = {backward["passes_to"], *backward["slices"]}
        return {self.number[name] for name in names if name in self.number}

    def _slice_end(self, i):
        """The operator in whose backward pass the slice is last there that `i` was given."""
        readers = sorted(self.readers[i])
        if len(readers) > 1:
            return readers[-2]
        # What it gives to others before all their other readers lives in the same buffer.
        onward = (j for j in self._given(i) if max(self.readers[j]) == i)
        return min([i, *(self._slice_end(j) for j in onward)])

    def _adds(self, i, j):
        """Whether a slice that `j` was given ends at `i` as a sum with something new."""
        readers = sorted(self.readers[j])
        if len(readers) > 1:
            return readers[-2] == i and j not in self._given(i)
        onward = [k for k in self._given(j) if max(self.readers[k]) == j]
        ending = [k for k in onward if self._slice_end(k) == i]
        return i != j and any(self._adds(i, k) for k in ending)

    def _received_gradient_bytes(self, i):
        """What a stage holds for the gradient of what it reads of another.

        Of a slice there is a copy, or all of its buffer.
        """
        size = self._gradient_bytes(self.ops[i])
        return max(size * (1 + self._is_sliced(i)), self.ops[i]["backward"]["buffer_bytes"])

    def _is_sliced(self, i):
        name = self.names[i]
        return any(
            name in op["backward"]["slices"]
            or (name == op["backward"]["passes_to"] and self._is_sliced(j))
            for j, op in enumerate(self.ops)
        )

    def _gradient_place(self, i):
        while self.ops[i]["backward"]["passes_to"] in self.number:
            taker = self.number[self.ops[i]["backward"]["passes_to"]]
            sizes = [self.ops[j]["backward"]["gradient_bytes"] for j in (i, taker)]
            if sizes[0] > sizes[1]:
                break
            i = taker
        return i

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

    def in_flight(self, chunk, rank, device_count):
        """Microbatches in a stage at most, by playing the schedules of its device.

        The plan has its last stage in the last chunk, and as many rounds as are left of it.
        """
        key = chunk, rank, device_count
        if key not in self._flight_memo:
            allowed = self.instance["chunks_per_device"]
            self._flight_memo[key] = max(
                self._play_schedule(chunk - empty, rank, device_count, allowed - empty)
                for empty in range(chunk + 1)
            )
        return self._flight_memo[key]

    def _play_schedule(self, chunk, rank, device_count, rounds):
        microbatches = self.instance["microbatches"]
        if self.instance["schedule"] == "gpipe":
            return microbatches
        if rounds == 1:
            return min(device_count - rank, microbatches)
        # Interleaved: groups of microbatches pass through all chunks, one after the other.
        groups = max(1, microbatches // device_count)
        size = -(-microbatches // groups)
        forward = [c for _ in range(groups) for c in range(rounds) for _ in range(size)]
        backward = [c for _ in range(groups) for c in reversed(range(rounds)) for _ in range(size)]
        ahead = min((rounds - 1) * size + 2 * (device_count - 1 - rank), len(forward))
        held = most = 0
        for step in range(len(forward) + ahead):
            if step < len(forward):
                held += forward[step] == chunk
            most = max(most, held)
            if step >= ahead:
                held -= backward[step - ahead] == chunk
        return min(most, microbatches)

    def device_bytes(self, stages):
        """(bytes whatever the schedule, [(chunk, bytes per microbatch in flight)]) of a device.

        `stages` are the chunks of the device and of each what it runs, and what of it runs again.
        """
        if stages not in self._device_memo:
            played = [(chunk, *self.stage_bytes(mask, again)) for chunk, mask, again in stages]
            keys = set().union(*(held_weights for _, held_weights, _, _ in played))
            fixed = self.weight_bytes(keys) + sum(other for _, _, other, _ in played)
            self._device_memo[stages] = fixed, [(chunk, saved) for chunk, _, _, saved in played]
        return self._device_memo[stages]

    def memory(self, masks, device_order, again=0):
        """Bytes held by each device, given the operators of each stage (bit masks)."""
        # The last of the plan's chunks is the last round of the schedule.
        first = max(masks)[0] + 1 - self.instance["chunks_per_device"]
        held = [0] * len(self.devices)
        for rank, d in enumerate(device_order):
            own = tuple(
                (chunk - first, mask, again & mask)
                for (chunk, device), mask in masks.items()
                if device == d
            )
            fixed, saved = self.device_bytes(own)
            held[d] = fixed + sum(
                size * (self.in_flight(max(chunk, 0), rank, len(device_order)) - 1)
                for chunk, size in saved
                if size
            )
        for (_, d), size in self.relayed_bytes(masks, device_order).items():
            held[d] += size
        return held

    # -- relays: carry every value along the chain of positions ----------------------------------

    def chain(self, masks, device_order):
        """The stages of all chunks of a plan in turn, with those that run nothing."""
        least, most = min(masks)[0], max(masks)[0]
        return [(chunk, d) for chunk in range(least, most + 1) for d in device_order]

    def carried(self, masks, device_order):
        """(operator, stage, next stage) for every step of every value."""
        if not self.relays:
            return []
        chain = self.chain(masks, device_order)
        where = {
            i: n
            for n, stage in enumerate(chain)
            for i in range(len(self.ops))
            if masks.get(stage, 0) >> i & 1
        }
        steps = []
        for i, readers in enumerate(self.readers):
            at = where[i]
            waiting = [where[j] for j in readers]
            if self.ops[i]["is_output"]:
                waiting.append(len(chain) - 1)
            while any(n > at for n in waiting):
                steps.append((i, chain[at], chain[at + 1]))
                at += 1
        return steps

    def _held_value_bytes(self, i):
        """What is held of a value that was received."""
        own = self.ops[i].get("received_bytes")
        return self.ops[i]["value_bytes"] if own is None else own

    def relayed_bytes(self, masks, device_order):
        """What each stage holds for what it is given and passes on."""
        held = {}
        if self.instance["memory_model"] == "weights":
            return held
        batches = self.instance["microbatches"]
        for i, giver, taker in self.carried(masks, device_order):
            value, gradient = self._held_value_bytes(i), self._gradient_bytes(self.ops[i])
            if self.instance["memory_model"] == "training":
                here = self._received_gradient_bytes(i)
                held[taker] = held.get(taker, 0) + batches * value + here
                held[giver] = held.get(giver, 0) + batches * gradient
            else:
                held[taker] = held.get(taker, 0) + batches * value
        return held

    def relayed_traffic(self, masks, device_order):
        """As `traffic`, of a plan that runs as a pipeline, and the stages that a step joins."""
        chain = self.chain(masks, device_order)
        send, receive = dict.fromkeys(chain, 0), dict.fromkeys(chain, 0)
        moved_bytes = 0
        joined = set()
        for i, giver, taker in self.carried(masks, device_order):
            joined.add((giver, taker))
            if giver[1] != taker[1]:
                names = [self.devices[d]["name"] for _, d in (giver, taker)]
                cost = self.move_ns(i, *names)
                send[giver] += cost
                receive[taker] += cost
                moved_bytes += self.ops[i]["value_bytes"] + self._gradient_bytes(self.ops[i])
        return send, receive, moved_bytes, frozenset(joined)

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
        """The pairs of stages that a forward edge joins.

        `places` is the stage of each operator, or None as long as it has none.
        """
        pairs = ((places[i], places[j]) for i, j in self.ordering_edges)
        return frozenset(pair for pair in pairs if None not in pair and pair[0] != pair[1])

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

    # -- what was fixed by hand ------------------------------------------------------------------

    def broken_by_hand(self, places, order):
        """Kinds of what was fixed by hand and is not so: "cut", "stage"."""
        if not self.instance.get("cuts") and all(op.get("stage") is None for op in self.ops):
            return set()
        used = sorted({(chunk, order.index(d)) for chunk, d in places})
        at = [used.index((chunk, order.index(d))) for chunk, d in places]
        broken = set()
        for name in self.instance.get("cuts", []):
            for i, j in itertools.combinations(range(len(self.ops)), 2):
                if self.ops[i]["is_backward"] or self.ops[j]["is_backward"]:
                    continue
                if i <= self.number[name] < j and at[i] >= at[j]:
                    broken.add("cut")
        for i, op in enumerate(self.ops):
            if op.get("stage") not in (None, at[i]):
                broken.add("stage")
        return broken

    # -- time ------------------------------------------------------------------------------------

    def move_ns(self, i, source, target):
        key = (i, source, target)
        if key not in self._time_memo:
            self._time_memo[key] = self._move_ns(self.ops[i], source, target)
        return self._time_memo[key]

    def _move_ns(self, op, source, target):
        if op["transfer_ns"] is not None:
            return op["transfer_ns"]
        total = self._link_ns(op["value_bytes"], source, target)
        gradient_bytes = self._gradient_bytes(op)
        if gradient_bytes:
            total += self._link_ns(gradient_bytes, target, source)
        return total

    def _gradient_bytes(self, op):
        trained = self.instance["memory_model"] == "training"
        return op["backward"]["gradient_bytes"] if trained else 0

    def _link_ns(self, size_bytes, source, target):
        chosen = self.instance["interconnect"]["default"]
        for link in self.instance["interconnect"]["links"]:
            if link["source"] == source and link["target"] == target:
                chosen = link
        bandwidth = chosen["bandwidth_bytes_per_s"]
        if bandwidth is None:
            return chosen["latency_ns"]
        whole, rest = divmod(size_bytes * NS_PER_S, bandwidth)
        return chosen["latency_ns"] + whole + (rest > 0)

    def compute_ns(self, d, mask, again=0):
        key = (d, mask, again & mask)
        if key not in self._compute_memo:
            self._compute_memo[key] = sum(self.pass_ns(*key))
        return self._compute_memo[key]

    def pass_ns(self, d, mask, again=0):
        """Time of the forward pass and of the backward pass of what is in mask on a device."""

        def time_of(latencies):
            own_class = self.devices[d]["device_class"]
            return sum(t[own_class] if isinstance(t, dict) else t for t in latencies)

        members = self.members(mask)
        forward = time_of(self.ops[i]["latency_ns"] for i in members)
        if self.instance["memory_model"] != "training":
            return forward, 0
        every = self.recomputing.all_again(members, set(self.members(again & mask)))
        rerun = time_of(self.ops[i]["latency_ns"] for i in every)
        return forward, rerun + time_of(self.ops[i]["backward"]["latency_ns"] for i in members)

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
            travels = self.ops[i]["value_bytes"] + self._gradient_bytes(self.ops[i])
            moved_bytes += len(arrivals) * travels
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

    def times(self, places, masks, device_order, again=0, *, with_latency=True):
        """Everything about time and transfers; the order of the devices is that of relays."""
        if self.relays:
            send, receive, moved_bytes, arcs = self.relayed_traffic(masks, device_order)
        else:
            send, receive, moved_bytes = self.traffic(places)
            arcs = self.arcs(places)
        compute = {s: self.compute_ns(s[1], masks.get(s, 0), again) for s in send}
        totals = [self.by_device(times) for times in (compute, send, receive)]
        latency = None
        paths = self.paths(tuple(sorted(send)), arcs) if with_latency else None
        if paths is not None:
            spent = {s: self.combine(compute[s], send[s], receive[s]) for s in send}
            latency = max(sum(spent[stage] for stage in walk) for walk in paths)
        return {
            "compute": totals[0],
            "send": totals[1],
            "receive": totals[2],
            "load": [self.combine(*parts) for parts in zip(*totals, strict=True)],
            "transfer": moved_bytes,
            "latency": latency,
        }


def cost(
    instance,
    assignment,
    device_order,
    chunks=None,
    oracle=None,
    *,
    recomputed=(),
    with_step=False,
):
    """Everything about one plan; `latency` is None when the stages form a cycle.

    `step` is found if `with_step` asks for it, and None when something would travel to an earlier
    stage.

    `chunks` names the chunk of each operator that is not in chunk 0, and `recomputed` what runs
    again. `violations` is a set of kinds: "order", "memory", "pin", "colocation", "chunks",
    "devices", "cut", "stage", "again".
    """
    oracle = oracle or Oracle(instance)
    index = {device["name"]: d for d, device in enumerate(oracle.devices)}
    chunks = chunks or {}
    places = [(chunks.get(name, 0), index[assignment[name]]) for name in oracle.names]
    order = tuple(index[name] for name in device_order)
    used = tuple(sorted({d for _, d in places}))
    assert sorted(order) == sorted(used)
    masks = oracle.masks(places)
    again = sum(1 << oracle.number[name] for name in set(recomputed))
    held = oracle.memory(masks, order, again)
    values = oracle.times(places, masks, order, again)
    violations = oracle.broken_by_hand(places, order)
    if instance["memory_model"] != "training" or instance["recompute"] == "none":
        violations |= {"again"} if again else set()
    elif not oracle.recomputing.obeys(masks.values(), again):
        violations.add("again")
    if not all(oracle.recomputing.may_run_again(mask, again & mask) for mask in masks.values()):
        violations.add("again")
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
        "step": step_ns(oracle, places, masks, order, again) if with_step else None,
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


def orderly_places(oracle, unit_numbers, choices):
    """Every stage for each unit, but for those between which data flows in a circle.

    A circle among some operators is one among all. The same list is yielded every time.
    """
    every_device = tuple(range(len(oracle.devices)))
    places = [None] * len(oracle.ops)

    def place(unit):
        if unit == len(unit_numbers):
            yield places
            return
        for stage in choices[unit]:
            for i in unit_numbers[unit]:
                places[i] = stage
            if oracle.device_orders(every_device, oracle.arcs(places)):
                yield from place(unit + 1)
        for i in unit_numbers[unit]:
            places[i] = None

    return place(0)


def brute_force(instance):
    """The best objective tuple with an assignment and chunks that have it; None without a plan."""
    found = _best(json.dumps(instance))
    if found is None:
        return None
    objective, assignment, chunks = found
    return objective, dict(assignment), dict(chunks)


def has_plan(instance):
    """Whether any plan keeps all limits."""
    return _has_plan(json.dumps({**instance, "objective": ["devices"]}))


@functools.lru_cache(maxsize=20_000)
def _best(text):
    """What `brute_force` finds for the text of an instance."""
    oracle = Oracle(json.loads(text))
    objective, places = min(_plans(oracle), key=lambda plan: plan[0], default=(None, None))
    if places is None:
        return None
    named = list(zip(oracle.names, places, strict=True))
    return (
        objective,
        {name: oracle.devices[d]["name"] for name, (_, d) in named},
        {name: chunk for name, (chunk, _) in named},
    )


@functools.lru_cache(maxsize=20_000)
def _has_plan(text):
    return any(True for _ in _plans(Oracle(json.loads(text))))


def _plans(oracle):
    """The objective tuple and the places of every plan that keeps all limits."""
    instance = oracle.instance
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
    for places in orderly_places(oracle, unit_numbers, choices):
        used = tuple(sorted({d for _, d in places}))
        if len(used) > most_devices:
            continue
        orders = [
            order
            for order in oracle.device_orders(used, oracle.arcs(places))
            if not oracle.broken_by_hand(places, order)
        ]
        if not orders:
            continue
        masks = oracle.masks(places)
        for again in oracle.recomputing.sets_of_plan(masks):
            for values in _values(oracle, places, masks, orders, again):
                yield tuple(values[name] for name in instance["objective"]), list(places)


def _values(oracle, places, masks, orders, again):
    """What each objective is with some of the orders of devices, of those that fit."""
    objective = oracle.instance["objective"]
    is_1f1b = (oracle.instance["memory_model"], oracle.instance["schedule"]) == ("training", "1f1b")
    is_ordered = oracle.relays or "step" in objective
    fitting = []
    for order in orders if is_ordered or is_1f1b else orders[:1]:
        held = oracle.memory(masks, order, again)
        if oracle.memory_fits(held):
            fitting.append((oracle.permille(held), order))
    # Where the order decides nothing but memory, one of the best is enough.
    for permille, order in fitting if is_ordered else sorted(fitting)[:1]:
        values = {"devices": len(order), "peak_memory": permille}
        if {"bottleneck", "latency", "transfer"} & set(objective):
            with_latency = "latency" in objective
            values |= oracle.times(places, masks, order, again, with_latency=with_latency)
            values["bottleneck"] = max(values["load"])
        if "step" in objective:
            values["step"] = step_ns(oracle, places, masks, order, again)
        yield values
