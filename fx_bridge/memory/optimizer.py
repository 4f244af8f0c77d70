"""PyTorch's own optimisers on parameters of a graph, with float32 masters of 16-bit ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Final

import torch
from torch import fx
from torch._ops import OpOverload

from solver import PartitionError

_DENSE_ONLY: Final = ("adam", "adamw")
_HALF: Final = (torch.float16, torch.bfloat16)


class OptimizerStep:
    """One step of an optimiser.

    With `master_weights`, parameters in 16 bits are updated one by one: the gradient is cast to
    float32, a float32 master is updated by its own optimiser and copied back. All others share
    one optimiser. Parameters without a gradient are skipped. With `foreach`, torch's optimisers
    update all parameters at once, with temporaries for all.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        optimizer: str,
        *,
        master_weights: bool,
        foreach: bool,
    ) -> None:
        make = _factory(optimizer, foreach)
        self._plain: dict[str, torch.Tensor] = {}
        self._mastered: dict[str, tuple[torch.Tensor, torch.Tensor, torch.optim.Optimizer]] = {}
        for name, parameter in parameters.items():
            if master_weights and parameter.dtype in _HALF:
                master = parameter.detach().to(torch.float32).requires_grad_()
                self._mastered[name] = parameter, master, make([master])
            else:
                self._plain[name] = parameter
        self._shared = make(list(self._plain.values())) if self._plain else None

    def masters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the float32 copies, by the name of the parameter."""
        for name, (_, master, _) in self._mastered.items():
            yield name, master

    def states(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors that the optimisers keep between steps, by parameter name."""
        owners = [(name, p, self._shared) for name, p in self._plain.items()]
        owners += [(name, master, own) for name, (_, master, own) in self._mastered.items()]
        for name, parameter, optimizer in owners:
            assert optimizer is not None
            for value in optimizer.state.get(parameter, {}).values():
                if isinstance(value, torch.Tensor):
                    yield name, value

    def run(self, begin: Callable[[str], None]) -> None:
        """Update all parameters; call `begin` with a name before each part of it."""
        if self._shared is not None:
            begin("step")
            self._shared.step()
        for name, (parameter, master, optimizer) in self._mastered.items():
            if parameter.grad is None:
                continue
            begin(name)
            master.grad = parameter.grad.to(torch.float32)
            optimizer.step()
            master.grad = None
            with torch.no_grad():
                parameter.copy_(master)


def check_sparse_gradients(module: fx.GraphModule, optimizer: object) -> None:
    """Raise PartitionError if the optimiser rejects sparse gradients, which embeddings may have."""
    if optimizer not in _DENSE_ONLY:
        return
    for node in module.graph.nodes:
        if _is_sparse(module, node):
            raise PartitionError(
                f"operator {node.name!r} has a sparse gradient, which torch's {optimizer} refuses; "
                "write sparse=False in its nn.Embedding, or train with sgd"
            )


def _is_sparse(module: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return bool(getattr(attrgetter(str(node.target))(module), "sparse", False))
    if not isinstance(node.target, OpOverload) or "embedding" not in str(node.target):
        return False
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return bool(given.get("sparse", False))


def _factory(
    optimizer: str, foreach: bool
) -> Callable[[list[torch.Tensor]], torch.optim.Optimizer]:
    if optimizer in ("sgd", "momentum"):
        momentum = 0.9 if optimizer == "momentum" else 0.0
        return partial(torch.optim.SGD, lr=1e-3, momentum=momentum, foreach=foreach)
    make = torch.optim.Adam if optimizer == "adam" else torch.optim.AdamW
    return partial(make, lr=1e-3, foreach=foreach)
