"""A process of a pipeline on this machine, which measures operators and times stages.

It is started by :mod:`experiments.pipelines.group`, answers its jobs, and keeps the last captured
model.
"""

from __future__ import annotations

import gc
import platform
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from experiments.pipelines.link_timing import ping_pong
from experiments.pipelines.loopback import HOST, keep_gloo_on_loopback, loopback_store
from experiments.processes.workers import serve
from experiments.zoo.building import DEFAULT_CAPTURE, CaptureRequest
from experiments.zoo.models import captured_model
from fx_bridge.capture.digest import graph_digest
from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.costs.timing import measure_operators
from fx_bridge.costs.workspaces import measure_workspaces
from solver.io.json_files import plan_from_json


class Worker:
    """The state of a process between jobs."""

    def __init__(self) -> None:
        self._rank = 0
        self._capture = DEFAULT_CAPTURE
        self._captured: dict[str, CapturedGraph] = {}
        self._groups: dict[int, distributed.ProcessGroup] = {}
        self._store: TCPStore | None = None

    def handle(self, job: dict[str, Any]) -> Mapping[str, Any]:
        """Do one job."""
        jobs: dict[str, Callable[..., dict[str, Any]]] = {
            "open": self.open,
            "wait": dict,
            "join": self.join,
            "link": self.link,
            "measure": self.measure,
            "run": self.run,
        }
        return jobs[job.pop("task")](**job)

    def open(self) -> dict[str, Any]:
        """Host the store of the process group, which leaves no file behind."""
        self._store = loopback_store()
        return {"port": self._store.port}

    def join(
        self, *, rank: int, world: int, port: int, threads: int, capture: dict[str, Any]
    ) -> dict[str, Any]:
        """Join the process group."""
        torch.set_num_threads(threads)
        self._rank = rank
        self._capture = CaptureRequest(**capture)
        keep_gloo_on_loopback()
        store = self._store or TCPStore(HOST, port, is_master=False)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
        # Every process takes part in the creation of every group.
        for count in range(1, world + 1):
            self._groups[count] = distributed.new_group(list(range(count)))
        return {
            "machine": {
                "host": platform.node(),
                "system": platform.platform(),
                "capability": torch.backends.cpu.get_cpu_capability(),
                "torch": str(torch.__version__),
            }
        }

    def link(self) -> dict[str, Any]:
        """Measure the link between ranks 0 and 1."""
        return {"samples": ping_pong(self._rank) if self._rank < 2 else []}

    def measure(
        self, *, model: str, training: bool, repeats: int, processes: int
    ) -> dict[str, Any]:
        """Measure the operators of a model, if this is one of the first `processes`."""
        if self._rank >= processes:
            return {}
        captured = self._model(model)
        together = self._groups[processes]
        times = measure_operators(
            captured,
            repeats=repeats,
            training=training,
            before_run=lambda: distributed.barrier(together),
        )
        workspaces = measure_workspaces(captured, training=training)
        return {
            "graph_digest": graph_digest(captured),
            "workspace_bytes": dict(workspaces.forward_bytes),
            "backward_workspace_bytes": dict(workspaces.backward_bytes),
            "forward_ns": dict(times.forward_ns),
            "backward_ns": dict(times.backward_ns),
            "forward_permille": times.forward_permille,
            "backward_permille": times.backward_permille,
        }

    def run(self, *, model: str, plans: list[dict[str, Any]], **settings: Any) -> dict[str, Any]:
        """Run plans of a model by :func:`experiments.pipelines.plan_steps.run_alternately`."""
        from experiments.pipelines.plan_steps import run_alternately

        found = run_alternately(
            self._model(model),
            list(map(plan_from_json, plans)),
            self._rank,
            self._groups,
            **settings,
        )
        return {"plans": found}

    def _model(self, name: str) -> CapturedGraph:
        if name not in self._captured:
            # One at a time: the next model may need the memory.
            self._captured.clear()
            gc.collect()
            self._captured[name] = captured_model(name, self._capture)
        return self._captured[name]


def main() -> None:
    """Serve until the parent ends."""
    serve(Worker().handle)


if __name__ == "__main__":
    main()
