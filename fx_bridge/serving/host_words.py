"""Plans with a host as arguments of llama.cpp, and back.

llama.cpp streams nothing while it generates token by token. Its host holds the embedding and the
first layers entirely. Of any other layer it may hold the experts or the feed-forward half alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fx_bridge.interop.ik_llama_cpp import PROGRAM as IK_LLAMA_CPP
from fx_bridge.interop.ik_llama_cpp import read_layers, write_layers
from fx_bridge.interop.llama_cpp import NO_OP_OFFLOAD
from fx_bridge.interop.llama_cpp_experts import (
    HOST_BUFFER,
    OP_OFFLOAD_TOKENS,
    Feed,
    LayerWeights,
    Moved,
    check_options,
    read_experts,
    write_experts,
)
from fx_bridge.interop.nearest import with_change
from fx_bridge.interop.stage_layers import LayerNames, StageLayers, is_host
from fx_bridge.interop.words import Words
from solver import PartitionError, SolveLimits
from solver.model.checks import did_you_mean, only_given
from solver.model.plan import PartitionPlan
from solver.model.quantities import format_ns
from solver.offload.contexts import OffloadResult
from solver.offload.evaluate import OffloadEvaluation, evaluate_offload
from solver.offload.host_first import UnitGroup, plan_host_first
from solver.offload.instance import OffloadInstance
from solver.offload.units import UnitMode

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph

HOST_ENGINES: Final = ("llama.cpp",)
"""Engines whose arguments can place units on the host."""
HOST: Final = "cpu:0"


def check_words(text: str, devices: Sequence[str]) -> None:
    """Refuse arguments that are invalid for every model on some devices and a host, in one line.

    :meth:`HostWordsModel.read` makes the checks that need the model.
    """
    check_options(text, [*devices, HOST])


def check_search(
    engine: str, solver: str, without: Sequence[str], first_token_limit_ns: int | None
) -> None:
    """Refuse what the search for plans that an engine can run does not have."""
    given = {
        "solver": solver != "auto",
        "steps to leave out": bool(without),
        "limit of the first token": first_token_limit_ns is not None,
    }
    if named := [name for name, is_given in given.items() if is_given]:
        raise PartitionError(
            f"plans with a host that {engine} can run are found by one search, which takes no "
            f"{' and no '.join(named)}; leave that out, or the engine"
        )


@dataclass(frozen=True, slots=True)
class HostWords:
    """Plan and cost of an engine's arguments."""

    plan: PartitionPlan  # of resident units and units on the host
    evaluation: OffloadEvaluation  # over all phases, with violated limits
    notes: tuple[str, ...] = ()  # differences of the engine from the plan
    __repr__ = only_given


