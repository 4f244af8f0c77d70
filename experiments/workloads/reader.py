"""Published workloads, read exactly: those of Tarnawski et al. here, Piper's in ``piper.py``.

Format and semantics here: J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino,
"Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020, section 3
(computational model) and appendix B (training), and the README of the repository
msr-fiddle/dnn-partitioning.

* An accelerator pays its nodes' times, one transfer for each outside node that it reads, and one
  for each of its nodes that is read outside: host-staged charging with a time for each node's
  output. The host pays only its nodes' times, and its memory is unlimited.
* Nodes of one colour class share a device.
* Only the forward graph orders devices. A class without forward nodes gets a zero-cost forward
  node, and edges between two backward classes are mirrored if one of them lacks forward nodes.

Operators are named by the node's id, as in the answers of the authors' programs.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any, TypeGuard

from experiments.workloads.catalogue import workload_path
from experiments.workloads.classes import colour_classes, mirrored_forward, topological_order
from experiments.workloads.fields import (
    ACCELERATOR,
    CPU,
    DEFAULTS,
    InstanceSettings,
    read_devices,
    read_edges,
    read_nodes,
)
from experiments.workloads.piper import is_piper, piper_from_json
from solver import Interconnect, Operator, PartitionError, PartitionProblem, Weight
from solver.io.files import load_json
from solver.io.json_files import problem_from_json


def is_workload(data: object) -> TypeGuard[dict[str, Any]]:
    """Return True if JSON data are a published workload rather than a saved problem."""
    return isinstance(data, dict) and "schema" not in data and bool({"nodes", "maxFPGAs"} & {*data})


def load_instance(
    path: str | os.PathLike[str], settings: InstanceSettings = DEFAULTS
) -> PartitionProblem:
    """Read a published workload or a saved problem, by the content of the file.

    `path` may be ``published:NAME``. An error names the file, the field, and the node or edge.
    """
    return load_json(workload_path(path), partial(instance_from_json, settings=settings))


def instance_from_json(data: object, settings: InstanceSettings = DEFAULTS) -> PartitionProblem:
    """Build the problem of a workload or of a saved problem; see :func:`load_instance`."""
    if is_piper(data):
        _check_piper(settings)
        return piper_from_json(data, settings)
    if settings.device_memory_bytes is not None or not settings.with_replicas:
        raise PartitionError(
            "this is no workload of Piper, which --device-memory and --no-replicas are for; leave "
            "them out, and name devices by --devices"
        )
    if is_workload(data):
        return workload_from_json(data, settings)
    problem = problem_from_json(data)
    if settings.communication_scale is not None or not settings.with_host:
        raise PartitionError(
            "this is a saved problem; --communication-scale and --no-host are for "
            "published workloads, so leave them out"
        )
    return problem


def _check_piper(asked: InstanceSettings) -> None:
    if asked.with_replicas:
        raise PartitionError(
            "this is a workload of Piper, and replicas of stages are not planned yet; write "
            "--no-replicas for one device a stage"
        )
    if not asked.with_host:
        raise PartitionError("this is a workload of Piper, without a host; leave --no-host out")


def workload_from_json(
    data: dict[str, Any], settings: InstanceSettings = DEFAULTS
) -> PartitionProblem:
    """Build the problem of a workload in the format of Tarnawski et al. from plain data.

    The published layer graphs have costs in seconds but times in milliseconds: a scale of 1000
    makes their units consistent.
    """
    devices = read_devices(data, settings.with_host)
    cpus = frozenset(device.name for device in devices if device.is_host)
    node_of = read_nodes(data, has_cpus=bool(cpus))
    nodes = tuple(node_of.values())
    reads, transfer_ns = read_edges(data, node_of, settings.scale)
    mirror = mirrored_forward(nodes, node_of, reads)

    order = topological_order([node.name for node in nodes if not node.is_backward], reads, "")
    order += topological_order(
        [node.name for node in nodes if node.is_backward], reads, "backward "
    )
    operators = list(mirror.operators)
    for name in order:
        node = node_of[name]
        operators.append(
            Operator(
                name,
                {ACCELERATOR: node.accelerator_ns, CPU: node.cpu_ns},
                tuple(reads[name]),
                weights=(name,) if node.size_bytes else (),
                transfer_ns=transfer_ns.get(name, 0),
                is_backward=node.is_backward,
                allowed_devices=None if node.on_accelerator else cpus,
            )
        )
    return PartitionProblem(
        operators=tuple(operators),
        devices=devices,
        weights={node.name: Weight(node.size_bytes) for node in nodes if node.size_bytes},
        colocation=colour_classes(nodes) + mirror.colocation,
        interconnect=Interconnect(charging="host_staged"),
        objective=("bottleneck",),
        memory_model="weights",
    )
