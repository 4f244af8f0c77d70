"""Random jobs: chains of units that serve a prompt and tokens, perhaps with a host, from a seed."""

import random

from solver import Device, Host, Interconnect, Job, Link, Operator, PartitionProblem, Weight
from solver.model.devices import STAGING_HOST

PROMPT, TOKEN = "prompt", "token"
CLASSES = "fast", "middle", "slow"
MORE = 4
"""Positions of the longer context that says how values grow."""
RATES = None, 3 * 10**8, 10**9, 2 * 10**9


def half(context):
    return context // 2


def random_job(
    seed,
    *,
    units=(3, 6),
    kinds=None,
    devices=None,
    memory_model="weights",
    context=2,
    stored=half,
    uneven_prompt=False,
    links=False,
    skips=False,
    host=False,
):
    """Return the job of `seed`: a chain of units, some of which have caches, on unequal devices.

    Parameters
    ----------
    units : (int, int)
        The fewest and the most units; in half of the jobs with a host only two kinds occur.
    kinds : list of int, optional
        The kind of each unit in their place.
    devices : int, optional
        Their number; two or three if left out.
    context : int
        Sizes alone depend on it.
    stored : callable
        The positions of a value that last, by the context.
    uneven_prompt : bool
        Whether the units of the prompt are slow elsewhere than those of a token.
    links : bool
        Whether most pairs of devices have a link of their own, each way another one.
    skips : bool
        Whether units also read from the one before the one before.
    host : bool
        Whether units may be streamed from a host or run there, and be pinned.
    """
    rng = random.Random(f"job {seed}")
    count = rng.randint(*units) if kinds is None else len(kinds)
    drafts = [_unit(rng, host) for _ in range(count)]
    if kinds is None and host and rng.random() < 0.5:
        kinds = [rng.randrange(2) for _ in drafts]
    chain = drafts if kinds is None else [drafts[kind % count] for kind in kinds]
    tokens = rng.randint(2, 4)
    caches = _caches(rng, chain, is_limited=memory_model == "weights", is_endless=host)
    total = sum(unit["weight"] + unit["state"] for unit in chain)
    total += sum(context * size for size, _, _ in caches.values())
    device_count = devices or rng.choice((2, 2, 3))
    places, classes = [], rng.choices(CLASSES[: rng.choice((1, 3, 3))], k=device_count)
    if not host and len(set(classes)) > 1:
        classes = rng.sample(CLASSES, device_count)
    for at in range(device_count):
        least = max(1, round(total * rng.uniform(0.2, 1.4) / device_count))
        size = least if host else rng.randint(40, 130)
        places.append(Device(f"gpu{at}", size, classes[at]))
    names = [device.name for device in places]
    settings = {
        "devices": places,
        "interconnect": _interconnect(rng, names, has_links=links, has_host=host),
        "memory_model": memory_model,
    }
    held = {} if not host else _host_fields(rng, chain, names, total)

    def phases(at):
        weights = {f"w{number}": Weight(unit["weight"]) for number, unit in enumerate(chain)}
        for key, (size, limit, fixed) in caches.items():
            weights[key] = Weight(fixed + size * (at if limit is None else min(at, limit)))
        given = {"weights": weights, **settings}
        lasting = stored(at)
        return {
            name: PartitionProblem(
                _operators(chain, caches, name, n, lasting, skips, uneven_prompt), **given
            )
            for name, n in ((PROMPT, tokens), (TOKEN, 1))
        }

    longer = {} if memory_model == "weights" else {context + MORE: phases(context + MORE)}
    return Job(
        phases=phases(context),
        token_phase=TOKEN,
        prompt_runs={PROMPT: rng.randint(1, 3)},
        generate=rng.randint(0, 5),
        batch=rng.randint(1, 3),
        context=context,
        cache_bytes_per_token={key: size for key, (size, _, _) in caches.items()},
        cache_limits={key: limit for key, (_, limit, _) in caches.items() if limit is not None},
        others=longer,
        **held,
    )


def _unit(rng, host):
    """Draw times, sizes and places of a kind of unit."""
    most_ns = 9 if host else 45
    token = {name: rng.randint(0, most_ns) for name in CLASSES}
    return {
        "weight": rng.choice((0, 3, 5, 8, rng.randint(1, 12))) if host else rng.randint(1, 25),
        "padding": rng.choice((0, 0, 2)),
        TOKEN: token,
        PROMPT: {name: most_ns - time + rng.randint(0, most_ns) for name, time in token.items()},
        "host": rng.choice((None, rng.randint(1, 9), rng.randint(5, 25))) if host else None,
        "value": rng.randint(0, 4),
        # Several tokens need an operator more, which other phases have not.
        "is_longer": rng.random() < 0.4,
        "is_pinned": host and rng.random() < 0.1,
        "caches": rng.choice(((), *[()] * host, ("cache",), ("cache",), ("cache", "window"))),
        "state": rng.choice((0, 0, 0, 1, 3)),
    }


