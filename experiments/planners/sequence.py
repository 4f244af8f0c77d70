"""Operators as a sequence of layers, the input of pipeline balancers.

A layer is a unit of :func:`solver.presolve.instance.condense`: operators that must share a device.
Layers are in execution order, and a stage is a run of consecutive layers. Balancers get the data
of their papers: times, sizes, bytes across a cut. These are not costs of plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from solver import PartitionPlan, PartitionProblem
from solver.model.arrays import Ints
from solver.presolve.instance import Instance, condense


@dataclass(frozen=True)
class LayerSequence:
    """Layers in topological order, with their times and sizes."""

    units: Instance

    @classmethod
    def of(cls, problem: PartitionProblem) -> LayerSequence:
        """Return the layers of `problem`."""
        return cls(condense(problem))

    def __len__(self) -> int:
        return len(self.units)

    @property
    def problem(self) -> PartitionProblem:
        """The problem whose layers these are."""
        return self.units.problem

    @property
    def stage_count(self) -> int:
        """Number of stages: one for every device that may be used."""
        devices = len(self.problem.devices)
        return min(devices, self.problem.max_devices or devices)

    @cached_property
    def time_ns(self) -> Ints:
        """Time of every layer on the first device, with its backward pass in training.

        Balancers assume equal devices.
        """
        device_class = self.problem.devices[0].device_class
        return self.units.work_ns[device_class]

    @cached_property
    def weight_bytes(self) -> Ints:
        """Bytes held for the weights of every layer, in training with optimiser state.

        A shared weight counts in each of its layers.
        """
        sizes = np.zeros(len(self), dtype=np.int64)
        for entry in self.units.weights:
            sizes[list(entry.units)] += entry.size_bytes
        return sizes

    @cached_property
    def parameter_bytes(self) -> Ints:
        """Bytes of the stored weights of every layer, without training state."""
        problem = self.problem
        sizes: list[int] = []
        for members in self.units.members:
            keys = {key for index in members for key in problem.operators[index].weights}
            sizes.append(sum(problem.weights[key].size_bytes for key in keys))
        return np.array(sizes, dtype=np.int64)

    @cached_property
    def activation_bytes(self) -> Ints:
        """Bytes of the storages that every layer allocates."""
        operators = self.problem.operators
        sizes = [
            sum(operators[index].storage_bytes for index in members)
            for members in self.units.members
        ]
        return np.array(sizes, dtype=np.int64)

    @cached_property
    def crossing_bytes(self) -> Ints:
        """Bytes across the cut before every layer: values that later layers read.

        Each value counts once, and in training its gradient too. In a chain of layers this is the
        output of the layer before.
        """
        change = np.zeros(len(self) + 1, dtype=np.int64)
        for net in self.units.nets:
            last = max(net.consumers)
            # An edge of the backward pass may run against the order; no paper considers it.
            if last > net.producer:
                change[net.producer + 1] += net.value_bytes
                change[last + 1] -= net.value_bytes
        crossing: Ints = np.cumsum(change)[:-1]
        return crossing

    def plan(self, ends: Sequence[int], devices: Sequence[str] | None = None) -> PartitionPlan:
        """Return the plan whose stage k ends before layer ``ends[k]``.

        The ends never decrease; the last one is the number of layers. Empty stages use no device.
        By default stages are on the devices of the problem, in order.
        """
        if devices is None:
            devices = [device.name for device in self.problem.devices]
        device_of: list[str] = []
        for device, end in zip(devices, ends, strict=False):
            device_of += [device] * (end - len(device_of))
        return PartitionPlan(self.units.lift(device_of), tuple(dict.fromkeys(device_of)))
