"""The options of the command line, one type each: the same are named the same everywhere.

Those that many commands take come in groups (:mod:`experiments.commands.option_groups`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

import typer

from experiments.commands.completions import (
    complete_built_models,
    complete_devices,
    complete_files,
    complete_from,
    complete_models,
)
from solver import MEMORY_MODELS, OBJECTIVES
from solver.model.problem import MOST_CHUNKS
from solver.model.training import SCHEDULES

PROBLEM_PANEL: Final = "Problem"
OUTPUT_PANEL: Final = "Output"

MOST_DEVICES: Final = 1024
MOST_MICROBATCHES: Final = 10**9
MOST_SECONDS: Final = 10_000_000
MOST_REPEATS: Final = 100_000
"""More than any plan has and any run takes: a slip is refused, not tried."""

OPTIMIZERS: Final = ("sgd", "momentum", "adam", "adamw")

# -- what is planned ----------------------------------------------------------------------

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
PlanArgument = Annotated[
    str,
    typer.Argument(
        metavar="PLAN.json",
        help="A plan that plan or solve wrote.",
        autocompletion=complete_files(".json"),
    ),
]
DevicesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--devices",
        metavar="DEVICES",
        help="Such as 4x24GiB, or 80GB,24GB, or 2x80GiB@a100-80gb, or a .toml file.",
        autocompletion=complete_devices,
    ),
]
DeviceSetsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--devices",
        metavar="DEVICES",
        help="As for plan; repeated, several sets. Derived from each model's size if left out.",
        autocompletion=complete_devices,
    ),
]
LinkOption = Annotated[
    str | None,
    typer.Option(
        "--link",
        metavar="LINK",
        help="Between any two devices, such as 25GB/s,10us or unlimited; "
        "without it PCIe: 25GB/s,10us.",
        autocompletion=complete_from(("25GB/s,10us", "unlimited")),
    ),
]
ObjectiveOption = Annotated[
    str | None,
    typer.Option(
        "--objective",
        metavar="NAMES",
        help=f"One or more, in order of weight, of {', '.join(OBJECTIVES)}; bottleneck if left "
        "out, and step with a schedule.",
        autocompletion=complete_from(OBJECTIVES, several=True),
    ),
]
MemoryOption = Annotated[
    str | None,
    typer.Option(
        "--memory-model",
        metavar="NAME",
        help=f"One of {', '.join(MEMORY_MODELS)}; inference if left out.",
        autocompletion=complete_from(MEMORY_MODELS),
    ),
]
ChunksOption = Annotated[
    int | None,
    typer.Option(
        "--chunks",
        min=1,
        max=MOST_CHUNKS,
        metavar="COUNT",
        help="Most stages of a device (interleaved pipeline stages).",
    ),
]
MaxDevicesOption = Annotated[
    int | None,
    typer.Option(
        "--max-devices",
        min=1,
        max=MOST_DEVICES,
        metavar="COUNT",
        help="Most devices that a plan may use.",
    ),
]
KeepWholeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--keep-whole",
        metavar="MODULE",
        help="A module that stays on one device, or a pattern such as 'model.layers.*'; several "
        "on one device as 'wte+lm_head'. May be repeated.",
    ),
]
ConstantOption = Annotated[
    list[str] | None,
    typer.Option(
        "--constant",
        metavar="INPUT",
        help="An input tensor that the model reads as numbers, such as image_grid_thw; the plan "
        "is for its values. May be repeated.",
    ),
]
PinOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        metavar="NAME=WHERE",
        help="Where a module, at any depth, or an operator runs: a device, several with commas "
        "between them, or the number of a stage, from 0. May be repeated.",
    ),
]
CutAfterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cut-after",
        metavar="NAME",
        help="A module, at any depth, or an operator after which a stage ends. May be repeated.",
    ),
]
ScheduleOption = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        metavar="NAME",
        help=f"Plan a pipeline that runs by {' or '.join(SCHEDULES)}: values are passed from stage "
        "to stage, and the objective is step if none is given.",
        autocompletion=complete_from(SCHEDULES),
    ),
]
MicrobatchesOption = Annotated[
    int | None,
    typer.Option(
        "--microbatches",
        min=1,
        max=MOST_MICROBATCHES,
        metavar="COUNT",
        help="In a step of the pipeline; the example inputs are one.",
    ),
]
OptimizerOption = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        metavar="NAME",
        help=f"Of training, whose state needs memory: one of {', '.join(OPTIMIZERS)}; adamw if "
        "left out.",
        autocompletion=complete_from(OPTIMIZERS),
    ),
]
AttentionOption = Annotated[
    str | None,
    typer.Option(
        "--attention",
        metavar="KERNELS",
        help="What attention runs with on all devices, such as math or flash,efficient; the "
        "kernels of each device's class if left out.",
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="FILE",
        help="Measured times, as fxpartition profile wrote them.",
        autocompletion=complete_files(".json"),
    ),
]
CommunicationScaleOption = Annotated[
    float | None,
    typer.Option(
        "--communication-scale",
        metavar="FACTOR",
        help="Of a published workload's communication costs; 1000 where they are in seconds.",
    ),
]
NoHostOption = Annotated[
    bool,
    typer.Option("--no-host", help="Leave a published workload's CPUs out: accelerators only."),
]


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How the model is trained, if that is what is planned."""

    PANEL: ClassVar[str] = "Training"

    optimizer: OptimizerOption = None


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """How stages take turns, and how many there may be."""

    PANEL: ClassVar[str] = "Pipeline"

    schedule: ScheduleOption = None
    microbatches: MicrobatchesOption = None
    chunks: ChunksOption = None
    max_devices: MaxDevicesOption = None


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """Where named modules and operators run, and where stages end."""

    PANEL: ClassVar[str] = "Placement"

    pin: PinOption = None
    cut_after: CutAfterOption = None
    keep_whole: KeepWholeOption = None


