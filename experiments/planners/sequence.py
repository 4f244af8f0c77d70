"""The operators as a sequence of layers, as balancers of pipelines see a model.

A layer is a unit of :func:`solver.presolve.instance.condense`: operators that must share a device.
Layers come in execution order, and a stage is a run of consecutive layers. What a balancer is told
of them is what its paper knows: times, sizes, what crosses a cut. Nothing here is a cost of a plan.
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
    """Layers with their times and sizes.

    Parameters
    ----------
    units : Instance
        Operators that must share a device are one layer, in topological order.
    """

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
        """How many stages a balancer is asked for: one for every device that may be used."""
        devices = len(self.problem.devices)
        return min(devices, self.problem.max_devices or devices)

    @cached_property
    def time_ns(self) -> Ints:
        """The time of every layer on the first device; balancers know one kind of device.

        In training with that of its backward pass.
        """
        device_class = self.problem.devices[0].device_class
        return self.units.work_ns[device_class]

    @cached_property
    def weight_bytes(self) -> Ints:
        """What devices hold for the weights of every layer, in training with optimiser state.

        A weight that several layers read counts in each of them.
        """
        sizes = np.zeros(len(self), dtype=np.int64)
        for entry in self.units.weights:
            sizes[list(entry.units)] += entry.size_bytes
        return sizes

    @cached_property
    def parameter_bytes(self) -> Ints:
        """The stored weights of every layer, whatever else a device holds for them in training."""
        problem = self.problem
        sizes: list[int] = []
        for members in self.units.members:
            keys = {key for index in members for key in problem.operators[index].weights}
            sizes.append(sum(problem.weights[key].size_bytes for key in keys))
        return np.array(sizes, dtype=np.int64)

    @cached_property
    def activation_bytes(self) -> Ints:
        """The storages that every layer allocates."""
        operators = self.problem.operators
        sizes = [
            sum(operators[index].storage_bytes for index in members)
            for members in self.units.members
        ]
        return np.array(sizes, dtype=np.int64)

    @cached_property
    def crossing_bytes(self) -> Ints:
        """What crosses the cut before every layer: values that a layer from there on reads.

        Each value counts once; in training its gradient counts too. Where layers are a chain this
        is what the layer before returns.
        """
        change = np.zeros(len(self) + 1, dtype=np.int64)
        for net in self.units.nets:
            last = max(net.consumers)
            # An edge of the backward pass may run against the order; no paper knows of it.
            if last > net.producer:
                change[net.producer + 1] += net.value_bytes
                change[last + 1] -= net.value_bytes
        crossing: Ints = np.cumsum(change)[:-1]
        return crossing

    def plan(self, ends: Sequence[int], devices: Sequence[str] | None = None) -> PartitionPlan:
        """Return the plan whose stage k ends before layer ``ends[k]``.

        Parameters
        ----------
        ends : sequence of int
            Not descending; the last one is the number of layers. The device of a stage without
            layers is not used.
        devices : sequence of str, optional
            Stage k runs on the k-th; those of the problem, in their order, if left out.
        """
        if devices is None:
            devices = [device.name for device in self.problem.devices]
        device_of: list[str] = []
        for device, end in zip(devices, ends, strict=False):
            device_of += [device] * (end - len(device_of))
        return PartitionPlan(self.units.lift(device_of), tuple(dict.fromkeys(device_of)))
