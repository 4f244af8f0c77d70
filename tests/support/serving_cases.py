"""Random chains that serve, and what the best of all their plans give, by listing them."""

import dataclasses
import itertools
import random

from solver import Device, Interconnect, Link, Operator, PartitionPlan, PartitionProblem, Weight
from solver.model.job import Job

PROMPT, TOKEN = "prompt", "token"
MORE = 4
"""Positions of the longer context that says how values grow."""


def half(context):
    return context // 2


def random_case(seed, *, memory_model="weights", max_units=6, context=2, stored=half):
    """A chain of units, some of which have a cache, on two or three unequal devices.

    Values that last have a part that grows as `stored` of the context says.
    """
    rng = random.Random(seed)
    count = rng.randint(3, max_units)
    devices = [
        Device(f"gpu{i}", rng.randint(30, 120), rng.choice(("fast", "slow")))
        for i in range(rng.choice((2, 2, 3)))
    ]
    caches = {f"cache{i}": rng.randint(1, 4) for i in range(count) if i == 0 or rng.random() < 0.8}
    limits = {}
    if memory_model == "weights":
        limits = {key: rng.randint(3, 6) for key in caches if rng.random() < 0.3}
    weights = {f"w{i}": Weight(rng.randint(1, 25)) for i in range(count)}
    weights |= {key: Weight(context * size) for key, size in caches.items()}
    link = Link(rng.choice((None, 10**9)), rng.randint(0, 5))

    def problem(tokens, at=context):
        own = random.Random(seed + 1)
        operators = []
        for i in range(count):
            time_ns = own.randint(1, 20)
            size = own.randint(0, 4)
            # Several tokens need one operator more in some units, which other phases have not.
            alone = own.random() < 0.4
            keys = (f"w{i}", *((f"cache{i}",) if f"cache{i}" in caches else ()))
            reads = (f"op{i - 1}",) if i else ()
            if alone and tokens > 1:
                reads = (*reads[:0], f"extra{i}")
                operators.append(
                    Operator(
                        f"extra{i}",
                        tokens,
                        (f"op{i - 1}",) if i else (),
                        storage_bytes=tokens * size,
                        value_bytes=tokens * size,
                    )
                )
            operators.append(
                Operator(
                    f"op{i}",
                    {"fast": tokens * time_ns, "slow": tokens * own.randint(10, 40)},
                    reads,
                    storage_bytes=(tokens + stored(at)) * size,
                    value_bytes=tokens * size,
                    weights=keys,
                    is_output=i == count - 1,
                )
            )
        grown = {
            key: Weight(at * caches[key]) if key in caches else weight
            for key, weight in weights.items()
        }
        return PartitionProblem(
            tuple(operators),
            tuple(devices),
            weights=grown,
            interconnect=Interconnect(default=link),
            memory_model=memory_model,
        )

    tokens = rng.randint(2, 4)
    others = {}
    if memory_model != "weights":
        longer = context + MORE
        others[longer] = {PROMPT: problem(tokens, longer), TOKEN: problem(1, longer)}
    return Job(
        phases={PROMPT: problem(tokens), TOKEN: problem(1)},
        prompt_runs={PROMPT: rng.randint(1, 3)},
        token_phase=TOKEN,
        generate=rng.randint(0, 5),
        batch=rng.randint(1, 3),
        context=context,
        cache_bytes_per_token=caches,
        cache_limits=limits,
        others=others,
    )


def with_uneven_prompt(serving, seed):
    """The case with a prompt whose units are slow elsewhere than those of a token."""
    rng = random.Random(seed)
    prompt = serving.phases[PROMPT]
    operators = tuple(
        dataclasses.replace(op, latency_ns={"fast": rng.randint(1, 90), "slow": rng.randint(1, 90)})
        for op in prompt.operators
    )
    return serving.replace(phases={**serving.phases, PROMPT: prompt.replace(operators=operators)})


def with_links(serving, seed):
    """The case with links of their own between most pairs of devices, each way another one."""
    rng = random.Random(seed)
    names = [device.name for device in serving.phases[TOKEN].devices]
    rates = None, 3 * 10**8, 10**9, 2 * 10**9
    links = {
        pair: Link(rng.choice(rates), rng.randint(0, 9))
        for pair in itertools.permutations(names, 2)
        if rng.random() < 0.7
    }
    interconnect = Interconnect(Link(rng.choice(rates), rng.randint(0, 5)), links)
    return changed(serving, interconnect=interconnect)


def changed(serving, **settings):
    """The case with other settings in all phases."""

    def of(phases):
        return {name: each.replace(**settings) for name, each in phases.items()}

    others = {context: of(phases) for context, phases in serving.others.items()}
    return serving.replace(phases=of(serving.phases), others=others)


def reading_twice(serving):
    """The case in which units also read from the one before the one before."""

    def also(operators):
        for op in operators:
            number = int(op.name.removeprefix("op")) if op.name.startswith("op") else 0
            yield (
                dataclasses.replace(op, reads=(*op.reads, f"op{number - 2}")) if number > 1 else op
            )

    phases = {
        name: each.replace(operators=tuple(also(each.operators)))
        for name, each in serving.phases.items()
    }
    return serving.replace(phases=phases)


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
        for i in own:
            total += problem.weights[f"w{i}"].size_bytes
            positions = min(context, serving.cache_limits.get(f"cache{i}", context))
            total += groups * positions * serving.cache_bytes_per_token.get(f"cache{i}", 0)
        if problem.memory_model == "weights":
            return total
        ops = {op.name: op for op in problem.operators}
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