class HostWordsModel:
    """Translation between plans of a model's half layers and arguments of llama.cpp.

    `groups` of the units of `instance` are those before the layers, those of each layer, and those
    after them; `experts` has the positions of the units with experts. A call has at most `rows`
    tokens. With `copies`, times are those of calls of many tokens that copy matrices of the host to
    a device. `weights` names those of each layer, by default all of llama.cpp's; the `engine`
    ``"ik_llama.cpp"`` needs them. Raises `PartitionError` if a device is a
    host.
    """

    def __init__(
        self,
        names: LayerNames,
        groups: Sequence[UnitGroup],
        experts: Collection[int],
        instance: OffloadInstance,
        rows: int,
        *,
        copies: bool = False,
        weights: Sequence[LayerWeights] | None = None,
        engine: str = HOST_ENGINES[0],
    ) -> None:
        for device in instance.devices:
            if is_host(device.name):
                raise PartitionError(
                    f"{device.name!r} is among the devices, and {HOST_ENGINES[0]}'s host is that "
                    "of --host; leave it out"
                )
        self._names, self._groups = names, tuple(groups)
        self._instance, self._rows, self._copies = instance, rows, copies
        self._weights, self._is_ik = weights, engine == IK_LLAMA_CPP
        self._feeds: tuple[Feed, ...] = tuple(_feed(group, experts) for group in groups[1:-1])

    @classmethod
    def of(
        cls, graphs: Mapping[int, CapturedGraph], instance: OffloadInstance, batch: int, engine: str
    ) -> HostWordsModel:
        """Return the translation for a captured model; `graphs` are by number of tokens per call.

        Units of `instance` are half layers of the graphs, or several of one layer; a call has
        `batch` sequences. Raises `PartitionError` if the engine is none of ``HOST_ENGINES``, or the
        model is not one list of layers.
        """
        from fx_bridge.interop.layered_model import LayeredModel
        from fx_bridge.serving.halves import parts_of_units

        if engine not in HOST_ENGINES:
            hint = did_you_mean(engine, HOST_ENGINES, f"write {HOST_ENGINES[0]}")
            raise PartitionError(f"{engine!r} has no words for what a host computes; {hint}")
        captured = graphs[1]
        names = LayeredModel(captured, engine).names
        members: dict[str, list[int]] = {}
        experts = set()
        own_units = {unit.name: unit.operators for unit in instance.units}
        for at, (name, half) in enumerate(parts_of_units(captured, own_units).items()):
            # The operators before the layers and those after them are groups of their own.
            members.setdefault(half.layer or name, []).append(at)
            experts |= {at} if half.has_experts else set()
        units = instance.units
        groups = tuple(
            UnitGroup(tuple(own), int(len(own) > 1 and not units[own[-1]].cache_bytes))
            for own in members.values()
        )
        return cls(names, groups, experts, instance, batch * max(graphs))

    def solve(self, limits: SolveLimits) -> OffloadResult:
        """Return the best plan that the engine can run."""
        return plan_host_first(self._instance, self._groups, limits=limits)

    def words(self, plan: PartitionPlan) -> Words:
        """Return a plan as arguments.

        Raises `PartitionError` if the engine cannot run it; one line names a misplaced unit and the
        nearest plan.
        """
        nearest = self._nearest(plan)
        places = [self._instance.units_of(each) for each in (plan, nearest)]
        for unit in self._instance.units:
            given, other = (_where(*placed[unit.name]) for placed in places)
            if given != other:
                words = self._arguments(nearest)
                raise PartitionError(
                    f"unit {unit.name!r} is {given}, and llama.cpp would have it {other}: it "
                    "streams nothing, and its host has first layers and feed-forward halves; plan "
                    f"with engine='llama.cpp'; the nearest is {shlex.join(words)}, "
                    f"{self._cost(nearest, plan)}"
                )
        return self._arguments(plan)

    def read(self, text: str) -> HostWords:
        """Return the plan of some arguments, with its cost.

        Raises `PartitionError` if they are no plan of this model on these devices.
        """
        names = [device.name for device in self._instance.devices]
        if self._is_ik:
            weights = self._weights or ()
            stages, moved = read_layers(text, [*names, HOST], self._feeds, weights)
            is_kept = not self._copies
        else:
            stages, moved, is_kept = read_experts(
                text, self._names, [*names, HOST], self._feeds, self._weights
            )
        places: list[str | None] = [None]
        for stage in stages:
            places += [None if stage.device == HOST else stage.device] * stage.count
        places.append(None if stages[-1].device == HOST else stages[-1].device)
        plan = self.plan_of(places, {at + 1: each for at, each in moved.items()})
        notes = []
        on_host = [*places[1:], *(None if m.device == HOST_BUFFER else m for m in moved.values())]
        is_used = None in on_host
        if is_used and self._rows >= OP_OFFLOAD_TOKENS and is_kept is self._copies:
            timed, other = ("without", "with") if self._copies else ("with", "without")
            copies = "does not copy" if self._copies else "copies"
            notes.append(
                f"calls of {OP_OFFLOAD_TOKENS} tokens or more are timed as {timed} "
                f"{NO_OP_OFFLOAD}; {other} it llama.cpp {copies} matrices of the host to a GPU for "
                "these"
            )
        return HostWords(plan, evaluate_offload(self._instance, plan), tuple(notes))

    # -- plans ---------------------------------------------------------------------------------

    def plan_of(self, places: Sequence[str | None], moved: Mapping[int, Moved]) -> PartitionPlan:
        """Return the plan with each group on its place, where None is the host.

        Movable units of groups in `moved` are elsewhere. In the plan, groups of the host are
        assigned to the first used device.
        """
        first = next(filter(None, places), self._instance.devices[0].name)
        devices: list[int] = []
        modes: list[UnitMode] = []
        for at, (group, device) in enumerate(zip(self._groups, places, strict=True)):
            kept, other = moved.get(at, Moved(group.movable))
            fixed = len(group.units) - group.movable + kept
            other = HOST if device is None else other
            for number in range(len(group.units)):
                place = (device if number < fixed else other) or HOST
                is_on_host = place in (HOST, HOST_BUFFER)
                own = (device or first) if is_on_host else place
                devices.append(self._instance.device_index[own])
                modes.append("host" if is_on_host else "resident")
        return self._instance.plan(devices, modes)

    def _nearest(self, plan: PartitionPlan) -> PartitionPlan:
        """Return the plan nearest to a given one that the engine can run.

        The first group, and the groups after it that are on the host, are on the host. Streamed
        units become resident, except halves that may be on the host.
        """
        places: list[str | None] = []
        moved: dict[int, Moved] = {}
        placed = self._instance.units_of(plan)
        for at, group in enumerate(self._groups):
            names = [self._instance.units[unit].name for unit in group.units]
            is_whole = all(placed[name][1] == "host" for name in names)
            if at == 0 or (is_whole and places[-1] is None):
                places.append(None)
                continue
            places.append(placed[names[0]][0])
            each = self._moved_of(group, placed)
            moved |= {} if each is None else {at: each}
        return self.plan_of(places, moved)

    def _moved_of(
        self, group: UnitGroup, placed: Mapping[str, tuple[str, UnitMode]]
    ) -> Moved | None:
        """Return the movable units that are elsewhere; None if all are with the first unit."""
        names = [self._instance.units[unit].name for unit in group.units]
        own, fixed = placed[names[0]][0], len(names) - group.movable
        for kept, name in enumerate(names[fixed:]):
            device, mode = placed[name]
            if mode != "resident":
                return Moved(kept)
            if device != own and self._weights is not None:
                return Moved(kept, device)
        return None

    def _arguments(self, plan: PartitionPlan) -> Words:
        units, placed = self._instance.units, self._instance.units_of(plan)
        firsts = [placed[units[group.units[0]].name] for group in self._groups]
        places = [None if mode == "host" else device for device, mode in firsts]
        inside = places[1:-1]
        order = [device.name for device in self._instance.devices]
        stages = [StageLayers(HOST, inside.count(None), True, places[-1] is None)]
        stages += [
            StageLayers(device, inside.count(device), has_head=places[-1] == device)
            for device in order
            if device in places
        ]
        moved = {
            at: each
            for at, group in enumerate(self._groups[1:-1])
            if inside[at] is not None and (each := self._moved_of(group, placed)) is not None
        }
        weights = self._weights or ()
        if self._is_ik:
            return write_layers(self._names, stages, moved, self._feeds, weights)
        words = write_experts(self._names, stages, moved, self._feeds, weights)
        assert isinstance(words, list)
        is_used = stages[0].count or any(each.device == HOST_BUFFER for each in moved.values())
        multiplies = is_used and self._rows >= OP_OFFLOAD_TOKENS and not self._copies
        return [*words, NO_OP_OFFLOAD] if multiplies else words

    # -- costs ---------------------------------------------------------------------------------

    def _cost(self, plan: PartitionPlan, beside: PartitionPlan) -> str:
        cost = evaluate_offload(self._instance, plan)
        if cost.value_ns is None:
            return f"which does not fit: {cost.violations[0]}"
        value, given = cost.value_ns, evaluate_offload(self._instance, beside).value_ns
        return f"which takes {with_change(format_ns(round(value)), value, given)}"


def _feed(group: UnitGroup, experts: Collection[int]) -> Feed:
    if not group.movable:
        return "none"
    return "experts" if group.units[-1] in experts else "dense"


def _where(device: str, mode: UnitMode) -> str:
    return "on the host" if mode == "host" else f"{mode} on {device}"
