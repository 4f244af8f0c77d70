"""Plans made elsewhere, as plans of operators that can be evaluated.

A ``device_map`` and a ``split_spec`` name modules. The operators in between are placed as the tools
of these formats place them, so that the plan is the one that would really run. For tags see
:mod:`fx_bridge.split.tags`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, Final

import networkx as nx
import torch

from fx_bridge.capture.graph import CapturedGraph, check_captured
from fx_bridge.capture.modules import ModuleCall, unknown_module
from fx_bridge.interop.accelerate_dispatch import DeviceMapRun, run_by_device_map, tensor_names
from fx_bridge.presentation.modules import enclosing
from fx_bridge.split.checks import crossing_edges
from solver import Device, PartitionError, PartitionPlan
from solver.model.device_text import as_devices
from solver.model.quantities import counted
from solver.model.text import shown

_POINTS: Final = ("BEGINNING", "END")


def plan_from_device_map(
    captured: CapturedGraph, devices: Sequence[Device] | str, mapping: Mapping[str, Any]
) -> PartitionPlan:
    """Return the plan that accelerate runs under a ``device_map``.

    Parameters
    ----------
    devices : sequence of Device, or str
        Such as ``problem.devices``; a number in the map is the device ``cuda:number``.
    mapping : mapping of str to int, str or torch.device
        As for ``dispatch_model`` of accelerate and ``from_pretrained`` of transformers.

    Returns
    -------
    PartitionPlan
        With a new chunk for every return of data to a device, such as to the device of weights
        that the first and the last layer share.

    Raises
    ------
    PartitionError
        If the map names an unknown module or device, leaves a weight out, or offloads.

    Notes
    -----
    A module's arguments are moved to its device, and its operators run there. An operator outside
    of the modules of the map runs on the device of the first tensor that it reads, weights
    included. One without inputs, such as ``arange``, runs with the inputs of the model, on the
    first device, the least number in the map. accelerate does not move inputs of operators outside
    of modules: :func:`device_map_run` reports operators with inputs on several devices.

    Examples
    --------
    >>> from fx_bridge.capture.graph import capture
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> pair = [Device("cuda:0"), Device("cuda:1")]
    >>> captured = capture(model, (torch.ones(1, 4),))
    >>> plan_from_device_map(captured, pair, {"0": 0, "2": 1}).assignment["relu"]
    'cuda:0'
    """
    return plan_in_chunks(captured, device_map_run(captured, devices, mapping).assignment)


def device_map_run(
    captured: CapturedGraph, devices: Sequence[Device] | str, mapping: Mapping[str, Any]
) -> DeviceMapRun:
    """Return the devices of operators under a ``device_map``, and those with inputs on several.

    Parameters, errors and rules are those of :func:`plan_from_device_map`.
    """
    check_captured(captured, "map", "plan_from_device_map(capture(model, args), devices, mapping)")
    if not isinstance(mapping, Mapping) or not mapping:
        raise PartitionError(
            f"the device map is {shown(mapping)}; write a mapping of module to device, such as "
            "{'layers.0': 0, 'layers.1': 1}"
        )
    names = [device.name for device in as_devices(devices)]
    device_of = {path: _device(path, value, names) for path, value in mapping.items()}
    used = set(device_of.values())
    hosts = [path for path, device in device_of.items() if device.partition(":")[0] == "cpu"]
    if hosts and len(used) > 1:
        raise PartitionError(
            f"the device map offloads {hosts[0]!r} to {device_of[hosts[0]]}: accelerate computes "
            "nothing there, but copies its weights to another device at every call, which a plan "
            "cannot say; map it to one of the other devices"
        )
    _check_paths(captured, device_of)
    main = min(device_of.values(), key=names.index)
    return run_by_device_map(captured, device_of, main)


def plan_from_split_spec(
    captured: CapturedGraph, devices: Sequence[Device] | str, spec: Mapping[str, Any]
) -> PartitionPlan:
    """Return the plan that ``torch.distributed.pipelining.pipeline`` makes of a ``split_spec``.

    Parameters
    ----------
    devices : sequence of Device, or str
        Stage n runs on device n. With more stages than devices, the second chunk begins with the
        first device again, as torch numbers interleaved stages.
    spec : mapping of str to SplitPoint or str
        Module to ``SplitPoint.BEGINNING`` or ``SplitPoint.END``, or their names in any case. Or
        the output of ``fxpartition hand-over``, ``{"split_spec": spec, "devices": names}``: names
        of devices in the order of stages, or a list of them for each chunk.

    Raises
    ------
    PartitionError
        If the specification names an unknown module or device, a module that runs no operators, or
        an unknown point.

    Notes
    -----
    torch cuts the operators in execution order: those before the first split point are the first
    stage, in any module. A module that is called several times is cut at each call. Stages without
    operators do not count.

    Examples
    --------
    >>> from fx_bridge.capture.graph import capture
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> captured = capture(model, (torch.ones(1, 4),))
    >>> pair = [Device("cuda:0"), Device("cuda:1")]
    >>> plan_from_split_spec(captured, pair, {"1": "end"}).operators_of("cuda:0")
    ('linear', 'relu')
    """
    check_captured(captured, "cut", "plan_from_split_spec(capture(model, args), devices, spec)")
    order = [device.name for device in as_devices(devices)]
    chunks = None
    if isinstance(spec, Mapping) and isinstance(spec.get("split_spec"), Mapping):
        order, chunks = _named_order(spec, order)
        spec = spec["split_spec"]
    points = _split_points(captured, spec)
    calls = captured.modules.calls
    stages: dict[str, int] = {}
    stage = 0
    previous: tuple[ModuleCall, ...] = ()
    for name, own in calls.items():
        ended = any(points.get(call.path) == "END" for call in previous if call not in own)
        begun = any(points.get(call.path) == "BEGINNING" for call in own if call not in previous)
        # Split points with no operator between them make one cut, those before all operators none.
        stage += bool(stages) and (ended or begun)
        stages[name] = stage
        previous = own
    if chunks is None:
        order = order[: stage + 1]
        places = [(order[at % len(order)], at // len(order)) for at in range(stage + 1)]
    else:
        places = [(device, chunk) for chunk, row in enumerate(chunks) for device in row]
        if len(places) != stage + 1:
            raise PartitionError(
                f"the split specification has {counted(len(places), 'device')} in lists for chunks "
                f"and {counted(stage + 1, 'stage')}; write the device of every stage"
            )
    return PartitionPlan(
        {name: places[at][0] for name, at in stages.items()},
        tuple(order),
        {name: places[at][1] for name, at in stages.items()},
    )


def plan_in_chunks(captured: CapturedGraph, assignment: Mapping[str, str]) -> PartitionPlan:
    """Return the plan of an assignment in which data may return to devices, in few chunks.

    It has one chunk if some order of the devices makes data flow forward only. Else the devices are
    in the order of their first operators, and every operator is in its earliest possible chunk.
    """
    first_seen = tuple(dict.fromkeys(assignment[node.name] for node in captured.operators))
    quotient: nx.DiGraph[str] = nx.DiGraph(list(crossing_edges(captured, assignment)))
    quotient.add_nodes_from(first_seen)
    if nx.is_directed_acyclic_graph(quotient):
        order = nx.lexicographical_topological_sort(quotient, key=first_seen.index)
        return PartitionPlan(assignment, tuple(order))
    rank = {device: at for at, device in enumerate(first_seen)}
    chunks: dict[str, int] = {}
    for node in captured.operators:
        here = rank[assignment[node.name]]
        chunks[node.name] = max(
            (
                chunks[read.name] + (rank[assignment[read.name]] > here)
                for read in node.all_input_nodes
                if read.name in chunks
            ),
            default=0,
        )
    return PartitionPlan(assignment, first_seen, chunks)


def _device(path: object, value: object, names: Sequence[str]) -> str:
    if not isinstance(path, str):
        raise PartitionError(f"the device map names {path!r}; write the path of a module")
    if isinstance(value, Integral) and not isinstance(value, bool):
        text = f"cuda:{value}"
    elif isinstance(value, (str, torch.device)):
        text = str(value)
    else:
        raise PartitionError(
            f"the device of {path!r} is {shown(value)}; write a number such as 0, or a name"
        )
    if text == "disk":
        raise PartitionError(
            f"the device map leaves {path!r} on disk: nothing runs there; map it to a device"
        )
    if text not in names and f"{text}:0" in names:
        text = f"{text}:0"
    if text not in names:
        raise PartitionError(
            f"the device of {path!r} is {shown(value)}; the devices are {', '.join(names)}"
        )
    return text


def _check_paths(captured: CapturedGraph, device_of: Mapping[str, str]) -> None:
    """Refuse unknown modules, and weights without a device.

    As in accelerate, only tensors of the state dict need one: another buffer, such as the
    frequencies of a rotary embedding, moves to its reader.
    """
    tensors = tensor_names(captured)
    modules = captured.modules.operators
    for path in device_of:
        if path and path not in modules and path not in tensors:
            raise unknown_module(path, modules)
    model = captured.model
    saved = model.state_dict(keep_vars=True)
    for name in tensors:
        if name not in saved:
            continue
        if "" not in device_of and not any(prefix in device_of for prefix in enclosing(name)):
            raise PartitionError(
                f"the device map has no device for {name!r}; add its module, or a module around it"
            )


def _named_order(
    spec: Mapping[str, Any], names: Sequence[str]
) -> tuple[list[str], list[list[str]] | None]:
    """Return the order of the devices beside a specification, and the lists of its chunks."""
    for key in spec:
        if key not in ("split_spec", "devices"):
            raise PartitionError(
                f"the split specification has {key!r} beside split_spec; write devices, or nothing"
            )
    listed = spec.get("devices", list(names))
    is_nested = isinstance(listed, list) and bool(listed) and isinstance(listed[0], list)
    rows = listed if is_nested else [listed]
    for row in rows:
        if not isinstance(row, list) or not row or not all(isinstance(name, str) for name in row):
            raise PartitionError(
                "the devices of the split specification are no list of names, or one for each "
                'chunk; write such as ["cuda:1", "cuda:0"]'
            )
        for name in row:
            if name not in names:
                raise PartitionError(
                    f"the split specification names device {name!r}; the devices are "
                    f"{', '.join(names)}"
                )
            if row.count(name) > 1:
                raise PartitionError(
                    f"the split specification names device {name!r} twice; name each once, and "
                    "write a list for each chunk"
                )
    order: nx.DiGraph[str] = nx.DiGraph()
    for row in rows:
        nx.add_path(order, row)
    if not nx.is_directed_acyclic_graph(order):
        raise PartitionError(
            "the split specification has devices in another order in each chunk; write them in one"
        )
    return list(nx.topological_sort(order)), rows if is_nested else None


def _split_points(captured: CapturedGraph, spec: object) -> dict[str, str]:
    if not isinstance(spec, Mapping) or not spec:
        raise PartitionError(
            f"the split specification is {shown(spec)}; write a mapping of module to split point, "
            "such as {'layers.4': 'beginning'}"
        )
    modules = captured.modules.operators
    called = {call.path for own in captured.modules.calls.values() for call in own}
    points: dict[str, str] = {}
    for path, point in spec.items():
        if path not in modules:
            raise unknown_module(path, modules)
        if path not in called:
            raise PartitionError(
                f"module {path!r} is not called with operators of its own, so that nothing says "
                "where it would be cut; name a module inside it"
            )
        name = getattr(point, "name", point)
        if not isinstance(name, str) or name.upper() not in _POINTS:
            raise PartitionError(
                f"the split point of {path!r} is {shown(point)}; write 'beginning' or 'end'"
            )
        points[path] = name.upper()
    return points
