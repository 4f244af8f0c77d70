"""Workspaces of operators: bytes that each allocates and releases before its end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from fx_bridge.capture.graph import COMPUTE_OPS, CapturedGraph
from fx_bridge.memory.ledger import Ledger
from fx_bridge.storages.device_kernels import DeviceKernels
from fx_bridge.storages.replay import Replay


class WorkspaceRun(Replay):
    """A replay that records the bytes that each operator allocates beyond its results.

    Attributes
    ----------
    workspace_bytes : dict of str to int
        By operator.
    """

    # Without gradients too: kernels query requires_grad.
    differentiates = True

    def __init__(self, captured: CapturedGraph, *, training: bool) -> None:
        super().__init__(captured.module, kernels=DeviceKernels.of(captured))
        self.workspace_bytes: dict[str, int] = {}
        self._training = training
        self._ledger = Ledger()

    def contexts(self) -> Iterator[contextlib.AbstractContextManager[Any]]:
        """Yield the contexts around the run, outermost first."""
        yield from super().contexts()
        yield torch.set_grad_enabled(self._training)
        yield self._ledger

    def observe(self, node: fx.Node) -> Any:
        """Run `node` and record its workspace."""
        if node.op not in COMPUTE_OPS:
            return super().observe(node)
        ledger = self._ledger
        ledger.begin("forward", node.name)
        ledger.hold([self.env[read] for read in node.all_input_nodes], "input", node.name)
        ledger.begin("forward", node.name)
        before_bytes, known = ledger.live_bytes, len(ledger.allocations)
        value = super().observe(node)
        made = ledger.allocations[known:]
        left_bytes = sum(each.size_bytes for each in made if each.last > len(ledger.positions))
        self.workspace_bytes[node.name] = (
            ledger.positions[-1].peak_bytes - before_bytes - left_bytes
        )
        ledger.begin("forward", "")  # later allocations are not charged to `node`
        return value
