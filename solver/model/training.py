"""Backward passes of operators, and the microbatches in flight under a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from solver.model.checks import check_name, check_natural, only_given, remake, several
from solver.model.errors import PartitionError
from solver.model.text import shown

Schedule = Literal["gpipe", "1f1b"]
SCHEDULES: Final[tuple[str, ...]] = ("gpipe", "1f1b")
RecomputeRule = Literal["none", "auto", "layers"]
RECOMPUTE: Final[tuple[str, ...]] = ("none", "auto", "layers")
"""Recomputation in the backward pass: none, any operators that a plan names, or whole regions."""


def as_times(latency_ns: object, what: str) -> object:
    """Return a time, or a read-only copy of times by device class; raise unless natural."""
    if not isinstance(latency_ns, Mapping):
        check_natural(latency_ns, what)
        return latency_ns
    for device_class, own_ns in latency_ns.items():
        check_natural(own_ns, f"{what}[{device_class!r}]")
    return MappingProxyType(dict(latency_ns))


@dataclass(frozen=True, slots=True)
class Backward:
    """The backward pass of one operator; only the memory model ``training`` uses it.

    Parameters
    ----------
    latency_ns : int or mapping of str to int
        Nanoseconds in addition to the time of the operator: one number, or one per device class.
    gradient_bytes : int
        Bytes of the gradient of the operator's value, returned wherever the value is sent; 0 if
        no gradient is needed.
    passes_to : str, optional
        One of `Operator.reads` that gets this gradient unchanged: the base of a view, or a term
        of a sum.
    slices : tuple of str
        Those of `Operator.reads` whose gradients are slices of this gradient: the operands of a
        concatenation or stack.
    buffer_bytes : int
        Bytes of the buffer kept alive by its gradient if that is a contiguous slice, as for
        values concatenated along the first dimension; 0 if it is none.
    kept_bytes : int
        Bytes of its storage kept for backward passes, its own or those of its readers.
    residual_bytes : int
        Bytes made and kept for its own backward pass alone.
    workspace_bytes : int
        Most bytes that its backward pass allocates besides gradients of values and weights.
    weight_gradient_bytes : int
        Bytes of its weights' gradients that are added to those of earlier microbatches.
    saves : tuple of str
        Operators whose storages the backward pass needs: those that it reads, itself, or their
        alias bases. Only recomputation uses it.
    recomputable : bool
        True if the operator may be recomputed in the backward pass instead of keeping its value:
        it has no lasting side effects, and repeats its result.
    must_recompute : bool
        True if it is `recomputable`, and is recomputed whenever only its region needs its value.
    rng_bytes : int
        Bytes of the random number generator state saved to repeat its result.
    region : int
        Region of recomputation (:mod:`solver.model.recomputation`); never descending in the
        execution order.
    number_bytes : int
        Bytes of Python numbers that its backward pass saves, as for ``x * 0.5``; kept even if it
        is recomputed.

    Examples
    --------
    >>> Backward(latency_ns=20, gradient_bytes=64, kept_bytes=64).saved_bytes
    64
    """

    latency_ns: int | Mapping[str, int] = 0
    gradient_bytes: int = 0
    passes_to: str | None = None
    slices: tuple[str, ...] = ()
    buffer_bytes: int = 0
    kept_bytes: int = 0
    residual_bytes: int = 0
    workspace_bytes: int = 0
    weight_gradient_bytes: int = 0
    saves: tuple[str, ...] = ()
    recomputable: bool = False
    must_recompute: bool = False
    rng_bytes: int = 0
    region: int = 0
    number_bytes: int = 0
    __repr__ = only_given

    def __post_init__(self) -> None:
        object.__setattr__(self, "latency_ns", as_times(self.latency_ns, "latency_ns"))
        for name in (
            "gradient_bytes",
            "buffer_bytes",
            "kept_bytes",
            "residual_bytes",
            "workspace_bytes",
            "weight_gradient_bytes",
            "rng_bytes",
            "region",
            "number_bytes",
        ):
            check_natural(getattr(self, name), name)
        for field in ("saves", "slices"):
            names = several(getattr(self, field), field)
            for item in names:
                check_name(item, f"an entry of {field}")
            object.__setattr__(self, field, tuple(dict.fromkeys(names)))
        for name in ("recomputable", "must_recompute"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise PartitionError(f"{name} is {shown(value)}; write true or false")
        if self.must_recompute and not self.recomputable:
            raise PartitionError(
                "must_recompute is true, but recomputable is not; write both, or neither"
            )
        if self.passes_to is not None:
            check_name(self.passes_to, "passes_to")

    def __reduce__(self) -> tuple[Any, ...]:
        return remake(self)

    @property
    def saved_bytes(self) -> int:
        """Bytes kept of one microbatch until its backward pass."""
        return self.kept_bytes + self.residual_bytes + self.number_bytes

    @property
    def again_bytes(self) -> int:
        """Bytes kept of one microbatch if the operator is recomputed."""
        return self.rng_bytes + self.number_bytes

    def latency_on(self, device_class: str) -> int:
        """Return the time of the backward pass on a device of `device_class`."""
        if isinstance(self.latency_ns, Mapping):
            return self.latency_ns[device_class]
        return self.latency_ns


NO_BACKWARD: Final = Backward()
"""The backward pass of an operator without gradient."""


def in_flight(
    schedule: Schedule,
    microbatches: int,
    *,
    chunks: int,
    devices: int,
    followers: int,
    later_chunks: int = 0,
) -> int:
    """Return the most microbatches for which a stage keeps tensors of backward passes.

    Parameters
    ----------
    schedule : {"gpipe", "1f1b"}
        As in :func:`~solver.model.schedules.action_tables`.
    microbatches : int
        Microbatches of the step.
    chunks : int
        Chunks per device.
    devices : int
        Number of used devices; ignored if `chunks` is 1.
    followers : int
        Devices after the stage's device.
    later_chunks : int
        Chunks after the stage's chunk.

    Notes
    -----
    GPipe keeps all microbatches (Huang et al., "GPipe", NeurIPS 2019, section 2.3), 1F1B one per
    device from here to the last (Narayanan et al., "PipeDream", SOSP 2019, section 3.2). With
    several chunks 1F1B is interleaved (Narayanan et al., "Efficient large-scale language model
    training on GPU clusters using Megatron-LM", SC 2021, section 2.2), as
    ``torch.distributed.pipelining.ScheduleInterleaved1F1B`` does it: rounds of R microbatches,
    w = (V - 1) R + 2 `followers` forward steps to warm up, then alternate forward and backward
    steps. Chunk c has most in flight when its first backward step is due, after w + (V - 1 - c) R
    + 1 forward steps. A number of microbatches that torch refuses, because its rounds would be
    unequal, is rounded up to the next accepted one.

    Examples
    --------
    >>> in_flight("1f1b", 8, chunks=1, devices=4, followers=3)
    4
    >>> [in_flight("1f1b", 8, chunks=2, devices=4, followers=3, later_chunks=k) for k in (1, 0)]
    [8, 4]
    """
    if schedule == "gpipe":
        return microbatches
    if chunks == 1:
        return min(microbatches, followers + 1)
    rounds, size = interleaved_rounds(microbatches, devices)
    chunk = chunks - 1 - later_chunks
    steps = (chunks - 1 + later_chunks) * size + 2 * followers + 1
    turns, rest = divmod(min(steps, chunks * size * rounds), chunks * size)
    return min(microbatches, turns * size + min(max(rest - chunk * size, 0), size))


def most_in_flight(
    schedule: Schedule,
    microbatches: int,
    *,
    chunks: int,
    devices: int,
    followers: int,
    later_chunks: int = 0,
) -> int:
    """Return the maximum of :func:`in_flight` over all numbers of chunks up to `chunks`.

    A plan may use fewer chunks than allowed. With three or more allowed, a stage of a plan with
    fewer chunks can have more microbatches in flight than a stage at the same distance from the end
    of a plan with all chunks. This maximum covers both, and depends on the distance from the end
    alone, so that memory is linear in the placement.

    >>> [in_flight("1f1b", 20, chunks=v, devices=5, followers=0, later_chunks=1) for v in (2, 3)]
    [6, 5]
    >>> most_in_flight("1f1b", 20, chunks=3, devices=5, followers=0, later_chunks=1)
    6
    """
    return max(
        in_flight(
            schedule,
            microbatches,
            chunks=used,
            devices=devices,
            followers=followers,
            later_chunks=later_chunks,
        )
        for used in range(later_chunks + 1, chunks + 1)
    )


def interleaved_rounds(microbatches: int, devices: int) -> tuple[int, int]:
    """Return the number of rounds of interleaved 1F1B, and the microbatches of each.

    Their product is `microbatches` if torch accepts that number, otherwise more.

    Examples
    --------
    >>> interleaved_rounds(10, devices=4), interleaved_rounds(3, devices=4)
    ((2, 5), (1, 3))
    """
    rounds = max(1, microbatches // devices)
    return rounds, -(-microbatches // rounds)
