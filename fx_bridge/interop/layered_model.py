"""Models as one list of layers, with what is before and after it.

Layers are the outermost modules that a model repeats (:mod:`fx_bridge.capture.layers`), all of one
list. Operators that read parameters before the first layer are the *embedding*, those that read
some later are the *head*: norms, and the projection to the result. Operators without parameters,
such as masks and rotary positions, are not named: programs compute them where they need them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fx_bridge.capture.layers import layer_calls, repeated_modules
from fx_bridge.interop.stage_layers import LayerNames, StageLayers, is_host
from fx_bridge.presentation.modules import enclosing
from solver import PartitionError, PartitionPlan

if TYPE_CHECKING:
    from fx_bridge.capture.graph import CapturedGraph


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer: its path, and its operators in execution order."""

    path: str
    operators: tuple[str, ...]


class LayeredModel:
    """A captured model as one list of `layers`, with the modules before and after them.

    `outside` has the operators of no layer. A model without a list of layers, with several, or with
    a layer that is called several times is refused; errors name `program`.
    """

    def __init__(self, captured: CapturedGraph, program: str) -> None:
        from fx_bridge.capture.graph import check_captured

        check_captured(captured, "read the layers of", "capture(model, args)")
        self.captured, self.program = captured, program
        self._layer_of = layer_calls(captured, self._list_of_layers())
        members: dict[tuple[str, int], list[str]] = {}
        for name, call in self._layer_of.items():
            if call is not None:
                members.setdefault(call, []).append(name)
        self._check_called_once([path for path, _ in members])
        self.layers = tuple(Layer(path, tuple(own)) for (path, _), own in members.items())
        self.outside = tuple(name for name, call in self._layer_of.items() if call is None)
        order = list(self._layer_of)
        before = set(order[: order.index(self.layers[0].operators[0])])
        sides = [[n for n in self.outside if (n in before) is first] for first in (True, False)]
        self._ends = [tuple(filter(self._reads_parameters, side)) for side in sides]
        embedding, head = map(self._modules_of, sides)
        self.names = LayerNames(tuple(layer.path for layer in self.layers), embedding, head)

    def stages_of(self, plan: PartitionPlan) -> tuple[list[StageLayers], list[list[Layer]]]:
        """Return the stages of a plan, and the layers of each.

        A stage that has no layer and reads no parameter is left out. A layer or end that the plan
        divides, or a layer out of order, raises PartitionError.
        """
        own: list[list[Layer]] = [[] for _ in plan.stages]
        for layer in self.layers:
            own[self._stage_of(layer, plan)].append(layer)
        self._check_order([layer for layers in own for layer in layers], plan)
        first = self._stage_of_end(self._ends[0], self.layers[0], "before", plan)
        last = self._stage_of_end(self._ends[1], self.layers[-1], "after", plan)
        kept = [at for at, layers in enumerate(own) if layers or at in (first, last)]
        stages = [
            StageLayers(
                plan.stages[at].device, len(own[at]), at == first, at == last, plan.stages[at].chunk
            )
            for at in kept
        ]
        return stages, [own[at] for at in kept]

    def plan_of(self, stages: Sequence[StageLayers]) -> PartitionPlan:
        """Return the plan of stages that have all layers in order, and both ends.

        Operators outside of layers are with the embedding before the first layer, with the layer
        before them between layers, and with the head after the last.
        """
        of_layers = [stage for stage in stages for _ in range(stage.count)]
        stage_of = dict(zip(self.names.layers, of_layers, strict=True))
        now = next(stage for stage in stages if stage.has_embedding)
        head = next(stage for stage in stages if stage.has_head)
        last = self.layers[-1].operators[-1]
        places: dict[str, StageLayers] = {}
        parameters = set(self._ends[1])
        for name, call in self._layer_of.items():
            if call is not None:
                now = stage_of[call.path]
            places[name] = head if name in parameters else now
            if name == last:
                now = head
        return PartitionPlan(
            {name: stage.device for name, stage in places.items()},
            tuple(dict.fromkeys(stage.device for stage in stages)),
            {name: stage.chunk for name, stage in places.items() if stage.chunk},
        )

    def nearest_stages(self, plan: PartitionPlan) -> list[StageLayers]:
        """Return the nearest stages of whole layers: each layer where most of its operators are.

        The host comes first. The embedding is on the first stage, the head on the last.
        """
        counts: Counter[str] = Counter()
        for layer in self.layers:
            of = Counter(plan.assignment[name] for name in layer.operators)
            counts[of.most_common(1)[0][0]] += 1
        devices = sorted(filter(counts.get, plan.device_order), key=lambda d: not is_host(d))
        last = len(devices) - 1
        return [
            StageLayers(device, counts[device], at == 0, at == last)
            for at, device in enumerate(devices)
        ]

    def _list_of_layers(self) -> list[str]:
        """Return the paths of the layers; PartitionError unless they are of one list.

        Beside a ``ModuleList``, a ``Sequential`` that repeats modules is a part of the embedding or
        the head, such as a stem of convolutions.
        """
        members: dict[str, list[str]] = {}
        for path in repeated_modules(self.captured):
            members.setdefault(path.rpartition(".")[0], []).append(path)
        lists = members
        if len(members) > 1:
            # A Sequential is called, and a ModuleList is not.
            calls = {call.path for own in self.captured.modules.calls.values() for call in own}
            lists = {path: own for path, own in members.items() if path not in calls} or members
        if len(lists) != 1:
            has = f"lists {' and '.join(map(repr, lists))}" if lists else "none that repeat"
            raise PartitionError(
                f"{self.program} has one list of layers, and the model has {has}; hand it over as "
                "a split specification or as modules"
            )
        return next(iter(lists.values()))

    def _check_called_once(self, paths: Sequence[str]) -> None:
        for path in paths:
            if paths.count(path) > 1:
                raise PartitionError(
                    f"layer {path!r} is called several times, and {self.program} calls each once; "
                    "hand it over as a split specification or as modules"
                )

    def _reads_parameters(self, name: str) -> bool:
        from torch import nn

        table = self.captured.storage_table
        return any(
            isinstance(tensor, nn.Parameter)
            for key in table.weights_read.get(name, ())
            for tensor in table.weights[key].tensors
        )

    def _modules_of(self, operators: Sequence[str]) -> tuple[str, ...]:
        """Return the outermost modules of operators that hold no layer."""
        around = {prefix for layer in self.layers for prefix in enclosing(layer.path)}
        calls = self.captured.modules.calls
        found = (
            next((call.path for call in calls[name] if call.path not in around), None)
            for name in operators
        )
        return tuple(dict.fromkeys(path for path in found if path is not None))

    def _stage_of(self, layer: Layer, plan: PartitionPlan) -> int:
        index = plan.stage_index
        first = {index[name]: name for name in reversed(layer.operators)}
        if len(first) > 1:
            where = " and ".join(
                f"{plan.stages[stage]} ({first[stage]!r})" for stage in sorted(first)
            )
            raise PartitionError(
                f"the plan divides layer {layer.path!r} between {where}, and {self.program} has "
                f"whole layers; plan with Placement(keep_whole=[{layer.path!r}])"
            )
        return next(iter(first))

    def _check_order(self, found: Sequence[Layer], plan: PartitionPlan) -> None:
        for layer, expected in zip(found, self.layers, strict=True):
            if layer is not expected:
                raise PartitionError(
                    f"layer {layer.path!r} is on {plan.stage_of(layer.operators[0])}, before "
                    f"{expected.path!r}, and {self.program} has layers in order; plan with "
                    "solver='chain'"
                )

    def _stage_of_end(
        self, names: Sequence[str], layer: Layer, side: str, plan: PartitionPlan
    ) -> int:
        """Return the stage of the operators that read parameters on a side of the layers."""
        index = plan.stage_index
        first = {index[name]: name for name in reversed(names)}
        if len(first) > 1:
            one, other = sorted(first)[:2]
            raise PartitionError(
                f"operator {first[other]!r}, {side} the layers, is on {plan.stages[other]} and "
                f"{first[one]!r} on {plan.stages[one]}, and {self.program} has them on one stage; "
                "keep them together"
            )
        return next(iter(first), index[layer.operators[0]])
