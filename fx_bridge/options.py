"""The groups of options of :func:`fx_bridge.partition_module`, checked at construction.

A further group, :class:`solver.Pipeline`, does not depend on the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from fx_bridge.capture.modules import check_modules
from fx_bridge.choices import (
    ExpertsRead,
    Optimizer,
    TiedReaders,
    check_optimizer,
    checked_kernels,
)
from fx_bridge.costs.device_presets import DEVICE_SPECS
from fx_bridge.costs.device_specs import DeviceSpec, check_specs
from fx_bridge.costs.recompute import Recompute
from fx_bridge.split.keep_whole import check_keep_whole
from fx_bridge.split.pins import Pin, check_hand_made
from solver import (
    PCIE,
    Interconnect,
    PartitionError,
    Pipeline,
    SolveLimits,
    check_limits,
    check_solver,
    check_without,
)
from solver.model.checks import check_choice, check_natural, only_given, remake
from solver.model.devices import check_interconnect
from solver.model.text import shown

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph

HeldMemory = Literal["inference", "weights"]
Latencies = Mapping[str, int | Mapping[str, int]]
"""Nanoseconds by operator, or by operator and device class."""


@dataclass(frozen=True, slots=True)
class Training:
    """Forward and backward passes and the optimiser's step, in the times and bytes of a plan.

    Parameters
    ----------
    optimizer : {"adamw", "adam", "momentum", "sgd"}
        Its moments take memory: two per parameter, two, one, none.
    master_weights : bool
        Parameters in 16 bits have a float32 copy and float32 moments.
    tied_weights : {"colocate", "sum"}
        Treatment of a parameter that several operators read: all of them run on one device, or
        every device with a reader holds a copy, and the gradients of the copies are summed.
    recompute : {"none", "auto", "layers", "all"}, sequence of str, or Recompute
        Operators that may be recomputed in the backward pass instead of keeping their values: none;
        those for which it pays, or whole layers, decided with the plan; all of every layer; or
        modules. :class:`Recompute` can also force or forbid modules.
    regions : sequence of str
        Modules whose operators are recomputed together, names or patterns; by default the outermost
        ones that the model repeats, its layers.

    Raises
    ------
    PartitionError
        If a field has another value.

    Examples
    --------
    >>> Training("sgd", tied_weights="sum")
    Training(optimizer='sgd', tied_weights='sum')
    >>> Training(optimizer="lion")
    Traceback (most recent call last):
    solver.model.errors.PartitionError: optimizer is 'lion'; write one of sgd, momentum, adam, adamw
    """

    optimizer: Optimizer = "adamw"
    master_weights: bool = True
    tied_weights: TiedReaders = "colocate"
    recompute: Recompute | str | Sequence[str] = "none"
    regions: Sequence[str] = ()

    def __post_init__(self) -> None:
        check_optimizer(self.optimizer)
        if not isinstance(self.master_weights, bool):
            raise PartitionError(
                f"master_weights is {shown(self.master_weights)}; write True or False"
            )
        check_choice(self.tied_weights, get_args(TiedReaders), "tied_weights")
        object.__setattr__(self, "recompute", Recompute.of(self.recompute).shortest)
        object.__setattr__(
            self, "regions", check_modules(self.regions, "regions", "such as ['h.*']")
        )

    __repr__ = only_given


@dataclass(frozen=True, slots=True)
class Placement:
    """Pins, cuts and undivided modules; the solver decides the rest.

    Parameters
    ----------
    pins : mapping of str to str, sequence of str, or int, optional
        By module, at any depth, or operator: its device, its permitted devices, or the number of
        its stage, from 0.
    cut_after : sequence of str
        Modules or operators after which a stage ends (:mod:`fx_bridge.split.pins`).
    keep_whole : sequence of str
        Modules, each of which stays on one device: names, patterns such as ``"layers.*"``, or
        several modules together, such as ``"wte+lm_head"`` (:mod:`fx_bridge.split.keep_whole`).

    Raises
    ------
    PartitionError
        If a field has another form. Unknown modules, and pins and cuts that contradict each other,
        are refused at planning.

    Examples
    --------
    >>> Placement(pins={"lm_head": "cuda:1"}, cut_after=["h.3"])
    Placement(pins={'lm_head': 'cuda:1'}, cut_after=('h.3',))
    >>> Placement(cut_after="h.3")
    Traceback (most recent call last):
    solver.model.errors.PartitionError: cut_after is 'h.3'; write a list of modules or operators, \
