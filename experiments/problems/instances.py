"""Device sets derived from a model's own size, so that memory binds and a plan exists.

The reference is the memory of the whole model on one device under the given memory model:
weights, inputs and the largest live set of activations. A device set with shares ``s_i`` (of sum
1) gets capacities ``s_i * reference * scale``. `scale` is the requested slack, such as 1.15,
unless no contiguous cut fits: one big embedding, or activations held at both ends of a cut, may
need more. It is then 2 % above the least scale at which the chain solver finds a contiguous cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from experiments.problems.devices import DeviceSet
from solver import Device, PartitionPlan, PartitionProblem, SolveLimits, evaluate, solve
from solver.io.digraph import problem_from_digraph

if TYPE_CHECKING:
    import networkx as nx

DERIVED: Final = ("equal", "unequal", "roomy")
"""Names of the sets of :func:`derived_device_sets`."""
UNEQUAL_SHARES: Final = (400, 300, 200, 100)
"""Shares of the unequal devices, per mille."""

_MARGIN_PERMILLE: Final = 1020
_PROBE: Final = 4
_PROBE_LIMIT_S: Final = 20.0


def one_device_bytes(problem: PartitionProblem) -> int:
    """Return the memory of the whole model on one device."""
    device = Device("all", None, problem.devices[0].device_class)
    whole = problem.replace(
        devices=(device,),
        interconnect=replace(problem.interconnect, links={}),
        operators=tuple(replace(op, allowed_devices=None, stage=None) for op in problem.operators),
        cuts=(),
        objective=("peak_memory",),
    )
    plan = PartitionPlan(dict.fromkeys(whole.index_of, device.name), (device.name,))
    return evaluate(whole, plan).usage[0].memory_bytes


def derived_device_sets(
    graph: nx.DiGraph, *, equal_devices: int, slack_permille: int, **settings: Any
) -> dict[str, DeviceSet]:
    """Return sets of equal, unequal and roomy devices for an operator graph.

    Each roomy device holds the whole model, so that planners differ by times alone. The sets of
    equal and of roomy devices have `equal_devices`, the unequal set has the shares
    `UNEQUAL_SHARES`. Total capacity is `slack_permille` thousandths of the model's memory on one
    device, under further settings of the problem, such as ``memory_model``.
    """
    probe = problem_from_digraph(graph, (Device("probe"),), **settings)
    equal = (1,) * equal_devices
    need_bytes = max(1, one_device_bytes(probe))
    sets = {
        "equal": devices_by_shares(probe, equal, slack_permille),
        "unequal": devices_by_shares(probe, UNEQUAL_SHARES, slack_permille),
        "roomy": _devices(equal, need_bytes, 1000 * equal_devices),
    }
    return {name: DeviceSet(devices) for name, devices in sets.items()}


def devices_by_shares(
    problem: PartitionProblem, shares: Sequence[int], slack_permille: int
) -> tuple[Device, ...]:
    """Return devices with capacities in the proportions `shares`, on which a plan exists.

    The problem's own devices are ignored. Total capacity is `slack_permille` thousandths of the
    model's memory on one device.
    """
    need_bytes = max(1, one_device_bytes(problem))
    scale = max(slack_permille, _least_scale_permille(problem, shares, need_bytes))
    return _devices(shares, need_bytes, scale)


def _devices(shares: Sequence[int], need_bytes: int, scale_permille: int) -> tuple[Device, ...]:
    total = sum(shares)
    return tuple(
        Device(f"cuda:{i}", -(-need_bytes * share * scale_permille // (total * 1000)))
        for i, share in enumerate(shares)
    )


def _least_scale_permille(probe: PartitionProblem, shares: Sequence[int], need_bytes: int) -> int:
    """Return the least scale for which a contiguous cut exists, with a margin, or 0."""
    generous = probe.replace(
        devices=_devices(shares, need_bytes, _PROBE * 1000), objective=("peak_memory",)
    )
    result = solve(generous, SolveLimits(time_limit_s=_PROBE_LIMIT_S, workers=1), solver="chain")
    if result.objective is None:
        return 0
    # In thousandths of a capacity of _PROBE times the share; rounded up by the evaluator.
    return -(-result.objective * _PROBE * _MARGIN_PERMILLE // 1000)
