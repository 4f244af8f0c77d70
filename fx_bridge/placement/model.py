"""A split whose stages run on several devices of one process."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, get_args

import torch
from torch import fx, nn

from fx_bridge.checkpoint.manifest import check_plan, load_manifest
from fx_bridge.placement.checks import (
    check_streamed,
    check_values,
    checked_output_device,
    checked_stages,
    home_of,
    stage_devices,
)
from fx_bridge.placement.graph import placed_graph
from fx_bridge.placement.placing import (
    Placing,
    Streamed,
    TiedWeights,
    check_owners,
    join_written,
    place_tensors,
    streamed_tensors,
)
from fx_bridge.placement.stage_copies import adopt_copies, copied_stage
from fx_bridge.placement.streaming import check_streamable, stream_stages, wait_for_loads
from fx_bridge.placement.weights import PlacedWeights, tensors_within
from fx_bridge.split.guards import CheckedModel
from fx_bridge.split.name_map import NameMap, shared_tensors
from solver import PartitionError
from solver.model.text import shown


class PlacedModel(CheckedModel):
    """A split with its stages on their devices; called like the model.

    Made by :func:`place`. Its children are the stages, and its parameters and states those of the
    split, streamed ones in host memory; :meth:`model_state_dict` has the model's own names.
    ``code`` shows the calls of the stages and every transfer between them. ``meta`` is that of the
    split, with the torch.device of each stage by name in ``meta["devices"]`` and the names of
    streamed stages in ``meta["streamed"]``.
    """

    @property
    def devices(self) -> Mapping[str, torch.device]:
        """The device of each stage by name, in stage order."""
        devices: Mapping[str, torch.device] = self.meta["devices"]
        return devices

    def model_state_dict(self) -> dict[str, torch.Tensor]:
        """Return parameters and persistent buffers under their names in the model.

        Returns
        -------
        dict of str to torch.Tensor
            Detached, each on its device, tied ones under each of their names, for
            ``model.load_state_dict(…)``. Weights that no operator reads are in no stage and are
            left out: pass ``strict=False`` if the model has any.
        """
        state = self.state_dict()
        names: NameMap = self.meta["name_map"]
        return {
            name: state[places[0]]
            for name, places in names.tensors.items()
            if places and places[0] in state
        }

    def load_model_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy in parameters and buffers, given under their names in the model.

        Parameters
        ----------
        state : mapping of str to torch.Tensor
            Of ``model.state_dict()``, on any device. Weights that no operator reads are ignored.

        Raises
        ------
        PartitionError
            In one line, before anything is written: a name is missing or unknown to the model, or
            a shape differs.
        """
        own = self.state_dict()
        names: NameMap = self.meta["name_map"]
        own_at = {
            name: {place: own[place] for place in places if place in own}
            for name, places in names.tensors.items()
        }
        for name, tensor in state.items():
            if name not in own_at:
                raise PartitionError(
                    f"the model has no weight {name!r}; give what model.state_dict() returns"
                )
            for there in own_at[name].values():
                if there.shape != tensor.shape:
                    raise PartitionError(
                        f"weight {name!r} has shape {tuple(tensor.shape)} instead of "
                        f"{tuple(there.shape)}; give the state of a model of this size"
                    )
        given = {place for name in state for place in own_at[name]}
        for name, places in own_at.items():
            if not given.issuperset(places):
                raise PartitionError(
                    f"weight {name!r} is missing; give all that model.state_dict() returns"
                )
        wait_for_loads(self.children())
        with torch.no_grad():
            for name, tensor in state.items():
                for there in own_at[name].values():
                    there.copy_(tensor)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state as any module does, once pending loads of streamed weights are done."""
        wait_for_loads(self.children())
        return super().load_state_dict(*args, **kwargs)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        # Called by Module.to, cuda, cpu, to_empty and half; dtypes may change.
        if self.meta["streamed"]:
            raise PartitionError(
                "the weights of a placed model with streamed stages keep their dtypes and places; "
                "convert the model, capture it and place its split"
            )
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
    streamed: Collection[str] = (),
    slots: int = 2,
) -> PlacedModel:
    """Put every stage of a split on its device.

    Parameters
    ----------
    split : torch.fx.GraphModule
        From :func:`~fx_bridge.split.by_plan.split_by_plan` or ``result.split()``. Not changed.
    devices : str, torch.device or mapping of str to these, optional
        One for all stages, such as ``"cpu"`` to rehearse a plan; or devices of torch by the plan's
        device names, ``{"gpu0": "cuda:0"}``. Names that torch knows (``"cpu"``, ``"cuda:1"``,
        ``"meta"``) stand for themselves unless mapped. Several names may share a device.
        ``"cpu:0"``, ``"cpu:1"``, … are places in host memory; values are copied between them as
        between devices.
    output_device : str or torch.device, optional
        Device of the results, by default that of the model's results. On the meta device, and for
        a model captured there, results stay where they are made.
    tied_weights : {"sum", "copy"}
        Treatment of a parameter that stages on several devices read. ``"sum"``: it stays one
        parameter on the device of its first reader; every call sends it to the others, and their
        gradients are sent back and summed. ``"copy"``: every device has its own copy and nothing
        is sent; a call that would train a copy is refused.
    copy : bool
        Also copy weights that are on their device already. By default these are shared with
        the split and the model, as the split shares its weights with the model.
    weights : path, optional
        A folder written by :func:`fx_bridge.checkpoint.stages.save_stages`: the values of each
        stage are read from its file straight to its device. The model may then be on the meta
        device.
    streamed : collection of str
        Names of stages whose weights stay in host memory and are copied to their device in every
        call, such as ``{"submod_1"}``; for inference only.
    slots : int
        Streamed stages that a device holds at once: the one that runs, and the next ones, which
        are loaded meanwhile. Each slot is as large as the largest of them.

    Returns
    -------
    PlacedModel
        Called like the model. Inputs may be on any device: each is sent where it is read, once per
        device. Make optimisers from its own parameters, after placing.

    Raises
    ------
    PartitionError
        In one line, before anything is moved: a device is not on this machine or unknown to torch,
        stages on the meta device are mixed with others, weights have no values, the files are of
        another plan, a weight cannot be streamed, or an argument is invalid.

    Notes
    -----
    ``docs/placement.md`` has the devices of all tensors, the order of transfers, and streaming.
    Do not overwrite an input in pinned memory before the accelerator has read it: its copies are
    asynchronous.

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
        streamed=streamed,
        slots=slots,
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
    streamed: Collection[str] = (),
    slots: int = 2,
) -> tuple[PlacedModel, ...]:
    """Return splits of graphs captured from one model on one device, with stages on their devices.

    Parameters and buffers that two splits read on one device are there once: a value that one call
    writes into a buffer is read by the next call, of any split. A buffer that one split writes must
    not be read by another on another device. The splits share slots too: `streamed` names stages of
    any of them. With ``tied_weights="sum"`` the splits must first read a parameter on the same
    device. All other arguments, and the errors, are those of :func:`place`.
    """
    if tied_weights not in get_args(TiedWeights):
        raise PartitionError(
            f"tied_weights is {shown(tied_weights)}; write one of "
            f"{', '.join(map(repr, get_args(TiedWeights)))}"
        )
    if not isinstance(copy, bool):
        raise PartitionError(f"copy is {shown(copy)}; write True or False")
    placings: list[Placing] = []
    results_on: list[torch.device | None] = []
    for split in splits:
        stages = checked_stages(split)
        device_of = stage_devices(split, devices)
        home = home_of(split)
        check_values(stages, device_of, weights)
        if weights is not None:
            check_plan(load_manifest(weights), split.meta["plan"])
        results_on.append(checked_output_device(output_device, device_of, home))
        if placings and placings[0].placed.home != home:
            raise PartitionError(
                f"one split is of a model on {placings[0].placed.home}, another on {home}; capture "
                "all of them from one model"
            )
        placed = placings[0].placed if placings else PlacedWeights(home, copy)
        placings.append(Placing(split, stages, device_of, placed, tied_weights, streamed))
    check_owners(placings)
    join_written(placings)
    check_streamed(streamed, slots, [placing.device_of for placing in placings])
    to_stream = streamed_tensors(placings) if streamed else {}
    for placing in placings:
        for name, paths in placing.streamed_paths(to_stream).items():
            check_streamable(name, placing.stages[name], paths)
    for placing in placings:
        if weights is not None:
            placing.load(weights, to_stream)
    place_tensors(placings, to_stream)
    found = tuple(map(_placed, placings, results_on, [to_stream] * len(placings)))
    _stream(found, placings, to_stream, slots)
    return found


