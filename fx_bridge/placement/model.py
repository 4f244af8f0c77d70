"""One process, several devices: a split whose stages run where the plan says."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import fx, nn

from fx_bridge.capture.attributes import attribute_at
from fx_bridge.checkpoint.manifest import position_of
from fx_bridge.placement.checks import (
    check_files,
    check_values,
    checked_output_device,
    checked_stages,
    home_of,
    stage_devices,
)
from fx_bridge.placement.graph import Places, placed_graph
from fx_bridge.placement.stage_copies import adopt_copies, copied_stage
from fx_bridge.placement.weights import PlacedWeights, tensors_within
from fx_bridge.split.guards import CheckedModel
from fx_bridge.split.name_map import NameMap, shared_tensors
from solver import PartitionError, PartitionPlan

TiedWeights = Literal["sum", "copy"]
"""What becomes of a parameter that stages on several devices read."""


class PlacedModel(CheckedModel):
    """A split whose stages are on their devices; called like the model.

    Made by :func:`place`. Its children are the stages, under the names and with the parameter
    names that they have in the split, so that ``parameters()``, ``state_dict()`` and
    ``load_state_dict()`` are those of the split; :meth:`model_state_dict` has the model's own
    names. ``code`` shows the calls of the stages and every transfer between them. ``meta`` is
    that of the split, and ``meta["devices"]`` maps the name of each stage to its torch.device.
    """

    @property
    def devices(self) -> Mapping[str, torch.device]:
        """The device of each stage by the stage's name, in stage order."""
        devices: Mapping[str, torch.device] = self.meta["devices"]
        return devices

    def model_state_dict(self) -> dict[str, torch.Tensor]:
        """Return parameters and persistent buffers under their names in the model.

        Returns
        -------
        dict of str to torch.Tensor
            Detached, each on its device, tied ones under each of their names;
            ``model.load_state_dict(…)`` takes it. Weights that no operator reads are in no stage,
            and not in here: where there are such, pass ``strict=False``.
        """
        state = self.state_dict()
        names: NameMap = self.meta["name_map"]
        return {
            name: state[places[0]]
            for name, places in names.tensors.items()
            if places and places[0] in state
        }

    def load_model_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy parameters and buffers in, given under their names in the model.

        Parameters
        ----------
        state : mapping of str to torch.Tensor
            Of ``model.state_dict()``, on any device. Weights that no operator reads are ignored.

        Raises
        ------
        PartitionError
            In one line, before anything is written: a name is missing or not one of the
            model's, or a shape is another one.
        """
        own = self.state_dict()
        names: NameMap = self.meta["name_map"]
        for name, tensor in state.items():
            if name not in names.tensors:
                raise PartitionError(
                    f"the model has no weight {name!r}; give what model.state_dict() returns"
                )
            for place in names.tensors[name]:
                if place in own and own[place].shape != tensor.shape:
                    raise PartitionError(
                        f"weight {name!r} has shape {tuple(tensor.shape)} instead of "
                        f"{tuple(own[place].shape)}; give the state of a model of this size"
                    )
        given = {place for name in state for place in names.tensors[name]}
        for name, places in names.tensors.items():
            if any(place in own and place not in given for place in places):
                raise PartitionError(
                    f"weight {name!r} is missing; give all that model.state_dict() returns"
                )
        with torch.no_grad():
            for name, tensor in state.items():
                for place in names.tensors[name]:
                    if place in own:
                        own[place].copy_(tensor)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        # Module.to, cuda, cpu, to_empty and half all come here; dtypes may change.
        for device in {tensor.device for tensor in tensors_within(self)}:
            found = fn(torch.empty(0, device=device)).device
            if found != device:
                raise PartitionError(
                    f"the stages of a placed model stay on their devices and cannot go to "
                    f"{str(found)!r}; place the split again with other devices"
                )
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]


def place(
    split: fx.GraphModule,
    devices: str | torch.device | Mapping[str, str | torch.device] | None = None,
    *,
    output_device: str | torch.device | None = None,
    tied_weights: TiedWeights = "sum",
    copy: bool = False,
    weights: str | os.PathLike[str] | None = None,
) -> PlacedModel:
    """Put every stage of a split on its device.

    Parameters
    ----------
    split : torch.fx.GraphModule
        What :func:`~fx_bridge.split.by_plan.split_by_plan` or ``result.split()`` returned. Not
        changed.
    devices : str, torch.device or mapping of str to these, optional
        One for all stages, such as ``"cpu"`` to rehearse a plan; or, from names of the plan's
        devices to devices of torch, ``{"gpu0": "cuda:0"}``. Names that torch knows (``"cpu"``,
        ``"cuda:1"``, ``"meta"``) stand for themselves unless they are mapped. Several may be
        mapped to one device. ``"cpu:0"``, ``"cpu:1"``, … are places in host memory between which
        values are copied as between devices.
    output_device : str or torch.device, optional
        Where results are returned; by default where the model would have them. On the meta
        device, and for a model that was captured there, results stay where they are made.
    tied_weights : {"sum", "copy"}
        Of a parameter that stages on several devices read. ``"sum"``: it stays one parameter, on
        the device of its first reader; in every call it travels to the others, and gradients
        come back the same way and add up. ``"copy"``: every device has a copy of its own, and
        nothing travels; a call that would train a copy is refused.
    copy : bool
        Also copy weights that are on their device already. By default these are shared with
        the split and the model, as the split shares its weights with the model.
    weights : path, optional
        A folder that :func:`fx_bridge.checkpoint.stages.save_stages` wrote: each stage gets the
        values of its file, read straight to its device. The model may be on the meta device then.

    Returns
    -------
    PlacedModel
        Takes and returns what the model does. Inputs may be on any device: each goes where it is
        read, once per device. Make optimisers from its own parameters, after placing.

    Raises
    ------
    PartitionError
        In one line, before anything is moved: a device is not on this machine or not known by
        torch, stages on the meta device are mixed with others, weights have no values, the files
        are of another plan, or an argument is invalid.

    Notes
    -----
    *Where weights go.* The model was captured on one device, its *home*: that of its
    parameters. What the model has at home, the stages have on their devices, weights and
    values alike; where the graph names that device (``torch.arange(8, device="cpu")``), the
    stage names its own. What the model has elsewhere, such as lengths that a kernel wants on the
    host, stays there. Buffers that several devices read are copied: one that is written has all
    of its readers in one stage.

    *What waits.* One thread issues all work. Kernels on accelerators and copies to them are
    asynchronous, so that stages that do not depend on each other run at the same time on different
    accelerators, and stages on the host beside them; a copy waits for what was launched before
    on the current streams of both devices. The host waits for values that it reads itself:
    inputs of stages on ``"cpu"``, and results returned there. A copy from the host to an
    accelerator is asynchronous only from pinned memory; such an input must not be overwritten
    before the accelerator has read it. Plan devices mapped to one device run one after the other.

    *What the caller sees.* An input that a stage writes in place (a cache) is written back to
    the caller's tensor at the end of the call, except on the meta device. Results are copies
    where they travel: only in one place do they share memory with inputs and weights. Random
    numbers come from the generator of each stage's device: on one device they are those of
    the model.

    Examples
    --------
    >>> from fx_bridge import capture, split_by_plan
    >>> from solver import PartitionPlan
    >>> model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    >>> plan = PartitionPlan({"linear": "gpu0", "relu": "cpu"}, ("gpu0", "cpu"))
    >>> split = split_by_plan(capture(model, (torch.ones(1, 4),)), plan)
    >>> place(split)
    Traceback (most recent call last):
        ...
    solver.model.errors.PartitionError: device 'gpu0' of the plan is no device of torch; give \
