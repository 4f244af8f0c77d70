"""Plans as a ``device_map`` of accelerate or a ``split_spec`` of torch.

Both name modules, not operators. A plan that divides a module cannot be expressed, and is refused
with the module's name: make one with ``keep_whole``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import torch

from fx_bridge.capture.graph import CapturedGraph
from fx_bridge.capture.modules import ModuleCall
from fx_bridge.interop.accelerate_dispatch import MixedOperator, run_by_device_map
from fx_bridge.interop.module_cover import ModuleCover
from fx_bridge.split.checks import check_total
from solver import PartitionError, PartitionPlan

if TYPE_CHECKING:
    from torch.distributed.pipelining import SplitPoint

Tied = Literal["refuse", "first"]


def device_map(
    captured: CapturedGraph, plan: PartitionPlan, *, tied: Tied = "refuse"
) -> dict[str, int | str]:
    """Return a plan as the ``device_map`` of accelerate and transformers.

    Parameters
    ----------
    plan : PartitionPlan
        One device for each module in the map. Chunks are ignored: a device map has none.
    tied : {"refuse", "first"}
        The treatment of a weight that modules on several devices share. accelerate keeps only one
        of its copies, so that the others cannot run: refuse the plan, or move all modules that own
        it to the device of the first, as transformers' own maps do.

    Returns
    -------
    dict of str to int or str
        The fewest modules, parameters and buffers that cover the model, in execution order:
        ``cuda:1`` as 1, other devices by name. Never ``"disk"``.

    Raises
    ------
    PartitionError
        In one line: the module that the plan divides, or the operator outside of these modules
        that would read values on two devices, and the modules to keep whole instead.

    Notes
    -----
    Operators outside of the modules of the map run where their inputs are, not where the plan has
    them. ``plan_from_device_map`` returns the plan that accelerate really runs, to be evaluated.

    Examples
    --------
    >>> from fx_bridge.capture.graph import capture
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> devices = {"linear": "cuda:0", "relu": "cuda:0", "linear_1": "cuda:1"}
    >>> plan = PartitionPlan(devices, ("cuda:0", "cuda:1"))
    >>> device_map(capture(model, (torch.ones(1, 4),)), plan)
    {'0': 0, '1': 0, '2': 1}
    """
    check_total(captured, plan)
    check_devices_alone(plan)
    if tied not in get_args(Tied):
        raise PartitionError(f"tied is {tied!r}; write 'refuse' or 'first'")
    names = _device_names(plan.device_order)
    assignment = _with_tied_weights(captured, plan.assignment, tied)
    main = min(plan.device_order, key=lambda device: str(names[device]).zfill(9))
    because = "accelerate runs a module on one device"
    modules = ModuleCover(captured, assignment, main, because)
    run = run_by_device_map(captured, modules.entries, main)
    if run.mixed:
        raise PartitionError(_mixed(run.mixed[0], modules))
    for name, device in assignment.items():
        if run.assignment[name] != device and modules.entry_of(name) is not None:
            raise PartitionError(
                f"operator {name!r} is on {device!r} in the plan, but accelerate would run it on "
                f"{run.assignment[name]!r}, where its module is called; keep the two together"
            )
    return {path: names[device] for path, device in modules.entries.items()}


def split_spec(captured: CapturedGraph, plan: PartitionPlan) -> dict[str, SplitPoint]:
    """Return a plan as the ``split_spec`` of ``torch.distributed.pipelining.pipeline``.

    Parameters
    ----------
    captured : CapturedGraph
        Captured at the size of one microbatch.
    plan : PartitionPlan
        Its stages must be runs of whole modules in execution order, each but the first beginning
        where a module begins or one ends.

    Returns
    -------
    dict of str to SplitPoint
        One module for each boundary between stages, the outermost that begins there, or else ends.
        The stages are those of ``plan.stages``, on their devices: torch runs stage n on rank n.

    Raises
    ------
    PartitionError
        In one line: the operators out of order, or the module that a boundary divides.

    Notes
    -----
    Operators outside of whole modules are on their side of the cut in execution order. The plan
    has them there too if it cuts in execution order, as plans of the solver ``chain`` do.
    ``plan_from_split_spec`` returns the plan that torch really makes.

    Examples
    --------
    >>> from fx_bridge.capture.graph import capture
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> devices = {"linear": "cuda:0", "relu": "cuda:0", "linear_1": "cuda:1"}
    >>> plan = PartitionPlan(devices, ("cuda:0", "cuda:1"))
    >>> split_spec(capture(model, (torch.ones(1, 4),)), plan)
    {'2': <SplitPoint.BEGINNING: 1>}
    """
    from torch.distributed.pipelining import SplitPoint

    check_total(captured, plan)
    check_devices_alone(plan)
    cuts = _cuts(captured, plan)
    cut_of: dict[str, int] = {}
    for number, cut in enumerate(cuts):
        if not _assign(number, cuts, cut_of, set()):
            raise PartitionError(
                f"no module that is called once begins or ends between operators {cut.before!r} of "
                f"{str(plan.stage_of(cut.before))!r} and {cut.after!r} of "
                f"{str(plan.stage_of(cut.after))!r}, so that a split_spec cannot cut there; plan "
                f"with Placement(keep_whole=[{_around(captured, cut)!r}])"
            )
    chosen = sorted(cut_of.items(), key=lambda item: item[1])
    return {path: SplitPoint[cuts[number].points[path]] for path, number in chosen}


def stage_devices(plan: PartitionPlan) -> list[str] | list[list[str]]:
    """Return the device of every stage, in order; with several chunks a list for each of them.

    A ``split_spec`` has no devices, so that its readers need these beside it.
    """
    devices: dict[int, list[str]] = {}
    for stage in plan.stages:
        devices.setdefault(stage.chunk, []).append(stage.device)
    found = list(devices.values())
    return found[0] if len(found) == 1 else found


def check_resident(plan: PartitionPlan) -> None:
    """Refuse a plan with modes, for programs that keep all weights on the devices of stages."""
    if plan.mode_of:
        name, mode = next(iter(plan.mode_of.items()))
        raise PartitionError(
            f"operator {name!r} of the plan is {mode}, and its readers keep all weights of a stage "
            "on its device; leave mode_of out of the plan, or place it from Python by "
            "HostedPlan.place"
        )


def check_devices_alone(plan: PartitionPlan) -> None:
    """Refuse a plan that recomputes or streams operators, for readers of their devices alone."""
    check_resident(plan)
    if plan.recomputed:
        raise PartitionError(
            f"the plan lets {min(plan.recomputed)!r} run again in the backward pass, which those "
            "who read this do not; use split_by_plan, or leave recomputed out of the plan"
        )


# -- device maps ---------------------------------------------------------------------------


def _device_names(devices: Iterable[str]) -> dict[str, int | str]:
    names: dict[str, int | str] = {}
    for name in devices:
        try:
            device = torch.device(name)
        except RuntimeError:
            raise PartitionError(
                f"device {name!r} has no name that torch knows; name it such as 'cuda:0'"
            ) from None
        names[name] = str(device)
        if device.type == "cuda":
            names[name] = device.index or 0
        elif device.type == "cpu":
            names[name] = "cpu"
    if len(set(names.values())) < len(names):
        raise PartitionError(
            f"the devices {', '.join(names)} are not {len(names)} devices to accelerate; plan "
            "for devices such as cuda:0 and cuda:1"
        )
    if "cpu" in names.values() and len(names) > 1:
        raise PartitionError(
            "accelerate computes nothing on cpu beside other devices: it copies the weights of "
            "such modules to another device at every call; plan without the cpu"
        )
    return names


def _with_tied_weights(
    captured: CapturedGraph, assignment: Mapping[str, str], tied: Tied
) -> dict[str, str]:
    """Return an assignment in which the modules that own one weight are on one device."""
    moved = dict(assignment)
    table = captured.storage_table
    readers: dict[str, list[str]] = {}
    for node in captured.operators:
        for key in table.weights_read.get(node.name, ()):
            readers.setdefault(key, []).append(node.name)
    operators = captured.modules.operators
    for key, names in readers.items():
        devices = list(dict.fromkeys(assignment[name] for name in names))
        owners = [name.rpartition(".")[0] for name in table.weights[key].names]
        if len(devices) == 1 or len(owners) == 1:
            continue
        if tied == "refuse":
            shared = " = ".join(repr(name) for name in table.weights[key].names)
            raise PartitionError(
                f"the weight {shared} is read on {' and '.join(devices)}, but accelerate keeps "
                "one copy of it; write device_map(..., tied='first'), or untie it "
                "(tie_word_embeddings=False) before it is planned"
            )
        members = (name for owner in owners for name in operators.get(owner, ()))
        moved.update(dict.fromkeys(members, assignment[names[0]]))
    return moved


def _mixed(mixed: MixedOperator, modules: ModuleCover) -> str:
    where = f" of module {mixed.module!r}" if mixed.module else ""
    reads = " and ".join(f"{name!r} on {device}" for name, device in mixed.reads)
    sources = [modules.entry_of(name) for name, _ in mixed.reads]
    prefix = f"{mixed.module}." if mixed.module else ""
    inside = [path for path in dict.fromkeys(sources) if path and path.startswith(prefix)]
    whole = mixed.module
    if len(inside) == len(sources):
        whole = "+".join(inside)
    advice = f"plan with Placement(keep_whole=[{whole!r}])" if whole else "put these on one device"
    return (
        f"operator {mixed.operator!r}{where} would read {reads}, and accelerate moves values only "
        f"into modules; {advice}"
    )


# -- split specifications ------------------------------------------------------------------


class _Cut(NamedTuple):
    """A boundary between stages: the operators around it, and the modules that can name it."""

    before: str
    after: str
    points: Mapping[str, str]


def _cuts(captured: CapturedGraph, plan: PartitionPlan) -> list[_Cut]:
    """Return one cut for every change of stage between modules, in execution order."""
    stages = {name: str(stage) for name, stage in plan.stage_index.items()}
    because = "a split_spec cuts between modules"
    modules = ModuleCover(captured, stages, "0", because)
    calls = captured.modules.calls
    order = list(calls)
    times: dict[str, set[int]] = {}
    for own in calls.values():
        for call in own:
            times.setdefault(call.path, set()).add(call.number)
    fixed = [at for at, name in enumerate(order) if modules.entry_of(name) is not None]
    for number, unit in enumerate(plan.stages):
        if all(plan.stage_index[order[at]] != number for at in fixed):
            raise PartitionError(
                f"stage {str(unit)!r} of the plan has no whole module, so that a split_spec has "
                "no name for it; plan for fewer devices"
            )
    cuts: list[_Cut] = []
    for first, second in itertools.pairwise(fixed):
        before, after = order[first], order[second]
        stage, following = plan.stage_index[before], plan.stage_index[after]
        if following < stage:
            raise PartitionError(
                f"operator {after!r} of {str(plan.stage_of(after))!r} runs after {before!r} of "
                f"{str(plan.stage_of(before))!r}, a later stage, but a split_spec cuts a model in "
                "execution order; plan with solver='chain'"
            )
        if following == stage:
            continue
        best: tuple[int, Mapping[str, str]] | None = None
        for at in range(first + 1, second + 1):
            points = _points(calls[order[at - 1]], calls[order[at]], times)
            misplaced = sum(plan.stage_index[name] > stage for name in order[first + 1 : at])
            misplaced += sum(plan.stage_index[name] <= stage for name in order[at:second])
            if points and (best is None or misplaced < best[0]):
                best = misplaced, points
        cuts.append(_Cut(before, after, {} if best is None else best[1]))
    return cuts


def _points(
    before: Sequence[ModuleCall], after: Sequence[ModuleCall], times: Mapping[str, set[int]]
) -> dict[str, str]:
    """Return the modules that begin or end between two operators, the outermost first."""
    points = {call.path: "BEGINNING" for call in after if call not in before}
    for call in before:
        if call not in after:
            points.setdefault(call.path, "END")
    # torch would cut at every call of a module.
    return {path: point for path, point in points.items() if len(times[path]) == 1}


def _assign(number: int, cuts: Sequence[_Cut], cut_of: dict[str, int], tried: set[str]) -> bool:
    """Give a cut a module of its own, moving others where needed (augmenting paths)."""
    for path in cuts[number].points:
        if path not in tried:
            tried.add(path)
            if path not in cut_of or _assign(cut_of[path], cuts, cut_of, tried):
                cut_of[path] = number
                return True
    return False


def _around(captured: CapturedGraph, cut: _Cut) -> str:
    """Return the innermost module around a cut, or the modules of the operators at it."""
    calls = captured.modules.calls
    before, after = calls[cut.before], calls[cut.after]
    common = [call.path for call in before if call in after]
    if common:
        return common[-1]
    return "+".join(dict.fromkeys(own[0].path for own in (before, after) if own)) or "*"
