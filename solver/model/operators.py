"""The nodes of an operator graph.

The semantics of every field are those of ``docs/definition.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from solver.model.checks import check_name, check_natural, only_given, remake, several
from solver.model.errors import PartitionError
from solver.model.text import shown
from solver.model.training import NO_BACKWARD, Backward, as_times


@dataclass(frozen=True, slots=True)
class Operator:
    """One schedulable node of the operator graph.

    Parameters
    ----------
    name : str
        Unique among operators and graph inputs.
    latency_ns : int or mapping of str to int
        Time of one execution: one number for all devices, or one per device class.
    reads : tuple of str
        Operators and graph inputs whose values it reads.
    storage_bytes : int
        Bytes that it allocates; 0 for a view.
    workspace_bytes : int
        Further bytes that it allocates temporarily while it runs.
    value_bytes : int
        Bytes transferred if another device needs its value.
    alias_of : str, optional
        The operator or graph input, one of `reads`, in whose storage its value lives.
    weights : tuple of str
        Keys of the weights that it reads.
    backward : Backward
        Its backward pass (memory model ``training``).
    is_output : bool
        True if the graph returns its value.
    allowed_devices : frozenset of str, optional
        Names of the devices that may run it; None allows all.
    transfer_ns : int, optional
        Time of one send or receive of its value on any link, instead of the link's own latency
        and bandwidth; in training it includes the return of its gradient.
    received_bytes : int, optional
        Bytes that a reading stage elsewhere holds, by default `value_bytes`. The two differ if an
        operator stands for several passes that hold their values one at a time
        (:mod:`solver.model.phases`). Not used in training.
    is_backward : bool
        True if it belongs to the backward pass: its edges cost transfers, but do not order stages.
    stage : int, optional
        The stage that must run it, as an index in ``PartitionPlan.stages``; None allows all.
    in_place : bool
        True if it writes into the storage of `alias_of`.
    module : str
        Path of its module in the model, such as ``"layers.0.attn"``; only for display.
    """

    name: str
    latency_ns: int | Mapping[str, int] = 0
    reads: tuple[str, ...] = ()
    storage_bytes: int = 0
    workspace_bytes: int = 0
    value_bytes: int = 0
    alias_of: str | None = None
    weights: tuple[str, ...] = ()
    backward: Backward = NO_BACKWARD
    is_output: bool = False
    allowed_devices: frozenset[str] | None = None
    transfer_ns: int | None = None
    received_bytes: int | None = None
    is_backward: bool = False
    stage: int | None = None
    in_place: bool = False
    module: str = ""
    __repr__ = only_given

    def __post_init__(self) -> None:
        check_name(self.name, "operator name")
        where = f"operator {self.name!r}: "
        latency_ns = as_times(self.latency_ns, f"{where}latency_ns")
        object.__setattr__(self, "latency_ns", latency_ns)
        for attribute in ("storage_bytes", "workspace_bytes", "value_bytes"):
            check_natural(getattr(self, attribute), f"{where}{attribute}")
        for attribute in ("transfer_ns", "received_bytes", "stage"):
            if getattr(self, attribute) is not None:
                check_natural(getattr(self, attribute), f"{where}{attribute}")
        for attribute in ("reads", "weights"):
            names = several(getattr(self, attribute), f"{where}{attribute}")
            for item in names:
                check_name(item, f"{where}an entry of {attribute}")
            object.__setattr__(self, attribute, tuple(dict.fromkeys(names)))
        if self.module != "":
            check_name(self.module, f"{where}module")
        if self.alias_of is not None:
            if self.alias_of not in self.reads:
                raise PartitionError(
                    f"{where}alias_of is {shown(self.alias_of)}, which it does not read; "
                    "add it to reads, or leave alias_of out"
                )
            if self.storage_bytes:
                raise PartitionError(
                    f"{where}storage_bytes is {self.storage_bytes} though it is an alias of "
                    f"{self.alias_of!r}; an alias allocates 0 bytes"
                )
        elif self.in_place:
            raise PartitionError(f"{where}in_place is set, but it is an alias of nothing")
        if not isinstance(self.backward, Backward):
            raise PartitionError(
                f"{where}backward is {shown(self.backward)}; write Backward(...), or leave it out"
            )
        for name in (self.backward.passes_to, *self.backward.slices):
            if name is not None and name not in self.reads:
                raise PartitionError(
                    f"{where}backward passes its gradient to {name!r}, which the operator does not "
                    "read; name some of reads in passes_to and slices, or leave them out"
                )
        if self.backward.kept_bytes > self.storage_bytes:
            raise PartitionError(
                f"{where}backward passes keep {self.backward.kept_bytes} bytes of a storage of "
                f"{self.storage_bytes}; write residual_bytes for what is no part of it"
            )
        if self.allowed_devices is not None:
            devices = several(self.allowed_devices, f"{where}allowed_devices")
            for item in devices:
                check_name(item, f"{where}an entry of allowed_devices")
            object.__setattr__(self, "allowed_devices", frozenset(devices))
            if not self.allowed_devices:
                raise PartitionError(
                    f"{where}allowed_devices is empty; name a device, or leave it out to allow all"
                )

    def __reduce__(self) -> tuple[Any, ...]:
        return remake(self)

    @property
    def held_value_bytes(self) -> int:
        """Bytes of its value that a reading stage elsewhere holds."""
        return self.value_bytes if self.received_bytes is None else self.received_bytes

    def latency_on(self, device_class: str) -> int:
        """Return the execution time in nanoseconds on a device of `device_class`."""
        if isinstance(self.latency_ns, Mapping):
            return self.latency_ns[device_class]
        return self.latency_ns