devices={'gpu0': 'cpu'}
    >>> placed = place(split, {"gpu0": "cpu"})
    >>> bool((placed(torch.ones(1, 4)) == model(torch.ones(1, 4))).all())
    True
    """
    (placed,) = place_all(
        (split,),
        devices,
        output_device=output_device,
        tied_weights=tied_weights,
        copy=copy,
        weights=weights,
    )
    return placed


def place_all(
    splits: Sequence[fx.GraphModule],
    devices: str | torch.device | Mapping[str, str | torch.device] | None = None,
    *,
    output_device: str | torch.device | None = None,
    tied_weights: TiedWeights = "sum",
    copy: bool = False,
    weights: str | os.PathLike[str] | None = None,
) -> tuple[PlacedModel, ...]:
    """Put the stages of several splits of one model on their devices.

    Parameters and buffers that two of them read on one device are there once: what one call writes
    into a buffer, the next one reads, whichever split it calls. All arguments but `splits` are
    those of :func:`place`, and so are the errors.

    Parameters
    ----------
    splits : sequence of torch.fx.GraphModule
        Of graphs that were captured from one model on one device.

    Returns
    -------
    tuple of PlacedModel
        In the order of `splits`.
    """
    if tied_weights not in get_args(TiedWeights):
        raise PartitionError(
            f"tied_weights is {tied_weights!r}; write one of "
            f"{', '.join(map(repr, get_args(TiedWeights)))}"
        )
    if not isinstance(copy, bool):
        raise PartitionError(f"copy is {copy!r}; write True or False")
    found: list[PlacedModel] = []
    placed_weights: PlacedWeights | None = None
    for split in splits:
        stages = checked_stages(split)
        device_of = stage_devices(split, devices)
        home = home_of(split)
        check_values(stages, device_of, weights)
        if weights is not None:
            check_files(split, weights)
        results_on = checked_output_device(output_device, device_of, home)
        if placed_weights is None:
            placed_weights = PlacedWeights(home, copy)
        elif placed_weights.home != home:
            raise PartitionError(
                f"one split is of a model on {placed_weights.home}, another on {home}; capture "
                "all of them from one model"
            )
        placing = _Placing(stages, device_of, placed_weights, tied_weights)
        if weights is not None:
            placing.load(weights, split.meta["plan"])
        placing.place(attribute_at(split, path) for path in _root_paths(split))
        found.append(_placed(split, placing, results_on))
    return tuple(found)


# -- weights -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Placing:
    """Which device has which tensor of the split."""

    stages: Mapping[str, fx.GraphModule]
    device_of: Mapping[str, torch.device]
    placed: PlacedWeights
    tied_weights: TiedWeights
    owner: dict[int, str] = field(default_factory=dict)
    """The stage that first reads a tensor, by the tensor's identity."""

    def load(self, folder: str | os.PathLike[str], plan: PartitionPlan) -> None:
        """Read the tensors of all stages from their files."""
        for index, (name, stage) in enumerate(self.stages.items()):
            self.placed.load(stage, folder, position_of(plan, index), self.device_of[name])

    def place(self, returned: Iterable[torch.Tensor]) -> None:
        """Put all tensors on their devices, and those `returned` by the graph itself."""
        held: dict[torch.device, list[torch.Tensor]] = {}
        lent: list[tuple[torch.Tensor, torch.device]] = []
        for name, stage in self.stages.items():
            device = self.device_of[name]
            for tensor in tensors_within(stage):
                owner = self.owner.setdefault(id(tensor), name)
                if self.device_of[owner] != device and self._is_lent(tensor):
                    lent.append((tensor, device))
                else:
                    held.setdefault(device, []).append(tensor)
        alone = [tensor for tensor in returned if id(tensor) not in self.owner]
        held.setdefault(self.placed.home, []).extend(alone)
        for device, tensors in held.items():
            self.placed.add(tensors, device)
        for tensor, device in lent:
            self.placed.share(tensor, self.device_of[self.owner[id(tensor)]], device)

    def device_at(self, tensor: torch.Tensor) -> torch.device:
        """Return where a tensor of the split is owned."""
        owner = self.owner.get(id(tensor))
        return self.placed.home if owner is None else self.device_of[owner]

    def elsewhere(self) -> dict[str, dict[str, str]]:
        """Return, by stage, its parameters that another device owns, with their names there."""
        found: dict[str, dict[str, str]] = {}
        for name, stage in self.stages.items():
            for path, parameter in stage.named_parameters(remove_duplicate=False):
                owner = self.owner[id(parameter)]
                if self.device_of[owner] != self.device_of[name]:
                    own = self.stages[owner].named_parameters()
                    there = next(path for path, tensor in own if tensor is parameter)
                    found.setdefault(name, {})[path] = f"{owner}.{there}"
        return found

    def _is_lent(self, tensor: torch.Tensor) -> bool:
        return self.tied_weights == "sum" and isinstance(tensor, nn.Parameter)


