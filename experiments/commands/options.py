"""Options of several commands, with one name each.

Options that many commands share come in groups (:mod:`experiments.commands.option_groups`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from experiments.commands.completions import (
    SOLVER_DESCRIPTIONS,
    complete_built_models,
    complete_devices,
    complete_from,
    complete_models,
    complete_planners,
    complete_steps,
)
from experiments.problems.plan_files import EngineName
from fx_bridge.choices import Optimizer, TiedReaders
from fx_bridge.costs.recompute import RULES
from solver import OBJECTIVES, SOLVERS
from solver.model.problem_checks import MOST_CHUNKS
from solver.model.problem_fields import MemoryModel
from solver.model.training import Schedule

OUTPUT_PANEL: Final = "Output"
SEARCH: Final = "Search"
_PROBLEM, _PIPELINE, _PLACEMENT, _CAPTURE = "Problem", "Pipeline", "Placement", "Capture"
_COSTS: Final = "Costs"

MOST_DEVICES: Final = 1024
_MOST_MICROBATCHES: Final = 10**9
"""More than any plan has, so that a typing error is refused at once."""


def out_option(metavar: str, text: str, **settings: Any) -> Any:
    """Return the option ``--out``."""
    return typer.Option(
        "--out", "-o", metavar=metavar, help=text, rich_help_panel=OUTPUT_PANEL, **settings
    )


def option(panel: str, metavar: str | None, text: str, **settings: Any) -> Any:
    """Return an option with the name of its field, listed under `panel`.

    Without a `metavar` the help lists the choices.
    """
    return typer.Option(metavar=metavar, help=text, rich_help_panel=panel, **settings)


def _devices(text: str) -> Any:
    return option(_PROBLEM, "DEVICES", text, autocompletion=complete_devices)


def flag(panel: str, name: str, text: str) -> Any:
    """Return an option of a given name, without a metavar."""
    return typer.Option(name, help=text, rich_help_panel=panel)


# -- the problem --------------------------------------------------------------------------

_BUILT: Final = (
    "A zoo name (see: fxpartition models), configuration:NAME (a published model in its real "
    "size), an import string package.module:factory whose factory returns (module, args) or "
    "(module, args, kwargs), "
)
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help=f"{_BUILT}a model.pt2 of torch.export.save, a saved problem.json, or published:NAME.",
        autocompletion=complete_models,
    ),
]
BuiltModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help=f"{_BUILT}or a model.pt2 of torch.export.save.",
        autocompletion=complete_built_models,
    ),
]
PLAN_FILE: Final[dict[str, Any]] = {
    "metavar": "PLAN.json",
    "help": "A plan that plan or solve wrote.",
}
PinOption = Annotated[
    list[str] | None,
    option(
        _PLACEMENT,
        "NAME=WHERE",
        "Where a module, at any depth, or an operator runs: a device, several with commas "
        "between them, or the number of a stage, from 0. May be repeated.",
    ),
]
KeepWholeOption = Annotated[
    list[str] | None,
    option(
        _PLACEMENT,
        "MODULE",
        "A module that stays on one device, or a pattern such as 'h.*'; several as 'wte+lm_head'. "
        "May be repeated.",
    ),
]
FOR: Final = flag(
    _PLACEMENT,
    "--for",
    "Only plans that this engine can run, in whole layers; hand-over writes its arguments.",
)
ForOption = Annotated[EngineName | None, FOR]
MicrobatchesOption = Annotated[
    int | None,
    option(
        _PIPELINE,
        "COUNT",
        "Microbatches in a step of the pipeline; the example inputs are one.",
        min=1,
        max=_MOST_MICROBATCHES,
    ),
]
LinkOption = Annotated[
    str | None,
    option(
        _COSTS,
        "LINK",
        "Between any two devices, such as 25GB/s,10us or unlimited; without it PCIe: 25GB/s,10us.",
        autocompletion=complete_from(("25GB/s,10us", "unlimited")),
    ),
]
AttentionOption = Annotated[
    str | None,
    option(
        _COSTS,
        "KERNELS",
        "Attention kernels on all devices, such as math or flash,efficient; those of the class.",
    ),
]


DevicesOption = Annotated[
    list[str] | None,
    _devices(
        "Such as 4x24GiB, or 80GB,24GB, or 2x80GiB@a100-80gb, or a .toml file, or auto: the CUDA "
        "devices of this machine."
    ),
]


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """Capture of a model; splitting a plan needs the options that it was made with."""

    constant: Annotated[
        list[str] | None,
        option(
            _CAPTURE,
            "INPUT",
            "An input tensor that the model reads as numbers, such as image_grid_thw; the plan is "
            "for its values. May be repeated.",
        ),
    ] = None
    check: Annotated[
        bool,
        flag(
            _CAPTURE,
            "--check",
            "Run the model and its graph once, and capture it another way if their results differ.",
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class ProblemOptions(CaptureOptions):
    """A problem: devices, objective, pipeline, placement and costs."""

    devices: DevicesOption = None
    objective: Annotated[
        str | None,
        option(
            _PROBLEM,
            "NAMES",
            f"One or more, in order of weight, of {', '.join(OBJECTIVES)}; bottleneck if left "
            "out, and step with a schedule.",
            autocompletion=complete_from(OBJECTIVES, several=True),
        ),
    ] = None
    optimizer: Annotated[
        Optimizer | None,
        option("Training", None, "Optimiser, whose state needs memory; adamw if left out."),
    ] = None
    tied_weights: Annotated[
        TiedReaders | None,
        option(
            "Training",
            None,
            "Keep all readers of a trained weight on one device, or sum the gradients of copies; "
            "colocate if left out.",
        ),
    ] = None
    recompute: Annotated[
        list[str] | None,
        option(
            "Training",
            "RULE",
            "Operators to run again in the backward pass instead of keeping their values: none, "
            "auto (where it pays), layers (whole ones, where it pays), all, or modules such as "
            "'h.*'. Repeated also MODULE=always and MODULE=never; none if left out.",
            autocompletion=complete_from(RULES),
        ),
    ] = None
    regions: Annotated[
        list[str] | None,
        option(
            "Training",
            "MODULE",
            "A module, or a pattern such as 'h.*', that is run again on its own; the layers of the "
            "model if left out. May be repeated.",
        ),
    ] = None
    schedule: Annotated[
        Schedule | None,
        option(
            _PIPELINE,
            None,
            "Plan a pipeline that runs by it: values are passed from stage to stage, and the "
            "objective is step if none is given.",
        ),
    ] = None
    microbatches: MicrobatchesOption = None
    chunks: Annotated[
        int | None,
        option(
            _PIPELINE,
            "COUNT",
            "Most stages of a device (interleaved pipeline stages).",
            min=1,
            max=MOST_CHUNKS,
        ),
    ] = None
    max_devices: Annotated[
        int | None,
        option(_PIPELINE, "COUNT", "Most devices that a plan may use.", min=1, max=MOST_DEVICES),
    ] = None
    pin: PinOption = None
    cut_after: Annotated[
        list[str] | None,
        option(
            _PLACEMENT,
            "NAME",
            "A module, at any depth, or an operator after which a stage ends. May be repeated.",
        ),
    ] = None
    keep_whole: KeepWholeOption = None
    for_: ForOption = None
    link: LinkOption = None
    memory_model: Annotated[
        MemoryModel | None, option(_COSTS, None, "What counts as memory; inference if left out.")
    ] = None
    attention: AttentionOption = None
    launch: Annotated[
        str | None,
        option(_COSTS, "KIND", "eager, graph, or the host's time a kernel; the class's."),
    ] = None
    profile: Annotated[
        str | None, option(_COSTS, "FILE", "Measured times, as fxpartition profile wrote them.")
    ] = None
    communication_scale: Annotated[
        float | None,
        option(
            _COSTS,
            "FACTOR",
            "Of a published workload's communication costs; 1000 where they are in seconds.",
        ),
    ] = None
    no_host: Annotated[
        bool, flag(_COSTS, "--no-host", "Leave a published workload's CPUs out: accelerators only.")
    ] = False
    device_memory: Annotated[
        str | None,
        option(
            _COSTS,
            "MEMORY",
            "Such as 8GiB, of each of the --max-devices equal devices of a workload of Piper; that "
            "of the file if left out.",
        ),
    ] = None
    no_replicas: Annotated[
        bool,
        flag(
            _COSTS,
            "--no-replicas",
            "One device runs a stage of a workload of Piper. Required, because replicas are not "
            "planned yet.",
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class ComparedOptions(ProblemOptions):
    """A compared problem, on any number of device sets."""

    devices: Annotated[
        list[str] | None,
        _devices(
            "As for plan; repeated, several sets. Derived from each model's size if left out."
        ),
    ] = None


# -- the search ---------------------------------------------------------------------------

SeedOption = Annotated[int, typer.Option(metavar="NUMBER", help="Seed of every random choice.")]
PlannersOption = Annotated[
    list[str] | None,
    option(
        SEARCH,
        "NAME",
        "Some of those that fxpartition planners lists, or your own, package.module:FUNCTION, "
        "with commas or repeated; if left out, greedy, chain, auto and every peer that answers "
        "within seconds.",
        autocompletion=complete_planners,
    ),
]
WithoutOption = Annotated[
    list[str] | None,
    option(
        SEARCH,
        "STEP",
        "A step, as --steps names it, that the search leaves out. May be repeated.",
        autocompletion=complete_steps,
    ),
]


@dataclass(frozen=True, slots=True)
class LimitOptions:
    """Limits of a search."""

    time_limit: Annotated[float, option(SEARCH, "SECONDS", "For all searches together.")] = 60.0
    workers: Annotated[
        int | None,
        option(SEARCH, "COUNT", "Search threads; one per core, but at least three, if left out."),
    ] = None
    seed: Annotated[int, option(SEARCH, "NUMBER", "Seed of every random choice.")] = 0
    deterministic: Annotated[
        bool,
        flag(
            SEARCH,
            "--deterministic",
            "The same plan in every run on any number of workers; the time limit then counts "
            "seconds of work, which may take longer.",
        ),
    ] = False


@dataclass(frozen=True, slots=True)
class SearchOptions(LimitOptions):
    """Solver and limits of a search."""

    solver: Annotated[
        str,
        option(
            SEARCH,
            "NAME",
            f"One of {', '.join(SOLVERS)}; auto picks one that proves, and the answer names it.",
            autocompletion=complete_from(SOLVER_DESCRIPTIONS),
        ),
    ] = "auto"


# -- the output ---------------------------------------------------------------------------

JsonOption = Annotated[bool, flag(OUTPUT_PANEL, "--json", "Print JSON for programs.")]
StepsOption = Annotated[
    bool, flag(OUTPUT_PANEL, "--steps", "Print the time and the gain of each step of the search.")
]
PlanOutOption = Annotated[
    str | None,
    out_option(
        "FILE",
        "Save the plan: FILE.json for split, score and hand-over, FILE.html a page to look at.",
    ),
]
ReportOutOption = Annotated[
    str | None,
    out_option("DIR", "Folder for the report, made if missing; without it only the terminal."),
]
ThreadsOption = Annotated[
    int, typer.Option(min=1, max=MOST_DEVICES, metavar="COUNT", help="Threads of each process.")
]