def _placed(
    placing: Placing, output_device: torch.device | None, streamed: Streamed
) -> PlacedModel:
    split, home = placing.split, placing.placed.home
    devices = {*placing.device_of.values(), *placing.device_of_unread.values(), home}
    memos = {device: placing.placed.memo(device) for device in devices}
    result = PlacedModel(nn.Module(), fx.Graph(), "PlacedModel")
    for name, stage in placing.stages.items():
        device = placing.device_of[name]
        result._modules[name] = copied_stage(stage, memos[device], home, device)
    for path, tensor in placing.returned.items():
        adopt_copies(result, split, (path,), memos[placing.device_at(tensor)])
    result.graph = placed_graph(placing, output_device, placing.streamed_paths(streamed))
    result.training = split.training
    result.meta = {
        **split.meta,
        "devices": dict(placing.device_of),
        "streamed": tuple(name for name in placing.stages if name in placing.streams),
        "shared_tensors": shared_tensors({n: result.get_submodule(n) for n in placing.stages}),
    }
    return result


def _stream(
    models: Sequence[PlacedModel], placings: Sequence[Placing], streamed: Streamed, slots: int
) -> None:
    """Make the slots of every device, and start the first loads."""
    for device in streamed:
        cycles: list[dict[nn.Module, Sequence[str]]] = [
            {
                model.get_submodule(name): paths
                for name, paths in placing.streamed_paths(streamed).items()
                if placing.device_of[name] == device
            }
            for model, placing in zip(models, placings, strict=True)
        ]
        if any(cycles):
            stream_stages(device, cycles, slots)
