"""The command ``fxpartition``: reads what a person wrote, runs it, prints and writes files.

Exit codes: 0 done; 1 no plan exists; 2 bad input (one line on stderr); 3 time ran out without a
plan; 4 a split model computes something else than the model; 130 interrupted;
143 terminated.

torch and OR-Tools load only in the commands that need them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from experiments.commands import (
    check_writable,
    finish,
    make_console,
    read_limits,
    read_memory_model,
    read_objective,
    read_problem,
    read_saved_problem,
    solve_all,
    with_stage_limits,
)
from solver import (
    MEMORY_MODELS,
    OBJECTIVES,
    SOLVERS,
    PartitionError,
    check_solver,
    load_plan,
    save_problem,
)
from solver.quantities import printable

EXIT_BAD_INPUT: Final = 2
EXIT_NOT_EQUAL: Final = 4
EXIT_INTERRUPTED: Final = 130
EXIT_TERMINATED: Final = 143

_DEFAULT_LIMIT_S: Final = 60.0
_LONGEST: Final = 2000

app = typer.Typer(
    name="fxpartition",
    help="Split a PyTorch model across devices optimally, and prove it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A zoo name (see: fxpartition models), an import string package.module:factory "
        "whose factory returns (module, args) or (module, args, kwargs), a model.pt2 of "
        "torch.export.save, or a saved problem.json.",
    ),
]
DevicesOption = Annotated[
    str | None,
    typer.Option(
        "--devices", help="Such as 4x24GiB, or 80GB,24GB, or 2x80GiB@a100-80gb, or a .toml file."
    ),
]
LinkOption = Annotated[
    str | None,
    typer.Option(
        "--link",
        help="Between any two devices, such as 25GB/s,10us or unlimited; "
        "without it PCIe: 25GB/s,10us.",
    ),
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        "--objective", help=f"One or more, in order of weight, of {', '.join(OBJECTIVES)}."
    ),
]
MemoryOption = Annotated[
    str | None, typer.Option("--memory-model", help=f"One of {', '.join(MEMORY_MODELS)}.")
]
ChunksOption = Annotated[
    int | None,
    typer.Option("--chunks", min=1, help="Most stages of a device (interleaved pipeline stages)."),
]
MaxDevicesOption = Annotated[
    int | None, typer.Option("--max-devices", min=1, help="Most devices that a plan may use.")
]
LimitOption = Annotated[float, typer.Option("--time-limit", help="Seconds for each solve.")]
WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", help="Search threads; one per core, at least 4, if left out."),
]
SeedOption = Annotated[int, typer.Option("--seed", help="Of every random choice.")]
DeterministicOption = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        help="The same plan in every run on any number of workers; the time limit then counts "
        "seconds of work, which may take longer.",
    ),
]
SolverOption = Annotated[
    str,
    typer.Option(
        "--solver",
        help=f"One of {', '.join(SOLVERS)}; auto picks one that proves, and the answer names it.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
CommunicationScaleOption = Annotated[
    float | None,
    typer.Option(
        "--communication-scale",
        help="Factor of a workload's communication costs; 1000 where they are in seconds.",
    ),
]
NoHostOption = Annotated[
    bool, typer.Option("--no-host", help="Leave a workload's CPUs out: accelerators only.")
]


@app.command()
def compare(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="As for plan; without any, the default set."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", help="Folder for results.json and report.md, made if missing."),
    ] = None,
    devices: Annotated[
        list[str] | None,
        typer.Option("--devices", help="As for plan; may be repeated. Derived if left out."),
    ] = None,
    link: LinkOption = None,
    objective: ObjectiveOption = None,
    memory_model: MemoryOption = None,
    chunks: ChunksOption = None,
    max_devices: MaxDevicesOption = None,
    time_limit: LimitOption = 30.0,
    workers: WorkersOption = None,
    seed: SeedOption = 0,
    deterministic: DeterministicOption = False,
    solver: Annotated[
        list[str] | None,
        typer.Option(
            "--solver",
            help=f"One of {', '.join(SOLVERS)}; may be repeated. "
            "Without it greedy, chain and auto.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare greedy, contiguous and optimal plans on real models."""
    from experiments.devices import parse_devices, parse_link
    from experiments.instances import NamedDevices
    from experiments.models import DEFAULT_MODELS, resolve_model
    from experiments.records import DEFAULT_SOLVERS, CompareSettings
    from experiments.report import prepare_folder
    from solver import PCIE, Interconnect

    sources = [resolve_model(name) for name in models or DEFAULT_MODELS]
    settings = CompareSettings(
        device_sets=tuple(NamedDevices(text, parse_devices(text)) for text in devices or ()),
        interconnect=PCIE if link is None else Interconnect(default=parse_link(link)),
        objective=read_objective(objective) or ("bottleneck",),
        memory_model=read_memory_model(memory_model) or "inference",
        chunks_per_device=chunks,
        max_devices=max_devices,
        solvers=tuple(solver or DEFAULT_SOLVERS),
        limits=read_limits(time_limit, workers, seed, deterministic),
    )
    if out is not None:
        prepare_folder(out)

    from experiments.comparison import run_comparison
    from experiments.progress import ProgressLine
    from experiments.report import to_json, write_report
    from experiments.summary import headline
    from experiments.tables import comparison_table

    with ProgressLine() as progress:
        comparison = run_comparison(sources, settings, progress)
    if as_json:
        print(json.dumps(to_json(comparison), indent=1))
    else:
        console = make_console()
        console.print(comparison_table(comparison, console.width))
        for sentence in headline(comparison):
            console.print(printable(sentence), markup=False)
    if out is not None:
        for path in write_report(comparison, out):
            print(printable(f"wrote {path}"), file=sys.stderr)
    if all(record.reason for record in comparison.models):
        raise PartitionError(f"no model could be compared: {comparison.models[0].reason}")
    if any(not check.equal for record in comparison.models for check in record.equivalence):
        raise typer.Exit(EXIT_NOT_EQUAL)


