"""Llama-3-70B on unequal devices, by planners of transformers and accelerate, and by ours."""

from __future__ import annotations

from typing import Final

from experiments.comparison.records import PlannerRow
from experiments.comparison.settings import CompareSettings
from experiments.paper.bench import ANSWER, Bench
from experiments.paper.tables import PaperTable
from experiments.problems.devices import parse_devices
from experiments.problems.request import ProblemRequest
from solver import Pipeline, SolveResult, SolveStatus
from solver.model.quantities import format_bytes, format_value

_MODEL: Final = "llama3-70b"
_DEVICES: Final = {"80+80+24+24 GB": "2x80GB,2x24GB", "80+60+40+20 GB": "80GB,60GB,40GB,20GB"}
_PEERS: Final = {
    "transformers `auto`": "transformers-auto",
    "accelerate `balanced`": "accelerate-balanced",
    "transformers `sequential`": "transformers-sequential",
}
_MOST_ROUNDS: Final = 100


def llama(bench: Bench) -> PaperTable:
    """Plan Llama-3-70B, weights alone, by other planners and by ours."""
    settings = CompareSettings(
        # The peers do not know chunks: data may come back to a device.
        ProblemRequest(memory_model="weights", pipeline=Pipeline(chunks_per_device=_MOST_ROUNDS)),
        {label: parse_devices(text) for label, text in _DEVICES.items()},
        tuple(_PEERS.values()),
        ANSWER,
        check_splits="none",
    )
    rows = []
    found = bench.compare([_MODEL], settings)
    for case in found.cases:
        label, cells = case.key.device_set, map(_peer_text, found.rows_of(case.key))
        assert case.problem is not None
        problem = case.problem.replace(chunks_per_device=1)
        fewest = bench.solve(problem.replace(objective="devices"), f"{_MODEL} on {label}, devices")
        fastest = bench.solve(problem, f"{_MODEL} on {label}, bottleneck")
        rows.append((label, *cells, _fewest_text(fewest), _fastest_text(fastest)))
    return PaperTable(("devices", *_PEERS, "fewest", "on all"), tuple(rows))


def _peer_text(row: PlannerRow) -> str:
    if row.spilled_bytes:
        return f"{format_bytes(row.spilled_bytes)} to disk"
    if row.feasible and row.plan is not None:
        rounds = 1 + max(row.plan.chunks.values(), default=0)
        again = f", {rounds} passes" if rounds > 1 else ""
        return f"fits on {row.devices_used}{again}"
    return row.reason or row.status


def _fewest_text(result: SolveResult) -> str:
    proven = ", proven" if result.status is SolveStatus.OPTIMAL else ""
    return f"{result.objective}{proven}"


def _fastest_text(result: SolveResult) -> str:
    if result.objective is None:
        return result.status.value
    proven = ", proven" if result.status is SolveStatus.OPTIMAL else ""
    return f"{format_value('bottleneck', result.objective)}{proven}"
