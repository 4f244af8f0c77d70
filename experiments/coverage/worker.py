"""Capture, export and split of one model in its own process.

A model that ends the process, fills memory or never returns becomes a row with a reason.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Final

from experiments.processes.environment import peak_rss_bytes
from experiments.processes.workers import exit_words
from experiments.zoo.builders import Configuration
from experiments.zoo.building import describe_error
from solver import Device, PartitionError, PartitionProblem, SolveLimits, solve
from solver.io.digraph import problem_from_digraph

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

    from torch import fx

    from fx_bridge.capture.graph import CapturedGraph

STAGES: Final = 4
_INSTALL: Final = {"transformers": 'pip install "fxpartition[hf]"'}


@dataclass(frozen=True, slots=True)
class CoverageRow:
    """Outcome of one model.

    Attributes
    ----------
    how, note : str
        As in :class:`~fx_bridge.capture.graph.CapturedGraph`.
    nodes, operators : int
        Numbers of nodes and operators of the FX graph.
    made_up : tuple of str
        Operators that cannot run without values of tensors, whose storages have the captured
        sizes; see :class:`fx_bridge.storages.table.StorageTable`.
    weights_bytes : int
        Bytes of the weights of the graph, tied ones once.
    build_s, capture_s, export_s, split_s : float or None
        Seconds of processor time. `export_s` is for the operator graph and the partitioning
        problem; `split_s` includes finding the plan.
    stages : int
        Number of stages of a split model.
    ran : bool
        True if the stages were run. On the meta device only shapes and dtypes are compared, and
        made-up operators cannot run.
    equal, gradients_equal : bool or None
        Results of :func:`~fx_bridge.equivalence.check.check_equivalence`; None without weights, or
        without gradients.
    peak_memory_bytes : int or None
        Peak resident memory of the process, libraries included.
    reason : str
        Reason for a failed capture or export, or empty.
    split_reason : str
        Reason for a failed split of an exported model, or empty.
    """

    model: str
    family: str
    how: str = ""
    note: str = ""
    nodes: int = 0
    operators: int = 0
    made_up: tuple[str, ...] = ()
    weights_bytes: int = 0
    build_s: float | None = None
    capture_s: float | None = None
    export_s: float | None = None
    split_s: float | None = None
    stages: int = 0
    ran: bool = False
    equal: bool | None = None
    gradients_equal: bool | None = None
    peak_memory_bytes: int | None = None
    reason: str = ""
    split_reason: str = ""


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Limits of one model.

    Attributes
    ----------
    time_s : float
        Wall seconds.
    memory_bytes : int
        Address space of its process, if the system can limit it.
    """

    time_s: float = 600.0
    memory_bytes: int = 12 * 2**30

    def __post_init__(self) -> None:
        if not 0 < self.time_s < math.inf:
            raise PartitionError(
                f"time limit is {self.time_s}; write a positive number of seconds, such as 600"
            )


def run_isolated(configuration: Configuration, limits: WorkerLimits) -> CoverageRow:
    """Measure one model in its own process, up to its end or a limit."""
    context = _context()
    ours, theirs = context.Pipe(duplex=False)
    worker = context.Process(
        target=_work, args=(configuration, limits, theirs), daemon=True, name=configuration.name
    )
    deadline_s = time.monotonic() + limits.time_s
    row = CoverageRow(configuration.name, configuration.family)
    finished = False
    worker.start()
    theirs.close()
    try:
        while not finished:
            if not ours.poll(max(0.0, deadline_s - time.monotonic())):
                return _stopped(row, f"not done after {limits.time_s:g} s; give --time-limit more")
            row, finished = ours.recv()
    except EOFError:
        worker.join()
        return _stopped(row, f"its process ended: {exit_words(worker.exitcode or 0)}")
    finally:
        worker.kill()
        worker.join()
        ours.close()
    return row