@app.command()
def plan(
    model: ModelArgument,
    devices: DevicesOption = None,
    link: LinkOption = None,
    objective: ObjectiveOption = None,
    memory_model: MemoryOption = None,
    chunks: ChunksOption = None,
    max_devices: MaxDevicesOption = None,
    time_limit: LimitOption = _DEFAULT_LIMIT_S,
    workers: WorkersOption = None,
    seed: SeedOption = 0,
    deterministic: DeterministicOption = False,
    solver: SolverOption = "auto",
    out: Annotated[str | None, typer.Option("--out", help="File for the plan.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Plan one model: greedy beside optimal, device by device, with bound and gap."""
    from experiments.progress import ProgressLine

    limits = read_limits(time_limit, workers, seed, deterministic)
    check_solver(solver)
    check_writable(out)
    with ProgressLine(quiet=True) as progress:
        problem = read_problem(model, devices, link, objective, memory_model, progress.step)
        problem = with_stage_limits(problem, chunks, max_devices)
        results = solve_all(problem, dict.fromkeys(("greedy", solver)), limits, model, progress)
    finish(problem, results, limits, out, as_json)


@app.command()
def solve(
    graph: Annotated[
        str,
        typer.Argument(
            metavar="FILE.json",
            help="A saved problem, or a workload in the format of msr-fiddle/dnn-partitioning.",
        ),
    ],
    devices: DevicesOption = None,
    link: LinkOption = None,
    objective: ObjectiveOption = None,
    memory_model: MemoryOption = None,
    communication_scale: CommunicationScaleOption = None,
    no_host: NoHostOption = False,
    chunks: ChunksOption = None,
    max_devices: MaxDevicesOption = None,
    time_limit: LimitOption = _DEFAULT_LIMIT_S,
    workers: WorkersOption = None,
    seed: SeedOption = 0,
    deterministic: DeterministicOption = False,
    solver: SolverOption = "auto",
    out: Annotated[str | None, typer.Option("--out", help="File for the plan.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Solve a saved problem or a published workload; torch is not needed."""
    from experiments.progress import ProgressLine

    limits = read_limits(time_limit, workers, seed, deterministic)
    check_solver(solver)
    check_writable(out)
    problem = read_saved_problem(
        Path(graph),
        devices,
        link,
        objective,
        memory_model,
        communication_scale,
        with_host=not no_host,
    )
    problem = with_stage_limits(problem, chunks, max_devices)
    with ProgressLine(quiet=True) as progress:
        results = solve_all(problem, (solver,), limits, graph, progress)
    finish(problem, results, limits, out, as_json)


@app.command()
def export(
    model: ModelArgument,
    out: Annotated[str, typer.Option("--out", help="File for the problem.")],
    devices: DevicesOption = None,
    link: LinkOption = None,
    objective: ObjectiveOption = None,
    memory_model: MemoryOption = None,
) -> None:
    """Save a model's operator graph with its devices as a problem that solve reads."""
    from experiments.progress import ProgressLine

    check_writable(out)
    with ProgressLine(quiet=True) as progress:
        problem = read_problem(model, devices, link, objective, memory_model, progress.step)
    save_problem(problem, out)
    counts = f"{len(problem.operators)} operators, {len(problem.devices)} devices"
    print(printable(f"wrote {out}: {counts}"))


@app.command()
def generate(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="layered, series-parallel, nasnet, transformer or mixture-of-experts.",
        ),
    ],
    out: Annotated[str, typer.Option("--out", "-o", help="File for the problem.")],
    operators: Annotated[
        int, typer.Option("--operators", help="How many; whole blocks of a kind that has them.")
    ] = 1000,
    width: Annotated[int, typer.Option("--width", help="Operators in a layer (layered).")] = 20,
    experts: Annotated[
        int, typer.Option("--experts", help="Experts in a layer (mixture-of-experts).")
    ] = 256,
    devices: Annotated[int, typer.Option("--devices", help="How many.")] = 8,
    unequal: Annotated[
        bool, typer.Option("--unequal", help="Devices of unequal memory, speeds and links.")
    ] = False,
    slack: Annotated[
        float,
        typer.Option("--slack", help="Memory beyond what one device would need, in per cent."),
    ] = 15.0,
    seed: SeedOption = 0,
) -> None:
    """Make a random problem that solve reads; the same seed gives the same file everywhere.

    For example: fxpartition generate layered --operators 1000 --width 20 --seed 1 -o g.json
    """
    from experiments.generators import GeneratorSettings, generate_problem

    check_writable(out)
    settings = GeneratorSettings(operators, width, experts, seed)
    problem = generate_problem(kind, settings, devices, slack_percent=slack, unequal=unequal)
    save_problem(problem, out)
    counts = f"{len(problem.operators)} operators, {len(problem.devices)} devices"
    print(printable(f"wrote {out}: {counts}"))


@app.command()
def split(
    model: ModelArgument,
    plan_file: Annotated[str, typer.Option("--plan", help="A plan that plan or solve wrote.")],
) -> None:
    """Split a model by a plan, check that it computes the same, and show the stages."""
    from experiments.models import build_model, others_code, resolve_model

    spec = resolve_model(model)
    if isinstance(spec, Path):
        raise PartitionError(f"{model} is a saved problem; split needs a model that can be built")
    chosen = load_plan(plan_file)

    from rich.table import Table
    from rich.text import Text

    from fx_bridge.capture import capture
    from fx_bridge.equivalence import check_equivalence
    from fx_bridge.splitting import split_by_plan
    from solver.quantities import format_bytes

    loaded = build_model(spec)
    with others_code(f"model {model!r}"):
        captured = capture(loaded.module, loaded.args, loaded.kwargs)
    parts = split_by_plan(captured, chosen)
    table = Table()
    for name in ("stage", "device", "operators", "parameters and buffers"):
        table.add_column(Text(name), justify="left" if name == "device" else "right")
    for index, (name, device) in enumerate(parts.meta["stages"].items()):
        stage = parts.get_submodule(name)
        tensors = (*stage.parameters(), *stage.buffers())
        size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        count = sum(position == index for position in chosen.stage_index.values())
        cells = (str(index), device, str(count))
        table.add_row(*(Text(printable(cell)) for cell in (*cells, format_bytes(size_bytes))))
    console = make_console()
    console.print(table)
    if not loaded.has_weights:
        console.print("The model has no weights in memory, so nothing was run.")
        return
    with others_code(f"model {model!r}"):
        report = check_equivalence(loaded.module, parts, loaded.args, loaded.kwargs)
    if not report.equal:
        reasons = "; ".join(str(difference) for difference in report.differences[:3])
        print(printable(f"error: the split computes something else: {reasons}"), file=sys.stderr)
        raise typer.Exit(EXIT_NOT_EQUAL)
    console.print(f"The split computes the same (largest error {report.max_abs_error:g}).")


@app.command(name="models")
def list_models() -> None:
    """List the models that can be named."""
    from rich.table import Table
    from rich.text import Text

    from experiments.models import DEFAULT_MODELS, ZOO

    table = Table()
    for name in ("model", "what it is", "compared by default", "needs"):
        table.add_column(Text(name))
    for spec in ZOO.values():
        default = "yes" if spec.name in DEFAULT_MODELS else ""
        needs = "" if spec.extra is None else f"fxpartition[{spec.extra}]"
        table.add_row(*(Text(cell) for cell in (spec.name, spec.description, default, needs)))
    make_console().print(table)


@app.command(name="devices")
def list_devices() -> None:
    """List the device classes whose speeds are known."""
    from rich.table import Table
    from rich.text import Text

    from fx_bridge.specs import DEVICE_SPECS

    table = Table()
    header = ("class", "TFLOP/s float32", "TFLOP/s bfloat16", "memory GB/s", "launch overhead")
    for name in header:
        table.add_column(Text(name), justify="left" if name == "class" else "right")
    for name, spec in DEVICE_SPECS.items():
        cells = (
            name,
            f"{spec.flops_per_s_of('float32') / 1e12:g}",
            f"{spec.flops_per_s_of('bfloat16') / 1e12:g}",
            f"{spec.memory_bandwidth_bytes_per_s / 1e9:g}",
            f"{spec.launch_overhead_ns} ns",
        )
        table.add_row(*(Text(cell) for cell in cells))
    console = make_console()
    console.print(table)
    console.print("Use one as 2x80GiB@CLASS; a device file may define others.", markup=False)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments; those of the process if left out.

    Returns
    -------
    int
        The exit code.
    """
    terminated = False

    def terminate(*_: object) -> None:
        # As with Ctrl-C: temporary files are removed on the way out.
        nonlocal terminated
        terminated = True
        raise KeyboardInterrupt

    if argv is None:
        signal.signal(signal.SIGTERM, terminate)
    if sys.stdout is None:
        return _fail("standard output is closed; give the answer somewhere to go")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        with warnings.catch_warnings():
            # Warnings of torch about its own insides are noise to a person at the command line.
            warnings.simplefilter("ignore")
            code = app(args=None if argv is None else list(argv), standalone_mode=False)
    except PartitionError as error:
        return _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    except OSError as error:
        # Files say in their own words what is wrong; this is standard output.
        if argv is None:
            # Nor must the last flush at the end fail on it.
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), sys.__stdout__.fileno() if sys.__stdout__ else 1)
        return _fail(f"cannot write the answer: {error.strerror or error}; free its destination")
    except Exception as error:
        # What typer finds wrong with the options has a message of its own, whichever release
        # of typer or click defines the class.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(message())
            return EXIT_BAD_INPUT
        return _fail(message())
    if code == EXIT_INTERRUPTED:
        if terminated:
            code = EXIT_TERMINATED
        print("terminated" if terminated else "interrupted", file=sys.stderr)
        if argv is None:
            # A search may still run in native threads, which must not see Python shut down.
            # Nothing is lost: files are written whole or not at all.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return int(code or 0)


def _fail(message: str) -> int:
    line = printable(" ".join(message.split()))
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
    print(f"error: {line}", file=sys.stderr)
    return EXIT_BAD_INPUT
