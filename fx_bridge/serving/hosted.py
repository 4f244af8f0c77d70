"""Plans of language models on too little memory: resident, streamed and host-computed units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from fx_bridge.interop.words import Words
from fx_bridge.serving.host_words import HostWordsModel
from fx_bridge.serving.placed import PlacedStep, place_step
from fx_bridge.serving.plan import ServingPlan
from solver import Diagnosis, SolveLimits
from solver.model.checks import only_given
from solver.model.devices import STAGING_HOST
from solver.offload.evaluate import OffloadEvaluation, evaluate_offload
from solver.offload.instance import OffloadInstance
from solver.offload.units import UNIT_MODES
from solver.serving.metrics import ServingMetrics, hosted_metrics


@dataclass(frozen=True)
class HostedPlan(ServingPlan):
    """Plan of a served model with a host: a device and a mode for every unit.

    A unit is half a layer: the operators up to the end of its first part with weights, usually
    attention with its cache, or the rest. The operators before the first layer are one unit, and
    those after the last another. See ``docs/offload.md`` for the cost of a plan.
    """

    host_has_first: ClassVar[bool] = False
    """Whether the first unit is on the host in all plans."""
    __repr__ = only_given

    @cached_property
    def instance(self) -> OffloadInstance:
        """Times, weights and caches of the units, with the context of the plan."""
        found = self.solved.evaluation
        made = OffloadInstance.of(self.asked)
        return made.at(found.instance.context) if isinstance(found, OffloadEvaluation) else made

    @property
    def context(self) -> int:
        """Context of the request, or the largest that fits for the objective ``context``."""
        return self.instance.context

    @property
    def most_tokens(self) -> float | None:
        """Tokens of all sequences that fit the plan, infinite if any number does."""
        return self.evaluation.most_tokens

    @property
    def evaluation(self) -> OffloadEvaluation:
        """Cost of the plan.

        Raises
        ------
        PartitionError
            If there is no plan.
        """
        return evaluate_offload(self.instance, self.plan)

    @property
    def metrics(self) -> ServingMetrics:
        """Times of the plan, each call in its steady state; one group is served."""
        return hosted_metrics(self.asked, self.evaluation.times_ns)

    @property
    def memory_bytes(self) -> dict[str, int]:
        """Bytes of resident units and caches, by device of the problem."""
        return dict(self.evaluation.held_bytes)

    def diagnose(self, limits: SolveLimits) -> Diagnosis | None:
        """Return None: memory and pins alone are in the way of a plan with a host."""
        return None

    def host_words(self, engine: str) -> HostWordsModel:
        """Return the translation of plans into arguments of an engine, such as ``"llama.cpp"``.

        Raises
        ------
        PartitionError
            If the engine cannot place units on a host, or does not support this model.
        """
        return HostWordsModel.of(self.graphs, self.instance, self.request.batch, engine)

    def words(self, engine: str) -> Words:
        """Return the plan as arguments of an engine, such as ``"llama.cpp"``.

        Raises
        ------
        PartitionError
            If there is no plan, or the engine cannot run it. One line then names a misplaced unit
            and the nearest plan with its cost.
        """
        return self.host_words(engine).words(self.plan)

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Number of units per mode, by device."""
        found = {device.name: dict.fromkeys(UNIT_MODES, 0) for device in self.instance.devices}
        for device, mode in self.instance.units_of(self.plan).values():
            found[device][mode] += 1
        return {device: {str(mode): n for mode, n in of.items()} for device, of in found.items()}

    @property
    def slots(self) -> int:
        """Number of streamed units that fit into the buffer of every device; at least 1."""
        placed, buffers = self.instance.units_of(self.plan), self.evaluation.buffer_bytes
        sizes: dict[str, list[int]] = {}
        for unit in self.instance.units:
            device, mode = placed[unit.name]
            if mode == "streamed":
                sizes.setdefault(device, []).append(unit.loaded_bytes)
        fitting = [
            len(own) if (buffer := buffers[device]) is None else buffer // max(own)
            for device, own in sizes.items()
        ]
        return max(1, min(fitting, default=1))

    def place(
        self,
        devices: str | torch.device | Mapping[str, str | torch.device] | None = None,
        *,
        host: str | torch.device = "cpu",
    ) -> PlacedStep:
        """Return the step placed by the plan, for one process.

        Resident units are on their devices, and the units of the host on the host. Streamed units
        share `slots` slots per device (:func:`fx_bridge.placement.model.place`).

        Parameters
        ----------
        devices : optional
            Torch devices for those of the plan; see :func:`fx_bridge.placement.model.place`.
        host : str or torch.device
            Torch device of the host's units.

        Raises
        ------
        PartitionError
            If there is no plan, a device is not on this machine, or the contexts of plan and step
            differ.
        """
        self.check_context()
        names = self.plan.device_order
        given = devices if isinstance(devices, Mapping) else dict.fromkeys(names, devices)
        where = {name: given.get(name) or name for name in names}
        where |= {STAGING_HOST: host} if STAGING_HOST in where else {}
        return place_step(
            self.graphs, self.plan, where, context=self.step.context, slots=self.slots
        )
