"""Seeded small problems that use every feature of the formulation, to be compared exactly."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
from collections.abc import Callable, Mapping
from typing import Any

from solver.evaluation.evaluate import evaluate
from solver.model.devices import STAGING_HOST, Device, Interconnect, Link
from solver.model.errors import PartitionError
from solver.model.operators import Operator
from solver.model.plan import PartitionPlan
from solver.model.problem import SCHEDULES, PartitionProblem
from solver.model.problem_fields import (
    MEMORY_MODELS,
    OBJECTIVES,
    ColocationGroup,
    GraphInput,
    Weight,
)
from solver.model.recomputation import with_required
from solver.model.training import Backward

_DIRECT_CHARGINGS = ("peer_to_peer", "host_staged")
_DRAWN_OBJECTIVES = tuple(name for name in OBJECTIVES if name != "step")


def random_problem(
    seed: int,
    *,
    min_operators: int = 4,
    max_operators: int = 8,
    most_devices: int = 4,
    draw_chunks: bool = False,
    relayed: bool = False,
    steps: bool = False,
    training: bool = False,
    **replaced: Any,
) -> PartitionProblem:
    """Return the problem of `seed`; the same seed gives the same problem.

    With `draw_chunks` it gets a number of chunks per device and perhaps a limit on devices; the
    rest is as without. With `relayed` values are relayed, and no operator is a backward one;
    without, they never are. With `steps` no operator is a backward one, and the first or only
    objective is the time of a step. With `training` the memory model is that. `replaced` are
    fields to set afterwards (they must stay consistent).
    """
    rng = random.Random(seed)
    count = max(rng.randint(min_operators, max_operators) for _ in range(2))
    device_count = rng.choice((2, 2, 3, 3, 3, 4)) if count <= 6 else rng.choice((2, 3, 3))
    device_count = min(device_count, most_devices)
    # Bytes and times of real models have nine digits and more; so have a few of these.
    byte_scale = rng.choice((1, 1, 1, 1, 3, 1_048_573))
    time_scale = rng.choice((1, 1, 1, 7, 1_000_003))
    memory_model = rng.choice(MEMORY_MODELS)
    if training:
        memory_model = "training"
    classes = ("fast", "slow")[: rng.choice((1, 1, 2))]

    def some_bytes(most: int = 9) -> int:
        return rng.choice((0, *range(1, most + 1))) * byte_scale

    inputs = tuple(GraphInput(f"in{i}", some_bytes()) for i in range(rng.choice((0, 1, 1, 2))))
    weights = {
        f"w{i}": Weight(some_bytes(12), rng.choice((None, 4 * some_bytes(12))))
        for i in range(rng.randint(0, count))
    }
    density = rng.choice((0.1, 0.2, 0.4))
    backward_from = count + 1
    scattered_backward = False
    if memory_model == "weights" and rng.random() < 0.5:
        backward_from = rng.randint(1, count)
        scattered_backward = rng.random() < 0.2

    # Draws of its own, so that the rest is what it would be without.
    spare = random.Random(-1 - seed)
    drafts: list[dict[str, Any]] = []
    for i in range(count):
        name = f"op{i}"
        earlier = [draft["name"] for draft in drafts]
        reads = [source for source in earlier if rng.random() < density]
        if earlier and rng.random() < 0.6 and earlier[-1] not in reads:
            reads.append(earlier[-1])
        reads += [g.name for g in inputs if rng.random() < 0.25]
        rng.shuffle(reads)
        alias_of = rng.choice(reads) if reads and rng.random() < 0.3 else None
        storage_bytes = 0 if alias_of is not None else some_bytes()
        # A slice travels as less than its base, an expanded value as more.
        value_bytes = storage_bytes if alias_of is None and rng.random() < 0.6 else some_bytes()
        latency: int | Mapping[str, int] = rng.randint(0, 20) * time_scale
        if len(classes) == 2 and rng.random() < 0.8:
            latency = {kind: rng.randint(0, 20) * time_scale for kind in classes}
        drafts.append(
            {
                "name": name,
                "latency_ns": latency,
                "reads": tuple(reads),
                "storage_bytes": storage_bytes,
                "workspace_bytes": spare.choice((0, 0, 0, spare.randint(1, 9))) * byte_scale,
                "value_bytes": value_bytes,
                "alias_of": alias_of,
                "weights": tuple(key for key in weights if rng.random() < 0.18),
                "received_bytes": (
                    spare.randint(0, 9) * byte_scale
                    if memory_model != "training" and spare.random() < 0.1
                    else None
                ),
                "is_output": rng.random() < 0.2 or i == count - 1,
                "transfer_ns": rng.randint(0, 9) * time_scale if rng.random() < 0.15 else None,
                "is_backward": rng.random() < 0.4 if scattered_backward else i >= backward_from,
            }
        )

    colocation = tuple(
        ColocationGroup(tuple(rng.sample([d["name"] for d in drafts], rng.choice((2, 2, 3)))))
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2)))
    )
    if memory_model == "training":
        for draft in drafts:
            draft["backward"] = _backward(
                rng, draft["reads"], draft["storage_bytes"], classes, some_bytes, time_scale
            )
    devices = _devices(rng, device_count, classes, memory_model, drafts, inputs, weights)
    if rng.random() < 0.25:
        _pin(rng, drafts, colocation, [device.name for device in devices])
    objective = rng.sample(_DRAWN_OBJECTIVES, rng.choice((1, 1, 2, 2, 3)))
    problem = PartitionProblem(
        operators=tuple(Operator(**draft) for draft in drafts),
        devices=devices,
        inputs=inputs,
        weights=weights,
        colocation=colocation,
        interconnect=_interconnect(rng, devices, byte_scale, time_scale),
        objective=tuple(objective),  # type: ignore[arg-type]
        memory_model=memory_model,  # type: ignore[arg-type]
        schedule=rng.choice(SCHEDULES),  # type: ignore[arg-type]
        microbatches=rng.choice((1, 2, 3, 8)),
    )
    if draw_chunks:
        replaced = {
            "chunks_per_device": rng.choice((1, 2, 2, 3)),
            "max_devices": rng.choice((None, None, *range(1, device_count + 1))),
            **replaced,
        }
    if relayed or steps:
        operators = [dataclasses.replace(op, is_backward=False) for op in problem.operators]
        replaced = {"operators": operators, **replaced}
    if steps:
        replaced = {"objective": ("step", *objective[: len(objective) // 2]), **replaced}
    if relayed:
        interconnect = dataclasses.replace(problem.interconnect, charging="relayed")
        replaced = {"interconnect": interconnect, **replaced}
    return problem.replace(**replaced) if replaced else problem


def _backward(
    rng: random.Random,
    reads: tuple[str, ...],
    storage_bytes: int,
    classes: tuple[str, ...],
    some_bytes: Callable[[int], int],
    time_scale: int,
) -> Backward:
    parts = random.Random(f"slices {reads} {storage_bytes}")
    buffers = random.Random(f"buffers {reads} {storage_bytes}")
    latency: int | Mapping[str, int] = rng.randint(0, 20) * time_scale
    if len(classes) == 2 and rng.random() < 0.5:
        latency = {kind: rng.randint(0, 20) * time_scale for kind in classes}
    return Backward(
        latency_ns=latency if rng.random() < 0.8 else 0,
        gradient_bytes=rng.choice((0, storage_bytes, some_bytes(9))),
        passes_to=rng.choice(reads) if reads and rng.random() < 0.4 else None,
        slices=tuple(read for read in reads if parts.random() < 0.5) * (parts.random() < 0.3),
        buffer_bytes=buffers.randint(0, 2 * storage_bytes) if buffers.random() < 0.1 else 0,
        kept_bytes=rng.choice((0, storage_bytes, rng.randint(0, storage_bytes))),
        residual_bytes=some_bytes(5) if rng.random() < 0.3 else 0,
        workspace_bytes=some_bytes(9) if rng.random() < 0.3 else 0,
        weight_gradient_bytes=some_bytes(9) if rng.random() < 0.2 else 0,
    )


def _devices(
    rng: random.Random,
    device_count: int,
    classes: tuple[str, ...],
    memory_model: str,
    drafts: list[dict[str, Any]],
    inputs: tuple[GraphInput, ...],
    weights: Mapping[str, Weight],
) -> tuple[Device, ...]:
    """Devices whose memory is a fraction of about what one device would need for everything."""
    everything = sum(
        weights[key].held_bytes(memory_model)  # type: ignore[arg-type]
        for key in {key for draft in drafts for key in draft["weights"]}
    )
    if memory_model != "weights":
        everything += sum(g.value_bytes for g in inputs)
        everything += sum(draft["storage_bytes"] for draft in drafts) // 2
    if memory_model == "training":
        everything += sum(2 * d["backward"].saved_bytes for d in drafts)
        everything += sum(d["backward"].gradient_bytes for d in drafts)
    tightness = rng.choice((0.75, 0.85, 0.95, 1.1, 1.3))
    equal = rng.random() < 0.4
    uniform = max(1, int(everything * tightness))
    devices = []
    for d in range(device_count):
        memory_bytes: int | None = uniform
        if not equal:
            memory_bytes = max(1, int(uniform * rng.uniform(0.5, 1.4)))
            if rng.random() < 0.1:
                memory_bytes = None
        devices.append(
            Device(
                f"dev{d}",
                memory_bytes=memory_bytes,
                device_class=rng.choice(classes),
                is_host=rng.random() < 0.2,
            )
        )
    return tuple(devices)


def _pin(
    rng: random.Random,
    drafts: list[dict[str, Any]],
    colocation: tuple[ColocationGroup, ...],
    names: list[str],
) -> None:
    """Allow some operators only some devices, but colocated ones always one in common."""
    common = {draft["name"]: rng.choice(names) for draft in drafts}
    for _ in colocation:  # so often that overlapping groups agree
        for group in colocation:
            for name in group.operators:
                common[name] = common[group.operators[0]]
    for group in colocation:
        if len({common[name] for name in group.operators}) > 1:
            return
    for draft in drafts:
        if rng.random() < 0.3:
            others = [name for name in names if rng.random() < 0.4]
            draft["allowed_devices"] = frozenset({common[draft["name"]], *others})


def _interconnect(
    rng: random.Random, devices: tuple[Device, ...], byte_scale: int, time_scale: int
) -> Interconnect:
    def link() -> Link:
        # About one byte per nanosecond in units of the problem, seldom dividing evenly.
        rate = byte_scale * 1_000_000_000 // time_scale
        return Link(
            bandwidth_bytes_per_s=rng.choice((None, rate, max(1, rate * 2 // 3), rate * 3 + 1)),
            latency_ns=rng.choice((0, 0, 1, 3)) * time_scale,
        )

    ends = [STAGING_HOST, *(device.name for device in devices)]
    links = {}
    if rng.random() < 0.5:
        links = {
            (source, target): link()
            for source in ends
            for target in ends
            if source != target and rng.random() < 0.4
        }
    return Interconnect(
        default=link(),
        links=links,
        charging=rng.choice(_DIRECT_CHARGINGS),  # type: ignore[arg-type]
        overlap=rng.random() < 0.3,
    )


def random_plan(
    problem: PartitionProblem, seed: int, *, draw_chunks: bool = False
) -> PartitionPlan:
    """Return a total plan: any, or one that keeps units and pins, or one that is a cut.

    With `draw_chunks` its operators are in up to three chunks.
    """
    rng = random.Random(seed)
    names = [device.name for device in problem.devices]
    places = [
        (chunk, name) for chunk in range(rng.randint(1, 3) if draw_chunks else 1) for name in names
    ]
    kind = rng.random()
    if kind < 0.3:
        place_of = {op.name: rng.choice(places) for op in problem.operators}
    elif kind < 0.6:
        place_of = {}
        for unit in problem.units:
            allowed = set(names)
            for name in unit:
                own = problem.operators[problem.index_of[name]].allowed_devices
                allowed &= allowed if own is None else own
            chosen = rng.choice([place for place in sorted(places) if place[1] in allowed])
            place_of.update(dict.fromkeys(unit, chosen))
    else:
        rng.shuffle(names)
        places = [
            (chunk, name) for chunk in sorted({chunk for chunk, _ in places}) for name in names
        ]
        cuts = sorted(rng.randint(0, len(problem.operators)) for _ in places[1:])
        place_of = {
            op.name: places[sum(cut <= i for cut in cuts)] for i, op in enumerate(problem.operators)
        }
    assignment = {name: device for name, (_, device) in place_of.items()}
    chunks = {name: chunk for name, (chunk, _) in place_of.items()}
    plan = PartitionPlan.from_assignment(problem, assignment, chunks)
    if rng.random() < 0.2:
        order = list(plan.device_order)
        rng.shuffle(order)
        plan = PartitionPlan(assignment, tuple(order), chunks)
    return plan


def with_recomputation(
    problem: PartitionProblem, seed: int, *, saving: float = 0.4
) -> PartitionProblem:
    """Return a training problem with operators that may run again; the rest stays as it is.

    `saving` is how likely a backward pass needs what its operator reads, or itself.
    """
    rng = random.Random(f"recomputation {seed}")
    # Draws of their own, so that the rest is what it would be without.
    numbers = random.Random(f"numbers {seed}")
    region, saved = 0, set[str]()
    drafts: list[tuple[Operator, tuple[str, ...], int]] = []
    for op in problem.operators:
        region += rng.random() < 0.25
        saves = tuple(
            name
            for name in (*op.reads, op.name)
            if name in problem.index_of and rng.random() < saving
        )
        saved.update(problem.root_of[name] for name in saves)
        drafts.append((op, saves, region))
    operators = []
    for op, saves, number in drafts:
        backward = dataclasses.replace(
            op.backward,
            saves=saves,
            region=number,
            kept_bytes=op.storage_bytes if op.name in saved else 0,
            residual_bytes=op.backward.residual_bytes if rng.random() < 0.5 else 0,
            recomputable=op.alias_of is None and rng.random() < 0.85,
            rng_bytes=rng.choice((0, 0, 0, 5)),
            number_bytes=numbers.choice((0, 0, 0, 2)),
        )
        in_place = op.alias_of in problem.index_of and rng.random() < 0.4
        operators.append(dataclasses.replace(op, backward=backward, in_place=in_place))
    return problem.replace(operators=tuple(operators), recompute="auto")


def restricted(problem: PartitionProblem, seed: int) -> PartitionProblem:
    """Return a problem in which regions run again as a whole, or operators must; or as it was."""
    rng = random.Random(f"restricted {seed}")
    share, is_one_region = rng.choice((0.0, 0.5, 0.8)), rng.random() < 0.6
    operators = []
    for op in problem.operators:
        must = op.backward.recomputable and rng.random() < share
        region = 0 if is_one_region else op.backward.region
        backward = dataclasses.replace(op.backward, must_recompute=must, region=region)
        operators.append(dataclasses.replace(op, backward=backward))
    return problem.replace(operators=operators, recompute=rng.choice(("auto", "layers", "layers")))


@functools.lru_cache(maxsize=1_000)
def recomputed_problem(
    seed: int, *, is_restricted: bool = False, drawn_plans: int = 12, **settings: Any
) -> PartitionProblem:
    """Return a random problem in which it matters what runs again.

    Each device can hold about what the best of `drawn_plans` needs of it in which operators run
    again; of half of the problems also what a plan needs in which nothing does. So most have a
    plan, many only because of what runs again, and many a better one. Some have cuts or operators
    that are pinned to a stage. If it `is_restricted`, many have operators that must run again, or
    regions that do as a whole. `settings` are those of :func:`random_problem`.
    """
    rng = random.Random(f"recomputed {seed}")
    problem = random_problem(seed, training=True, **settings)
    if rng.random() < 0.2 and not any(op.allowed_devices for op in problem.operators):
        problem = _on_one_device(problem)
    weights = {key: Weight(weight.size_bytes // 3) for key, weight in problem.weights.items()}
    problem = _cut_by_hand(problem.replace(weights=weights), rng)
    problem = with_recomputation(problem, seed, saving=0.7)
    free = problem.replace(
        devices=[dataclasses.replace(device, memory_bytes=None) for device in problem.devices]
    )
    names = [op.name for op in problem.operators if op.backward.recomputable]
    if is_restricted:
        problem, free = restricted(problem, seed), restricted(free, seed)
        inner = zip(problem.operators, problem.storage_graph.inner, strict=True)
        if problem.recompute == "layers":
            names = [op.name for op, is_inner in inner if is_inner]
    # By whether something runs again: values of objectives and bytes by device.
    found: dict[bool, list[tuple[tuple[int, ...], dict[str, int]]]] = {False: [], True: []}
    is_small = rng.random() < 0.5
    for _ in range(drawn_plans):
        plan = random_plan(free, rng.randrange(1 << 30), draw_chunks=problem.chunks_per_device > 1)
        for share in (0.0, 0.3, 0.6):
            chosen = frozenset(name for name in names if rng.random() < share)
            plan = with_required(free, dataclasses.replace(plan, recomputed=chosen))
            result = evaluate(free, plan)
            if result.feasible:
                held = {entry.device: entry.memory_bytes for entry in result.usage}
                values = (sum(held.values()),)
                values = values if is_small else result.objective + values
                found[bool(plan.recomputed)].append((values, held))
    drawn = [min(found[True], key=lambda pair: pair[0])[1]] if found[True] else []
    if found[False] and rng.random() < 0.5:
        drawn.append(min((held for _, held in found[False]), key=lambda held: sum(held.values())))
    room = rng.choice((0.95, 1.0, 1.0, 1.0, 1.1))
    devices = []
    for device in problem.devices:
        memory_bytes = max((held.get(device.name, 1) for held in drawn), default=1)
        devices.append(dataclasses.replace(device, memory_bytes=max(1, int(memory_bytes * room))))
    return problem.replace(devices=tuple(devices))


def relayed_problem(
    seed: int, *, most_operators: int = 9, limited: bool = False
) -> PartitionProblem:
    """Return a training problem of the bottleneck whose values take times of their own to relay.

    It has up to three classes and five devices; in some problems each operator takes the same times
    as long on slower classes. With `limited` devices hold a part of what all operators do.
    """
    rng = random.Random(f"relays {seed}")
    problem = random_problem(
        seed,
        max_operators=most_operators,
        relayed=True,
        training=True,
        objective=("bottleneck",),
        interconnect=Interconnect(Link(None, 0), charging="relayed"),
    )
    some = rng.choices((1.5, 2.0, 3.0), k=2)
    ratios = {"fast": 1.0, "slow": some[0], "slower": some[1]}
    more = rng.choice((1, 1, 2))
    sizes = [device.memory_bytes and device.memory_bytes * more for device in problem.devices]
    sizes = sizes if limited else [None] * len(sizes)
    passing = int(min((size for size in sizes if size), default=0) * rng.choice((0.0, 0.1, 0.3)))
    is_even, scale = rng.random() < 0.4, rng.choice((1, 3, 10, 30))
    operators = []
    kind = problem.devices[0].device_class
    most = max(1, *(op.latency_on(kind) for op in problem.operators))
    for op in problem.operators:
        work = op.latency_on(kind)
        extra = 0 if is_even else rng.randint(0, work)
        latency = {name: int(work * ratio) + extra * (ratio > 1) for name, ratio in ratios.items()}
        time_ns = rng.choice((0, int(scale * rng.randint(1, most))))
        forward, again = (rng.choice((0, rng.randint(0, passing))) for _ in range(2))
        backward = dataclasses.replace(
            op.backward, latency_ns=rng.randint(0, work), workspace_bytes=again
        )
        times = {"latency_ns": latency, "transfer_ns": time_ns, "workspace_bytes": forward}
        operators.append(dataclasses.replace(op, backward=backward, **times))
    kinds = [*ratios][: rng.choice((1, 2, 2, 3))]
    sizes += [sizes[0]] * rng.choice((0, 0, 1, 2))
    devices = [Device(f"dev{at}", size, rng.choice(kinds)) for at, size in enumerate(sizes)]
    return problem.replace(operators=operators, devices=devices[:5])


def _on_one_device(problem: PartitionProblem) -> PartitionProblem:
    """Return the problem with the first of its devices alone; nothing may be pinned."""
    device = problem.devices[0]
    links = {
        pair: link
        for pair, link in problem.interconnect.links.items()
        if set(pair) <= {STAGING_HOST, device.name}
    }
    interconnect = dataclasses.replace(problem.interconnect, links=links)
    return problem.replace(devices=(device,), interconnect=interconnect, max_devices=None)


def _cut_by_hand(problem: PartitionProblem, rng: random.Random) -> PartitionProblem:
    """Return the problem with a cut or a pinned stage, or, more often, as it is."""
    kind = rng.random()
    index = rng.randrange(len(problem.operators) - 1)
    operators = list(problem.operators)
    try:
        if kind < 0.1:
            return problem.replace(cuts=(operators[index].name,))
        if kind < 0.2:
            operators[index] = dataclasses.replace(operators[index], stage=rng.choice((0, 0, 1)))
            return problem.replace(operators=tuple(operators))
    except PartitionError:
        pass  # colocation, pins and cuts contradict each other
    return problem


def to_instance(problem: PartitionProblem) -> dict[str, Any]:
    """Return `problem` as the plain data that :mod:`oracle` reads."""
    links = problem.interconnect.links.items()
    return {
        "operators": _plain(problem.operators),
        "inputs": {entry.name: entry.value_bytes for entry in problem.inputs},
        "weights": _plain(problem.weights),
        "colocation": [list(group.operators) for group in problem.colocation],
        "devices": _plain(problem.devices),
        "interconnect": {
            **_plain(problem.interconnect),
            "links": [
                {"source": source, "target": target, **_plain(link)}
                for (source, target), link in links
            ],
        },
        **{name: _plain(getattr(problem, name)) for name in _PLAIN_FIELDS},
    }


_PLAIN_FIELDS = ("objective", "memory_model", "schedule", "microbatches")
_PLAIN_FIELDS += ("chunks_per_device", "max_devices", "cuts", "recompute")


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, a dataclass as its fields."""
    if dataclasses.is_dataclass(value):
        names = [entry.name for entry in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def hand_made_instance(
    seed: int, **settings: Any
) -> tuple[dict[str, Any], Callable[[], PartitionProblem]]:
    """Return plain data with cuts or pinned stages, and a function that makes the problem.

    The function raises PartitionError where they contradict each other; the data do not care.
    """
    problem = random_problem(seed, **settings)
    rng = random.Random(seed)
    forward = [op.name for op in problem.operators if not op.is_backward]
    stages = problem.chunks_per_device * (problem.max_devices or len(problem.devices))
    cuts = rng.sample(forward[:-1], min(len(forward) - 1, rng.choice((0, 1, 1, 2))))
    operators = list(problem.operators)
    for _ in range(rng.choice((0, 0, 1, 2)) if cuts else rng.choice((1, 2))):
        index = rng.randrange(len(operators))
        # Low numbers for early operators, so that not all contradict the order.
        near = round(index / len(operators) * (stages - 1)) + rng.choice((0, 0, 1, -1))
        stage = min(max(near, 0), stages - 1)
        operators[index] = dataclasses.replace(operators[index], stage=stage)
    instance = to_instance(problem) | {"cuts": cuts}
    for entry, op in zip(instance["operators"], operators, strict=True):
        entry["stage"] = op.stage
    return instance, lambda: problem.replace(operators=tuple(operators), cuts=tuple(cuts))


def hand_made_problem(seed: int, **settings: Any) -> PartitionProblem:
    """Return the problem of the first seed like `seed` that is not refused."""
    for attempt in itertools.count():
        try:
            return hand_made_instance(seed + 100_000 * attempt, **settings)[1]()
        except PartitionError:
            continue
    raise AssertionError("unreachable")