such as ['h.3']
    """

    pins: Mapping[str, Pin] = field(default_factory=dict)
    cut_after: Sequence[str] = ()
    keep_whole: Sequence[str] = ()

    def __post_init__(self) -> None:
        pins, cut_after = check_hand_made(self.pins, self.cut_after)
        object.__setattr__(self, "pins", MappingProxyType(pins))
        object.__setattr__(self, "cut_after", cut_after)
        object.__setattr__(self, "keep_whole", check_keep_whole(self.keep_whole))

    def __reduce__(self) -> tuple[Any, ...]:
        return remake(self)

    __repr__ = only_given


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of operators and transfers, and the memory model.

    Parameters
    ----------
    interconnect : Interconnect
        The links between devices, and the charging of transfers.
    memory_model : {"inference", "weights"}
        Contents of a device's memory that count: weights and live values, or only weights. With a
        :class:`Training`, gradients, optimiser state and microbatches in flight always count.
    specs : mapping of str to DeviceSpec
        Speeds by device class, for roofline latencies. With the default, ``Device.device_class``
        can be any preset.
    latency_ns : mapping of str to int, or to mapping of str to int, optional
        Nanoseconds of every operator by name, or by name and device class, instead of the
        roofline; in training without `backward_latency_ns`, including its backward pass, as from
        ``measured_latency_ns(training=True)``.
    backward_latency_ns : mapping of str to int, or to mapping of str to int, optional
        Nanoseconds of the backward pass of every operator, as from
        :func:`fx_bridge.costs.timing.measure_operators`; ignored without training.
    workspace_bytes, backward_workspace_bytes : mapping of str to int, optional
        Measured workspaces by operator (:func:`fx_bridge.costs.workspaces.measure_workspaces`);
        the larger of these and those of fake tensors counts.
    attention : str or sequence of str, optional
        Kernels of attention on all devices, such as ``"math"``, instead of those of their device
        classes; see :meth:`fx_bridge.CapturedGraph.with_kernels`.
    experts_read : {"average", "most", "all"}
        Number of experts of a mixture that its tokens read, which takes time: the mean if tokens
        choose uniformly, the largest possible number, or every one
        (:func:`fx_bridge.costs.operators.node_moved_bytes`). Every expert takes memory.

    Raises
    ------
    PartitionError
        If a field has a value of the wrong type, or backward passes are timed without forward
        passes.

    Examples
    --------
    >>> Costs(latency_ns={"linear": 1200}, attention="math")
    Costs(latency_ns={'linear': 1200}, attention='math')
    >>> Costs(latency_ns={"linear": 1.5})
    Traceback (most recent call last):
    solver.model.errors.PartitionError: latency_ns['linear'] is 1.5; write a whole number (bytes \
and nanoseconds are integers)
    """

    interconnect: Interconnect = PCIE
    memory_model: HeldMemory = "inference"
    specs: Mapping[str, DeviceSpec] = field(default_factory=lambda: DEVICE_SPECS)
    latency_ns: Latencies | None = None
    backward_latency_ns: Latencies | None = None
    workspace_bytes: Mapping[str, int] | None = None
    backward_workspace_bytes: Mapping[str, int] | None = None
    attention: str | Sequence[str] | None = None
    experts_read: ExpertsRead = "most"

    def __post_init__(self) -> None:
        check_interconnect(self.interconnect)
        model: object = self.memory_model
        if model == "training":
            raise PartitionError(
                "memory_model is 'training'; write training=Training() beside costs instead"
            )
        check_choice(self.memory_model, get_args(HeldMemory), "memory_model")
        check_specs(self.specs)
        for name, unit in (
            ("latency_ns", "nanoseconds"),
            ("backward_latency_ns", "nanoseconds"),
            ("workspace_bytes", "bytes"),
            ("backward_workspace_bytes", "bytes"),
        ):
            object.__setattr__(self, name, _by_operator(getattr(self, name), name, unit))
        if self.backward_latency_ns is not None and self.latency_ns is None:
            raise PartitionError(
                "backward_latency_ns is given without latency_ns; give both, or neither"
            )
        checked_kernels(self.attention)
        check_choice(self.experts_read, get_args(ExpertsRead), "experts_read")
        if self.specs is not DEVICE_SPECS:
            object.__setattr__(self, "specs", MappingProxyType(dict(self.specs)))

    def __reduce__(self) -> tuple[Any, ...]:
        return remake(self)

    __repr__ = only_given

    def with_kernels(self, captured: CapturedGraph) -> CapturedGraph:
        """Return `captured` with the kernels of `attention`, if given."""
        if self.attention is None:
            return captured
        return captured.with_kernels(captured.device_type, self.attention)


