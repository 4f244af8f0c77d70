"""Plans that reports show, from plain ones to ones that nobody should write."""

from solver import Device, Interconnect, Link, Operator, PartitionPlan, PartitionProblem, Weight
from solver.model.training import Backward

NASTY = (
    "<script>alert(1)</script>",
    "../../x",
    "x" * 200,
    "]]></title></svg><b>bold",
    "a\"b'c&d",
    "tab\there\nnew line",
    "\u202egnp.exe",
    "\x00\x1b[31m\ufffe",
    "日本語の演算子" * 9,
)


def chain(count, devices, capacity_bytes=None, *, chunks=1, skip=5, **settings):
    """Operators in a chain with skips, and the plan that cuts it into equal stages."""
    operators = []
    for i in range(count):
        reads = [f"op{j}" for j in (i - 1, i - skip) if j >= 0]
        operators.append(
            Operator(
                f"op{i}",
                1000 + i % 7 * 100,
                reads=tuple(reads),
                storage_bytes=1_000_000 + i % 5 * 300_000,
                value_bytes=1_000_000,
                weights=(f"layers.{i}.weight",),
                backward=Backward(2000, gradient_bytes=1_000_000, kept_bytes=500_000),
                is_output=i == count - 1,
            )
        )
    settings.setdefault("interconnect", Interconnect(Link(5 * 10**12)))
    names = tuple(f"cuda:{d}" for d in range(devices))
    problem = PartitionProblem(
        tuple(operators),
        tuple(Device(name, capacity_bytes) for name in names),
        weights={f"layers.{i}.weight": Weight(2_000_000 + i) for i in range(count)},
        chunks_per_device=chunks,
        **settings,
    )
    stage = [i * devices * chunks // count for i in range(count)]
    return problem, PartitionPlan(
        {f"op{i}": names[stage[i] % devices] for i in range(count)},
        names,
        {f"op{i}": stage[i] // devices for i in range(count)},
    )


def nasty():
    """A plan whose names are attacks on pages, terminals and layouts."""
    operators = tuple(
        Operator(
            name,
            100 + i,
            reads=NASTY[max(0, i - 3) : i],
            storage_bytes=1000 * (i + 1),
            value_bytes=1000 * (i + 1),
            weights=(f"<img src=x onerror=alert({i})>",),
        )
        for i, name in enumerate(NASTY)
    )
    devices = ("<b>0</b>", '"one" & two', "d" * 120)
    problem = PartitionProblem(
        operators,
        (Device(devices[0], 50_000), Device(devices[1], 40_000), Device(devices[2])),
        weights={f"<img src=x onerror=alert({i})>": Weight(2000) for i in range(len(NASTY))},
        interconnect=Interconnect(Link(10**9)),
    )
    return problem, PartitionPlan(
        {name: devices[i * 3 // len(NASTY)] for i, name in enumerate(NASTY)}, devices
    )


def cyclic():
    """A plan that breaks everything: stages in a cycle, too much memory, a device unused."""
    problem, _ = chain(12, 3, 1000)
    return problem, PartitionPlan(
        {f"op{i}": f"cuda:{i % 2}" for i in range(12)}, ("cuda:0", "cuda:1")
    )


def tiny():
    """One operator that takes no time and holds nothing."""
    problem = PartitionProblem((Operator("a"),), (Device("d"),), memory_model="weights")
    return problem, PartitionPlan({"a": "d"}, ("d",))


def modular():
    """A model of layers, of which the third is divided; the head reads the embedding's weight."""
    names = ["embed", *(f"{part}{i}" for i in range(4) for part in ("attn", "mlp")), "head"]
    operators = []
    for i, name in enumerate(names):
        number = name[-1]
        module = {"embed": "model.embed", "head": "head"}.get(
            name, f"model.layers.{number}.{name[:-1]}"
        )
        operators.append(
            Operator(
                name,
                1000 * (i + 1),
                reads=tuple(names[max(0, i - 1) : i]),
                storage_bytes=500,
                value_bytes=500,
                weights=("tied",) if name in ("embed", "head") else (f"layers.{number}.weight",),
                is_output=name == "head",
                module=module,
            )
        )
    problem = PartitionProblem(
        tuple(operators),
        (Device("cuda:0", 100_000), Device("cuda:1", 50_000), Device("cuda:2", 50_000)),
        weights={"tied": Weight(7000), **{f"layers.{i}.weight": Weight(2000) for i in range(4)}},
    )
    cut = names.index("mlp2")
    return problem, PartitionPlan(
        {name: f"cuda:{int(i >= cut)}" for i, name in enumerate(names)}, ("cuda:0", "cuda:1")
    )


RELAYED = Interconnect(Link(5 * 10**12), charging="relayed")
TRAINING = {"memory_model": "training", "microbatches": 8, "interconnect": RELAYED}

PLANS = {
    "two": lambda: chain(10, 2, 50_000_000),
    "sixteen": lambda: chain(160, 16, 90_000_000, skip=37),
    "training": lambda: chain(40, 4, 10**9, **TRAINING),
    "interleaved": lambda: chain(64, 4, 10**9, chunks=2, **TRAINING),
    "many chunks": lambda: chain(96, 8, chunks=4),
    "one device": lambda: chain(20, 1, chunks=2),
    "overlap": lambda: chain(
        30, 3, microbatches=4, interconnect=Interconnect(Link(10**12), overlap=True)
    ),
    "host": lambda: chain(
        30, 3, microbatches=4, interconnect=Interconnect(Link(10**12), charging="host_staged")
    ),
    "many microbatches": lambda: chain(30, 3, microbatches=500),
    "nasty": nasty,
    "cyclic": cyclic,
    "tiny": tiny,
    "modular": modular,
}
