"""The command ``profile``: measured times of a model's operators on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from experiments.commands.option_groups import with_option_groups
from experiments.commands.option_reading import read_capture
from experiments.commands.options import (
    MOST_DEVICES,
    BuiltModelArgument,
    CaptureOptions,
    JsonOption,
    ThreadsOption,
    out_option,
)
from experiments.console.output import check_writable, print_json, print_lines, say_written
from fx_bridge.presentation.tables import table_lines
from solver.model.quantities import counted, format_bytes, format_ns

if TYPE_CHECKING:
    from experiments.problems.profile import Profile

_SHOWN: Final = 12

_TrainingOption = Annotated[bool, typer.Option("--training", help="Measure backward passes too.")]
_ProcessesOption = Annotated[
    int,
    typer.Option(
        "--processes",
        min=1,
        max=MOST_DEVICES,
        metavar="COUNT",
        help="How many measure at once, as the stages of a pipeline share memory and caches.",
    ),
]
_OutOption = Annotated[str | None, out_option("FILE", "Save the profile, for --profile.")]


@with_option_groups
def profile(
    model: BuiltModelArgument,
    capture: CaptureOptions,
    training: _TrainingOption = False,
    threads: ThreadsOption = 1,
    processes: _ProcessesOption = 1,
    out: _OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a model's operators and the link between processes, for plan --profile.

    For example:

        fxpartition profile gpt2 --training --processes 2 --out gpt2.profile.json
        fxpartition plan gpt2 --devices 400MB,300MB --profile gpt2.profile.json

    With --processes they measure side by side, as stages will run.
    """
    from experiments.console.progress import ProgressLine
    from experiments.pipelines.group import PipelineGroup
    from experiments.pipelines.profiling import measure_profile
    from experiments.zoo.models import resolve_built

    resolve_built(model)
    asked = read_capture(capture)
    check_writable(out)
    with ProgressLine(quiet=True) as progress:
        progress.step(f"{model}: starting processes")
        with PipelineGroup(processes, threads=threads, capture=asked) as group:
            progress.step(f"{model}: measuring")
            found = measure_profile(model, group, training=training, processes=processes)
    if out is not None:
        found.save(out)
        say_written(out)
    if as_json:
        print_json(found.to_dict())
    else:
        _show(found)


def _show(found: Profile) -> None:
    """Print the slowest operators, the totals, and the link."""
    total_ns = {name: t + found.backward_ns[name] for name, t in found.forward_ns.items()}
    header = ("operator", "forward", "backward", "workspace")
    rows = [
        (
            name,
            format_ns(found.forward_ns[name]),
            format_ns(found.backward_ns[name]),
            format_bytes(max(found.workspace_bytes[name], found.backward_workspace_bytes[name])),
        )
        for name in sorted(total_ns, key=total_ns.__getitem__, reverse=True)[:_SHOWN]
    ]
    sums = [sum(found.forward_ns.values()), sum(found.backward_ns.values())]
    lines = [
        f"{counted(len(total_ns), 'operator')}: forward {format_ns(sums[0])}, "
        f"backward {format_ns(sums[1])}; "
        f"calibrated by {found.forward_permille / 1000:g} and {found.backward_permille / 1000:g}"
    ]
    rate = found.link.bandwidth_bytes_per_s
    speed = "unlimited" if rate is None else f"{format_bytes(rate)}/s"
    lines.append(f"link: {speed}, {format_ns(found.link.latency_ns)}")
    print_lines([*table_lines(header, rows, text=["operator"]), *lines])
