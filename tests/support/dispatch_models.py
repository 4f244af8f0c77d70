"""A small model with residual sums, and a record of the devices that its functions run on."""

from collections import Counter

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

TOKENS = (torch.randint(0, 10, (2, 4)),)
KINDS = ("embedding", "linear", "add", "mul", "relu", "arange", "layer_norm")


class Norm(nn.LayerNorm):
    """Converts its input as those of published models do, here to the dtype that it has."""

    def forward(self, x):
        return super().forward(x.to(torch.float32))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Norm(8)
        self.up = nn.Linear(8, 16)
        self.act = nn.ReLU()
        self.down = nn.Linear(16, 8)
        self.drop = nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x, bias):
        y = self.down(self.act(self.up(self.norm(x))))
        return self.drop(y) * self.scale + y + x + bias


class Net(nn.Module):
    def __init__(self, count=3):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.positions = nn.Parameter(torch.ones(4, 8))
        self.blocks = nn.ModuleList([Block() for _ in range(count)])
        self.head = nn.Linear(8, 10)
        self.eval()

    def forward(self, tokens):
        steps = torch.arange(4, device=tokens.device)
        x = self.embed(tokens) + self.positions
        bias = (steps * 0.5)[:, None]
        for block in self.blocks:
            x = block(x, bias)
        return self.head(x).relu()


def make():
    """The model that a command is given."""
    return Net(3).eval(), TOKENS


class Record(TorchFunctionMode):
    """Notes the kind and the device of every call of a torch function that makes a tensor."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.__name__ in KINDS:
            self.calls.append((func.__name__, result.device.type))
        return result


def kind_of(node):
    return str(node.target).split(".")[1] if "." in str(node.target) else node.name


def stages_of_torch(pipe):
    """The operators of the stages of a pipeline of torch."""
    stages = []
    for stage in pipe.split_gm.children():
        graphs = [part.graph for part in stage.modules() if hasattr(part, "graph")]
        nodes = (n for graph in graphs for n in graph.nodes if n.op == "call_function")
        # It takes tuples of values apart with getitem between its own submodules.
        stages.append(Counter(str(n.target) for n in nodes if "getitem" not in str(n.target)))
    return stages


def stages_of_plan(captured, plan):
    stages = [Counter() for _ in plan.stages]
    for node in captured.operators:
        if "getitem" not in str(node.target):
            stages[plan.stage_index[node.name]][str(node.target)] += 1
    return stages