@dataclass(frozen=True, slots=True)
class CostOptions:
    """What operators and transfers take, and what counts as memory."""

    PANEL: ClassVar[str] = "Costs"

    link: LinkOption = None
    memory_model: MemoryOption = None
    attention: AttentionOption = None
    profile: ProfileOption = None
    communication_scale: CommunicationScaleOption = None
    no_host: NoHostOption = False


@dataclass(frozen=True, slots=True)
class ProblemOptions:
    """What is planned, for which devices, and what is best."""

    PANEL: ClassVar[str] = PROBLEM_PANEL

    devices: DevicesOption = None
    objective: ObjectiveOption = None
    constant: ConstantOption = None
    training: TrainingOptions = TrainingOptions()
    pipeline: PipelineOptions = PipelineOptions()
    placement: PlacementOptions = PlacementOptions()
    costs: CostOptions = CostOptions()


@dataclass(frozen=True, slots=True)
class ComparedOptions(ProblemOptions):
    """What is compared, on any number of device sets."""

    devices: DeviceSetsOption = None


# -- how it is searched -------------------------------------------------------------------


JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print JSON for programs.", rich_help_panel=OUTPUT_PANEL),
]
StepsOption = Annotated[
    bool,
    typer.Option(
        "--steps",
        help="Print what each step of the search took and gained.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
PlanOutOption = Annotated[
    str | None,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        help="Save the plan, for split, score and hand-over.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
ReportOutOption = Annotated[
    str | None,
    typer.Option(
        "--out",
        "-o",
        metavar="DIR",
        help="Folder for the report, made if missing; without it only the terminal.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
ProblemOutOption = Annotated[
    str,
    typer.Option(
        "--out",
        "-o",
        metavar="FILE",
        help="Save the problem, for solve.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]

# -- processes ----------------------------------------------------------------------------

ThreadsOption = Annotated[
    int,
    typer.Option("--threads", min=1, max=MOST_DEVICES, metavar="COUNT", help="Of each process."),
]
RepeatsOption = Annotated[
    int,
    typer.Option(
        "--repeats",
        min=1,
        max=MOST_REPEATS,
        metavar="COUNT",
        help="Measurements of which medians are taken.",
    ),
]
ProcessLimitOption = Annotated[
    float,
    typer.Option(
        "--process-limit",
        min=1,
        max=MOST_SECONDS,
        metavar="SECONDS",
        help="For all that the processes do.",
    ),
]