def _caches(rng, chain, *, is_limited, is_endless):
    """Draw bytes of a position, the most positions and fixed bytes of all caches, by their keys."""
    found = {}
    for number, unit in enumerate(chain):
        # The first one grows for ever, so that some context fits no more.
        likely = 0.5 if is_endless else 0.3
        kinds = unit["caches"] if number or is_endless else ("cache",)
        for kind in kinds:
            limit = rng.randint(3, 6) if is_limited and rng.random() < likely else None
            is_first = not number and not is_endless
            size = rng.randint(1, 2 if is_endless else 4)
            found[f"{kind}{number}"] = size, None if is_first else limit, 0
        if unit["state"]:
            found[f"state{number}"] = 0, None, unit["state"]
    return found


def _interconnect(rng, names, *, has_links, has_host):
    """Draw links, and those of a host, which differ from device to device."""
    links = {}
    if has_links or (has_host and rng.random() < 0.5):
        links = {
            (a, b): Link(rng.choice(RATES), rng.randint(0, 9))
            for a in names
            for b in names
            if a != b and rng.random() < 0.7
        }
    for name in names if has_host else ():
        links[STAGING_HOST, name] = Link(rng.choice(RATES[1:]), rng.choice((0, 0, 2)))
        links[name, STAGING_HOST] = Link(None, rng.choice((0, 1, 2)))
    return Interconnect(Link(rng.choice(RATES), rng.randint(0, 5)), links)


def _host_fields(rng, chain, names, total):
    """Draw the host, and the units and pins that it asks for."""
    pins = {}
    for number, unit in enumerate(chain):
        allowed = [name for name in names if rng.random() < 0.5]
        allowed += [STAGING_HOST] * (unit["host"] is not None and rng.random() < 0.7)
        if unit["is_pinned"] and allowed:
            pins[f"op{number}"] = tuple(allowed)
    return {
        "host": Host(rng.choice((None, None, max(1, total // 2))), "cpu"),
        "units": {
            f"u{number}": (*[f"extra{number}"] * unit["is_longer"], f"op{number}")
            for number, unit in enumerate(chain)
        },
        "padding_bytes": {f"w{number}": unit["padding"] for number, unit in enumerate(chain)},
        "pins": pins,
    }


def _operators(chain, caches, phase, tokens, lasting, skips, uneven):
    """Yield the operators of a phase, of which each unit has one or two."""
    for number, unit in enumerate(chain):
        size, before = unit["value"], f"op{number - 1}"
        reads = (before,) if number else ()
        times = {name: tokens * time for name, time in unit[TOKEN].items()}
        if uneven and phase == PROMPT:
            times = dict(unit[PROMPT])
        if unit["host"] is not None:
            times["cpu"] = tokens * unit["host"]
        if unit["is_longer"] and tokens > 1:
            yield Operator(
                f"extra{number}", tokens, reads, tokens * size, value_bytes=tokens * size
            )
            reads = (f"extra{number}",)
        if skips and number > 1:
            reads = (*reads, f"op{number - 2}")
        own = [f"{kind}{number}" for kind in ("cache", "window", "state")]
        yield Operator(
            f"op{number}",
            times,
            reads,
            storage_bytes=(tokens + lasting) * size,
            value_bytes=tokens * size,
            weights=(f"w{number}", *(key for key in own if key in caches)),
            is_output=number == len(chain) - 1,
        )


def changed(job, **settings):
    """Return a job with other settings in all phases."""

    def of(phases):
        return {name: each.replace(**settings) for name, each in phases.items()}

    others = {context: of(phases) for context, phases in job.others.items()}
    return job.replace(phases=of(job.phases), others=others)


def to_cases(instance):
    """Return each phase of an instance as the plain data that :mod:`offload_oracle` reads."""
    return [
        {
            "units": [
                {
                    "weight": unit.weight_bytes,
                    "padding": unit.padding_bytes,
                    "cache": unit.cache_bytes,
                    "runs": list(unit.run_ns[phase]),
                    "host": unit.host_ns[phase] if "host" in unit.modes else None,
                    "places": unit.devices,
                    "written": "streamed" not in unit.modes,
                }
                for unit in instance.units
            ],
            "devices": [
                {
                    "memory": device.memory_bytes,
                    "rate": (link.bandwidth_bytes_per_s, 10**9),
                    "latency": link.latency_ns,
                }
                for device, link in zip(instance.devices, instance.links, strict=True)
            ],
            "host_memory": instance.host_bytes,
            "stage_hop": instance.stage_hop_ns[phase],
            "host_hop": instance.host_hop_ns[phase],
        }
        for phase in range(len(instance.phases))
    ]
