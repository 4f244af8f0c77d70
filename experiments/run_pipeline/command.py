"""The command that runs a plan as a pipeline, in one process of torchrun for each device.

    torchrun --nproc_per_node=2 -m experiments.run_pipeline plan.json MODEL --weights DIR

Each process builds the model without weights in memory, splits it by the plan, loads the files of
only its own stages, and runs steps. Exit codes of the processes: 0 done; 1 the run broke off; 2 bad
input, before any process group starts; 4 the results differ from those of a single process; 130
interrupted; 143 terminated. torchrun itself ends with 1 for all nonzero codes, and adds its own
report to their messages.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from experiments.commands.option_groups import with_option_groups
from experiments.console.exit_codes import EXIT_BAD_INPUT, EXIT_NOT_EQUAL
from experiments.run_pipeline.launch import JobOptions, Launch
from experiments.run_pipeline.rank_watch import RankWatch
from fx_bridge.presentation.tables import table_lines
from solver import PartitionError
from solver.model.quantities import format_bytes, format_ns
from solver.model.text import printable

if TYPE_CHECKING:
    from experiments.run_pipeline.agreement import Agreement
    from experiments.run_pipeline.job import RankJob
    from experiments.run_pipeline.rank_steps import RankReport

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(name="run_pipeline")
@with_option_groups
def read_options(options: JobOptions) -> JobOptions:
    """Run a plan as a pipeline in the processes that torchrun starts, one for each device."""
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Run one process of a pipeline; return its exit code."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    warnings.simplefilter("ignore")
    options, problem = _parsed(argv)
    if options is None and problem is None:
        return 0  # --help was printed

    try:
        launch = Launch.from_environment()
    except PartitionError as error:
        return _fail(problem or str(error))
    # Before torch loads and the processes can communicate: until then one on each host reports.
    watch = RankWatch(launch.rank, lambda: launch.local_rank == 0)
    watch.start()
    try:
        # It may have ended before the watch began.
        launch.check_launcher()
    except PartitionError as error:
        watch.end(f"ends in its start: {error}")

    from experiments.run_pipeline.agreement import Agreement, RefusedError
    from experiments.run_pipeline.job import prepare

    timeout = datetime.timedelta(seconds=600.0 if options is None else options.timeout_s)
    try:
        agreement = Agreement(launch, timeout)
    except PartitionError as error:
        return _fail(problem or str(error))
    watch.is_first = agreement.is_first_to_report
    watch.doing = "the checks"
    job = None
    try:
        if options is not None:
            try:
                job = prepare(options, launch)
            except PartitionError as error:
                problem = str(error)
        agreement.agree(problem)
        if job is not None:
            agreement.agree(_mixed_kinds(agreement.exchange("kind", job.device.type)))
    except RefusedError as refused:
        if refused.message is not None:
            _fail(refused.message)
        # torchrun stops all others as soon as one ends.
        agreement.exchange("said", True)
        return EXIT_BAD_INPUT
    except PartitionError as error:
        return _fail(str(error))
    assert job is not None and options is not None
    return _run(job, options, agreement, watch, timeout)


def _parsed(argv: Sequence[str] | None) -> tuple[JobOptions | None, str | None]:
    """Return the options, or the error in them; neither after --help."""
    try:
        made = app(args=None if argv is None else list(argv), standalone_mode=False)
    except Exception as error:
        # The class of the error depends on the releases of typer and click.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        return None, f"{message()} (see --help)"
    return (made, None) if isinstance(made, JobOptions) else (None, None)


def _mixed_kinds(kinds: list[str]) -> str | None:
    if len(set(kinds)) < 2:
        return None
    return (
        f"the ranks run on {', '.join(kinds)}, but a pipeline runs on devices of one kind; "
        "write --device cpu, or plan for devices of one kind"
    )


def _run(
    job: RankJob,
    options: JobOptions,
    agreement: Agreement,
    watch: RankWatch,
    timeout: datetime.timedelta,
) -> int:
    """Run all steps in a process group; the first process prints the reports of all."""
    import torch
    import torch.distributed as dist

    from experiments.pipelines.loopback import keep_gloo_on_loopback
    from experiments.run_pipeline.agreement import first_line
    from experiments.run_pipeline.rank_steps import RankReport, run_steps

    rank = agreement.launch.rank
    if job.note and rank == 0:
        print(printable(f"note: {job.note}"), file=sys.stderr)
    accelerated = job.device.type != "cpu"
    if accelerated:
        torch.get_device_module(job.device.type).set_device(job.device)
    watch.doing = "the start of the process group"
    if agreement.launch.is_on_one_host and "GLOO_SOCKET_IFNAME" not in os.environ:
        keep_gloo_on_loopback()
    try:
        dist.init_process_group(
            "nccl" if job.device.type == "cuda" else "gloo",
            store=agreement.store,
            rank=rank,
            world_size=agreement.launch.world_size,
            timeout=timeout,
        )
        report = run_steps(job, options, rank, watch)
        watch.doing = "the report"
        found = agreement.gather("report", dataclasses.asdict(report))
        if rank == 0:
            _print([RankReport.from_dict(each) for each in found], options, job.microbatches)
        # The first process hosts the store of all, so it ends last.
        agreement.gather("end", True)
        dist.destroy_process_group()
    except PartitionError as error:
        watch.end(f"failed in {watch.doing}: {error}", always=True)
    except (RuntimeError, OSError) as error:
        watch.end(
            f"broke off in {watch.doing} ({first_line(error)}): another process has ended, or "
            "the connection to it was lost"
        )
    return EXIT_NOT_EQUAL if report.differs else 0


def _print(reports: Sequence[RankReport], options: JobOptions, microbatches: int) -> None:
    if options.as_json:
        document = {
            "schedule": options.schedule,
            "microbatches": microbatches,
            "steps": options.steps,
            "train": options.train,
            "ranks": [dataclasses.asdict(report) for report in reports],
        }
        print(json.dumps(document, indent=1))
        return
    rows = [
        [
            str(report.rank),
            report.device,
            report.runs_on,
            ", ".join(report.stages),
            format_bytes(report.weights_bytes),
            format_ns(report.median_step_ns),
        ]
        for report in reports
    ]
    header = ("rank", "device", "runs on", "stages", "weights", "median step")
    print("\n".join(table_lines(header, rows, text=("device", "runs on", "stages"))))
    last = reports[-1]
    if last.losses:
        print(f"loss: {', '.join(f'{loss:.6g}' for loss in last.losses)}")
    if last.max_abs_error is not None:
        same = "something else" if last.differs else "the same"
        print(
            f"The pipeline computes {same} as a single process (largest error "
            f"{last.max_abs_error:g}, allowed {last.tolerance:g})."
        )


def _fail(message: str) -> int:
    print(f"error: {printable(' '.join(message.split()))}", file=sys.stderr, flush=True)
    return EXIT_BAD_INPUT
