"""Models with plans, run by the workers of ``test_processes.py`` and in one process beside them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from fx_bridge.capture.graph import CapturedGraph, capture
from solver import Interconnect, PartitionPlan, PartitionProblem
from tests.support.recomputed_stages import random_decisions, training_problem

BATCH = 2
"""Samples of a microbatch."""


@dataclass(frozen=True)
class Case:
    """One pipeline.

    Attributes
    ----------
    model : callable
        Makes the module, in float64, so that only a real difference is one.
    inputs : callable
        Of the number of samples: positional and keyword inputs.
    cuts : tuple of float
        Where a new position begins, as parts of the operators; empty parts make empty positions.
    ranks, rounds, microbatches : int
    schedule : str
    loss : callable or None
        Of the outputs and the target; without, only forward passes are run.
    same_as_whole_batch : bool
        Gradients are those of the model itself on the whole batch.
    autocast : bool
        Capture the model and run the steps under autocast; the model is in float32.
    recompute : bool
        Let all operators run again in the backward pass that may.
    """

    model: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]]
    cuts: tuple[float, ...]
    ranks: int = 2
    rounds: int = 1
    microbatches: int = 4
    schedule: str = "1f1b"
    loss: Callable[[Any, Any], torch.Tensor] | None = functional.mse_loss
    tied_weights: str = "colocate"
    same_as_whole_batch: bool = True
    autocast: bool = False
    recompute: bool = False

    def precision(self, device_type: str = "cpu") -> torch.autocast:
        return torch.autocast(device_type, torch.bfloat16, enabled=self.autocast)

    def captured(self, device_type: str = "cpu") -> CapturedGraph:
        torch.manual_seed(0)
        args, kwargs = self.inputs(BATCH)
        with self.precision(device_type):
            return capture(self.model(), args, kwargs)

    def plan(self, captured: CapturedGraph) -> PartitionPlan:
        names = [node.name for node in captured.operators]
        starts = [0, *(round(cut * len(names)) for cut in self.cuts)]
        devices = [f"d{rank}" for rank in range(self.ranks)]
        place = [max(p for p, s in enumerate(starts) if s <= at) for at in range(len(names))]
        return PartitionPlan(
            {name: devices[p % self.ranks] for name, p in zip(names, place, strict=True)},
            tuple(d for r, d in enumerate(devices) if any(p % self.ranks == r for p in place)),
            {name: p // self.ranks for name, p in zip(names, place, strict=True)},
        )

    def recomputed(
        self, captured: CapturedGraph, plan: PartitionPlan
    ) -> tuple[PartitionProblem, PartitionPlan]:
        """Return the problem of a pipeline, and the plan with what runs again."""
        problem = training_problem(
            captured,
            plan.device_order,
            microbatches=self.microbatches,
            schedule=self.schedule,
            chunks_per_device=self.rounds,
            interconnect=Interconnect(charging="relayed"),
        )
        return problem, replace(plan, recomputed=random_decisions(problem, plan, 0, 1.0))

    def batch(self) -> tuple[tuple[Any, ...], dict[str, Any], torch.Tensor]:
        torch.manual_seed(1)
        count = BATCH * self.microbatches
        args, kwargs = self.inputs(count)
        return args, kwargs, torch.randn(count, 4)


def chain() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 6), nn.Linear(6, 4)
    )


def mixed() -> nn.Module:
    """Return float32 layers with a region in another precision, for autocast."""
    return nn.Sequential(nn.Linear(4, 6), Upcast(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).to(
        torch.float32
    )


class Upcast(nn.Module):
    def forward(self, x):
        return x.to(torch.float32).softmax(-1).to(x.dtype)


def layers(count: int) -> Callable[[], nn.Module]:
    """Return what makes layers with views, writers in place, and statistics."""
    return lambda: nn.Sequential(*(Layer() for _ in range(count)))


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(4, 16), nn.BatchNorm1d(8), nn.Linear(8, 4)

    def forward(self, x):
        left, right = self.up(x).chunk(2, -1)
        return x + self.down(self.norm(left.tanh() * right).relu_()).sigmoid()


class Skips(nn.Module):
    """Values that pass by one and by two stages, and one that is read on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))

    def forward(self, x):
        a = self.layers[0](x).tanh()
        b = self.layers[1](a).tanh()
        c = self.layers[2](b) * a
        d = self.layers[3](c).tanh()
        e = self.layers[4](d) + a * b
        return self.layers[5](e) + a + c.transpose(0, 1).sin().transpose(0, 1)


class Tied(nn.Module):
    """An embedding that is also the head, with an integer sum of tokens that crosses stages."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(7, 4)
        self.body = nn.Linear(4, 4)
        self.more = nn.Linear(4, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.more(self.body(self.wte(tokens)).tanh())
        return self.head(x).mean(1)[:, :4]


def tied():
    """Return the model and its inputs, for a command line."""
    return Tied(), tokens(BATCH)[0]


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(3)
        self.second = nn.Linear(3, 4)
        self.other = nn.BatchNorm1d(4, momentum=0.3)
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.other(self.second(self.norm(self.first(x)).relu())))


class Integers(nn.Module):
    """int64 and bool tensors, one made from floats, cross stages; the first is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 5).requires_grad_(False)
        self.table = nn.Embedding(5, 4)
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        scores = self.frozen(x)
        best = scores.argmax(1)
        positive = scores[:, :4] > 0
        y = self.table(best)
        z = self.last(y).masked_fill(positive, 0.5)
        return z + best[:, None] * y, best


