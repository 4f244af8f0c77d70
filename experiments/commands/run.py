"""The command ``run``: plans as pipelines of processes, predicted and measured side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final

import typer

from experiments.commands.completions import SOLVER_DESCRIPTIONS, complete_from
from experiments.commands.option_groups import with_option_groups
from experiments.commands.option_reading import read_limits, read_request, read_solvers
from experiments.commands.options import (
    SEARCH,
    BuiltModelArgument,
    JsonOption,
    LimitOptions,
    ProblemOptions,
    ThreadsOption,
    option,
)
from experiments.console.exit_codes import EXIT_NO_PLAN, EXIT_TIME_OUT
from experiments.console.output import print_json, print_lines, say, say_note
from experiments.problems.request import ProblemRequest, check_model_request
from solver import SOLVERS, PartitionError
from solver.model.quantities import counted
from solver.model.text import shown

if TYPE_CHECKING:
    from experiments.pipelines.prediction import PlanRow
    from experiments.problems.devices import DeviceSet

_PIPELINE: Final = ProblemOptions(schedule="1f1b", microbatches=4)
_QUICK: Final = LimitOptions(time_limit=30.0)
_SOLVERS: Final = ("greedy", "chain", "auto")
_SolversOption = Annotated[
    list[str] | None,
    option(
        SEARCH,
        "NAME",
        f"Some of {', '.join(SOLVERS)}, with commas or repeated; greedy, chain and auto if left "
        "out.",
        autocompletion=complete_from(SOLVER_DESCRIPTIONS),
    ),
]


@with_option_groups
def run(
    model: BuiltModelArgument,
    problem: ProblemOptions = _PIPELINE,
    search: LimitOptions = _QUICK,
    solver: _SolversOption = None,
    threads: ThreadsOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Run plans as pipelines, one process a device; compare times and memory with predictions.

    For example, forward alone, and training:

        fxpartition run gpt2
        fxpartition run gpt2 --memory-model training --devices 2x4GB

    The devices are processes of this machine, called cpu:0, cpu:1 and so on.
    Without --devices there are two, with three fifths and two fifths of the
    memory.
    """
    from experiments.console.progress import ProgressLine
    from experiments.pipelines.group import PipelineGroup
    from experiments.pipelines.plan_runs import (
        NoPlanError,
        RunSettings,
        measured_problem,
        run_plans,
    )
    from experiments.pipelines.profiling import measure_profile
    from experiments.zoo.models import captured_model

    request = read_request(problem)
    check_model_request(model, request)
    if request.capture.constants:
        raise PartitionError(
            "--constant is not for run, whose processes get microbatches of every input; leave it "
            "out, or use plan and split"
        )
    settings = RunSettings(
        process_request(request), solvers=read_solvers(solver, _SOLVERS), limits=read_limits(search)
    )
    profile = request.profile
    if profile is not None and profile.threads != threads:
        raise PartitionError(
            f"{problem.profile} was measured with {profile.threads} threads; run with "
            f"--threads {profile.threads}, or measure again"
        )
    given = settings.request.devices
    count = len(settings.shares if given is None else given.devices)
    with ProgressLine() as progress:
        progress.step(f"{model}: capturing")
        captured = captured_model(model, request.capture)
        say_note(captured)
        if profile is not None or request.placement is not None or request.engine:
            measured_problem(captured, profile, settings)
        progress.step(f"{model}: starting {counted(count, 'process', 'processes')}")
        with PipelineGroup(count, threads=threads, capture=request.capture) as group:
            if profile is None:
                progress.step(f"{model}: measuring")
                profile = measure_profile(
                    model, group, training=settings.training, processes=group.count, repeats=5
                )
            try:
                rows = run_plans(
                    model, captured, profile, settings, group, progress.step, progress.done
                )
            except NoPlanError as error:
                say(str(error))
                raise typer.Exit(EXIT_NO_PLAN if error.proven else EXIT_TIME_OUT) from None
    _show(rows, as_json)


def _show(rows: Sequence[PlanRow], as_json: bool) -> None:
    from experiments.pipelines.tables import plan_lines, row_json

    if as_json:
        print_json([row_json(row) for row in rows])
        return
    same = [f"{row.name} has the plan of {row.same_as}" for row in rows if row.same_as is not None]
    print_lines([*plan_lines(rows), *same])


def _processes(given: DeviceSet) -> DeviceSet:
    """Return the devices, renamed to CPU processes."""
    name_of = {device.name: f"cpu:{index}" for index, device in enumerate(given.devices)}
    interconnect = given.interconnect
    if interconnect is not None:
        links = {
            (name_of.get(source, source), name_of.get(target, target)): link
            for (source, target), link in interconnect.links.items()
        }
        interconnect = replace(interconnect, links=links)
    devices = tuple(replace(device, name=name_of[device.name]) for device in given.devices)
    return replace(given, devices=devices, interconnect=interconnect)


def process_request(request: ProblemRequest) -> ProblemRequest:
    """Return the request with processes of this machine as devices."""
    counted = request.memory_model or "inference"
    if counted == "weights":
        raise PartitionError(
            "--memory-model is 'weights', but what processes hold is more; write inference or "
            "training"
        )
    if request.training is not None and request.training.optimizer != "adamw":
        raise PartitionError(
            f"--optimizer is {shown(request.training.optimizer)}, but the processes measure a step "
            "of adamw; leave it out"
        )
    devices = None if request.devices is None else _processes(request.devices)
    return replace(request, devices=devices)
