"""Memory profiles: live storages by node, and at the peak."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from fx_bridge.memory.ledger import Kind, Phase
from solver.model.checks import only_given
from solver.model.quantities import counted

_SHOWN: Final = 10
"""Most storages in a printed profile."""


@dataclass(frozen=True, slots=True)
class LiveStorage:
    """One storage that is alive at some moment.

    Attributes
    ----------
    kind : str
        ``"weight"``, ``"input"``, ``"output"`` (returned), ``"saved"`` (for the backward pass),
        ``"activation"`` (any other value of the forward pass), ``"gradient"`` (of a parameter,
        or of a value in the backward pass), ``"optimizer"`` (moments, step counts, master
        copies), or ``"temporary"`` (released before its operator ends).
    owner : str
        Name of the weight or parameter, of the input, or of its operator; in the backward pass,
        of the operator whose derivative allocated it.
    size_bytes : int
        Of the whole storage, even if only a part is read.
    """

    kind: Kind
    owner: str
    size_bytes: int
    __repr__ = only_given


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """Memory while one node ran.

    Attributes
    ----------
    phase : {"forward", "backward", "optimizer"}
        The pass in which the node ran.
    node : str
        Name of the operator; ``"output"`` for the return of the graph, ``"loss"``, and in the
        phase ``"optimizer"`` the part of the step.
    peak_bytes : int
        Alive at once while it ran, its inputs and results included.
    live_bytes : int
        Alive when it had run and values without further readers were released.
    """

    phase: Phase
    node: str
    peak_bytes: int
    live_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Memory of one run of a graph.

    Attributes
    ----------
    points : tuple of MemoryPoint
        In execution order. In the backward pass an operator has a point for every visit of
        autograd.
    peak_bytes : int
        The largest of the points' peaks.
    peak_index : int
        The first point that has it.
    alive_at_peak : tuple of LiveStorage
        Live storages then, largest first; their sizes add up to `peak_bytes`.
    made_up : tuple of str
        Operators that cannot run on fake tensors, whose results have the captured sizes.
    """

    points: tuple[MemoryPoint, ...]
    peak_bytes: int
    peak_index: int
    alive_at_peak: tuple[LiveStorage, ...]
    made_up: tuple[str, ...] = ()
    __repr__ = only_given

    @property
    def peak_point(self) -> MemoryPoint:
        """The point with the peak."""
        return self.points[self.peak_index]

    @property
    def bytes_at_peak(self) -> dict[Kind, int]:
        """Bytes alive at the peak by kind, largest first."""
        totals: dict[Kind, int] = {}
        for storage in self.alive_at_peak:
            totals[storage.kind] = totals.get(storage.kind, 0) + storage.size_bytes
        return dict(sorted(totals.items(), key=lambda item: -item[1]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for ``json.dumps``."""
        return {
            **asdict(self),
            "peak_phase": self.peak_point.phase,
            "peak_node": self.peak_point.node,
            "bytes_at_peak": self.bytes_at_peak,
        }

    def __str__(self) -> str:
        where = self.peak_point
        lines = [f"peak {self.peak_bytes:,} bytes, {where.phase} of {where.node}"]
        lines += [f"{total:>18,}  {kind}" for kind, total in self.bytes_at_peak.items()]
        lines.append("largest at the peak:")
        for storage in self.alive_at_peak[:_SHOWN]:
            lines.append(f"{storage.size_bytes:>18,}  {storage.kind} {storage.owner}")
        if len(self.alive_at_peak) > _SHOWN:
            rest = self.alive_at_peak[_SHOWN:]
            lines.append(
                f"{sum(s.size_bytes for s in rest):>18,}  in {counted(len(rest), 'other')}"
            )
        return "\n".join(lines)
