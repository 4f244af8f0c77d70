"""Models with custom autograd code or unusual operators, and models without a graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from experiments.zoo.builders import Configuration, Made, library


def _stack(middle: Any, *, width: int = 32) -> Any:
    return nn.Sequential(nn.Linear(width, width), middle, nn.Linear(width, width), nn.ReLU())


def _functional(forward: Callable[..., Any]) -> Any:
    class Calls(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return forward(x)

    return Calls()


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def _straight_through() -> Made:
    """Return a net with straight-through rounding (Bengio et al., 2013)."""
    return _stack(_functional(_Round.apply)), (torch.randn(4, 32),), {}


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -ctx.scale * gradient, None


def _reversal() -> Made:
    """Return a net with a layer that reverses gradients (Ganin and Lempitsky, 2015)."""
    function: Any = _Reverse
    reverse = _functional(lambda x: function.apply(x, 0.5))
    return _stack(reverse), (torch.randn(4, 32),), {}


class _Nearest(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, codes: torch.Tensor) -> Any:
        chosen = torch.cdist(x, codes).argmin(-1)
        ctx.save_for_backward(chosen, codes)
        ctx.mark_non_differentiable(chosen)
        return codes[chosen], chosen

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> Any:
        chosen, codes = ctx.saved_tensors
        return gradient, torch.zeros_like(codes).index_add_(0, chosen, gradient)


class _Quantiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(8, 32))

    def forward(self, x: torch.Tensor) -> Any:
        function: Any = _Nearest
        return function.apply(x, self.codes)[0]


def _codebook() -> Made:
    """Return a vector quantiser (van den Oord et al., 2017) with its own backward pass."""
    return _stack(_Quantiser()), (torch.randn(4, 32),), {}


class _FlexAttention(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.project = nn.Linear(32, 96)
        self.mask: Any = None
        if kind == "mask":
            self.mask = create_block_mask(_causal, None, None, 128, 128, device="cpu")

    def forward(self, x: torch.Tensor) -> Any:
        heads = (
            part.unflatten(-1, (2, 16)).transpose(1, 2) for part in self.project(x).chunk(3, -1)
        )
        attend: Any = flex_attention
        if self.mask is not None:
            result = attend(*heads, block_mask=self.mask)
        else:
            result = attend(*heads, score_mod=_distance)
        return result.transpose(1, 2).flatten(2)


def _distance(score: Any, batch: Any, head: Any, query: Any, key: Any) -> Any:
    return score - (query - key).abs()


def _causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query >= key


def _flex(kind: str) -> Made:
    layers = nn.Sequential(_FlexAttention(kind), _FlexAttention(kind))
    return layers, (torch.randn(1, 128, 32),), {}


class _PackedRecurrence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.recurrence = nn.GRU(16, 16, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> Any:
        pack, pad = nn.utils.rnn.pack_padded_sequence, nn.utils.rnn.pad_packed_sequence
        packed = pack(x, lengths, batch_first=True, enforce_sorted=False)
        return pad(self.recurrence(packed)[0], batch_first=True)[0]


def _packed_sequence() -> Made:
    return _PackedRecurrence(), (torch.randn(3, 8, 16), torch.tensor([8, 5, 3])), {}


class _GraphNetwork(nn.Module):
    def __init__(self, layer: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for each in self.layers:
            x = each(x, edges).relu()
        return x


def _graph_network(layer: str) -> Made:
    """Return three layers of message passing on a graph of 12 nodes."""
    network = _GraphNetwork(getattr(library("torch_geometric.nn"), layer))
    return network, (torch.randn(12, 16), torch.randint(0, 12, (2, 40))), {}


# -- models that capture must refuse ----------------------------------------------------------


def _branch() -> Made:
    return _stack(_functional(lambda x: x if x.sum() > 0 else -x)), (torch.randn(4, 32),), {}


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(32, 4)
        self.experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        chosen, result = self.gate(x).argmax(-1), torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            selected = chosen == index
            if selected.any():
                result[selected] = expert(x[selected])
        return result


def _experts() -> Made:
    return _Experts(), (torch.randn(8, 32),), {}


def _script() -> Made:
    return _stack(torch.jit.script(_stack(nn.Tanh()))), (torch.randn(4, 32),), {}


def _named(
    name: str,
    factory: Callable[[], Made],
    package: str | None = None,
    *,
    constants: tuple[str, ...] = (),
    trained: bool = True,
) -> Configuration:
    return Configuration(name, "own code", factory, package, "cpu", constants, trained)


CONFIGURATIONS: Final = (
    _named("straight-through", _straight_through),
    _named("gradient-reversal", _reversal),
    _named("vector-quantiser", _codebook),
    _named("flex-attention-score", partial(_flex, "score"), trained=False),
    _named("flex-attention-mask", partial(_flex, "mask"), trained=False),
    _named("packed-sequence", _packed_sequence, constants=("lengths",)),
    _named("graph-convolution", partial(_graph_network, "GCNConv"), "torch_geometric"),
    _named("graph-attention", partial(_graph_network, "GATConv"), "torch_geometric"),
    _named("graph-sage", partial(_graph_network, "SAGEConv"), "torch_geometric"),
    _named("branch-on-data", _branch),
    _named("experts-if-any", _experts),
    _named("scripted-part", _script),
)
