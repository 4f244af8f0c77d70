"""One process, several devices: a split whose stages run where the plan says."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, get_args

import torch
from torch import fx, nn

from fx_bridge.placement.checks import (
    check_files,
    check_streamed,
    check_values,
    checked_output_device,
    checked_stages,
    home_of,
    stage_devices,
)
from fx_bridge.placement.graph import Places, placed_graph
from fx_bridge.placement.placing import (
    NOTHING_STREAMED,
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
    """A split whose stages are on their devices; called like the model.

    Made by :func:`place`. Its children are the stages, under the names and with the parameter
    names that they have in the split, so that ``parameters()``, ``state_dict()`` and
    ``load_state_dict()`` are those of the split; :meth:`model_state_dict` has the model's own
    names. ``code`` shows the calls of the stages and every transfer between them. ``meta`` is
    that of the split, ``meta["devices"]`` maps the name of each stage to its torch.device, and
    ``meta["streamed"]`` names the stages that run on copies of weights in host memory, which are
    what ``parameters()`` and ``state_dict()`` give.
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
        wait_for_loads(self.children())
        with torch.no_grad():
            for name, tensor in state.items():
                for place in names.tensors[name]:
                    if place in own:
                        own[place].copy_(tensor)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state as any module does, when no weight is on its way to a device."""
        wait_for_loads(self.children())
        return super().load_state_dict(*args, **kwargs)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        # Module.to, cuda, cpu, to_empty and half all come here; dtypes may change.
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
    streamed : collection of str
        Names of stages whose weights stay in host memory and are copied to their device in every
        call, such as ``{"submod_1"}``; for inference alone.
    slots : int
        How many streamed stages a device has room for at once: the one that runs, and those after
        it, which are loaded meanwhile. Each slot is as large as the largest of them.

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
        are of another plan, a weight cannot be streamed, or an argument is invalid.

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

    *What is streamed.* Parameters, buffers and constants that streamed stages alone read on a
    device, unless a stage writes them or the model returns them as they are: a cache stays on its
    device, and so does a tied weight that another stage has there. The host has the truth: a slot
    is loaded again if a weight was written after it was loaded. A call that would record gradients
    is refused, and so are ``.half()`` and copies of the placed model.

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
    """Put the stages of several splits of one model on their devices.

    Parameters and buffers that two of them read on one device are there once: what one call writes
    into a buffer, the next one reads, whichever split it calls, and what one writes no other may
    read on another device. They share slots too: `streamed` names stages of any of the splits. With
    ``tied_weights="sum"`` a parameter is one: the splits must first read it on the same device. All
    arguments but `splits` are those of :func:`place`, and so are the errors.

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
            check_files(split, weights)
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
    travels = streamed_tensors(placings) if streamed else NOTHING_STREAMED
    for placing in placings:
        for name, paths in placing.streamed_paths(travels).items():
            check_streamable(name, placing.stages[name], paths)
    for placing in placings:
        if weights is not None:
            placing.load(weights, travels)
    place_tensors(placings, travels)
    found = tuple(map(_placed, placings, results_on, [travels] * len(placings)))
    _stream(found, placings, travels, slots)
    return found


# -- the module ----------------------------------------------------------------------------


def _placed(
    placing: Placing, output_device: torch.device | None, streamed: Streamed
) -> PlacedModel:
    split, home = placing.split, placing.placed.home
    devices = {*placing.device_of.values(), *placing.lodged.values(), home}
    memos = {device: placing.placed.memo(device) for device in devices}
    result = PlacedModel(nn.Module(), fx.Graph(), "PlacedModel")
    for name, stage in placing.stages.items():
        device = placing.device_of[name]
        result._modules[name] = copied_stage(stage, memos[device], home, device)
    returned = {path: placing.device_at(tensor) for path, tensor in placing.returned.items()}
    for path, device in returned.items():
        adopt_copies(result, split, (path,), memos[device])
    elsewhere = placing.elsewhere()
    is_sum = placing.tied_weights == "sum"
    result.graph = placed_graph(
        split,
        Places(
            devices=placing.device_of,
            home=home,
            output_device=output_device,
            borrowed=elsewhere if is_sum else {},
            copied={} if is_sum else elsewhere,
            weights=returned,
            streamed=placing.streamed_paths(streamed),
        ),
    )
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
    """Give every device its slots, and begin to load them."""
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