def _context() -> ForkServerContext | SpawnContext:
    """Return a context that forks a process with torch loaded, if available, else spawns."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fx_bridge", "torch.export", "transformers", __name__])
    return context


def _stopped(row: CoverageRow, why: str) -> CoverageRow:
    """Return a row that failed in the step after the last finished one."""
    if row.export_s is not None:
        return replace(row, split_reason=f"split: {why}")
    step = "export" if row.capture_s is not None else "capture"
    return replace(row, reason=f"{'build' if row.build_s is None else step}: {why}")


def _work(configuration: Configuration, limits: WorkerLimits, results: Connection) -> None:
    # The parent ends this process on Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # By descriptor, for native code too.
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (limits.memory_bytes, limits.memory_bytes))
    measurement = Measurement(configuration, limits, results)
    results.send((measurement.run(), True))
    results.close()


class Measurement:
    """The steps of one model, with the row sent to the parent after each."""

    def __init__(
        self, configuration: Configuration, limits: WorkerLimits, results: Connection | None = None
    ) -> None:
        self._configuration = configuration
        self._limits = limits
        self._results = results
        self._last_s = time.process_time()
        self.row = CoverageRow(configuration.name, configuration.family)

    def run(self) -> CoverageRow:
        """Build, capture, export and split; return the row."""
        step = "build"
        try:
            self._check_package()
            model, args, kwargs = self._configuration.build()
            self._add(build_s=self._lap_s())
            step = "capture"
            # The imports do not count for the model's time.
            from fx_bridge import capture, to_digraph

            self._lap_s()
            with self._precision("capture and call"):
                captured = capture(model, args, kwargs, constants=self._configuration.constants)
            self._add(
                capture_s=self._lap_s(),
                how=captured.how,
                note=captured.note,
                nodes=len(captured.graph.nodes),
                operators=len(captured.operators),
            )
            step = "export"
            graph = to_digraph(captured)
            problem = problem_from_digraph(graph, (Device("one"),))
            self._add(
                export_s=self._lap_s(),
                made_up=tuple(graph.graph["info"]["made_up"]),
                weights_bytes=sum(w["size_bytes"] for w in graph.graph["weights"].values()),
            )
            step = "split"
            split, stages = split_in_stages(captured, problem)
            self._add(stages=stages, split_s=self._lap_s())
            step = "run"
            if self._configuration.device == "meta":
                self._add(ran=run_on_meta(captured, split))
            else:
                self._compare(model, split, args, kwargs)
        except Exception as error:
            # A model is foreign code: any exception becomes its row.
            field = "split_reason" if step in ("split", "run") else "reason"
            self._add(**{field: f"{step}: {self._words(error)}"})
        return self.row

    def _compare(self, model: Any, split: Any, args: Any, kwargs: Any) -> None:
        """Compare model and stages in their intended use."""
        import torch

        from fx_bridge import check_equivalence

        trained = self._configuration.trained
        with torch.set_grad_enabled(trained), self._precision("call", "capture and call"):
            report = check_equivalence(model, split, args, kwargs, gradients=trained)
        self._add(
            ran=True,
            equal=report.outputs_equal and report.state_equal and report.random_state_equal,
            gradients_equal=report.gradients_equal,
            split_reason="" if report.equal else f"run: {'; '.join(report.differences)}",
        )

    def _precision(self, *under: str) -> contextlib.AbstractContextManager[Any]:
        """Return autocast, enabled if the configuration has one of these values."""
        import torch

        enabled = self._configuration.autocast in under
        return torch.autocast("cpu", torch.bfloat16, enabled=enabled)

    def _check_package(self) -> None:
        package = self._configuration.package
        if package is not None and importlib.util.find_spec(package) is None:
            remedy = _INSTALL.get(package, f"pip install {package}")
            raise PartitionError(f"{package} is not installed; {remedy}")

    def _lap_s(self) -> float:
        last_s, self._last_s = self._last_s, time.process_time()
        return self._last_s - last_s

    def _add(self, **found: Any) -> None:
        self.row = replace(self.row, peak_memory_bytes=peak_rss_bytes(), **found)
        if self._results is not None:
            self._results.send((self.row, False))

    def _words(self, error: BaseException) -> str:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, MemoryError) or "allocate memory" in str(cause):
                return f"needs more than {self._limits.memory_bytes / 2**30:g} GiB of memory"
            cause = cause.__cause__ or cause.__context__
        return describe_error(error)


def split_in_stages(
    captured: CapturedGraph, problem: PartitionProblem
) -> tuple[fx.GraphModule, int]:
    """Split a model by a contiguous plan of even loads, and return its number of stages too.

    Parameters
    ----------
    problem : PartitionProblem
        Problem of the same graph; its devices are ignored.

    Raises
    ------
    PartitionError
        If there is no plan, or the model cannot be split by it.
    """
    from fx_bridge.split.by_plan import split_by_plan

    # Even loads, not even memory: a large embedding would leave little for a fourth stage.
    problem = problem.replace(
        devices=tuple(Device(f"cuda:{i}") for i in range(STAGES)), objective=("bottleneck",)
    )
    result = solve(problem, SolveLimits(workers=1), solver="chain")
    if result.plan is None or result.objective is None:
        raise PartitionError(f"no contiguous plan: {result.reason}")
    return split_by_plan(captured, result.plan), len(result.plan.stages)


def run_on_meta(captured: CapturedGraph, split: fx.GraphModule) -> bool:
    """Run the stages on the meta device; return False if an operator needs values of tensors.

    Raises
    ------
    PartitionError
        If the stages return other shapes or dtypes than the model.
    """
    import torch
    from torch.utils import _pytree as pytree

    if captured.storage_table.made_up:
        return False
    with torch.no_grad():
        given = split(*captured.args, **captured.kwargs)
    returned = pytree.tree_leaves(captured.graph.output_node().args[0])
    values = [node.meta["val"] if isinstance(node, torch.fx.Node) else node for node in returned]
    found, expected = (
        [(tuple(t.shape), t.dtype) for t in pytree.tree_leaves(tree) if torch.is_tensor(t)]
        for tree in (given, values)
    )
    if found != expected:
        raise PartitionError(f"the stages return {found}, the model {expected}")
    return True
