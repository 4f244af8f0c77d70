"""Seeded generators of operator graphs for reproducible benchmarks.

Each meets the requested number of operators exactly or, where the graph repeats a block, to the
nearest whole block. Times are those of an accelerator like the H100.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from experiments.problems.nasnet import nasnet
from experiments.problems.synthetic import (
    NVLINK,
    Draws,
    GraphBuilder,
    OperatorKind,
    SyntheticGraph,
    with_devices,
)
from solver import PCIE, Interconnect, KiB, MiB, PartitionError, PartitionProblem
from solver.model.text import shown

_BF16: Final = 2
_FLOPS_PER_NS: Final = 495_000
"""Half of an H100's dense bfloat16 rate, as large matrix products reach."""
_BYTES_PER_NS: Final = 2_500
"""Three quarters of an H100's memory bandwidth."""
_LAUNCH_NS: Final = 5_000
"""The least time of a CUDA kernel."""
_MAX_SLACK_PERCENT: Final = 100_000


@dataclass(frozen=True, slots=True)
class GeneratorSettings:
    """Settings of a generator, which may ignore some of them."""

    operators: int = 1000
    width: int = 20
    experts: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("operators", 1, 1_000_000),
            ("width", 1, 10_000),
            ("experts", 1, 10_000),
            ("seed", 0, 2**31 - 1),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise PartitionError(
                    f"{name} is {shown(value)}; write a whole number from {least} to {most}"
                )


def _random_operator(
    builder: GraphBuilder, draws: Draws, label: str, reads: tuple[str, ...]
) -> str:
    """Add an operator of 32 us to 2 ms, with a value of 256 KiB to 4 MiB.

    Half of them have a weight of 8 to 128 MiB: memory is mostly weights, and a cut through 50
    values costs about a tenth of an eighth of the work.
    """
    compute = draws.chance(500)
    return builder.add(
        label,
        reads,
        draws.octaves(32_000, 6),
        draws.octaves(256 * KiB, 4),
        draws.octaves(8 * MiB, 4) if compute else 0,
        "compute" if compute else "memory",
    )


def layered(settings: GeneratorSettings) -> SyntheticGraph:
    """Return a random layered graph: `width` operators a layer, each with 1 to 3 reads.

    A read is from the layer before, or with a probability of one tenth from the one before
    that. A random operator also reads each value that the next layer leaves unread.
    """
    draws, builder = Draws(settings.seed), GraphBuilder()
    layers: list[list[str]] = []
    while len(builder.operators) < settings.operators:
        size = min(settings.width, settings.operators - len(builder.operators))
        reads: list[dict[str, None]] = [{} for _ in range(size)]
        if layers:
            for chosen in reads:
                for _ in range(draws.between(1, 3)):
                    back = 2 if len(layers) > 1 and draws.chance(100) else 1
                    chosen[layers[-back][draws.below(len(layers[-back]))]] = None
            read = {name for chosen in reads for name in chosen}
            for name in layers[-1]:
                if name not in read:
                    reads[draws.below(size)][name] = None
        label = f"layer{len(layers)}"
        layers.append([_random_operator(builder, draws, label, tuple(names)) for names in reads])
    return SyntheticGraph(tuple(builder.operators))


