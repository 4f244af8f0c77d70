"""Explanation of an infeasible problem: limits that clash, shortfalls, and remedies.

:mod:`solver.diagnosis.diagnose` finds them.
"""

from __future__ import annotations

from dataclasses import dataclass

from solver.model.checks import only_given
from solver.model.devices import Device
from solver.model.plan import PartitionPlan
from solver.model.problem import PartitionProblem
from solver.model.problem_fields import ColocationGroup
from solver.model.quantities import exact_bytes, format_bytes, listed, quoted
from solver.presolve.shortfalls import Shortfall


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The memory capacity of devices that no constraint tells apart."""

    devices: tuple[str, ...]
    memory_bytes: int
    __repr__ = only_given

    @property
    def text(self) -> str:
        """The limit in words."""
        each = " each" if len(self.devices) > 1 else ""
        return f"the memory of {listed(self.devices)} ({format_bytes(self.memory_bytes)}{each})"


@dataclass(frozen=True, slots=True)
class PinLimit:
    """Operators that may run on some devices only."""

    operators: tuple[str, ...]
    devices: tuple[str, ...]
    __repr__ = only_given

    @property
    def text(self) -> str:
        """The limit in words."""
        return f"{_pins(self.operators)} to {listed(self.devices, 'or')}"


@dataclass(frozen=True, slots=True)
class ColocationLimit:
    """Operators that must share a device."""

    group: ColocationGroup
    __repr__ = only_given

    @property
    def text(self) -> str:
        """The limit in words."""
        return f"the colocation group of {quoted(self.group.operators)} ({self.group.reason})"


@dataclass(frozen=True, slots=True)
class DeviceCountLimit:
    """The most devices that a plan may use."""

    max_devices: int

    @property
    def text(self) -> str:
        """The limit in words."""
        return f"max_devices = {self.max_devices}"


@dataclass(frozen=True, slots=True)
class CutLimit:
    """A stage that must end after an operator."""

    cut: str
    __repr__ = only_given

    @property
    def text(self) -> str:
        """The limit in words."""
        return f"the cut after {self.cut!r}"


@dataclass(frozen=True, slots=True)
class StageLimit:
    """Operators that must be on one stage, by its number."""

    operators: tuple[str, ...]
    stage: int
    __repr__ = only_given

    @property
    def text(self) -> str:
        """The limit in words."""
        return f"{_pins(self.operators)} to stage {self.stage}"


def _pins(operators: tuple[str, ...]) -> str:
    return f"the pin{'s' * (len(operators) > 1)} of {quoted(operators)}"


Droppable = PinLimit | ColocationLimit | CutLimit | StageLimit
"""Limits that a change may leave out one at a time."""
Limit = Droppable | MemoryLimit | DeviceCountLimit


@dataclass(frozen=True, slots=True)
class MoreMemory:
    """More memory on each of the named devices.

    With `extra_bytes` a plan is known. `too_few_bytes` are proven not to be enough, and -1 if not
    even no more memory is; `extra_bytes` is the least when it is one more.
    """

    devices: tuple[str, ...]
    extra_bytes: int
    too_few_bytes: int
    __repr__ = only_given

    @property
    def is_least(self) -> bool:
        """True if one byte less is proven not to be enough."""
        return self.too_few_bytes == self.extra_bytes - 1

    @property
    def text(self) -> str:
        """The change in words."""
        where = f"each of {listed(self.devices)}" if len(self.devices) > 1 else self.devices[0]
        words = f"{exact_bytes(self.extra_bytes)} more on {where}"
        if self.is_least:
            return f"{words} (one byte less is not enough)"
        if self.too_few_bytes <= 0:
            return f"{words} (perhaps less)"
        return f"{words} (perhaps less, but {exact_bytes(self.too_few_bytes)} is not enough)"


@dataclass(frozen=True, slots=True)
class MoreDevices:
    """More devices like one that there is: same memory, class, links and permissions."""

    like: Device
    count: int
    is_least: bool
    __repr__ = only_given

    @property
    def text(self) -> str:
        """The change in words."""
        device = self.like
        words = "one more device" if self.count == 1 else f"{self.count} more devices"
        words += f" like {device.name} ({format_bytes(device.memory_bytes)}"
        words += f", class {device.device_class})"
        return words if self.is_least else f"{words}, perhaps fewer"


@dataclass(frozen=True, slots=True)
class HigherDeviceCount:
    """A larger max_devices."""

    max_devices: int
    is_least: bool

    @property
    def text(self) -> str:
        """The change in words."""
        return f"max_devices = {self.max_devices}" + ("" if self.is_least else ", perhaps less")


@dataclass(frozen=True, slots=True)
class Without:
    """One pin, colocation group or cut dropped, or all pins to one stage."""

    limit: Droppable

    @property
    def is_least(self) -> bool:
        """It cannot be less than one."""
        return True

    @property
    def text(self) -> str:
        """The change in words."""
        return f"without {self.limit.text}"


Change = MoreMemory | MoreDevices | HigherDeviceCount | Without


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change (more memory or devices, or a limit to drop) after which a plan exists.

    `problem` is the problem after the change, to go on with; `plan` a feasible plan of it, whatever
    it costs, that the evaluator accepts.
    """

    change: Change
    problem: PartitionProblem
    plan: PartitionPlan
    __repr__ = only_given


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Conflicts of an infeasible problem, and its remedies.

    Attributes
    ----------
    plan : PartitionPlan or None
        A feasible plan, whatever it costs; with one there is nothing to explain.
    conflict : tuple of Limit
        Limits that no plan can keep together, even if all others are dropped. Empty without a proof
        that no plan exists.
    is_minimal : bool
        It is proven that without any one of them a plan for the others exists.
    shortfalls : tuple of Shortfall
        Bytes that no plan can place, as far as adding up tells.
    remedies : tuple of Remedy
        Each is enough alone; the least memory first.
    time_ran_out : bool
        There may be more remedies, and smaller ones, than were found in time.
    wall_time_s : float
        Of the whole call, in seconds of the clock.
    """

    plan: PartitionPlan | None = None
    conflict: tuple[Limit, ...] = ()
    is_minimal: bool = False
    shortfalls: tuple[Shortfall, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    time_ran_out: bool = False
    wall_time_s: float = 0.0
    __repr__ = only_given

    def __str__(self) -> str:
        return self.text

    @property
    def is_proven(self) -> bool:
        """True if it is proven that no plan exists."""
        return bool(self.conflict)

    @property
    def text(self) -> str:
        """The explanation, one paragraph."""
        if self.plan is not None:
            return "A plan exists, so there is nothing to explain."
        sentences = [self._conflict_text()]
        sentences += [f"{_capital(shortfall.text)}." for shortfall in self.shortfalls]
        if self.remedies:
            words = [remedy.change.text for remedy in self.remedies]
            start = (
                "This change is enough (a plan was found)"
                if len(words) == 1
                else "Any one of these changes is enough (a plan was found for each)"
            )
            sentences.append(f"{start}: {'; '.join(words)}.")
        elif not self.time_ran_out:
            sentences.append("No single change of one kind is enough.")
        if self.time_ran_out:
            sentences.append(
                "The time limit ended the search for smaller changes; a longer one may find some."
            )
        return " ".join(sentences)

    def _conflict_text(self) -> str:
        if not self.is_proven:
            return (
                f"Whether a plan exists is open: {self.wall_time_s:.1f} s brought neither a plan "
                "nor a proof that there is none."
            )
        if len(self.conflict) == 1:
            return f"{_capital(self.conflict[0].text)} rules out every plan."
        words = f"These limits clash: {'; '.join(limit.text for limit in self.conflict)}."
        if self.is_minimal:
            return f"{words} Without any one of them the others could be kept."
        return f"{words} Not all of them may be needed for the clash."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
