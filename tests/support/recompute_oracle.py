"""Memory of stages in which operators run again, from docs/definition.md, section 3.

Works on the plain data of :mod:`tests.support.oracle` and imports nothing that it checks.
"""

import functools
import itertools


class Recomputing:
    """Costs of one stage of an :class:`tests.support.oracle.Oracle` by its operators' numbers."""

    def __init__(self, oracle):
        self.oracle = oracle
        self.ops = oracle.ops
        self.numbers = range(len(self.ops))
        self.root = [oracle.number.get(oracle.owner(name), None) for name in oracle.names]
        self._sets_memo = {}

    def backward(self, i):
        return self.ops[i]["backward"]

    def reads(self, i, root):
        """Whether operator `i` reads what lives in the storage of `root`."""
        return any(
            name in self.oracle.number and self.root[self.oracle.number[name]] == root
            for name in self.ops[i]["reads"]
        )

    def saves(self, i, root):
        return any(
            self.root[self.oracle.number[name]] == root for name in self.backward(i)["saves"]
        )

    def all_again(self, members, chosen):
        """The chosen operators with what writes into their storages and the views they read."""
        again = set(chosen)
        again |= {i for i in self.numbers if self.ops[i]["in_place"] and self.root[i] in chosen}
        growing = True
        while growing:
            more = {
                view
                for view in members
                if view not in again
                and self.root[view] in chosen
                and any(
                    self.oracle.names[view] in self.ops[i]["reads"] for i in again if i in members
                )
            }
            again |= more
            growing = bool(more)
        return again

    def allowed(self, members, chosen):
        """Whether the rules let the chosen operators of a stage run again."""
        again = self.all_again(members, chosen)
        anchors = self.anchors(members, chosen, again)
        for u in chosen:
            if self.ops[u]["alias_of"] is not None or not self.backward(u)["recomputable"]:
                return False
            needing = [v for v in members if self.saves(v, u) or (v in again and self.reads(v, u))]
            if any(self.region(v) != self.region(u) for v in needing):
                return False
            if not needing and not self.backward(u)["residual_bytes"]:
                return False
            for w in self.numbers:
                if self.root[w] == u and self.ops[w]["in_place"]:
                    if w not in members or self.region(w) != self.region(u):
                        return False
                    if self.backward(w)["residual_bytes"]:
                        return False
        return not any(
            self.root[w] in anchors
            and self.ops[w]["in_place"]
            and w in members
            and any(v < w and self.reads(v, self.root[w]) for v in again if v in members)
            for w in self.numbers
        )

    # -- what must run again ----------------------------------------------------------------------

    @functools.cached_property
    def inner(self):
        return [self._is_inner(u) for u in self.numbers]

    def _is_inner(self, u):
        """Whether only the region of `u` has to do with it, which may read all that it reads."""
        if self.ops[u]["alias_of"] is not None or not self.backward(u)["recomputable"]:
            return False
        family = [i for i in self.numbers if self.root[i] == u]
        users = [i for i in self.numbers if self.reads(i, u) or self.saves(i, u)]
        if any(self.region(i) != self.region(u) for i in family + users):
            return False
        if any(self.ops[i]["in_place"] and self.backward(i)["residual_bytes"] for i in family):
            return False
        return not any(
            self.ops[w]["in_place"] and self.root[w] not in (u, None) and w > i
            for i in family
            for w in self.numbers
            if self.reads(i, self.root[w])
        )

    def lacking(self, members, chosen, regions):
        """What does not run again in a stage, but has to; all must that need it of `regions`."""
        again = self.all_again(members, chosen) & set(members)
        found = []
        for u in members:
            must = self.backward(u)["must_recompute"] or self.region(u) in regions
            if u in chosen or not must or not self.inner[u]:
                continue
            writers = {i for i in self.numbers if self.root[i] == u and self.ops[i]["in_place"]}
            needing = [v for v in members if self.saves(v, u)]
            needing += [v for v in again if self.root[v] != u and self.reads(v, u)]
            if writers <= set(members) and (
                writers or needing or self.backward(u)["residual_bytes"]
            ):
                found.append(u)
        return found

    @property
    def recompute(self):
        return self.oracle.instance.get("recompute", "none")

    def obeys(self, masks, again):
        """Whether what runs again in the stages of a plan is what must, by regions if asked."""
        chosen, regions = set(self.oracle.members(again)), set()
        if self.recompute == "layers":
            regions = {self.region(u) for u in chosen}
            if not all(self.inner[u] for u in chosen):
                return False
        members = map(self.oracle.members, masks)
        return not any(self.lacking(own, chosen & set(own), regions) for own in members)

    # -- all that may run again -------------------------------------------------------------------

    def may_run_again(self, mask, again):
        """Whether the operators of a bit mask may run again in the stage of another one."""
        return not again or self.allowed(self.oracle.members(mask), set(self.oracle.members(again)))

    def sets_of_plan(self, masks):
        """Bit masks of what may run again in a plan; masks has the operators of each stage."""
        instance = self.oracle.instance
        if instance["memory_model"] != "training" or self.recompute == "none":
            return [0]
        sets = map(sum, itertools.product(*map(self.sets_of_stage, masks.values())))
        if self.recompute == "layers":
            return (again for again in sets if self.obeys(masks.values(), again))
        return sets

    def sets_of_stage(self, mask):
        """What may run again in a stage: all sets, less those for which there is a better one.

        Better is what takes no more bytes, of both kinds, and no more time on any device: no
        objective and no limit of memory looks at anything else. With regions that run again as
        a whole none is left out, for what is best in one stage may not be for another.
        """
        if mask not in self._sets_memo:
            own = [i for i in self.oracle.members(mask) if self.backward(i)["recomputable"]]
            found = []
            for size in range(len(own) + 1):
                for chosen in itertools.combinations(own, size):
                    again = sum(1 << i for i in chosen)
                    if not self.may_run_again(mask, again) or not self.obeys([mask], again):
                        continue
                    times = [
                        self.oracle.compute_ns(d, mask, again)
                        for d in range(len(self.oracle.devices))
                    ]
                    found.append(([*self.oracle.stage_bytes(mask, again)[1:], *times], again))
            self._sets_memo[mask] = [
                again
                for number, (values, again) in enumerate(found)
                if self.recompute == "layers"
                or not any(
                    all(a <= b for a, b in zip(others, values, strict=True))
                    and (others != values or other < number)
                    for other, (others, _) in enumerate(found)
                )
            ]
        return self._sets_memo[mask]

    def region(self, i):
        return self.backward(i)["region"]

    def anchors(self, members, chosen, again):
        return {
            u
            for u in members
            if self.ops[u]["alias_of"] is None
            and u not in chosen
            and any(self.reads(v, u) for v in again if v in members)
        }

    def stage_bytes(self, members, chosen):
        """(other bytes, bytes per microbatch in flight) of a stage, but for its weights."""
        ops, batches = self.ops, self.oracle.instance["microbatches"]
        again = self.all_again(members, chosen)
        anchors = self.anchors(members, chosen, again)

        def kept_storage(u):
            if u in again:
                return 0
            if u in anchors:
                return ops[u]["storage_bytes"]
            return self.backward(u)["kept_bytes"]

        def held(u):
            if u in again:
                return self.backward(u)["rng_bytes"] + number(u)
            return kept_storage(u) + self.backward(u)["residual_bytes"] + number(u)

        def made(u):
            return self.backward(u)["kept_bytes"] + self.backward(u)["residual_bytes"] + number(u)

        def number(u):
            return self.backward(u)["number_bytes"]

        def storage(u):
            return ops[u]["storage_bytes"]

        readers = {u: [v for v in self.numbers if self.reads(v, u)] for u in members if storage(u)}
        gradients = {}
        for u in members:
            sharing = [v for v in self.numbers if self.oracle._gradient_place(v) == u]
            if sharing:
                end = max([u, *(r for v in sharing for r in self.oracle.readers[v])])
                returned = any(ops[v]["is_output"] for v in sharing)
                gradients[u] = len(ops) if returned else end

        def gradient(t):
            held = (
                self.backward(u)["gradient_bytes"] for u, end in gradients.items() if u <= t <= end
            )
            return sum(held) + sum(self.oracle.sliced_bytes(u, t) for u in members)

        rows = []
        for t in members:
            before = [u for u in members if u <= t]
            earlier = sum(held(u) for u in members if self.region(u) < self.region(t))
            here = [u for u in members if self.region(u) == self.region(t)]
            rows.append(
                sum(held(u) for u in before)
                + sum(
                    storage(u) - kept_storage(u)
                    for u in before
                    if storage(u) and t <= max([u, *readers[u]])
                )
                + ops[t]["workspace_bytes"]
            )
            more = self.backward(t)["weight_gradient_bytes"] if batches > 1 else 0
            rows.append(
                earlier
                + sum(made(u) for u in here if u <= t)
                + gradient(t)
                + self.backward(t)["workspace_bytes"]
                + more
            )
            if t not in again:
                continue
            missing = [
                v
                for v in here
                if any(u in again and self.saves(v, u) for u in here)
                or (v in again and self.backward(v)["residual_bytes"])
            ]
            rows.append(
                earlier
                + sum(held(u) for u in here if u not in again)
                + sum(made(u) if u <= t else number(u) for u in here if u in again)
                + sum(
                    storage(u) - self.backward(u)["kept_bytes"]
                    for u in here
                    if u in again
                    and storage(u)
                    and u <= t <= max([u, *(v for v in readers[u] if v in again & set(members))])
                )
                + ops[t]["workspace_bytes"]
                + (gradient(max(missing)) if missing else 0)
            )
        return self.constant(members, kept_storage) + max(rows), sum(held(u) for u in members)

    def constant(self, members, kept_storage):
        """What is received and sent, whatever runs."""
        oracle, batches, total = self.oracle, self.oracle.instance["microbatches"], 0
        arrived = {
            name
            for i in members
            for name in self.ops[i]["reads"]
            if oracle.number.get(name) not in members
        }
        for name in arrived:
            if name not in oracle.number:
                total += batches * oracle.instance["inputs"][name]
            elif not oracle.relays:
                other = self.ops[oracle.number[name]]
                total += batches * other["value_bytes"]
                total += oracle._received_gradient_bytes(oracle.number[name])
        for i in members:
            op = self.ops[i]
            family = [j for j in self.numbers if self.root[j] == i]
            if any(self.ops[j]["is_output"] for j in family):
                total += batches * op["storage_bytes"]
            elif any(r not in members for j in family for r in oracle.readers[j]):
                total += batches * (op["storage_bytes"] - kept_storage(i)) + kept_storage(i)
            if not oracle.relays and any(r not in members for r in oracle.readers[i]):
                total += batches * op["backward"]["gradient_bytes"]
        return total