def series_parallel(settings: GeneratorSettings) -> SyntheticGraph:
    """Return a random two-terminal series-parallel graph with one source and one sink.

    A part of several operators is, with equal probability, two parts in series or two to four
    branches between a fork and a join.
    """
    draws, builder = Draws(settings.seed), GraphBuilder()

    def split(count: int, parts: int) -> list[int]:
        """Cut `count` into `parts` numbers of at least 1, none of them tiny."""
        sizes: list[int] = []
        for left in range(parts, 1, -1):
            fair = count // left
            sizes.append(max(1, min(count - left + 1, draws.between(fair // 3, 2 * fair))))
            count -= sizes[-1]
        return [*sizes, count]

    def part(count: int, before: tuple[str, ...]) -> str:
        if count >= 4 and draws.chance(500):
            fork = _random_operator(builder, draws, "fork", before)
            branches = min(draws.between(2, 4), count - 2)
            ends = [part(size, (fork,)) for size in split(count - 2, branches)]
            return _random_operator(builder, draws, "join", tuple(ends))
        if count == 1:
            return _random_operator(builder, draws, "operator", before)
        first, second = split(count, 2)
        return part(second, (part(first, before),))

    part(settings.operators, ())
    return SyntheticGraph(tuple(builder.operators))


@dataclass(frozen=True, slots=True)
class _Shapes:
    """Sizes of a decoder-only transformer."""

    tokens: int
    hidden: int
    heads: int
    key_value_hidden: int
    feed_forward: int
    vocabulary: int


_DENSE: Final = _Shapes(2048, 8192, 64, 1024, 28672, 128256)
_BALANCED: Final = _Shapes(4096, 4096, 32, 1024, 14336, 32000)
_SPARSE: Final = _Shapes(2048, 7168, 128, 1536, 2048, 129280)


class _Decoder:
    """Builder of decoder layers in bfloat16 for one sequence."""

    def __init__(self, shapes: _Shapes) -> None:
        self.builder = GraphBuilder()
        self.shapes = shapes

    def product(
        self, label: str, reads: tuple[str, ...], rows: int, inner: int, columns: int
    ) -> str:
        """Add a matrix product with a weight of `inner` x `columns`."""
        weight_bytes = inner * columns * _BF16
        value_bytes = rows * columns * _BF16
        flops_ns = 2 * rows * inner * columns // _FLOPS_PER_NS
        moved_ns = (weight_bytes + value_bytes + rows * inner * _BF16) // _BYTES_PER_NS
        kind: OperatorKind = "compute" if flops_ns >= moved_ns else "memory"
        latency_ns = max(flops_ns, moved_ns, _LAUNCH_NS)
        return self.builder.add(label, reads, latency_ns, value_bytes, weight_bytes, kind)

    def elementwise(
        self, label: str, reads: tuple[str, ...], rows: int, columns: int, weight_bytes: int = 0
    ) -> str:
        """Add an operator that reads and writes its values once."""
        value_bytes = rows * columns * _BF16
        latency_ns = max((len(reads) + 1) * value_bytes // _BYTES_PER_NS, _LAUNCH_NS)
        return self.builder.add(label, reads, latency_ns, value_bytes, weight_bytes)

    def norm(self, label: str, read: str) -> str:
        size = self.shapes.hidden
        return self.elementwise(label, (read,), self.shapes.tokens, size, size * _BF16)

    def embedding(self) -> str:
        s = self.shapes
        weight_bytes = s.vocabulary * s.hidden * _BF16
        return self.elementwise("embedding", (), s.tokens, s.hidden, weight_bytes)

    def attention(self, stream: str) -> str:
        """Add norm, attention and residual; 12 operators."""
        s, t = self.shapes, self.shapes.tokens
        normed = self.norm("attention.norm", stream)
        query = self.product("query", (normed,), t, s.hidden, s.hidden)
        key = self.product("key", (normed,), t, s.hidden, s.key_value_hidden)
        value = self.product("value", (normed,), t, s.hidden, s.key_value_hidden)
        query = self.elementwise("query.rotary", (query,), t, s.hidden)
        key = self.elementwise("key.rotary", (key,), t, s.key_value_hidden)
        # Fused attention: scores are never written to memory.
        latency_ns = max(4 * t * t * s.hidden // _FLOPS_PER_NS, _LAUNCH_NS)
        mixed = self.builder.add(
            "attention", (query, key, value), latency_ns, t * s.hidden * _BF16, kind="compute"
        )
        mixed = self.elementwise("attention.transpose", (mixed,), t, s.hidden)
        out = self.product("output", (mixed,), t, s.hidden, s.hidden)
        return self.elementwise("attention.residual", (stream, out), t, s.hidden)

    def feed_forward(self, label: str, read: str, rows: int) -> str:
        """Add a gated feed-forward network; 5 operators."""
        s = self.shapes
        gate = self.product(f"{label}.gate", (read,), rows, s.hidden, s.feed_forward)
        up = self.product(f"{label}.up", (read,), rows, s.hidden, s.feed_forward)
        gate = self.elementwise(f"{label}.silu", (gate,), rows, s.feed_forward)
        gated = self.elementwise(f"{label}.product", (gate, up), rows, s.feed_forward)
        return self.product(f"{label}.down", (gated,), rows, s.feed_forward, s.hidden)

    def routed(self, stream: str, experts: int, chosen: int) -> tuple[str, str]:
        """Add a norm and a router; return the normed values and the chosen experts."""
        s = self.shapes
        normed = self.norm("experts.norm", stream)
        router = self.product("router", (normed,), s.tokens, s.hidden, experts)
        return normed, self.elementwise("router.choice", (router,), s.tokens, chosen)

    def graph(self, stream: str, interconnect: Interconnect = PCIE) -> SyntheticGraph:
        """Add the head, and return the graph."""
        s = self.shapes
        normed = self.norm("norm", stream)
        self.product("head", (normed,), s.tokens, s.hidden, s.vocabulary)
        return SyntheticGraph(tuple(self.builder.operators), interconnect)


def _blocks(operators: int, outside: int, each: int) -> int:
    """Return the number of blocks nearest to `operators`, at least one."""
    return max(1, (operators - outside + each // 2) // each)


def transformer(settings: GeneratorSettings) -> SyntheticGraph:
    """Return a decoder-only transformer in the shapes of Llama-3-70B, 17 operators a layer."""
    decoder = _Decoder(_DENSE)
    stream = decoder.embedding()
    for _ in range(_blocks(settings.operators, 3, 17)):
        stream = decoder.attention(stream)
        normed = decoder.norm("feed_forward.norm", stream)
        down = decoder.feed_forward("feed_forward", normed, _DENSE.tokens)
        stream = decoder.elementwise(
            "feed_forward.residual", (stream, down), _DENSE.tokens, _DENSE.hidden
        )
    return decoder.graph(stream)


def mixture_of_experts(settings: GeneratorSettings) -> SyntheticGraph:
    """Return an unrolled mixture of experts in the shapes of DeepSeek-V3.

    Each layer routes every token to 8 of its `experts`, unevenly; an expert gathers its tokens,
    runs its feed-forward network, and adds to a running sum, as a captured loop over experts does.
    """
    draws = Draws(settings.seed)
    decoder = _Decoder(_SPARSE)
    s = _SPARSE
    chosen = min(8, settings.experts)
    fair = max(1, s.tokens * chosen // settings.experts)
    stream = decoder.embedding()
    for _ in range(_blocks(settings.operators, 3, 15 + 7 * settings.experts)):
        stream = decoder.attention(stream)
        normed, choice = decoder.routed(stream, settings.experts, chosen)
        total = decoder.elementwise("experts.zeros", (normed,), s.tokens, s.hidden)
        for expert in range(settings.experts):
            label = f"expert{expert}"
            rows = max(1, fair * draws.between(500, 1500) // 1000)
            tokens = decoder.elementwise(f"{label}.gather", (normed, choice), rows, s.hidden)
            down = decoder.feed_forward(label, tokens, rows)
            # In place in the captured loop: only the rows of this expert are touched.
            latency_ns = max(3 * rows * s.hidden * _BF16 // _BYTES_PER_NS, _LAUNCH_NS)
            total = decoder.builder.add(
                f"{label}.add", (total, down, choice), latency_ns, s.tokens * s.hidden * _BF16
            )
        stream = decoder.elementwise("experts.residual", (stream, total), s.tokens, s.hidden)
    return decoder.graph(stream)


def balanced_experts(settings: GeneratorSettings) -> SyntheticGraph:
    """Return a mixture of experts with equal numbers of tokens, in the shapes of Mixtral-8x7B.

    This is the case of a fixed expert capacity. The experts of a layer are identical chains of
    four operators (gate and up are one product), and one operator adds them all. Devices are
    joined by NVLink.
    """
    decoder = _Decoder(_BALANCED)
    s = _BALANCED
    chosen = min(2, settings.experts)
    rows = max(1, s.tokens * chosen // settings.experts)
    stream = decoder.embedding()
    for _ in range(_blocks(settings.operators, 3, 14 + 4 * settings.experts)):
        stream = decoder.attention(stream)
        normed, choice = decoder.routed(stream, settings.experts, chosen)
        downs: list[str] = []
        for expert in range(settings.experts):
            label = f"expert{expert}"
            tokens = decoder.elementwise(f"{label}.gather", (normed, choice), rows, s.hidden)
            both = decoder.product(
                f"{label}.gate_up", (tokens,), rows, s.hidden, 2 * s.feed_forward
            )
            gated = decoder.elementwise(f"{label}.gated", (both,), rows, s.feed_forward)
            downs.append(decoder.product(f"{label}.down", (gated,), rows, s.feed_forward, s.hidden))
        stream = decoder.elementwise("experts.sum", (stream, *downs), s.tokens, s.hidden)
    return decoder.graph(stream, Interconnect(NVLINK))


Generator = Callable[[GeneratorSettings], SyntheticGraph]

GENERATORS: Final[Mapping[str, Generator]] = {
    "layered": layered,
    "series-parallel": series_parallel,
    "nasnet": lambda settings: nasnet(settings.operators, settings.seed),
    "transformer": transformer,
    "mixture-of-experts": mixture_of_experts,
    "balanced-experts": balanced_experts,
}


def generate(name: str, settings: GeneratorSettings) -> SyntheticGraph:
    """Run the generator `name`; PartitionError if it is unknown."""
    if name not in GENERATORS:
        raise PartitionError(f"generator {name!r} is unknown; write one of {', '.join(GENERATORS)}")
    return GENERATORS[name](settings)


def generate_problem(
    name: str,
    settings: GeneratorSettings,
    devices: int,
    *,
    slack_percent: float = 15.0,
    unequal: bool = False,
) -> PartitionProblem:
    """Return a generated graph on a number of devices.

    The seed also applies to unequal devices. Their memory is derived from the graph: the total is
    `slack_percent` more than it takes on one device.
    """
    if not 0 <= slack_percent <= _MAX_SLACK_PERCENT:
        raise PartitionError(
            f"slack is {slack_percent}; write per cent from 0 to {_MAX_SLACK_PERCENT}, such as 15"
        )
    graph = generate(name, settings)
    slack_permille = round(10 * slack_percent)
    return with_devices(
        graph, devices, slack_permille=slack_permille, unequal=unequal, seed=settings.seed
    )