def _root_paths(split: fx.GraphModule) -> tuple[str, ...]:
    """Return the paths of the tensors that the graph returns as they are."""
    return tuple(dict.fromkeys(str(n.target) for n in split.graph.find_nodes(op="get_attr")))


# -- the module ----------------------------------------------------------------------------


def _placed(
    split: fx.GraphModule, weights: _Placing, output_device: torch.device | None
) -> PlacedModel:
    home = weights.placed.home
    memos = {device: weights.placed.memo(device) for device in {*weights.device_of.values(), home}}
    result = PlacedModel(nn.Module(), fx.Graph(), "PlacedModel")
    for name, stage in weights.stages.items():
        device = weights.device_of[name]
        result._modules[name] = copied_stage(stage, memos[device], home, device)
    paths = _root_paths(split)
    returned = {path: weights.device_at(attribute_at(split, path)) for path in paths}
    for path, device in returned.items():
        adopt_copies(result, split, (path,), memos[device])
    elsewhere = weights.elsewhere()
    is_sum = weights.tied_weights == "sum"
    result.graph = placed_graph(
        split,
        Places(
            devices=weights.device_of,
            home=home,
            output_device=output_device,
            borrowed=elsewhere if is_sum else {},
            copied={} if is_sum else elsewhere,
            weights=returned,
        ),
    )
    result.training = split.training
    result.meta = {
        **split.meta,
        "devices": dict(weights.device_of),
        "shared_tensors": shared_tensors({n: result.get_submodule(n) for n in weights.stages}),
    }
    return result