@dataclass(frozen=True, slots=True)
class Search:
    """The limits and the solver of a search.

    Parameters
    ----------
    limits : SolveLimits
        Time limit, workers, seed, and a callback for progress.
    solver : str
        A key of ``solver.SOLVERS``; ``"auto"`` picks an exact method, and ``solved.solver`` of a
        :class:`~fx_bridge.PartitionResult` names it.
    without : sequence of str
        Names of steps that the search leaves out (:func:`solver.step_names`).

    Raises
    ------
    PartitionError
        If the solver or a step is unknown, or `limits` is of another type.

    Examples
    --------
    >>> Search(solver="chain")
    Search(solver='chain')
    >>> Search(limits=60)
    Traceback (most recent call last):
    solver.model.errors.PartitionError: limits is 60; write SolveLimits(time_limit_s=60)
    """

    limits: SolveLimits = field(default_factory=SolveLimits)
    solver: str = "auto"
    without: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.limits is None:
            raise PartitionError("limits is None; write SolveLimits(time_limit_s=60)")
        check_limits(self.limits)
        check_solver(self.solver)
        check_without(self.without)
        object.__setattr__(self, "without", tuple(self.without))

    __repr__ = only_given


def check_group(value: object, group: type, name: str) -> None:
    """Raise PartitionError unless `value`, the argument `name` of a call, is a `group`."""
    if isinstance(value, group):
        return
    given = "..."
    # None and True fit too many fields to guess from.
    for entry in () if value is None or isinstance(value, bool) else fields(group):
        try:
            group(**{entry.name: value})
        except Exception:  # of any class, since the value is arbitrary
            continue
        given = f"{entry.name}={shown(value)}"
        break
    raise PartitionError(f"{name} is {shown(value)}; write {name}={group.__name__}({given})")


def _by_operator(
    values: Mapping[str, Any] | None, name: str, unit: str
) -> Mapping[str, Any] | None:
    """Return a copy of numbers by operator; raise PartitionError if they are of another form."""
    if values is None:
        return None
    if not isinstance(values, Mapping):
        raise PartitionError(
            f"{name} is a {type(values).__name__}; give a mapping of operator to {unit}"
        )
    for operator, value in values.items():
        if unit == "nanoseconds" and isinstance(value, Mapping):
            for device_class, time_ns in value.items():
                check_natural(time_ns, f"{name}[{operator!r}][{device_class!r}]")
        else:
            check_natural(value, f"{name}[{operator!r}]")
    return MappingProxyType(dict(values))


DEFAULT_PIPELINE: Final = Pipeline()
DEFAULT_PLACEMENT: Final = Placement()
DEFAULT_COSTS: Final = Costs()
DEFAULT_SEARCH: Final = Search()
