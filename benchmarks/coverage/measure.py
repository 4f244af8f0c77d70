"""Capture, export and split of one model, in a process of its own.

A model that ends the process, fills memory or never returns becomes a row with a reason.
"""

import contextlib
import importlib.util
import multiprocessing
import os
import signal
import time
from dataclasses import dataclass, replace

from benchmarks.coverage.all_small import small_models
from experiments.processes.environment import peak_rss_bytes
from experiments.processes.workers import exit_words
from experiments.zoo.building import describe_error
from experiments.zoo.configurations import CONFIGURATIONS
from solver import Device, PartitionError, SolveLimits, solve
from solver.io.digraph import problem_from_digraph

STAGES = 4


@dataclass(frozen=True)
class Row:
    """Outcome of one model; None where nothing was measured.

    Attributes
    ----------
    how, note : str
        As in :class:`~fx_bridge.capture.graph.CapturedGraph`.
    made_up : tuple of str
        Operators that cannot run without values of tensors, whose storages have the captured
        sizes; see :class:`fx_bridge.storages.table.StorageTable`.
    capture_s, export_s : float or None
        Seconds of processor time.
    ran : bool
        The stages were run; on the meta device only shapes and dtypes are compared.
    step : str
        The step that failed, or empty.
    """

    model: str
    family: str
    how: str = ""
    note: str = ""
    nodes: int | None = None
    operators: int | None = None
    made_up: tuple[str, ...] = ()
    weights_bytes: int | None = None
    capture_s: float | None = None
    export_s: float | None = None
    stages: int = 0
    ran: bool = False
    equal: bool | None = None
    gradients_equal: bool | None = None
    peak_memory_bytes: int | None = None
    step: str = ""
    reason: str = ""


def configurations():
    """Return all models by name, published ones first."""
    return {**CONFIGURATIONS, **small_models()}


def isolated_row(name, family, seconds, memory_bytes):
    """Measure one model in its own process, up to its end or a limit of time."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fx_bridge", "torch.export", "transformers", __name__])
    ours, theirs = context.Pipe(duplex=False)
    worker = context.Process(target=_work, args=(name, memory_bytes, theirs), daemon=True)
    deadline_s = time.monotonic() + seconds
    row = Row(name, family, step="build")
    worker.start()
    theirs.close()
    try:
        while row.step and not row.reason:
            if not ours.poll(max(0.0, deadline_s - time.monotonic())):
                return replace(row, reason=f"not done after {seconds:g} s")
            row = ours.recv()
    except EOFError:
        worker.join()
        return replace(row, reason=f"its process ended: {exit_words(worker.exitcode or 0)}")
    finally:
        worker.kill()
        worker.join()
        ours.close()
    return row


def _work(name, memory_bytes, results):
    # The parent ends this process on Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # By descriptor, for native code too.
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    for row in rows_of(configurations()[name]):
        results.send(row)
    results.close()


def rows_of(configuration):
    """Yield the row of a model before each step, and at the end."""
    row = Row(configuration.name, configuration.family)
    try:
        for step, found in _steps(configuration):
            row = replace(row, step=step, peak_memory_bytes=peak_rss_bytes(), **found)
            if step:
                yield row
    except Exception as error:
        # A model is foreign code: any exception becomes its row.
        row = replace(row, reason=_words(error))
    yield row


def _steps(configuration):
    """Yield the name of each step before it, with what the one before has found."""
    yield "build", {}
    package = configuration.package
    if package is not None and importlib.util.find_spec(package) is None:
        raise PartitionError(f"{package} is not installed; pip install {package}")
    model, args, kwargs = configuration.build()
    # The imports do not count for the model's time.
    from fx_bridge import capture, to_digraph
    from fx_bridge.split.by_plan import split_by_plan

    yield "capture", {}
    constants = getattr(configuration, "constants", ())
    started_s = time.process_time()
    with _autocast(configuration, "capture and call"):
        captured = capture(model, args, kwargs, constants=constants)
    captured_s = time.process_time()
    found = {"how": captured.how, "note": captured.note, "nodes": len(captured.graph.nodes)}
    found["operators"], found["capture_s"] = len(captured.operators), captured_s - started_s
    yield "export", found
    graph = to_digraph(captured)
    # Even loads, not even memory: a large embedding would leave little for a fourth stage.
    devices = tuple(Device(f"cuda:{i}") for i in range(STAGES))
    problem = problem_from_digraph(graph, devices).replace(objective=("bottleneck",))
    sizes = (weight["size_bytes"] for weight in graph.graph["weights"].values())
    found = {"weights_bytes": sum(sizes), "made_up": tuple(graph.graph["info"]["made_up"])}
    yield "split", {**found, "export_s": time.process_time() - captured_s}
    result = solve(problem, SolveLimits(workers=1), solver="chain")
    if result.plan is None:
        raise PartitionError(f"no contiguous plan: {result.reason}")
    split = split_by_plan(captured, result.plan)
    yield "run", {"stages": len(result.plan.stages)}
    if configuration.device == "meta":
        yield "", {"ran": run_on_meta(captured, split)}
    else:
        yield "", _compared(configuration, model, split, args, kwargs)


def _autocast(configuration, *under):
    """Return autocast, enabled if the configuration has one of these values."""
    import torch

    enabled = getattr(configuration, "autocast", "") in under
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled)


def _compared(configuration, model, split, args, kwargs):
    """Compare model and stages in their intended use."""
    import torch

    from fx_bridge import check_equivalence

    trained = configuration.trained
    with torch.set_grad_enabled(trained), _autocast(configuration, "call", "capture and call"):
        report = check_equivalence(model, split, args, kwargs, gradients=trained)
    return {
        "ran": True,
        "equal": report.outputs_equal and report.state_equal and report.random_state_equal,
        "gradients_equal": report.gradients_equal,
        "reason": "; ".join(report.differences),
    }


def run_on_meta(captured, split):
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


def _words(error):
    cause = error
    while cause is not None:
        if isinstance(cause, MemoryError) or "allocate memory" in str(cause):
            return "needs more memory than --memory-limit"
        cause = cause.__cause__ or cause.__context__
    return describe_error(error)
