"""Run the positions of a pipeline one after another in one process, without a process group."""

from typing import Any

import torch
from torch import fx, nn

from fx_bridge.capture.graph import placeholder_values
from fx_bridge.pipeline.interfaces import stage_interfaces
from fx_bridge.pipeline.p2p import passed_values
from fx_bridge.pipeline.stage_module import StageModule, StepData
from fx_bridge.pipeline.unsplit import captured_of
from fx_bridge.split.reader import stage_graph
from tests.support.separated import copied


def returned_weights(split: fx.GraphModule) -> dict[str, str]:
    """Return the paths of the weights that a split returns unchanged."""
    return {node.name: str(node.target) for node in split.graph.find_nodes(op="get_attr")}


class Chain(nn.Module):
    """A split as a chain of positions that share nothing but what is sent along."""

    def __init__(self, split: fx.GraphModule) -> None:
        super().__init__()
        self.captured = captured_of(split)
        graph = stage_graph(split, self.captured)
        self.interfaces = stage_interfaces(graph, split.meta["plan"], returned_weights(split))
        passed = passed_values(
            self.captured,
            {name for position in self.interfaces.positions for name in position.sends},
            training=True,
        )
        self.meta = {"stages": split.meta["stages"]}
        # Whatever happens at a position happens to weights of its own.
        own = copied(split)
        stages = {name: copied(split.get_submodule(name)) for name in split.meta["stages"]}
        self.step = StepData()
        last = len(self.interfaces.positions) - 1
        # In lists, so that their names in the chain are those of the stages.
        self.modules_in_order = [
            [
                StageModule(
                    at, stages.get(at.stage), own, passed, self.step, is_last=at.position == last
                )
            ]
            for at in self.interfaces.positions
        ]
        for [module] in self.modules_in_order:
            if module.stage is not None:
                self.add_module(str(module.position.stage), module.stage)
            for name, weight in module.weights.named_parameters():
                self.register_parameter(name.replace(".", "_"), weight)
        self.sent: list[tuple[torch.Tensor, ...]] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        names = [node.name for node in self.captured.graph.find_nodes(op="placeholder")]
        values = placeholder_values(self.captured, args, kwargs)
        self.step.inputs = [dict(zip(names, values, strict=False))]
        self.step.outputs = [None]
        self.sent = []
        passing: tuple[torch.Tensor, ...] = ()
        for [module] in self.modules_in_order:
            passing = module(*passing, microbatch=torch.tensor([0]))
            examples = [module.passed[name].example() for name in module.position.sends]
            assert [t.shape for t in passing] == [e.shape for e in examples]
            assert all(t.is_contiguous() for t in passing)
            self.sent.append(passing)
            passing = tuple(
                tensor.clone() if example.requires_grad else tensor.detach().clone()
                for tensor, example in zip(passing, examples, strict=True)
            )
        return self.step.outputs[0]
