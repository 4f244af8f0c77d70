"""Tables of published workloads, interleaved stages, NASNet, and 100,000 operators."""

from __future__ import annotations

from typing import Final

from experiments.paper.bench import ALONE, Bench
from experiments.paper.tables import PaperTable
from experiments.problems.generators import GeneratorSettings, generate, generate_problem
from experiments.problems.synthetic import with_devices
from experiments.workloads.catalogue import OPTIMA_MS, PREFIX
from experiments.workloads.reader import load_workload
from solver import PartitionProblem, SolveResult, SolveStatus
from solver.model.quantities import MISSING

SECONDS: Final = "seconds"
BY: Final = "by"
"""The method that proves an optimum; on a busy machine the fastest one varies."""
CLOCK: Final = frozenset({SECONDS, BY})

# Seconds of the authors' exact program on two cores, with a limit of 600; not all were timed.
_AUTHORS_S: Final = {
    "layer.bert24_inference": "0.01",
    "layer.bert24_training": "0.01",
    "layer.gnmt_inference": "12",
    "layer.gnmt_training": "21",
    "layer.inceptionv3_inference": "> 600",
    "layer.inceptionv3_training": "> 600",
    "layer.resnet50_inference": "0.1",
    "layer.resnet50_training": MISSING,
    "operator.bert_l-3_inference": "0.7",
    "operator.bert_l-3_training": "9",
    "operator.bert_l-6_inference": MISSING,
    "operator.bert_l-6_training": MISSING,
    "operator.bert_l-12_inference": "22",
    "operator.bert_l-12_training": MISSING,
    "operator.resnet50_inference": "0.2",
    "operator.resnet50_training": MISSING,
}
_ROUNDING: Final = 1e-6
"""Relative difference to the authors' optima allowed for the rounding to nanoseconds."""

_INTERLEAVED: Final = (
    ("layer.gnmt_training", 2),
    ("layer.gnmt_training", 3),
    ("layer.bert24_training", 2),
    ("operator.bert_l-3_training", 2),
    ("operator.bert_l-3_inference", 2),
    ("layer.gnmt_inference", 2),
    ("operator.bert_l-12_inference", 2),
    ("layer.resnet50_inference", 2),
)
_NASNET_SEEDS: Final = 3
_HUGE_OPERATORS: Final = 101_000


def published(bench: Bench) -> PaperTable:
    """Solve all throughput workloads of the paper, as published and with communication x 1000."""
    rows = []
    for name, optimum_ms in OPTIMA_MS.items():
        label, cells = label_of(name), []
        for scale in (1, 1000):
            problem = load_workload(f"{PREFIX}{name}", communication_scale=scale)
            result = bench.solve(problem, f"{label}, communication x {scale}")
            optimum = optimum_text(result)
            if scale == 1:
                optimum += _beside_published(result, optimum_ms)
            cells += [optimum, f"{result.wall_time_s:.2f}", result.solver]
        rows.append((label, str(len(problem.operators)), *cells, _AUTHORS_S[name]))
    scaled = ("x 1000 (ms)", f"x 1000: {SECONDS}", f"x 1000: {BY}")
    header = ("workload", "operators", "x 1 (ms)", SECONDS, BY, *scaled)
    return PaperTable((*header, "authors' (s)"), tuple(rows), CLOCK | {*scaled[1:]})


def interleaved(bench: Bench) -> PaperTable:
    """Solve workloads on the accelerators alone, with one and with several stages on each."""
    rows = []
    one_stage: dict[str, SolveResult] = {}
    for name, chunks in _INTERLEAVED:
        problem = load_workload(f"{PREFIX}{name}", with_host=False)
        label = label_of(name)
        if name not in one_stage:
            one_stage[name] = bench.solve(problem, f"{label}, V = 1")
        several = bench.solve(problem.replace(chunks_per_device=chunks), f"{label}, V = {chunks}")
        rows.append(
            (
                label,
                optimum_text(one_stage[name]),
                str(chunks),
                optimum_text(several),
                f"{several.wall_time_s:.2f}",
                several.solver,
            )
        )
    header = ("workload", "V = 1 (ms)", "V", "optimum (ms)", SECONDS, BY)
    return PaperTable(header, tuple(rows), CLOCK)


def nasnet(bench: Bench) -> PaperTable:
    """Solve the profile of NASNet mobile, and generated graphs of its kind."""
    problems = {
        "NASNet mobile": load_workload(f"{PREFIX}nasnetamobile"),
        "NASNet mobile, no host": load_workload(f"{PREFIX}nasnetamobile", with_host=False),
    }
    for seed in range(_NASNET_SEEDS):
        graph = generate("nasnet", GeneratorSettings(operators=1251, seed=seed))
        # As in the published profiles, memory is ample.
        problems[f"generated, seed {seed}"] = with_devices(graph, 7, slack_permille=None)
    rows = tuple(
        _row(name, problem, bench.solve(problem, name)) for name, problem in problems.items()
    )
    return PaperTable(_HEADER, rows, CLOCK)


def huge(bench: Bench) -> PaperTable:
    """Solve a mixture of experts with 100,000 operators."""
    settings = GeneratorSettings(operators=_HUGE_OPERATORS, seed=1)
    problem = generate_problem("mixture-of-experts", settings, 32, slack_percent=15)
    result = bench.solve(problem, "mixture of experts", first=ALONE, otherwise=None)
    row = _row("mixture of experts", problem, result)
    return PaperTable(_HEADER, (row,), CLOCK)


_HEADER: Final = ("graph", "operators", "devices", "bottleneck (ms)", "gap", SECONDS, BY)


def _row(name: str, problem: PartitionProblem, result: SolveResult) -> tuple[str, ...]:
    return (
        name,
        str(len(problem.operators)),
        str(len(problem.devices)),
        MISSING if result.objective is None else f"{result.objective / 1e6:.6f}",
        gap_text(result.status.value, result.gap),
        f"{result.wall_time_s:.2f}",
        result.solver,
    )


def gap_text(status: str, gap: float | None) -> str:
    """Return a gap in words."""
    if status == SolveStatus.OPTIMAL.value:
        return "0, proven"
    return MISSING if gap is None else f"{100 * gap:.2f} %"


def optimum_text(result: SolveResult) -> str:
    """Return a proven optimum in milliseconds, or a value with its gap, or the status."""
    if result.objective is None:
        return result.status.value
    text = f"{result.objective / 1e6:.6f}"
    if result.status is SolveStatus.OPTIMAL:
        return text
    return f"{text} (gap {gap_text(result.status.value, result.gap)})"


def _beside_published(result: SolveResult, optimum_ms: float) -> str:
    """Return the authors' optimum if it differs, else nothing."""
    found = result.objective
    if found is not None and abs(found / 1e6 - optimum_ms) <= _ROUNDING * optimum_ms:
        return ""
    return f", published {optimum_ms:.6f}"


def label_of(name: str) -> str:
    """Return the name of a workload in words.

    Examples
    --------
    >>> label_of("operator.bert_l-3_training")
    'bert_l-3 training, operators'
    """
    kind, _, rest = name.partition(".")
    model, _, pass_name = rest.rpartition("_")
    return f"{model} {pass_name}, {kind}s"