class Outputs(nn.Module):
    """All kinds of outputs, with inputs by keyword, one of them the same for all samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.rand(4))
        self.unused = nn.Parameter(torch.rand(3))
        self.last = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, *, table, mask=None, factor=2.0):
        self.calls.add_(1)
        early = self.first(x).tanh() * self.scale
        late = self.last(early * factor + table)
        late = late if mask is None else late.masked_fill(mask, 0.0)
        return {
            "late": late,
            "parts": (early, [x, None, 3]),
            "mean": late.mean(),
            "scale": self.scale,
            "unused": self.unused,
            "table": table,
            "calls": self.calls,
        }


class Returned(nn.Module):
    """What is trained, frozen or given is returned from its first stage, as it is and as views."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 4)
        self.register_buffer("ids", torch.arange(4))

    def forward(self, x):
        weight, turned = self.first.weight, self.first.weight.t()
        early = (x @ turned + self.ids[0]).tanh()
        late = self.last(early)
        return late, weight, turned[0], self.first.bias, weight, self.ids, early.detach(), late, x


def _loss_of_outputs(outputs, target):
    late = functional.mse_loss(outputs["late"], target)
    return (
        late
        + outputs["parts"][0].square().mean()
        + outputs["scale"].sum() * 0.1
        + (outputs["unused"].square().sum())
    )


def rows(count):
    return (torch.randn(count, 4),), {}


def float32_rows(count):
    return (torch.randn(count, 4, dtype=torch.float32),), {}


def tokens(count):
    return (torch.randint(0, 7, (count, 3)),), {}


def keywords(count):
    return (torch.randn(count, 4),), {"table": torch.randn(4), "mask": torch.rand(count, 4) > 0.7}


def first_output(outputs, target):
    return functional.mse_loss(outputs[0], target)


CASES = {
    "chain, gpipe": Case(chain, rows, (0.5,), schedule="gpipe"),
    "chain, 1f1b": Case(chain, rows, (0.4,), microbatches=3),
    "one rank, one microbatch": Case(chain, rows, (), ranks=1, microbatches=1),
    "skips, gpipe": Case(Skips, rows, (0.3, 0.7), ranks=3, schedule="gpipe"),
    "skips, 1f1b": Case(Skips, rows, (0.2, 0.6), ranks=3, microbatches=5),
    "skips, interleaved": Case(Skips, rows, (0.2, 0.5, 0.7), rounds=2),
    "skips, looped": Case(Skips, rows, (0.2, 0.5, 0.7), rounds=2, schedule="gpipe"),
    "skips, interleaved, three ranks": Case(
        Skips, rows, (0.2, 0.3, 0.5, 0.6, 0.8), ranks=3, rounds=2, microbatches=6
    ),
    "empty positions": Case(Skips, rows, (0.0, 0.4, 0.4, 0.7, 0.7), ranks=3, rounds=2,
                            microbatches=3),
    "tied, one rank": Case(Tied, tokens, (0.5, 0.5, 0.9), rounds=2, microbatches=2),
    "tied, summed": Case(Tied, tokens, (0.3, 0.6), ranks=3, microbatches=3, tied_weights="sum"),
    "tied, summed, gpipe": Case(
        Tied, tokens, (0.4,), schedule="gpipe", microbatches=2, tied_weights="sum"
    ),
    "tied, summed, interleaved": Case(
        Tied, tokens, (0.2, 0.4, 0.7), rounds=2, microbatches=4, tied_weights="sum"
    ),
    "autocast, 1f1b": Case(mixed, float32_rows, (0.2, 0.6), ranks=3, microbatches=3,
                           same_as_whole_batch=False, autocast=True),
    "batch norm, gpipe": Case(Norm, rows, (0.5,), schedule="gpipe", same_as_whole_batch=False),
    "batch norm, 1f1b": Case(Norm, rows, (0.3, 0.6), ranks=3, same_as_whole_batch=False),
    "batch norm, interleaved": Case(
        Norm, rows, (0.25, 0.5, 0.75), rounds=2, same_as_whole_batch=False
    ),
    "integers, 1f1b": Case(Integers, rows, (0.5,), loss=first_output),
    "integers, gpipe": Case(
        Integers, rows, (0.35, 0.65), ranks=3, schedule="gpipe", loss=first_output
    ),
    "forward only, 1f1b": Case(Skips, rows, (0.2, 0.6), ranks=3, loss=None),
    "forward only, interleaved": Case(Skips, rows, (0.2, 0.5, 0.7), rounds=2, loss=None),
    "forward only, looped": Case(
        Integers, rows, (0.2, 0.5, 0.7), rounds=2, schedule="gpipe", loss=None
    ),
    "forward only, outputs": Case(Outputs, keywords, (0.3, 0.6), ranks=3, loss=None),
    "forward only, returned": Case(Returned, rows, (0.8,), loss=None),
    "forward only, returned, looped": Case(
        Returned, rows, (0.6, 0.8, 0.9), rounds=2, schedule="gpipe", loss=None
    ),
    "outputs, 1f1b": Case(Outputs, keywords, (0.3, 0.6), ranks=3, loss=_loss_of_outputs),
    "run again, gpipe": Case(
        layers(2), rows, (0.52,), schedule="gpipe", same_as_whole_batch=False, recompute=True
    ),
    "run again, 1f1b": Case(
        layers(2), rows, (0.4,), microbatches=5, same_as_whole_batch=False, recompute=True
    ),
    "run again, interleaved": Case(
        layers(4), rows, (0.25, 0.5, 0.75), rounds=2, same_as_whole_batch=False, recompute=True
    ),
    "outputs, interleaved": Case(
        Outputs, keywords, (0.2, 0.4, 0.7), rounds=2, loss=_loss_of_outputs
    ),
}  # fmt: skip
