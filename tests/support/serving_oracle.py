"""All plans of a chain that serves, and what each of them takes and holds, played by hand."""

import itertools

from solver import PartitionPlan
from tests.support.random_jobs import MORE, PROMPT, TOKEN


class Listed:
    """All plans of a chain: runs of units on devices in any order, each of them used once."""

    def __init__(self, serving):
        self.serving = serving
        self.problems = serving.phases
        token = self.problems[TOKEN]
        self.units = [op.name for op in token.operators]
        self.devices = list(token.devices)

    def plans(self):
        """Devices of the units, for every cut and every order."""
        count = len(self.units)
        # What one phase passes otherwise than the other stays on one device.
        cuts_at = [i for i in range(1, count) if f"extra{i}" not in self.problems[PROMPT].index_of]
        for used in range(1, min(count, len(self.devices)) + 1):
            for cuts in itertools.combinations(cuts_at, used - 1):
                bounds = [0, *cuts, count]
                for order in itertools.permutations(self.devices, used):
                    yield [
                        order[part] for part in range(used) for _ in range(*bounds[part : part + 2])
                    ]

    def plan(self, places):
        """The plan of all phases that has the units on these devices."""
        on = dict(zip(self.units, places, strict=True))
        names = dict.fromkeys(op.name for each in self.problems.values() for op in each.operators)
        assignment = {name: on[name.replace("extra", "op")].name for name in names}
        return PartitionPlan(assignment, tuple(dict.fromkeys(place.name for place in places)))

    def held(self, places, device, phase, context, groups=1):
        """Bytes on a device, played operator by operator."""
        serving, problem = self.serving, self.problems[phase]
        own = [i for i, place in enumerate(places) if place is device]
        if not own:
            return 0
        total = 0
        ops = {op.name: op for op in problem.operators}
        for key in (key for i in own for key in ops[f"op{i}"].weights):
            size = problem.weights[key].size_bytes
            if key in serving.cache_bytes_per_token:
                limit = serving.cache_limits.get(key, max(context, serving.context))
                more = min(context, limit) - min(serving.context, limit)
                size = groups * (size + more * serving.cache_bytes_per_token[key])
            total += size
        if problem.memory_model == "weights":
            return total
        first = serving.context

        def size(op):
            grown = ops[op].storage_bytes
            if op.startswith("op"):
                small = ops[op].storage_bytes
                other = serving.others[first + MORE][phase].operators
                large = next(o for o in other if o.name == op).storage_bytes
                grown = small - (small - large) * (context - first) // MORE
            return grown

        chain = [name for i in own for name in (f"extra{i}", f"op{i}") if name in ops]
        received = ops[f"op{own[0] - 1}"].value_bytes if own[0] else 0
        peak = 0
        for at, name in enumerate(chain):
            live = size(name) + (size(chain[at - 1]) if at else 0)
            peak = max(peak, live)
        return total + received + peak

    def fits(self, places, context=None, groups=1):
        context = self.serving.context if context is None else context
        return all(
            device.memory_bytes is None
            or self.held(places, device, phase, context, groups) <= device.memory_bytes
            for device in self.devices
            for phase in self.problems
        )

    def loads(self, places, phase):
        """The load of every used device, in the order of the chain."""
        problem = self.problems[phase]
        ops = {op.name: op for op in problem.operators}
        link = problem.interconnect.link
        loads = {}
        for i, device in enumerate(places):
            names = [n for n in (f"extra{i}", f"op{i}") if n in ops]
            time = sum(ops[n].latency_on(device.device_class) for n in names)
            loads[device.name] = loads.get(device.name, 0) + time
            if i and places[i - 1] is not device:
                between = link(places[i - 1].name, device.name)
                hop = between.transfer_ns(ops[f"op{i - 1}"].value_bytes)
                loads[device.name] += hop
                loads[places[i - 1].name] += hop
        return list(loads.values())

    def latency(self, places, phase):
        return sum(self.loads(places, phase))

    def first_token(self, places):
        return self.serving.prompt_runs[PROMPT] * self.latency(places, PROMPT)

    def request(self, places):
        return self.first_token(places) + self.serving.generate * self.latency(places, TOKEN)
